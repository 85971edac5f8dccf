/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The heap that grows from the end of .bss, and writable huge pages at fork(2).

   Without address-space randomisation the heap begins in the last, partly used huge page of the object:

       object   ... bbbbbbbbbbbbbbbb|hhhhhh              b .bss, h heap up to the break
       huge     [    span    ][     last      ]
                                               ^ the break is carried here, and what is between becomes heap

   A hugetlb mapping over the break refuses growing as well as shrinking; one that ends at the break lets the
   heap grow, and shrink down to there.  So the break goes to the boundary first, then the heap's bytes move
   along.

   The other way was tried too, on 6.18: PR_SET_MM_MAP with start_brk and brk at the boundary.  It needs no
   mapping in between, but tells the kernel of eleven more addresses that are none of ours, can never shrink
   below the boundary (this one can after hl_move_back), and wants the same of libc: libc's sbrk keeps a break
   of its own, and unless that is told (brk(3) in loader/preload.c) malloc finds its heap corrupted either
   way. */
#include "heap.h"
#include "memory.h"
#include "sys.h"
#include "text.h"

#include <linux/mman.h>

static uint64_t set_break(uint64_t at) { return (uint64_t)HL_CALL(__NR_brk, at, 0, 0, 0, 0, 0); }

void hl_read_heap(struct hl_process *process) {
    const struct hl_maps *maps = &process->maps;
    process->heap.end = set_break(0);
    process->heap.start = process->heap.end;
    for (size_t i = 0; i < maps->n; i++)
        if (maps->mapping[i].is_heap && maps->mapping[i].start < process->heap.start)
            process->heap.start = maps->mapping[i].start;
}

int hl_carry_break(struct hl_process *process, uint64_t boundary) {
    if (process->heap.start >= boundary || process->heap.end >= boundary)
        return 0;
    uint64_t old = process->heap.end;
    if (set_break(boundary) != boundary)
        return HL_SKIP_HEAP;
    hl_free_maps(&process->maps);
    int result = hl_read_maps(&process->maps);
    hl_read_heap(process);
    process->old_break = old;
    return result;
}

void hl_restore_break(struct hl_process *process) {
    for (int i = 0; process->old_break != 0 && i < HL_TRIES; i++)
        if (set_break(process->old_break) == process->old_break)
            break;
    process->old_break = 0;
}

bool hl_is_single_threaded(void) {
    char status[8192];
    uint64_t threads;
    return hl_read_file("/proc/self/status", status, sizeof status) > 0 &&
           hl_find_number(status, "Threads:", &threads) && threads == 1;
}

/* Brings SMALL into the place of RANGE, which is kept at ASIDE until that has worked. */
static long swap_range(const struct hl_range *range, uint64_t small, uint64_t aside, uint64_t page_bytes) {
    uint64_t bytes = range->end - range->start;
    struct hl_ballast ballast;
    long result = hl_take_ballast(&ballast, page_bytes) == 0 ? 0 : -ENOMEM;
    if (result == 0)
        result = hl_move_mapping(range->start, bytes, aside);
    if (!hl_is_error(result))
        result = hl_move_mapping(small, bytes, range->start);
    hl_drop_ballast(&ballast);
    if (hl_is_error(result))
        hl_return_pieces(aside, bytes, range->start);
    return result;
}

int hl_move_back(const struct hl_range *range, const struct hl_geometry *geometry) {
    uint64_t bytes = range->end - range->start, huge = geometry->huge_page_bytes;
    uint64_t reserved = hl_map_unusable(bytes + huge), aside = hl_round_up(reserved, huge);
    long result = hl_mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t small = hl_is_error(result) ? 0 : (uint64_t)result;
    if (reserved == 0)
        result = -ENOMEM;
    if (!hl_is_error(result)) {
        hl_copy_bytes((void *)small, (const void *)range->start, bytes);
        result = swap_range(range, small, aside, geometry->page_bytes);
    }
    if (small != 0 && hl_is_error(result))
        hl_munmap(small, bytes);
    if (reserved != 0) {
        hl_munmap(aside, bytes); /* the huge pages, if they are there: by themselves, as they must be */
        hl_munmap(reserved, bytes + huge);
    }
    return hl_is_error(result) ? (int)result : 0;
}
