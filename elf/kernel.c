/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What this kernel can do for this process.  Version numbers lie (backports, seccomp, SELinux), so everything
   is tried out on scratch memory; nothing here takes a page from the pool. */
#include "kernel.h"
#include "area.h"
#include "maps.h"
#include "mapping.h"
#include "sys.h"
#include "line.h"

#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/uio.h>

const struct hl_roots hl_system_roots = {"/proc", "/sys"};

void hl_read_geometry(struct hl_geometry *geometry, const struct hl_roots *roots, uint64_t page_bytes) {
    struct hl_line path;
    char meminfo[8192];
    uint64_t number = 0;
    geometry->page_bytes = page_bytes;
    geometry->huge_page_bytes = (uint64_t)2 << 20;

    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/kernel/mm/transparent_hugepage/hpage_pmd_size");
    if (!hl_read_number(path.at, &number)) {
        hl_set_line(&path, roots->proc);
        hl_add_text(&path, "/meminfo");
        if (hl_read_file(path.at, meminfo, sizeof meminfo) > 0 &&
            hl_find_number(meminfo, "Hugepagesize:", &number))
            number *= 1024;
    }
    if (number > page_bytes && number < (uint64_t)1 << 32 && (number & (number - 1)) == 0)
        geometry->huge_page_bytes = number;
}

/* Whether ROOM is still mapped up to AT.  It is shared memory, so nothing of anybody else's can have become
   one mapping with it. */
static bool is_whole(const struct hl_area *room, uint64_t at) {
    struct hl_maps maps;
    if (hl_read_maps(&maps) != 0)
        return false;
    bool whole = hl_find_mapping(&maps, room->start) == hl_find_mapping(&maps, at);
    hl_free_maps(&maps);
    return whole;
}

/* Whether mremap brings the huge page HUGE to a boundary inside ROOM.  Linux 5.10 says no and has unmapped
   what was there; by now it may be another thread's. */
static bool moves_into(struct hl_area *room, struct hl_area *huge) {
    uint64_t bytes = huge->end - huge->start, to = hl_round_up(room->start + 1, bytes);
    bool moves = !hl_is_error(hl_move_mapping(huge->start, bytes, to));
    if (moves)
        hl_leave_area(huge, huge->start, huge->end);
    else if (!is_whole(room, to))
        hl_leave_area(room, to, to + bytes);
    return moves;
}

static void probe_hugetlb(struct hl_kernel *kernel, const struct hl_geometry *geometry) {
    uint64_t bytes = geometry->huge_page_bytes;
    struct hl_area huge, room;
    int result = hl_map_area(&huge, bytes, PROT_READ, MAP_NORESERVE | hl_hugetlb_flags(geometry));
    kernel->hugetlb = result == 0 || result == -ENOMEM; /* EINVAL: no pages of this size */
    kernel->hugetlb_denied = result == -EACCES || result == -EPERM;
    if (result != 0)
        return;
    kernel->hugetlb_dofork = !hl_is_error(hl_madvise(huge.start, bytes, MADV_DONTFORK)) &&
                             !hl_is_error(hl_madvise(huge.start, bytes, MADV_DOFORK));
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    if (hl_map_file_area(&room, 2 * bytes, PROT_NONE, flags, -1, 0) == 0)
        kernel->hugetlb_mremap = moves_into(&room, &huge);
    hl_free_area(&room);
    hl_free_area(&huge);
}

static bool probe_memfd(const struct hl_geometry *geometry) {
    long fd = hl_create_hugetlb_memfd(geometry);
    if (hl_is_error(fd))
        return false;
    hl_close((int)fd);
    return true;
}

static bool probe_userfaultfd(void) {
    long fd = hl_open_userfaultfd();
    if (hl_is_error(fd))
        return false;
    hl_close((int)fd);
    return true;
}

static bool probe_reading(void) {
    static const char from = 'x';
    char to = 0;
    return hl_read_memory(&to, (uint64_t)&from, 1) == 1 && to == 'x';
}

/* One anonymous page answers the rest.  madvise(2) checks the advice before it looks at a length of 0. */
static void probe_page(struct hl_kernel *kernel, uint64_t page_bytes) {
    struct hl_area page;
    if (hl_map_area(&page, page_bytes, PROT_READ | PROT_WRITE, 0) != 0)
        return;
    *(volatile char *)page.start = 'x'; /* what was never written may become executable all the same */
    kernel->populate = !hl_is_error(hl_madvise(page.start, 0, MADV_POPULATE_READ));
    kernel->collapse = !hl_is_error(hl_madvise(page.start, 0, MADV_COLLAPSE));
    kernel->executable_memory = !hl_is_error(hl_mprotect(page.start, page_bytes, PROT_READ | PROT_EXEC));
    hl_free_area(&page);
}

void hl_probe_kernel(struct hl_kernel *kernel, const struct hl_geometry *geometry, bool has_filter) {
    kernel->hugetlb_mremap = kernel->hugetlb_dofork = kernel->executable_memory = false;
    kernel->populate = kernel->collapse = false;
    probe_hugetlb(kernel, geometry);
    kernel->hugetlb_memfd = !has_filter && probe_memfd(geometry);
    kernel->userfaultfd = !has_filter && probe_userfaultfd();
    kernel->read_by_call = !has_filter && probe_reading();
    probe_page(kernel, geometry->page_bytes);
}
