/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory from mmap(2) that is taken piece by piece and given back at once.  Most of its cost are page faults and clearing, so it
   is taken in few mappings, on huge pages where it is large. */
#ifndef HL_SCRATCH_H
#define HL_SCRATCH_H

#include <stdint.h>

struct hl_scratch {
    struct hl_scratch_block *last; /* NULL: nothing was taken */
};

void hl_begin_scratch(struct hl_scratch *scratch);
void hl_free_scratch(struct hl_scratch *scratch);

/* Makes the next pieces, up to BYTES, come from one mapping.  0, or -ENOMEM. */
int hl_reserve_scratch(struct hl_scratch *scratch, uint64_t bytes);

/* BYTES, aligned to 16, not cleared; or NULL. */
void *hl_allocate_scratch(struct hl_scratch *scratch, uint64_t bytes);

/* A mapping by itself, zeroed; or NULL. hl_release_pages takes the same number.  For hl_map_huge_pages BYTES is a multiple of
   HL_SCRATCH_HUGE, and no page exists until it is touched. */
#define HL_SCRATCH_HUGE ((uint64_t)2 << 20)
void *hl_map_pages(uint64_t bytes);
void *hl_map_huge_pages(uint64_t bytes);
void hl_release_pages(void *at, uint64_t bytes);

#endif
