/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which system calls a thread can be thrown out of so that neither it nor another process can tell. */
#ifndef HL_TRACE_CALLS_H
#define HL_TRACE_CALLS_H

#include "command/proc/process.h"

#include <time.h>

/* A call as /proc/TID/syscall shows it, or as registers hold it. */
struct hl_call {
    long number;
    uint64_t argument[6];
};

/* How a call begins again.  The earlier its value comes here, the better a thread in that call suits. */
enum hl_again {
    HL_AGAIN_WHOLE,     /* as it was: it had done nothing yet, and has no timeout, or an absolute one */
    HL_AGAIN_REST,      /* with the rest of its timeout, which the kernel has written over the timeout */
    HL_AGAIN_CONTINUED, /* with the rest of its timeout, as restart_syscall(2), a call that a filter may forbid */
    HL_AGAIN_ANEW,      /* as it was, and so does its timeout */
    HL_AGAIN_UNKNOWN /* it is not in the table */
};

/* How CALL, which was interrupted, begins again, as far as the call alone tells.  If that is not known beforehand, EINTR says
   that it had done nothing. */
enum hl_again hl_find_again(const struct hl_call *call);

/* The same for the call in which the first thread of PROCESS sleeps, before an interruption.  PROCESS has its regions. */
enum hl_again hl_find_again_of(const struct hl_call *call, const struct hl_process *process);

/* The address to which CALL, a sleep, writes its remaining time as soon as it is interrupted, though it goes on; 0: none.
   Programs read from there how long they sleep the next time. */
#define HL_REST_BYTES sizeof(struct timespec)
uint64_t hl_find_rest(const struct hl_call *call);

#endif
