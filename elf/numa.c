/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The NUMA nodes from which a span's pages may come.

   Three things restrict them: the cpuset, the process's memory policy (only MPOL_BIND refuses other nodes;
   the rest are preferences), and numa=.  numa= becomes a policy of the new mapping, and one of those replaces
   the process's own: so it is made from the nodes that the first two leave. */
#include "numa.h"
#include "sys.h"
#include "line.h"

#include <linux/mempolicy.h>

static bool contains(const struct hl_nodes *nodes, uint64_t node) {
    return node < HL_NODE_NUMBERS && (nodes->bits[node / 64] >> node % 64 & 1) != 0;
}

void hl_fill_nodes(struct hl_nodes *nodes, uint64_t bits) {
    for (unsigned i = 0; i < HL_NODE_NUMBERS / 64; i++)
        nodes->bits[i] = bits;
}

static void add_node(struct hl_nodes *nodes, uint64_t node) {
    nodes->bits[node / 64] |= (uint64_t)1 << node % 64;
}

const char *hl_node_use_name(enum hl_node_use use) {
    static const char *const names[] = {"usable", "cpuset", "policy", "local"};
    return names[use];
}

bool hl_scan_range(const char **at, const char *end, uint64_t *first, uint64_t *last) {
    if (!hl_scan_number(at, end, 10, first))
        return false;
    *last = *first;
    if (*at < end && **at == '-') {
        ++*at;
        if (!hl_scan_number(at, end, 10, last))
            return false;
    }
    if (*at < end && **at == ',')
        ++*at;
    return true;
}

static unsigned count_nodes(const struct hl_nodes *nodes) {
    unsigned n = 0;
    for (uint64_t node = 0; node < HL_NODE_NUMBERS; node++)
        n += contains(nodes, node);
    return n;
}

/* The nodes of MPOL_BIND, if that is the process's memory policy. */
static bool read_bound_nodes(struct hl_nodes *bound) {
    int mode = MPOL_DEFAULT;
    long result = HL_CALL(__NR_get_mempolicy, &mode, bound, HL_NODE_NUMBERS, 0, 0, 0);
    /* For relative nodes the kernel returns the numbers that the process gave: they don't name any node. */
    return !hl_is_error(result) && (mode & ~MPOL_MODE_FLAGS) == MPOL_BIND && !(mode & MPOL_F_RELATIVE_NODES);
}

/* Whether the kernel can have node 0 alone: it refuses a mask with fewer bits than its nodes may have numbers (get_mempolicy(2)). */
static bool has_one_node(void) {
    uint64_t mask;
    return !hl_is_error(HL_CALL(__NR_get_mempolicy, NULL, &mask, 1, 0, 0, 0));
}

void hl_read_placement(struct hl_placement *placement, const struct hl_status *status, unsigned numa) {
    unsigned cpu = 0, node = 0;
    placement->numa = numa;
    hl_copy_bytes(&placement->cpuset, &status->nodes, sizeof placement->cpuset);
    hl_fill_nodes(&placement->bound, 0);
    placement->binds =
        status->filters == 0 && count_nodes(&placement->cpuset) > 1 && read_bound_nodes(&placement->bound);
    if (numa == HL_NUMA_LOCAL)
        HL_CALL(__NR_getcpu, &cpu, &node, 0, 0, 0, 0);
    placement->local_node = node;
    placement->is_only_node = status->filters == 0 && count_nodes(&placement->cpuset) == 1 &&
                              contains(&placement->cpuset, 0) && has_one_node();
}

enum hl_node_use hl_find_node_use(const struct hl_placement *placement, uint64_t node) {
    if (!contains(&placement->cpuset, node))
        return HL_NODE_NOT_IN_CPUSET;
    if (placement->binds && !contains(&placement->bound, node))
        return HL_NODE_NOT_IN_POLICY;
    if (placement->numa == HL_NUMA_LOCAL && node != placement->local_node)
        return HL_NODE_NOT_LOCAL;
    return HL_NODE_USABLE;
}

int hl_bind_memory(const struct hl_placement *placement, uint64_t memory, uint64_t bytes) {
    struct hl_nodes usable;
    unsigned n_cpuset = count_nodes(&placement->cpuset);
    if (placement->numa == HL_NUMA_ANY)
        return 0;
    hl_fill_nodes(&usable, 0);
    for (uint64_t node = 0; node < HL_NODE_NUMBERS; node++)
        if (hl_find_node_use(placement, node) == HL_NODE_USABLE)
            add_node(&usable, node);
    if (n_cpuset <= 1 && count_nodes(&usable) == n_cpuset)
        return 0; /* there is no choice, and containers that forbid mbind(2) are mostly like this */
    int mode = placement->numa == HL_NUMA_LOCAL ? MPOL_BIND : MPOL_INTERLEAVE;
    long result = HL_CALL(__NR_mbind, memory, bytes, mode, &usable, HL_NODE_NUMBERS + 1, 0);
    return hl_is_error(result) && result != -ENOSYS ? HL_REASON_NUMA : 0; /* ENOSYS: a kernel without NUMA */
}
