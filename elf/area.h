/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Areas: address space that the core maps for itself and gives back exactly once. */
#ifndef HL_AREA_H
#define HL_AREA_H

#include <stdint.h>

struct hl_area {
    uint64_t start, end;           /* the whole area; equal: nothing */
    uint64_t left_start, left_end; /* the part that is no longer ours; equal: nothing */
};

/* Makes AREA hold nothing, so that hl_free_area has nothing to do. */
void hl_clear_area(struct hl_area *area);

/* Maps BYTES of private anonymous memory with PROT and the additional FLAGS.  0, or a negated errno and
   AREA holds nothing. */
int hl_map_area(struct hl_area *area, uint64_t bytes, int prot, int flags);

/* The same for the open FILE, from OFFSET, with exactly these FLAGS. */
int hl_map_file_area(struct hl_area *area, uint64_t bytes, int prot, int flags, int file, uint64_t offset);

/* Makes an area of ordinary memory, of which nothing has left, as large as BYTES; it may move then, with
   its contents.  An area that holds nothing is mapped.  0, or a negated errno and nothing changed. */
int hl_grow_area(struct hl_area *area, uint64_t bytes);

/* [start, end) of AREA is no longer ours: it was moved away, or a call that failed may have unmapped it.
   Once for each area. */
void hl_disown_area(struct hl_area *area, uint64_t start, uint64_t end);

/* Unmaps the part that is still ours.  AREA holds nothing then, and freeing it again does nothing. */
void hl_free_area(struct hl_area *area);

#endif
