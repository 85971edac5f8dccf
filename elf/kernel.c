/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What this kernel can do for this process.  Version numbers lie (backports, seccomp, SELinux), so everything
   is tried out on scratch memory; nothing here takes a page from the pool. */
#include "kernel.h"
#include "memory.h"
#include "sys.h"
#include "text.h"

#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/uio.h>

const struct hl_roots hl_system_roots = {"/proc", "/sys"};

void hl_read_geometry(struct hl_geometry *geometry, const struct hl_roots *roots, uint64_t page_bytes) {
    struct hl_text path;
    char meminfo[8192];
    uint64_t number = 0;
    geometry->page_bytes = page_bytes;
    geometry->huge_page_bytes = (uint64_t)2 << 20;

    hl_set_text(&path, roots->sys);
    hl_add_text(&path, "/kernel/mm/transparent_hugepage/hpage_pmd_size");
    if (!hl_read_number(path.at, &number)) {
        hl_set_text(&path, roots->proc);
        hl_add_text(&path, "/meminfo");
        if (hl_read_file(path.at, meminfo, sizeof meminfo) > 0 &&
            hl_find_number(meminfo, "Hugepagesize:", &number))
            number *= 1024;
    }
    if (number > page_bytes && number < (uint64_t)1 << 32 && (number & (number - 1)) == 0)
        geometry->huge_page_bytes = number;
}

/* Maps scratch memory of two huge pages and returns the boundary inside it through ALIGNED. */
static long map_scratch(const struct hl_geometry *geometry, uint64_t *aligned) {
    long at = hl_mmap(0, 2 * geometry->huge_page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!hl_is_error(at))
        *aligned = hl_round_up((uint64_t)at, geometry->huge_page_bytes);
    return at;
}

static void probe_hugetlb(struct hl_kernel *kernel, const struct hl_geometry *geometry) {
    uint64_t bytes = geometry->huge_page_bytes, aligned = 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | hl_hugetlb_flags(geometry);
    long huge = hl_mmap(0, bytes, PROT_READ, flags, -1, 0);
    kernel->hugetlb = !hl_is_error(huge) || huge == -ENOMEM; /* EINVAL: no pages of this size */
    kernel->hugetlb_denied = huge == -EACCES || huge == -EPERM;
    if (hl_is_error(huge))
        return;
    long scratch = map_scratch(geometry, &aligned);
    if (!hl_is_error(scratch)) {
        kernel->hugetlb_mremap = !hl_is_error(hl_move_mapping((uint64_t)huge, bytes, aligned));
        if (kernel->hugetlb_mremap)
            huge = (long)aligned;
    }
    hl_munmap((uint64_t)huge, bytes);
    if (!hl_is_error(scratch))
        hl_munmap((uint64_t)scratch, 2 * bytes);
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

/* One anonymous page answers the rest.  madvise(2) checks the advice before it looks at a length of 0. */
static void probe_page(struct hl_kernel *kernel, uint64_t page_bytes) {
    long page = hl_mmap(0, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (hl_is_error(page))
        return;
    volatile char *from = (volatile char *)page;
    char to = 0;
    *from = 'x';
    kernel->read_by_call = hl_read_memory(&to, (uint64_t)page, 1) == 1 && to == 'x';
    kernel->populate = !hl_is_error(hl_madvise((uint64_t)page, 0, MADV_POPULATE_READ));
    kernel->collapse = !hl_is_error(hl_madvise((uint64_t)page, 0, MADV_COLLAPSE));
    kernel->executable_memory = !hl_is_error(hl_mprotect((uint64_t)page, page_bytes, PROT_READ | PROT_EXEC));
    hl_munmap((uint64_t)page, page_bytes);
}

void hl_probe_kernel(struct hl_kernel *kernel, const struct hl_geometry *geometry) {
    kernel->hugetlb_mremap = kernel->executable_memory = false;
    kernel->read_by_call = kernel->populate = kernel->collapse = false;
    probe_hugetlb(kernel, geometry);
    kernel->hugetlb_memfd = probe_memfd(geometry);
    kernel->userfaultfd = probe_userfaultfd();
    probe_page(kernel, geometry->page_bytes);
}
