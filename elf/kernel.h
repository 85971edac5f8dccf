/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The features of this kernel for this process, tried out on scratch memory and never guessed from a version number. */
#ifndef HL_KERNEL_H
#define HL_KERNEL_H

#include "hugeld.h"

/* The mounts of proc and sysfs; tests point them at made-up machines. */
struct hl_roots {
    const char *proc; /* "/proc" */
    const char *sys;  /* "/sys" */
};
extern const struct hl_roots hl_system_roots;

struct hl_kernel {
    bool hugetlb;           /* hugetlb mappings of geometry.huge_page_bytes exist (whatever is in the pool) */
    bool hugetlb_denied;    /* they do, and a security module refuses them (AppArmor, which takes them for a
                               file) */
    bool hugetlb_mremap;    /* mremap(2) moves them onto other mappings (Linux 5.16) */
    bool hugetlb_dofork;    /* madvise(2) takes MADV_DONTFORK back from them (Linux 7 does not) */
    bool executable_memory; /* written anonymous memory may become executable (false under PR_SET_MDWE,
                               execmem) */
};

/* The sizes of a kernel with pages of PAGE_BYTES (AT_PAGESZ): the huge page is the one that a PMD maps, a table of page_bytes /
   8 entries on both architectures.  No file is read for that: the kernel's default (Hugepagesize of meminfo) may be another
   size, and hpage_pmd_size is this one. */
void hl_set_geometry(struct hl_geometry *geometry, uint64_t page_bytes);

/* Each of these functions tries out one feature, and leaves no mapping and no descriptor behind.  Call one only if the feature
   is needed: a filter of system calls may kill for any call that its program does not make. */

/* hugetlb, hugetlb_denied and hugetlb_mremap; executable_memory, where there is hugetlb; with IS_SHARED also
   hugetlb_dofork. */
void hl_probe_hugetlb(struct hl_kernel *kernel, const struct hl_geometry *geometry, bool is_shared);

/* Whether the kernel reserves so many PAGES for a mapping, which is unmapped at once: it looks at the pool, other reservations,
   overcommit, the cpuset and the memory policy (Linux 5.9), and control groups. */
bool hl_grants_pages(const struct hl_geometry *geometry, uint64_t pages);

/* Whether written anonymous memory may become executable. */
bool hl_may_execute_written(uint64_t page_bytes);

/* Whether mremap(2) moves the pages of a file's mapping and leaves it where it is (MREMAP_DONTUNMAP, Linux 5.13). */
bool hl_may_keep_mapping(uint64_t page_bytes);

#endif
