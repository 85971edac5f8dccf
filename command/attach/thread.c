/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stops the first thread of a process, so that it can make calls; and stops all others.

   The program does not notice that a sleeping thread stands still.  It would notice that a call was interrupted, except for the
   calls in trace/calls.c, so only a thread that sleeps in one of those is interrupted.  PTRACE_INTERRUPT knows no such condition,
   so the thread's call is read again right before; in the microseconds between these two it may still begin another call.  A
   running thread begins calls all the time, so it is interrupted only on request.

   io_uring and vhost have workers among the tasks of a process.  They are the kernel's: they run none of the program's
   instructions, and if one is stopped, its work ends with an error that no program may see.  So they are not counted as threads.

   Another thread may execute a program, possibly one with more privileges than its caller: all other threads end then, and it
   gets the number of the first thread, which makes calls for us. ptrace(2) knows threads by their numbers, and would give that
   program the old program's registers.  So the thread that makes calls and all others are traced by two threads of ours: neither
   can act on the threads of the other.  The second ends when the others are let go, and the kernel then lets go of any thread
   that it still traces. */
#include "command/attach/thread.h"
#include "command/base/common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A thread may be interrupted this many times in another call than it was seen in, which it may notice (AArch64). */
#define MISSES_MAX 2
/* How long threads are looked at until the first is fit, or all are, and the pause between two looks. */
#define LOOK_MS 500.0
#define PAUSE_NS 1000000L
/* The same while all others stand still already. */
#define STANDING_MS 20.0
#define STANDING_PAUSE_NS 100000L
/* How often all threads are listed until none is new; a process that makes threads faster than that wants to hide. */
#define ROUNDS_MAX 100
/* include/linux/sched.h.  PF_USER_WORKER exists since Linux 6.4; in 5.16 and older the number marks the thread of modprobe(8)
   that loads a module. */
#define PF_IO_WORKER 0x10u
#define PF_USER_WORKER 0x4000u

/* A thread, and how it was last seen. */
struct hl_thread {
    struct hl_tracee tracee;
    unsigned round; /* the last round in which it was there */
    unsigned misses;
    bool is_seen;
    int unfit; /* why it is not interrupted, or 0 */
    bool runs, has_filter;
    enum hl_again again; /* how the call in which it sleeps begins again */
    struct hl_call call;
    char text[192]; /* the text of its file "syscall" */
};

/* --- one thread --- */

/* Reads the thread's file NAME into TEXT, terminated by a zero.  Whether it has any bytes. */
static bool read_of_thread(char *text, size_t bytes, const struct hl_process *process, pid_t tid,
                           const char *name) {
    char *path = hl_xasprintf("task/%d/%s", tid, name);
    int fd = hl_open_process_file(process, path);
    ssize_t n = fd >= 0 ? read(fd, text, bytes - 1) : -1;
    free(path);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Its state; 'X' if it is no thread of the program's own, or has ended. */
static char read_state(const struct hl_process *process, pid_t tid) {
    char text[1024], state;
    unsigned flags;
    read_of_thread(text, sizeof text, process, tid, "stat");
    const char *at = strrchr(text, ')'); /* a name may hold newlines and parentheses */
    if (at == NULL || sscanf(at, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2 ||
        (flags & (PF_IO_WORKER | PF_USER_WORKER)))
        return 'X';
    return state;
}

static bool read_has_filter(const struct hl_process *process, pid_t tid) {
    struct hl_task_status status;
    hl_read_thread_status(&status, process->pid, tid);
    return status.filter_mode != 0;
}

/* Whether the thread may be waiting for a supervisor (seccomp's user notification) instead of in the call itself. */
static bool awaits_supervisor(const struct hl_process *process, pid_t tid) {
    char text[128];
    return !read_of_thread(text, sizeof text, process, tid, "wchan") || strcmp(text, "0") == 0 ||
           strstr(text, "seccomp") != NULL;
}

/* Judges the thread by its text: "running", or "CALL ARGUMENTS SP PC", or "-1 SP PC" for one that waits outside of a call. */
static void judge(struct hl_thread *thread, const struct hl_threads *threads) {
    const struct hl_process *process = threads->process;
    pid_t tid = thread->tracee.tid;
    uint64_t pc, *a = thread->call.argument;
    int n = sscanf(thread->text, "%ld %lx %lx %lx %lx %lx %lx %*x %lx", &thread->call.number, &a[0], &a[1],
                   &a[2], &a[3], &a[4], &a[5], &pc);
    thread->runs = strncmp(thread->text, "running", strlen("running")) == 0;
    thread->again = HL_AGAIN_UNKNOWN;
    if (n == 8 && thread->call.number >= 0) {
        bool is_continued = thread->call.number == SYS_restart_syscall;
        if (is_continued)
            thread->call.number = hl_find_restarted(tid, pc);
        thread->again = hl_find_again_of(&thread->call, process, tid);
        if (thread->has_filter &&
            ((thread->again == HL_AGAIN_CONTINUED && !is_continued) || awaits_supervisor(process, tid)))
            thread->again = HL_AGAIN_UNKNOWN;
    }
    bool is_fit = thread->again != HL_AGAIN_UNKNOWN || (thread->runs && threads->takes_running);
    thread->unfit = is_fit ? 0 : HL_REASON_ATTACH_UNFIT;
}

/* Looks at the thread's call.  It is not seen if it is none of the program's threads, or has ended. */
static void look_at(struct hl_thread *thread, const struct hl_threads *threads) {
    const struct hl_process *process = threads->process;
    pid_t tid = thread->tracee.tid;
    char state = read_state(process, tid);
    thread->is_seen = state != 'Z' && state != 'X' &&
                      read_of_thread(thread->text, sizeof thread->text, process, tid, "syscall");
    if (!thread->is_seen)
        return;
    thread->has_filter = read_has_filter(process, tid);
    judge(thread, threads);
    if (state == 'T')
        thread->unfit = HL_REASON_ATTACH_STOPPED;
    else if (state != 'S' && !thread->runs)
        thread->unfit = HL_REASON_ATTACH_UNFIT; /* it has just been woken, or waits for a disk */
}

/* Looks at the thread once more.  Whether it may be interrupted. */
static bool is_fit_still(struct hl_thread *thread, const struct hl_threads *threads) {
    char now[sizeof thread->text];
    if (thread->unfit != 0 ||
        !read_of_thread(now, sizeof now, threads->process, thread->tracee.tid, "syscall") ||
        strcmp(now, thread->text) != 0)
        look_at(thread, threads);
    return thread->is_seen && thread->unfit == 0;
}

/* --- all threads --- */

/* The thread TID in the list, which is ascending. */
static struct hl_thread *find_thread(struct hl_threads *threads, pid_t tid) {
    size_t low = 0, high = threads->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (threads->thread[middle]->tracee.tid < tid)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < threads->n && threads->thread[low]->tracee.tid == tid)
        return threads->thread[low];
    threads->thread = hl_xrealloc(threads->thread, (threads->n + 1) * sizeof(struct hl_thread *));
    memmove(threads->thread + low + 1, threads->thread + low,
            (threads->n - low) * sizeof(struct hl_thread *));
    struct hl_thread *thread = threads->thread[low] = hl_xmalloc(sizeof *thread);
    threads->n++;
    thread->tracee = (struct hl_tracee){.pid = threads->process->pid, .tid = tid, .memory = -1};
    return thread;
}

static bool is_there(const struct hl_thread *thread, const struct hl_threads *threads) {
    return thread->is_seen && thread->round == threads->round;
}

/* Finds all present threads, and looks at them; without ALL, only at new ones. */
static void look_at_threads(struct hl_threads *threads, bool all) {
    DIR *folder = hl_open_list(threads->process->folder, "task");
    unsigned before = threads->round++;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t tid = hl_parse_pid(entry->d_name);
        if (tid == 0)
            continue;
        struct hl_thread *thread = find_thread(threads, tid);
        bool is_new = thread->round != before || before == 0;
        thread->round = threads->round;
        if (thread->tracee.stage == HL_TRACEE_GONE && (all || is_new))
            look_at(thread, threads);
    }
    if (folder != NULL)
        closedir(folder);
}

static bool is_first(const struct hl_thread *thread) { return thread->tracee.tid == thread->tracee.pid; }

/* The first thread, which alone may make calls: the frame lies at the end of its stack (trace/tracee.c), which it could reach
   while another thread stands still.  NULL: it has ended, and the process's mappings cannot be read any more. */
static struct hl_thread *find_first(const struct hl_threads *threads) {
    for (size_t i = 0; i < threads->n; i++)
        if (is_first(threads->thread[i]) && is_there(threads->thread[i], threads))
            return threads->thread[i];
    return NULL;
}

/* Why the first one, or with ALL one of them, is not interrupted, or 0. */
static int find_unfit(const struct hl_threads *threads, bool all) {
    const struct hl_thread *first = find_first(threads);
    int unfit = first != NULL ? first->unfit : -ESRCH;
    for (size_t i = 0; i < threads->n && all && unfit == 0; i++)
        if (is_there(threads->thread[i], threads))
            unfit = threads->thread[i]->unfit;
    return unfit;
}

static void pause_for(long ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

int hl_look_at_threads(const struct hl_process *process, bool all, bool takes_running) {
    struct hl_threads threads = {.process = process, .takes_running = takes_running, .lock = -1};
    int result = 0;
    for (double begun = hl_now_ms();; pause_for(PAUSE_NS)) {
        look_at_threads(&threads, true);
        result = find_unfit(&threads, all);
        if (result != HL_REASON_ATTACH_UNFIT || hl_now_ms() - begun > LOOK_MS)
            break;
    }
    hl_release_threads(&threads);
    return result == HL_REASON_ATTACH_UNFIT && all ? HL_REASON_ATTACH_UNFIT_THREAD : result;
}

/* Makes the thread ours, and asks it to stop, if it still may be. */
static int interrupt(struct hl_thread *thread, const struct hl_threads *threads) {
    struct hl_tracee *tracee = &thread->tracee;
    if (tracee->stage != HL_TRACEE_GONE)
        return 0;
    if (!is_fit_still(thread, threads))
        return thread->is_seen ? HL_REASON_ATTACH_UNFIT : -ESRCH;
    return hl_interrupt_tracee(tracee, tracee->pid, tracee->tid,
                               thread->again != HL_AGAIN_UNKNOWN ? &thread->call : NULL);
}

/* Whether TID is a thread of PROCESS still, and its number is not another's now. */
static bool is_of_process(const struct hl_process *process, pid_t tid) {
    char *path = hl_xasprintf("task/%d", tid);
    bool is_there = faccessat(process->folder, path, F_OK, 0) == 0;
    free(path);
    return is_there;
}

/* --- the first thread --- */

/* The mappings that hl_arm_tracee needs. */
static int read_mappings(struct hl_process *now, const struct hl_process *process,
                         const struct hl_gadgets *gadgets) {
    struct hl_address_range range[3] = {
        {gadgets->call, gadgets->call + 1}, {gadgets->back, gadgets->back + 1}, {0, 0}};
    for (size_t i = 0; i < process->n_regions; i++)
        if (strcmp(process->region[i].name, "[stack]") == 0)
            range[2] = (struct hl_address_range){process->region[i].start, process->region[i].end};
    return hl_read_some_mappings(now, process, range, 3);
}

static int hold(struct hl_thread *thread, const struct hl_threads *threads,
                const struct hl_gadgets *gadgets) {
    struct hl_process now = {.folder = -1};
    struct hl_tracee *tracee = &thread->tracee;
    int result = thread->misses < MISSES_MAX ? interrupt(thread, threads) : HL_REASON_ATTACH_UNFIT;
    if (result == 0) {
        result = hl_await_tracee(tracee);
        thread->misses += result == HL_REASON_ATTACH_UNFIT;
    }
    if (result == 0 && !is_of_process(threads->process, tracee->tid))
        result = -ESRCH;
    if (result == 0)
        result = read_mappings(&now, threads->process, gadgets);
    if (result == 0)
        result = hl_arm_tracee(tracee, gadgets, &now, threads->suspends_filters);
    if (result != 0)
        hl_release_tracee(tracee);
    hl_close_process(&now);
    return result;
}

static int hold_first(struct hl_threads *threads, struct hl_tracee **held, const struct hl_gadgets *gadgets) {
    look_at_threads(threads, true);
    struct hl_thread *first = find_first(threads);
    if (first == NULL)
        return -ESRCH;
    *held = &first->tracee;
    return first->unfit != 0 ? first->unfit : hold(first, threads, gadgets);
}

/* Two calls of hugeld that change one process would have their frames in the same place.  A user who may open its memory may
   trace it, so no other user's process can hold this lock. */
static int lock(struct hl_threads *threads) {
    threads->lock = hl_open_process_file(threads->process, "mem");
    if (threads->lock < 0)
        return threads->lock;
    return flock(threads->lock, LOCK_EX | LOCK_NB) == 0 ? 0 : HL_REASON_ATTACH_TRACED;
}

int hl_hold_thread(struct hl_threads *threads, struct hl_tracee **held, const struct hl_gadgets *gadgets) {
    int result = lock(threads);
    if (result != 0)
        return result;
    for (double begun = hl_now_ms();; pause_for(PAUSE_NS)) {
        result = hold_first(threads, held, gadgets);
        if (result != HL_REASON_ATTACH_UNFIT || hl_now_ms() - begun > LOOK_MS)
            return result;
    }
}

/* --- the other threads --- */

/* Asks those threads to stop that may be interrupted.  *LEFT: how many may not. */
static int ask_others(const struct hl_threads *threads, const struct hl_tracee *held, size_t *left) {
    *left = 0;
    for (size_t i = 0; i < threads->n; i++) {
        struct hl_thread *thread = threads->thread[i];
        if (!is_there(thread, threads) || &thread->tracee == held)
            continue;
        int result = interrupt(thread, threads);
        *left += result == HL_REASON_ATTACH_UNFIT;
        if (result != 0 && result != -ESRCH && result != HL_REASON_ATTACH_UNFIT)
            return result;
    }
    return 0;
}

/* Adds threads to *LEFT that were about to leave their calls.  RESULT, or if that is 0 the first error; but HL_REASON_ATTACH_BUSY
   if one is late.  Also after an error it looks at all: one that stands still can be let go before the late ones. */
static int await_others(const struct hl_threads *threads, size_t *left, int result) {
    for (size_t i = 0; i < threads->n; i++) {
        struct hl_tracee *tracee = &threads->thread[i]->tracee;
        int found = tracee->stage == HL_TRACEE_ASKED ? hl_await_tracee(tracee) : 0;
        *left += found == HL_REASON_ATTACH_UNFIT;
        bool is_error = found != 0 && found != -ESRCH && found != HL_REASON_ATTACH_UNFIT;
        if (is_error && (result == 0 || found == HL_REASON_ATTACH_BUSY))
            result = found;
    }
    return result;
}

static unsigned count_stopped(const struct hl_threads *threads) {
    unsigned n = 0;
    for (size_t i = 0; i < threads->n; i++)
        n += threads->thread[i]->tracee.stage == HL_TRACEE_STOPPED;
    return n;
}

/* New threads may come while threads are being stopped, until none is left that could make one; and one that cannot be
   interrupted may soon be in another call, since the threads that it waits for are still there. */
static int stop_others(struct hl_threads *threads, const struct hl_tracee *held, unsigned *n) {
    double standing = 0;
    size_t left = 0;
    *n = 0;
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        look_at_threads(threads, false);
        int result = ask_others(threads, held, &left);
        result = await_others(threads, &left, result);
        unsigned before = *n;
        *n = count_stopped(threads);
        if (result != 0 || (left == 0 && *n == before))
            return result;
        if (standing == 0)
            standing = hl_now_ms();
        if (left > 0 && hl_now_ms() - standing > STANDING_MS)
            return HL_REASON_ATTACH_UNFIT_THREAD;
        if (left > 0)
            pause_for(STANDING_PAUSE_NS);
    }
    return left > 0 ? HL_REASON_ATTACH_UNFIT_THREAD : HL_REASON_ATTACH_BUSY;
}

/* Lets the threads go that stand still, before a late one is waited for.  Threads that have not stopped by then are let go when
   this thread ends. */
static void release_others(struct hl_threads *threads, const struct hl_tracee *held) {
    for (int late = 0; late < 2; late++)
        for (size_t i = 0; i < threads->n; i++) {
            struct hl_tracee *tracee = &threads->thread[i]->tracee;
            if (tracee == held || (!late && tracee->stage == HL_TRACEE_ASKED))
                continue;
            hl_release_tracee(tracee);
            tracee->stage = HL_TRACEE_GONE;
        }
}

/* The second thread of hugeld. */
struct hl_others {
    struct hl_threads *threads;
    const struct hl_tracee *held;
    pthread_t thread;
    sem_t are_stopped, may_run;
    int result;
    unsigned n;
};

static void *hold_others(void *data) {
    struct hl_others *others = data;
    others->result = stop_others(others->threads, others->held, &others->n);
    sem_post(&others->are_stopped);
    sem_wait(&others->may_run);
    release_others(others->threads, others->held);
    return NULL;
}

static void join_others(struct hl_threads *threads) {
    if (threads->others == NULL)
        return;
    pthread_join(threads->others->thread, NULL);
    free(threads->others);
    threads->others = NULL;
}

int hl_stop_others(struct hl_threads *threads, const struct hl_tracee *held, unsigned *n) {
    struct hl_others *others = hl_xmalloc(sizeof *others);
    *others = (struct hl_others){.threads = threads, .held = held};
    sem_init(&others->are_stopped, 0, 0);
    sem_init(&others->may_run, 0, 0);
    *n = 0;
    int error = pthread_create(&others->thread, NULL, hold_others, others);
    if (error != 0) {
        free(others);
        return -error;
    }
    threads->others = others;
    sem_wait(&others->are_stopped);
    *n = others->n;
    return others->result;
}

void hl_release_others(struct hl_threads *threads) {
    if (threads->others == NULL)
        return;
    bool is_late = threads->others->result == HL_REASON_ATTACH_BUSY;
    sem_post(&threads->others->may_run);
    if (!is_late)
        join_others(threads);
}

void hl_release_threads(struct hl_threads *threads) {
    join_others(threads);
    for (size_t i = 0; i < threads->n; i++) {
        hl_release_tracee(&threads->thread[i]->tracee);
        free(threads->thread[i]);
    }
    free(threads->thread);
    if (threads->lock >= 0)
        close(threads->lock);
}
