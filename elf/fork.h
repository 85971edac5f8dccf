/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writable hugetlb spans and fork(2). */
#ifndef HL_FORK_H
#define HL_FORK_H

#include "move.h"

/* One too many goes back to small pages at once. */
#define HL_WRITABLE_MAX 16

struct hl_writable {
    unsigned n;
    struct hl_range range[HL_WRITABLE_MAX];
};

/* After hl_move_objects and before hl_end: remembers in ROOM the writable hugetlb spans that have come into
   place.  ROOM is the same each time, empty at first, and lives as long as the process; the caller has it,
   because ld.so's .bss is no place for it.  True if there are any, also from earlier: then hl_before_fork has
   to be called before each fork. */
bool hl_note_writable(struct hl_writable *room, const struct hl_process *process);

/* Forgets those in [start, end), which is about to be unmapped. */
void hl_forget_writable(uint64_t start, uint64_t end);

/* A prepare handler of pthread_atfork(3): brings them back to small pages while this is the only thread. */
void hl_before_fork(void);

#endif
