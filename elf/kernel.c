/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The features of this kernel for this process.  Version numbers lie (backports, seccomp, SELinux), so everything is tried out
   on scratch memory; nothing here takes a page from the pool, or reserves one but hl_grants_pages. */
#include "kernel.h"
#include "area.h"
#include "maps.h"
#include "mapping.h"
#include "sys.h"

#include <linux/mman.h>

const struct hl_roots hl_system_roots = {"/proc", "/sys"};

void hl_set_geometry(struct hl_geometry *geometry, uint64_t page_bytes) {
    geometry->page_bytes = page_bytes;
    geometry->huge_page_bytes = page_bytes * (page_bytes / sizeof(uint64_t));
}

/* Whether AREA, two huge pages, is still one mapping.  Those of hugetlb memory do not merge with others.  If reading fails it is
   tried again: an area kept for nothing would take its second page from the pool. */
static bool is_whole(const struct hl_area *area, uint64_t second) {
    struct hl_maps maps;
    int result = -ENOMEM;
    for (int i = 0; result != 0 && i < HL_TRIES; i++)
        result = hl_read_maps(&maps, area->start, area->end, false);
    if (result != 0)
        return false;
    bool whole = hl_find_mapping(&maps, area->start) == hl_find_mapping(&maps, second);
    hl_free_maps(&maps);
    return whole;
}

/* Whether mremap brings the first huge page of AREA into the place of the second.  Linux 5.10 says no after it has unmapped the
   second page; if other threads run, its place may be theirs by now. */
static bool moves_over(struct hl_area *area, uint64_t bytes, bool is_shared) {
    uint64_t second = area->start + bytes;
    bool moves = !hl_is_error(hl_move_mapping(area->start, bytes, second));
    if (moves)
        hl_disown_area(area, area->start, second);
    else if (is_shared && !is_whole(area, second))
        hl_disown_area(area, second, second + bytes);
    return moves;
}

/* Maps PAGES huge pages with FLAGS. */
static int map_pages(struct hl_area *area, const struct hl_geometry *geometry, uint64_t pages, int flags) {
    return hl_map_file_area(area, pages * geometry->huge_page_bytes, PROT_READ,
                            MAP_ANONYMOUS | hl_hugetlb_flags(geometry) | flags, -1, 0);
}

/* Nothing stands between the two calls: meanwhile the pages are missing to a program that starts just now and needs all.  The
   mapping is private, because a child of another thread would keep the reservation of a shared one. */
bool hl_grants_pages(const struct hl_geometry *geometry, uint64_t pages) {
    struct hl_area area;
    bool granted = map_pages(&area, geometry, pages, MAP_PRIVATE) == 0;
    hl_free_area(&area);
    return granted;
}

/* Whether memory may become executable is tried with the huge pages themselves: the policies that forbid it look at what a
   mapping is and was, not at whether its pages were written. */
void hl_probe_hugetlb(struct hl_kernel *kernel, const struct hl_geometry *geometry, bool is_shared) {
    uint64_t bytes = geometry->huge_page_bytes;
    struct hl_area area;
    int result = map_pages(&area, geometry, 2, MAP_SHARED | MAP_NORESERVE);
    kernel->hugetlb_mremap = kernel->hugetlb_dofork = kernel->executable_memory = false;
    kernel->hugetlb = result == 0 || result == -ENOMEM; /* EINVAL: no pages of this size */
    kernel->hugetlb_denied = result == -EACCES || result == -EPERM;
    if (result != 0)
        return;
    uint64_t all = area.end - area.start;
    kernel->hugetlb_dofork = is_shared && !hl_is_error(hl_madvise(area.start, all, MADV_DONTFORK)) &&
                             !hl_is_error(hl_madvise(area.start, all, MADV_DOFORK));
    kernel->executable_memory = !hl_is_error(hl_mprotect(area.start, all, PROT_READ | PROT_EXEC));
    kernel->hugetlb_mremap = moves_over(&area, bytes, is_shared);
    hl_free_area(&area);
}

bool hl_may_execute_written(uint64_t page_bytes) {
    struct hl_area page;
    if (hl_map_area(&page, page_bytes, PROT_READ | PROT_WRITE, 0) != 0)
        return false;
    *(volatile char *)page.start = 'x'; /* memory that was never written may become executable all the same */
    bool may = !hl_is_error(hl_mprotect(page.start, page_bytes, PROT_READ | PROT_EXEC));
    hl_free_area(&page);
    return may;
}

/* Linux 5.7 to 5.12 refuse all but private anonymous memory, so shared memory shows what holds for a file.  Without memory the move
   itself fails, and says so. */
bool hl_may_keep_mapping(uint64_t page_bytes) {
    struct hl_area page;
    if (hl_map_file_area(&page, page_bytes, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != 0)
        return true;
    long aside = hl_keep_mapping(page.start, page_bytes, 0);
    if (!hl_is_error(aside))
        hl_munmap((uint64_t)aside, page_bytes);
    hl_free_area(&page);
    return !hl_is_error(aside) || aside == -ENOMEM;
}
