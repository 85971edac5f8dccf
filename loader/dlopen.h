/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Objects that come by dlopen(3) or dlmopen(3) after start. */
#ifndef HL_DLOPEN_H
#define HL_DLOPEN_H

#include "elf/context.h"

/* Room for the first objects; more is mapped.  It counts against RLIMIT_DATA in every program. */
#define HL_FIRST_WORKS 2
extern struct hl_work hl_first_work[HL_FIRST_WORKS];

/* From now on selected objects move as they come, with CONTEXT's options.  To be called once, at start,
   after hl_move_objects and in the only thread.  Does nothing when LD_HUGEPAGES names none but the
   executable; if it fails, verbose=1 says why.  MEMORY as in hl_open_memory. */
void hl_watch_for_objects(struct hl_context *context, long *memory);

#endif
