/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "scratch.h"
#include "hugeld.h"
#include "sys.h"

#include <linux/mman.h>

/* A mapping begins with this; the rest is handed out from its start. */
struct hl_scratch_block {
    struct hl_scratch_block *before;
    uint64_t bytes, used;
};

#define BLOCK_MIN ((uint64_t)65536) /* a multiple of every page size */
#define ALIGNMENT ((uint64_t)16)
#define HUGE HL_SCRATCH_HUGE
/* Measured: a huge page takes as long as 130 faults of 4 KiB. */
#define HUGE_FROM (HUGE / 2)

static void *map(uint64_t bytes, int flags) {
    long at = hl_mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return hl_is_error(at) ? NULL : (void *)at;
}

void *hl_map_pages(uint64_t bytes) { return map(bytes, MAP_POPULATE); }

void hl_release_pages(void *at, uint64_t bytes) {
    if (at != NULL)
        hl_munmap((uint64_t)at, bytes);
}

void *hl_map_huge_pages(uint64_t bytes) {
    uint64_t at = (uint64_t)map(bytes + HUGE, 0);
    if (at == 0)
        return NULL;
    uint64_t start = hl_round_up(at, HUGE), end = at + bytes + HUGE;
    if (start > at)
        hl_munmap(at, start - at);
    if (end > start + bytes)
        hl_munmap(start + bytes, end - (start + bytes));
    hl_madvise(start, bytes, MADV_HUGEPAGE);
    return (void *)start;
}

void hl_begin_scratch(struct hl_scratch *scratch) { scratch->last = NULL; }

void hl_free_scratch(struct hl_scratch *scratch) {
    while (scratch->last != NULL) {
        struct hl_scratch_block *block = scratch->last;
        scratch->last = block->before;
        hl_release_pages(block, block->bytes);
    }
}

static bool has_room(const struct hl_scratch *scratch, uint64_t bytes) {
    return scratch->last != NULL && scratch->last->bytes - scratch->last->used >= bytes;
}

int hl_reserve_scratch(struct hl_scratch *scratch, uint64_t bytes) {
    if (has_room(scratch, bytes))
        return 0;
    uint64_t used = hl_round_up(sizeof *scratch->last, ALIGNMENT);
    if (bytes > INT64_MAX)
        return -ENOMEM;
    bytes += used;
    bytes = hl_round_up(bytes, bytes < HUGE_FROM ? BLOCK_MIN : HUGE);
    struct hl_scratch_block *block = bytes < HUGE ? map(bytes, 0) : hl_map_huge_pages(bytes);
    if (block == NULL)
        return -ENOMEM;
    block->before = scratch->last;
    block->bytes = bytes;
    block->used = used;
    scratch->last = block;
    return 0;
}

void *hl_allocate_scratch(struct hl_scratch *scratch, uint64_t bytes) {
    if (bytes > INT64_MAX || hl_reserve_scratch(scratch, hl_round_up(bytes, ALIGNMENT)) != 0)
        return NULL;
    struct hl_scratch_block *block = scratch->last;
    uint64_t first = block->used & ~(BLOCK_MIN - 1), at = (uint64_t)block + block->used;
    block->used += hl_round_up(bytes, ALIGNMENT);
    if (bytes >= BLOCK_MIN) /* without it this is only slower */
        hl_madvise((uint64_t)block + first, hl_round_up(block->used, BLOCK_MIN) - first, MADV_POPULATE_WRITE);
    return (void *)at;
}
