/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pool check.  The kernel keeps one pool of huge pages per node and counts reservations for
   the whole machine only.  Two processes can hold promises for the same page, a cgroup or the policy of a
   mapping can refuse it: these numbers spare work that cannot succeed, and prepare proves the rest. */
#include "pool.h"
#include "line.h"

#define CONTIGUOUS_BYTES                                                                                     \
    ((uint64_t)2 << 20) /* 128 pages of 16 KiB or 32 of 64 KiB: CONT_PTES of Linux, arch/arm64 */

static void add_pool_directory(struct hl_line *path, const struct hl_geometry *geometry) {
    hl_add_text(path, "/hugepages/hugepages-");
    hl_add_number(path, geometry->huge_page_bytes / 1024);
    hl_add_text(path, "kB/");
}

static uint64_t read_count(const struct hl_line *directory, const char *name) {
    struct hl_line path;
    uint64_t number = 0;
    hl_set_line(&path, directory->at);
    hl_add_text(&path, name);
    /* Counts are of pages in one machine; a larger number is not believed, so that sums cannot overflow. */
    return hl_read_number(path.at, &number) && number <= UINT32_MAX ? number : 0;
}

/* Whether the kernel has pages of this size, or may add some. */
static bool has_pool(const struct hl_geometry *geometry, const struct hl_roots *roots) {
    struct hl_line directory;
    hl_set_line(&directory, roots->sys);
    hl_add_text(&directory, "/kernel/mm");
    add_pool_directory(&directory, geometry);
    return read_count(&directory, "nr_hugepages") > 0 ||
           read_count(&directory, "nr_overcommit_hugepages") > 0;
}

void hl_fit_geometry(struct hl_geometry *geometry, const struct hl_options *options,
                     const struct hl_roots *roots) {
    const struct hl_geometry contiguous = {geometry->page_bytes, CONTIGUOUS_BYTES};
    if (options->backend == HL_BACKEND_HUGETLB && geometry->huge_page_bytes > CONTIGUOUS_BYTES &&
        !has_pool(geometry, roots) && has_pool(&contiguous, roots))
        *geometry = contiguous;
}

static void read_node(struct hl_pool *pool, const struct hl_roots *roots, const struct hl_geometry *geometry,
                      uint64_t number) {
    struct hl_pool_node *node = &pool->node[pool->n_nodes++];
    struct hl_line directory;
    hl_set_line(&directory, roots->sys);
    hl_add_text(&directory, "/devices/system/node/node");
    hl_add_number(&directory, number);
    add_pool_directory(&directory, geometry);
    node->node = (unsigned)number;
    node->total_pages = read_count(&directory, "nr_hugepages");
    node->free_pages = read_count(&directory, "free_hugepages");
    node->surplus_pages = read_count(&directory, "surplus_hugepages");
}

static void read_nodes(struct hl_pool *pool, const struct hl_roots *roots,
                       const struct hl_geometry *geometry) {
    struct hl_line path;
    char online[1024];
    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/devices/system/node/online");
    long bytes = hl_read_line(path.at, online, sizeof online);
    if (bytes <= 0)
        return;
    const char *at = online;
    uint64_t first, last;
    while (hl_scan_range(&at, online + bytes, &first, &last))
        for (uint64_t i = first; i <= last && i < HL_NODE_NUMBERS && pool->n_nodes < HL_NODES_MAX; i++)
            read_node(pool, roots, geometry, i);
}

int hl_read_pool(struct hl_pool *pool, const struct hl_roots *roots, const struct hl_geometry *geometry,
                 const struct hl_placement *placement) {
    struct hl_line directory, path;
    pool->total_pages = pool->free_pages = pool->reserved_pages = 0;
    pool->surplus_pages = pool->overcommit_pages = 0;
    pool->n_nodes = 0;

    hl_set_line(&directory, roots->sys);
    hl_add_text(&directory, "/kernel/mm");
    add_pool_directory(&directory, geometry);
    hl_set_line(&path, directory.at);
    hl_add_text(&path, "nr_hugepages");
    if (!hl_read_number(path.at, &pool->total_pages))
        return HL_REASON_NO_HUGETLB;
    pool->free_pages = read_count(&directory, "free_hugepages");
    pool->reserved_pages = read_count(&directory, "resv_hugepages");
    pool->surplus_pages = read_count(&directory, "surplus_hugepages");
    pool->overcommit_pages = read_count(&directory, "nr_overcommit_hugepages");
    read_nodes(pool, roots, geometry);
    for (unsigned i = 0; i < pool->n_nodes; i++)
        pool->node[i].use = hl_find_node_use(placement, pool->node[i].node);
    return 0;
}

uint64_t hl_pool_usable_free(const struct hl_pool *pool) {
    uint64_t free_pages = pool->n_nodes > 0 ? 0 : pool->free_pages;
    for (unsigned i = 0; i < pool->n_nodes; i++)
        if (pool->node[i].use == HL_NODE_USABLE)
            free_pages += pool->node[i].free_pages;
    return free_pages;
}

uint64_t hl_pool_growth(const struct hl_pool *pool) {
    return hl_subtract(pool->overcommit_pages, pool->surplus_pages);
}

uint64_t hl_pool_available(const struct hl_pool *pool, uint64_t reserve_pages) {
    uint64_t available = hl_subtract(pool->free_pages, pool->reserved_pages);
    uint64_t usable = hl_pool_usable_free(pool);
    return hl_subtract((usable < available ? usable : available) + hl_pool_growth(pool), reserve_pages);
}

const struct hl_pool_node *hl_find_node_to_fill(const struct hl_pool *pool) {
    const struct hl_pool_node *usable = NULL;
    bool restricted = false;
    for (unsigned i = 0; i < pool->n_nodes; i++) {
        if (pool->node[i].use != HL_NODE_USABLE)
            restricted = true;
        else if (usable == NULL)
            usable = &pool->node[i];
    }
    return restricted ? usable : NULL;
}
