/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pool check: how many huge pages this process could get.  A hint that saves work, never the
   proof. */
#ifndef HL_POOL_H
#define HL_POOL_H

#include "numa.h"

#define HL_NODES_MAX 128

struct hl_pool_node {
    unsigned node; /* its number; numbers may have gaps */
    enum hl_node_use use;
    uint64_t total_pages, free_pages, surplus_pages;
};

struct hl_pool {
    uint64_t total_pages, free_pages, reserved_pages, surplus_pages,
        overcommit_pages; /* the whole machine's */
    unsigned n_nodes;     /* 0 where sysfs has no nodes */
    struct hl_pool_node node[HL_NODES_MAX];
};

/* For backend=hugetlb where pages have 16 or 64 KiB (AArch64), after hl_set_geometry: makes the huge page of GEOMETRY 2 MiB,
   which the kernel maps by contiguous entries, if there is a pool of these and none of the size that a PMD maps (32 or 512
   MiB).  Other backends have no such pages that smaps would show.  Otherwise no file is read. */
void hl_fit_geometry(struct hl_geometry *geometry, const struct hl_options *options,
                     const struct hl_roots *roots);

/* Reads the pool of pages of geometry->huge_page_bytes.  0, or HL_REASON_NO_HUGETLB if the kernel has none of that size (POOL is
   then all zero). */
int hl_read_pool(struct hl_pool *pool, const struct hl_roots *roots, const struct hl_geometry *geometry,
                 const struct hl_placement *placement);

/* Pages that the process may expect: the lesser of the free pages that are not reserved (which the kernel counts for the whole
   machine) and the free ones on usable nodes, and those that overcommit could add, less RESERVE_PAGES; 0 if that is negative. */
uint64_t hl_pool_available(const struct hl_pool *pool, uint64_t reserve_pages);

/* The parts of that sum.  If sysfs has no nodes, all free pages count as free on usable ones. */
uint64_t hl_pool_usable_free(const struct hl_pool *pool);
uint64_t hl_pool_growth(const struct hl_pool *pool);

/* If a cpuset or policy leaves some nodes out: the first usable one.  Else NULL, and the machine's setting adds pages. */
const struct hl_pool_node *hl_find_node_to_fill(const struct hl_pool *pool);

#endif
