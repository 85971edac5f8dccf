/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One thread of another process, stopped by ptrace(2), that makes system calls for us.

   Results are 0, a reason (enum hl_skip) or a negated errno; -ESRCH: the thread is gone (it ended, or another
   one executed a program).  All functions for one tracee are called by the same thread, and when that ends, in
   whichever way, the kernel lets go of what it has stopped.  SIGCHLD is blocked and not ignored: it says that a thread
   has stopped. */
#ifndef HL_TRACEE_H
#define HL_TRACEE_H

#include "process.h"

/* What the thread that makes calls has at hl_tracee.data. */
#define HL_TRACEE_DATA_BYTES 1024

/* Where a thread's calls begin, and what restores it if we die in the middle of one. */
struct hl_gadgets {
    uint64_t call; /* syscall; ret */
    uint64_t back; /* mov $__NR_rt_sigreturn, %eax; syscall */
};

struct hl_tracee_state; /* the machine's */

struct hl_tracee {
    pid_t pid, tid;
    int memory;    /* an open /proc/TID/mem, after hl_arm_tracee: of no program that is executed later */
    uint64_t data; /* HL_TRACEE_DATA_BYTES of its memory for arguments, after hl_arm_tracee */
    bool is_stopped, is_gone;
    bool is_interrupted; /* it stopped because we wanted it to, */
    double stopped_ms;   /* then, as of hl_now_ms */
    struct hl_gadgets gadgets;
    struct hl_tracee_state *state;
};

/* Whether this machine's processes can be changed as they run: 0, or HL_SKIP_LIVE_MACHINE. */
int hl_check_live_machine(void);

/* Finds the instructions in PROCESS.  AVOID: not in the regions of which that is true, unless there are no
   others.  0, HL_SKIP_LIVE_INSTRUCTIONS, or -ESRCH. */
int hl_find_gadgets(struct hl_gadgets *gadgets, const struct hl_process *process,
                    bool (*avoid)(const void *data, const struct hl_region *region), const void *data);

/* Stops the thread TID of PID; HAS_FILTER: system calls of its are filtered, which is suspended as long as it
   is ours.  0, HL_SKIP_LIVE_TRACED, _STOPPED, _BUSY (it did not stop in time; without WAITS, at once), _FILTER, or a
   negated errno. */
int hl_stop_tracee(struct hl_tracee *tracee, pid_t pid, pid_t tid, bool has_filter, bool waits);

/* Makes the stopped thread one that can make calls.  PROCESS has what is mapped now.  The frame that restores it lies
   on its own stack, for the first thread at the low end of that if nobody has ever touched it.  0, or why that cannot
   be. */
int hl_arm_tracee(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                  const struct hl_process *process);

/* Makes a system call.  0: *RESULT is what it returned. */
int hl_call_in_tracee(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]);

/* Its memory, as far as itself could read it; it is written only after hl_arm_tracee.  0, or a negated errno. */
int hl_read_tracee(const struct hl_tracee *tracee, uint64_t at, void *to, size_t bytes);
int hl_write_tracee(const struct hl_tracee *tracee, uint64_t at, const void *from, size_t bytes);

/* Puts everything back and lets the thread run.  May be called for one that is gone, or was never stopped. */
void hl_release_tracee(struct hl_tracee *tracee);

#endif
