/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The heap that grows from the end of .bss, and writable huge pages at fork(2). */
#ifndef HL_HEAP_H
#define HL_HEAP_H

#include "move.h"

/* Notes in PROCESS where the heap is.  Its maps are read. */
void hl_read_heap(struct hl_process *process);

/* If the heap begins before BOUNDARY, the end of a span that rounds out, and ends before it: grows it up to
   there, and reads the maps anew.  0; HL_SKIP_HEAP when the break can't be moved, and everything is as it
   was. */
int hl_carry_break(struct hl_process *process, uint64_t boundary);

/* Puts the break back where hl_carry_break found it.  For a span that did not move. */
void hl_restore_break(struct hl_process *process);

/* Brings the writable hugetlb span RANGE back onto small pages, contents unchanged.  Only this thread runs,
   signals are blocked.  0, or a negated errno and nothing changed. */
int hl_move_back(const struct hl_range *range, const struct hl_geometry *geometry);

/* Whether this process has one thread; false if it can't be told. */
bool hl_is_single_threaded(void);

#endif
