/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which thread of a process makes calls for us, and how the others are held. */
#ifndef HL_LIVE_THREAD_H
#define HL_LIVE_THREAD_H

#include "tracee.h"

/* Stops the thread of PROCESS that is missed least, and makes it one that can make calls.  0, or why none could be
   taken; then all run on. */
int hl_take_thread(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                   const struct hl_process *process);

/* Stops all other threads of PROCESS than TAKEN.  0: *OTHERS are *N of them; or why not; either way
   hl_release_others lets them run. */
int hl_stop_others(struct hl_tracee **others, size_t *n, const struct hl_process *process,
                   const struct hl_tracee *taken);
void hl_release_others(struct hl_tracee *others, size_t n);

#endif
