/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Chooses the thread of a process that is to make calls, and stops it.

   One that waits anyhow is not missed.  What a thread waits in decides how well it can be taken out: the kernel
   lets a futex and a sleep begin again by itself; epoll_wait is made to (tracee.c).  Two kinds of call are left
   alone, because the program would see that it was interrupted: what writes returns how far it came, and what
   connect began goes on without it.

   io_uring and vhost have workers among the tasks of a process.  They are the kernel's: none of the program's
   instructions runs in them, and what one does for the program ends with an error that no program may see if it is
   stopped.  So they are no threads to us. */
#include "live-thread.h"
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* So many are tried before the process counts as one without any. */
#define TRIES_MAX 16
/* How often, and after which pause, threads that are in the wrong call are looked at again. */
#define LOOKS_MAX 10
#define PAUSE_NS 50000000L
/* How often all threads are looked for until none is new; who makes threads faster than that wants to hide. */
#define ROUNDS_MAX 100

/* include/linux/sched.h.  PF_USER_WORKER is there since Linux 6.4; in 5.16 and older the number says of modprobe(8)'s
   thread that it loads a module. */
#define PF_IO_WORKER 0x10u
#define PF_USER_WORKER 0x4000u

enum rank {
    RANK_SLEEPS,
    RANK_WAITS,
    RANK_RUNS,
    RANK_EINTR,
    RANK_STUCK, /* it waits for a disk, or for a child of vfork to execute something: it stops when that is over */
    RANK_UNFIT
};

struct candidate {
    pid_t tid;
    enum rank rank;
    bool has_filter;
};

struct candidates {
    size_t n;
    struct candidate *candidate;
};

static FILE *open_of_thread(const struct hl_process *process, pid_t tid, const char *name) {
    char *path = hl_format("task/%d/%s", tid, name);
    int fd = hl_open_process_file(process, path);
    free(path);
    return fd >= 0 ? fdopen(fd, "r") : NULL;
}

static enum rank rank_call(long number, const unsigned long argument[6]) {
    switch (number) {
    case SYS_futex:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
        return RANK_SLEEPS;
    case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
    case SYS_rt_sigtimedwait:
    case SYS_semtimedop:
    case SYS_restart_syscall:
        return RANK_EINTR;
    case SYS_connect:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_pwritev2:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_sendfile:
    case SYS_splice:
    case SYS_tee:
    case SYS_vmsplice:
    case SYS_copy_file_range:
    case SYS_getrandom:
        return RANK_UNFIT;
    case SYS_recvfrom:
        return argument[3] & MSG_WAITALL ? RANK_UNFIT : RANK_WAITS;
    case SYS_recvmsg:
        return argument[2] & MSG_WAITALL ? RANK_UNFIT : RANK_WAITS;
    case SYS_recvmmsg:
        return argument[2] != 1 ? RANK_UNFIT : RANK_WAITS;
    default:
        return RANK_WAITS;
    }
}

/* "running", or "CALL ARGUMENTS SP PC", or "-1 SP PC" for one that waits outside of a call. */
static enum rank read_rank(const struct hl_process *process, pid_t tid) {
    char text[256] = "";
    long number;
    unsigned long a[6] = {0};
    FILE *file = open_of_thread(process, tid, "syscall");
    if (file == NULL)
        return RANK_RUNS;
    bool any = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    if (!any ||
        sscanf(text, "%ld %lx %lx %lx %lx %lx %lx", &number, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]) != 7 ||
        number < 0)
        return RANK_RUNS;
    return rank_call(number, a);
}

/* Whether TID is a thread of the program's own. */
static bool is_of_program(const struct hl_process *process, pid_t tid) {
    char *line = NULL;
    size_t size = 0;
    unsigned flags = PF_IO_WORKER;
    FILE *stat = open_of_thread(process, tid, "stat");
    ssize_t bytes = stat != NULL ? getdelim(&line, &size, '\0', stat) : -1;
    const char *at = bytes > 0 ? strrchr(line, ')') : NULL; /* a name may hold newlines and parentheses */
    bool is_known = at != NULL && sscanf(at, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1;
    free(line);
    if (stat != NULL)
        fclose(stat);
    return is_known && !(flags & (PF_IO_WORKER | PF_USER_WORKER));
}

static bool read_candidate(struct candidate *candidate, const struct hl_process *process, pid_t tid) {
    char line[256], state = 'X';
    int filter = 0;
    FILE *status = open_of_thread(process, tid, "status");
    if (status == NULL)
        return false;
    while (fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "Seccomp: %d", &filter);
    }
    fclose(status);
    *candidate = (struct candidate){tid, read_rank(process, tid), filter != 0};
    if (state == 'D' && candidate->rank != RANK_UNFIT)
        candidate->rank = RANK_STUCK;
    return state != 'Z' && state != 'X';
}

static int compare_candidates(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return (int)x->rank - (int)y->rank;
}

static void find_candidates(struct candidates *all, const struct hl_process *process) {
    int fd = openat(process->folder, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    *all = (struct candidates){0, NULL};
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        struct candidate candidate;
        pid_t tid = hl_parse_pid(entry->d_name);
        if (tid == 0 || !is_of_program(process, tid) || !read_candidate(&candidate, process, tid))
            continue;
        all->candidate = hl_resize(all->candidate, (all->n + 1) * sizeof candidate);
        all->candidate[all->n++] = candidate;
    }
    if (folder != NULL)
        closedir(folder);
    if (all->n > 1)
        qsort(all->candidate, all->n, sizeof *all->candidate, compare_candidates);
}

/* Whether TID is a thread of PROCESS still, and its number is not another's now. */
static bool is_of_process(const struct hl_process *process, pid_t tid) {
    char *path = hl_format("task/%d", tid);
    bool is_there = faccessat(process->folder, path, F_OK, 0) == 0;
    free(path);
    return is_there;
}

static int take(struct hl_tracee *tracee, const struct candidate *candidate, const struct hl_gadgets *gadgets,
                const struct hl_process *process) {
    struct hl_process now = {.folder = -1};
    int result = hl_stop_tracee(tracee, process->pid, candidate->tid, candidate->has_filter, true);
    if (result == 0 && !is_of_process(process, candidate->tid))
        result = -ESRCH;
    if (result == 0)
        result = hl_read_mappings(&now, process);
    if (result == 0)
        result = hl_arm_tracee(tracee, gadgets, &now);
    if (result != 0)
        hl_release_tracee(tracee);
    hl_close_process(&now);
    return result;
}

/* Tries one after the other. */
static int take_one(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                    const struct hl_process *process) {
    struct candidates all;
    int first = 0;
    find_candidates(&all, process);
    for (size_t i = 0; i < all.n && i < TRIES_MAX; i++) {
        int result = all.candidate[i].rank == RANK_UNFIT ? HL_SKIP_LIVE_UNFIT
                                                         : take(tracee, &all.candidate[i], gadgets, process);
        if (first == 0 || first == -ESRCH || result == 0)
            first = result;
        if (result == 0 || result == -EPERM || result == HL_SKIP_LIVE_STOPPED ||
            result == HL_SKIP_MAPPING_CHANGED)
            break;
    }
    bool any = all.n > 0;
    free(all.candidate);
    return any ? first : -ESRCH;
}

int hl_take_thread(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                   const struct hl_process *process) {
    int result = HL_SKIP_LIVE_UNFIT;
    for (unsigned i = 0; i < LOOKS_MAX && result == HL_SKIP_LIVE_UNFIT; i++) {
        if (i > 0)
            nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        result = take_one(tracee, gadgets, process);
    }
    return result;
}

/* --- the others --- */

static bool is_held(const struct hl_tracee *others, size_t n, pid_t tid) {
    for (size_t i = 0; i < n; i++)
        if (others[i].tid == tid)
            return true;
    return false;
}

/* Stops one of them.  Who waits in the kernel for long stops before it runs on, and needs no waiting for. */
static int hold(struct hl_tracee **others, size_t *n, const struct hl_process *process,
                const struct candidate *candidate) {
    if (candidate->rank == RANK_UNFIT)
        return HL_SKIP_LIVE_UNFIT;
    *others = hl_resize(*others, (*n + 1) * sizeof **others);
    int result =
        hl_stop_tracee(&(*others)[*n], process->pid, candidate->tid, false, candidate->rank != RANK_STUCK);
    if (result == -ESRCH)
        return 0;
    (*n)++;
    return result == HL_SKIP_LIVE_BUSY && candidate->rank == RANK_STUCK ? 0 : result;
}

/* Threads may come while threads are being stopped, until none is left that could make one. */
int hl_stop_others(struct hl_tracee **others, size_t *n, const struct hl_process *process,
                   const struct hl_tracee *taken) {
    bool is_new = true;
    *others = NULL;
    *n = 0;
    for (unsigned round = 0; round < ROUNDS_MAX && is_new; round++) {
        struct candidates all;
        find_candidates(&all, process);
        int result = 0;
        is_new = false;
        for (size_t i = 0; i < all.n && result == 0; i++) {
            const struct candidate *candidate = &all.candidate[i];
            if (candidate->tid == taken->tid || is_held(*others, *n, candidate->tid))
                continue;
            is_new = true;
            result = hold(others, n, process, candidate);
        }
        free(all.candidate);
        if (result != 0)
            return result;
    }
    return is_new ? HL_SKIP_LIVE_BUSY : 0;
}

void hl_release_others(struct hl_tracee *others, size_t n) {
    for (size_t i = 0; i < n; i++)
        hl_release_tracee(&others[i]);
    free(others);
}
