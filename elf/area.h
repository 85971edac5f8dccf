/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Areas: address space that the core maps for itself and gives back exactly once. */
#ifndef HL_AREA_H
#define HL_AREA_H

#include <stdint.h>

struct hl_area {
    uint64_t start, end;           /* what was mapped; equal: nothing */
    uint64_t left_start, left_end; /* what of it is no longer ours; equal: nothing */
};

/* An area that holds nothing: hl_free_area has nothing to do. */
void hl_clear_area(struct hl_area *area);

/* Maps BYTES of private anonymous memory with PROT, and with FLAGS beside.  0, or a negated errno and AREA
   holds nothing. */
int hl_map_area(struct hl_area *area, uint64_t bytes, int prot, int flags);

/* The same of the open FILE, from OFFSET, with exactly these FLAGS. */
int hl_map_file_area(struct hl_area *area, uint64_t bytes, int prot, int flags, int file, uint64_t offset);

/* Makes an area of ordinary memory, of which nothing has left, as large as BYTES; it may be somewhere else
   then, with what it holds.  One that holds nothing is mapped.  0, or a negated errno and nothing changed. */
int hl_grow_area(struct hl_area *area, uint64_t bytes);

/* [start, end) of AREA is no longer ours: it was moved away, or a call that failed may have unmapped it. Once
   for each area. */
void hl_disown_area(struct hl_area *area, uint64_t start, uint64_t end);

/* Unmaps what is still ours.  AREA holds nothing then, and freeing it again does nothing. */
void hl_free_area(struct hl_area *area);

#endif
