/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the thread of a process that makes calls for us is held. */
#ifndef HL_ATTACH_THREAD_H
#define HL_ATTACH_THREAD_H

#include "command/trace/tracee.h"

/* The first thread of a process while the process is changed. */
struct hl_holding {
    const struct hl_process *process; /* which has its regions */
    int lock;                         /* against other calls of hugeld */
    struct hl_tracee tracee;
};

/* Whether the first thread of PROCESS could make calls now; looks for half a second.  Nothing is stopped.  0,
   HL_REASON_ATTACH_UNFIT, HL_REASON_ATTACH_STOPPED, or -ESRCH. */
int hl_look_at_thread(const struct hl_process *process);

/* Stops the first thread of PROCESS, and makes it one that can make calls: HOLDING's tracee.  SUSPENDS as for hl_arm_tracee.  0, or why not;
   then it runs on.  -ESRCH: it has ended.  hl_release_thread ends it in both cases. */
int hl_hold_thread(struct hl_holding *holding, const struct hl_process *process,
                   const struct hl_gadgets *gadgets, bool suspends);
void hl_release_thread(struct hl_holding *holding);

#endif
