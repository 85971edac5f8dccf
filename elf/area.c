/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Areas: address space that the core maps for itself and gives back exactly once.

   Another thread may call mmap between any two system calls of ours.  As soon as a piece of an area is gone,
   because it was moved into its place or unmapped, the kernel may have given its addresses to that thread,
   and unmapping the area as a whole would take away memory that is not ours.  So everything that the core
   maps is an area, an area knows which part has left, and only the rest is unmapped.

   If a call failed and may have unmapped something first, the part in question counts as gone: address
   space that is lost, at most once in such a failure, does no harm. */
#include "area.h"
#include "sys.h"

#include <linux/mman.h>

void hl_clear_area(struct hl_area *area) { area->start = area->end = area->left_start = area->left_end = 0; }

static int note_area(struct hl_area *area, long at, uint64_t bytes) {
    hl_clear_area(area);
    if (hl_is_error(at))
        return (int)at;
    area->start = (uint64_t)at;
    area->end = area->left_start = area->left_end = (uint64_t)at + bytes;
    return 0;
}

int hl_map_area(struct hl_area *area, uint64_t bytes, int prot, int flags) {
    return hl_map_file_area(area, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

int hl_map_file_area(struct hl_area *area, uint64_t bytes, int prot, int flags, int file, uint64_t offset) {
    return note_area(area, hl_mmap(0, bytes, prot, flags, file, offset), bytes);
}

int hl_grow_area(struct hl_area *area, uint64_t bytes) {
    if (area->start == area->end)
        return hl_map_area(area, bytes, PROT_READ | PROT_WRITE, 0);
    long at = HL_CALL(__NR_mremap, area->start, area->end - area->start, bytes, MREMAP_MAYMOVE, 0, 0);
    return hl_is_error(at) ? (int)at : note_area(area, at, bytes);
}

void hl_disown_area(struct hl_area *area, uint64_t start, uint64_t end) {
    area->left_start = start;
    area->left_end = end;
}

static void unmap(uint64_t start, uint64_t end) {
    if (start < end)
        hl_munmap(start, end - start);
}

void hl_free_area(struct hl_area *area) {
    unmap(area->start, area->left_start);
    unmap(area->left_end, area->end);
    hl_clear_area(area);
}
