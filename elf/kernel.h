/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What this kernel can do for this process, tried out on scratch memory and never guessed from a version
   number. */
#ifndef HL_KERNEL_H
#define HL_KERNEL_H

#include "hugeld.h"

/* Where proc and sysfs are mounted; tests point them at made-up machines. */
struct hl_roots {
    const char *proc; /* "/proc" */
    const char *sys;  /* "/sys" */
};
extern const struct hl_roots hl_system_roots;

struct hl_kernel {
    bool hugetlb; /* private hugetlb mappings of geometry.huge_page_bytes exist (says nothing of the pool) */
    bool hugetlb_denied;    /* they do, and a security module refuses them (AppArmor, which takes them for a
                               file) */
    bool hugetlb_mremap;    /* mremap(2) moves them onto other mappings (Linux 5.16) */
    bool hugetlb_dofork;    /* madvise(2) takes MADV_DONTFORK back from them (Linux 7 does not) */
    bool hugetlb_memfd;     /* memfd_create(2) with MFD_HUGETLB (Linux 4.14) */
    bool executable_memory; /* written anonymous memory may become executable (false under PR_SET_MDWE,
                               execmem) */
    bool userfaultfd;       /* UFFDIO_COPY fills private hugetlb mappings (UFFD_USER_MODE_ONLY: Linux 5.11) */
    bool read_by_call;      /* process_vm_readv(2) of the process itself */
    bool populate;          /* MADV_POPULATE_READ and _WRITE (Linux 5.14) */
    bool collapse;          /* MADV_COLLAPSE (Linux 6.1) */
};

/* Reads the page sizes.  The huge page is the one that a PMD maps (transparent_hugepage/hpage_pmd_size, else
   Hugepagesize of meminfo); 2 MiB where neither file can be read.  PAGE_BYTES is AT_PAGESZ. */
void hl_read_geometry(struct hl_geometry *geometry, const struct hl_roots *roots, uint64_t page_bytes);

/* Tries everything above out; leaves no mapping and no descriptor behind, takes no page from the pool.
   HAS_FILTER: the process is under a filter of system calls, which may kill it for one that it does not know.
   Then only those are made that a program's memory allocator makes too (mmap, munmap, mprotect, mremap,
   madvise), and what needs others counts as missing. */
void hl_probe_kernel(struct hl_kernel *kernel, const struct hl_geometry *geometry, bool has_filter);

#endif
