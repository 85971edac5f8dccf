/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stops the first thread of a process, so that it can make calls.

   The program does not notice that a sleeping thread stands still.  It would notice that a call was interrupted, except for the
   calls in inject/calls.c, so only a thread that sleeps in one of those is interrupted.  PTRACE_INTERRUPT knows no such condition,
   so the thread's call is read again right before; in the microseconds between these two it may still begin another call.  A
   running thread begins calls all the time, so it is not interrupted.

   Only the first thread makes calls: the frame lies at the end of its stack (inject/attach-tracee.c), which it could reach while another
   thread stands still. */
#include "command/inject/attachment.h"
#include "command/lib/common.h"

#if defined __x86_64__

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long the thread is looked at until it is fit, and the pause between two looks. */
#define LOOK_MS 500.0
#define PAUSE_NS 1000000L

/* How the thread was last seen. */
struct sight {
    int unfit;           /* why it is not interrupted, or 0 */
    struct hl_call call; /* in which it sleeps */
    char text[192];      /* the text of its file "syscall" */
};

/* Reads the thread's file NAME into TEXT, terminated by a zero.  Whether it has any bytes. */
static bool read_of_thread(char *text, size_t bytes, const struct hl_process *process, const char *name) {
    char *path = hl_xasprintf("task/%d/%s", process->pid, name);
    ssize_t n = hl_read_process_file(process, path, text, bytes - 1);
    free(path);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Whether the thread may be waiting for a supervisor (seccomp's user notification) instead of in the call itself. */
static bool awaits_supervisor(const struct hl_process *process) {
    char text[128];
    return !read_of_thread(text, sizeof text, process, "wchan") || strcmp(text, "0") == 0 ||
           strstr(text, "seccomp") != NULL;
}

/* Whether the thread sleeps in a call that begins again, by its text: "running", or "CALL ARGUMENTS SP PC", or "-1 SP PC" for one that
   waits outside of a call. */
static bool sleeps_invisibly(struct sight *sight, const struct hl_process *process, bool has_filter) {
    struct hl_call *call = &sight->call;
    uint64_t pc, *a = call->argument;
    int n = sscanf(sight->text, "%ld %lx %lx %lx %lx %lx %lx %*x %lx", &call->number, &a[0], &a[1], &a[2],
                   &a[3], &a[4], &a[5], &pc);
    if (n != 8 || call->number < 0)
        return false;
    bool is_continued = call->number == SYS_restart_syscall;
    if (is_continued)
        call->number = hl_find_restarted(process->pid, pc);
    enum hl_again again = hl_find_again(call, process);
    if (again != HL_AGAIN_UNKNOWN && has_filter &&
        ((again == HL_AGAIN_CONTINUED && !is_continued) || awaits_supervisor(process)))
        return false;
    return again != HL_AGAIN_UNKNOWN;
}

static void look(struct sight *sight, const struct hl_process *process) {
    struct hl_task_status status;
    hl_read_thread_status(&status, process->pid, process->pid);
    if (status.state == 'Z' || status.state == 'X' ||
        !read_of_thread(sight->text, sizeof sight->text, process, "syscall"))
        sight->unfit = -ESRCH;
    else if (status.state == 'T')
        sight->unfit = HL_REASON_ATTACH_STOPPED;
    else /* else it has just been woken, or waits for a disk */
        sight->unfit = status.state == 'S' && sleeps_invisibly(sight, process, status.filter_mode != 0)
                           ? 0
                           : HL_REASON_ATTACH_UNFIT;
}

static void pause_between_looks(void) { nanosleep(&(struct timespec){0, PAUSE_NS}, NULL); }

int hl_look_at_thread(const struct hl_process *process) {
    struct sight sight;
    for (double begun = hl_now_ms();; pause_between_looks()) {
        look(&sight, process);
        if (sight.unfit != HL_REASON_ATTACH_UNFIT || hl_now_ms() - begun > LOOK_MS)
            return sight.unfit;
    }
}

/* Makes the thread ours, and asks it to stop, if it is fit and still in the same call. */
static int interrupt(struct hl_tracee *tracee, const struct hl_process *process) {
    struct sight sight;
    char now[sizeof sight.text];
    look(&sight, process);
    if (sight.unfit != 0)
        return sight.unfit;
    if (!read_of_thread(now, sizeof now, process, "syscall") || strcmp(now, sight.text) != 0)
        return HL_REASON_ATTACH_UNFIT;
    return hl_interrupt_tracee(tracee, &sight.call);
}

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

/* Two calls of hugeld that change one process would have their frames in the same place.  A user who may open its memory may
   trace it, so no other user's process can hold this lock. */
static int lock(struct hl_tracee *tracee, const struct hl_process *process) {
    int file = hl_open_process_file(process, "mem");
    *tracee = (struct hl_tracee){.pid = process->pid, .memory = -1, .lock = file};
    if (file < 0)
        return file;
    return flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : HL_REASON_ATTACH_TRACED;
}

static int hold(struct hl_tracee *tracee, const struct hl_process *process,
                const struct hl_gadgets *gadgets) {
    struct hl_process now = {.folder = -1};
    int result = lock(tracee, process);
    if (result == 0)
        result = interrupt(tracee, process);
    if (result == 0)
        result = hl_await_tracee(tracee);
    if (result == 0 && faccessat(process->folder, "stat", F_OK, 0) != 0)
        result = -ESRCH; /* its number is another's now */
    if (result == 0)
        result = read_mappings(&now, process, gadgets);
    if (result == 0)
        result = hl_arm_tracee(tracee, gadgets, &now);
    if (result != 0)
        hl_release_tracee(tracee);
    hl_close_process(&now);
    return result;
}

int hl_hold_thread(struct hl_tracee *tracee, const struct hl_process *process,
                   const struct hl_gadgets *gadgets) {
    for (double begun = hl_now_ms();; pause_between_looks()) {
        int result = hold(tracee, process, gadgets);
        if (result != HL_REASON_ATTACH_UNFIT || hl_now_ms() - begun > LOOK_MS)
            return result;
    }
}

#endif
