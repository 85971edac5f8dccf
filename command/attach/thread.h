/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the thread of a process that makes calls for us is held, and how its other threads are. */
#ifndef HL_ATTACH_THREAD_H
#define HL_ATTACH_THREAD_H

#include "command/trace/tracee.h"

struct hl_thread;
struct hl_others;

/* The threads of a process while it is changed. */
struct hl_threads {
    const struct hl_process *process; /* which has its regions */
    bool takes_running;               /* running threads are interrupted, too */
    bool suspends_filters;
    int lock;       /* against other calls of hugeld */
    unsigned round; /* the last round of listing all threads */
    size_t n;
    struct hl_thread **thread; /* ascending */
    struct hl_others *others;  /* from hl_stop_others to hl_release_others */
};

/* Whether the first thread of PROCESS could make calls now, or with ALL whether all of its threads could be stopped; looks for
   half a second.  Nothing is stopped.  0, HL_REASON_ATTACH_UNFIT, HL_REASON_ATTACH_UNFIT_THREAD, HL_REASON_ATTACH_STOPPED,
   or -ESRCH. */
int hl_look_at_threads(const struct hl_process *process, bool all, bool takes_running);

/* Stops the first thread, and makes it one that can make calls: *HELD.  0, or why not; then it runs on.  -ESRCH: it has ended. */
int hl_hold_thread(struct hl_threads *threads, struct hl_tracee **held, const struct hl_gadgets *gadgets);

/* Stops all threads but HELD, which is not looked at until hl_release_others lets the others run again.  0, or why not;
   hl_release_others has to be called in both cases, and need not be if this function was not called.  *N: how many. */
int hl_stop_others(struct hl_threads *threads, const struct hl_tracee *held, unsigned *n);
void hl_release_others(struct hl_threads *threads);

/* Lets all threads go, except those that do not stop: the end of the calling thread does that. */
void hl_release_threads(struct hl_threads *threads);

#endif
