/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From which NUMA nodes a span's pages may come.

   Three things restrict them: the cpuset, the process's memory policy (only MPOL_BIND refuses other nodes;
   the rest are preferences), and numa=.  numa= becomes a policy of the new mapping, and one of those replaces
   the process's own: so it is made from the nodes that the first two leave. */
#include "numa.h"
#include "sys.h"
#include "text.h"

#include <linux/mempolicy.h>

static bool contains(const struct hl_nodes *nodes, uint64_t node) {
    return node < HL_NODE_NUMBERS && (nodes->bits[node / 64] >> node % 64 & 1) != 0;
}

static void fill_nodes(struct hl_nodes *nodes, uint64_t bits) {
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

/* Where the value of KEY begins, if the line [at, end) has it; else NULL. */
static const char *find_value(const char *at, const char *end, const char *key) {
    size_t bytes = hl_text_bytes(key);
    return (size_t)(end - at) > bytes && hl_same_bytes(at, key, bytes) ? at + bytes : NULL;
}

/* TracerPid and Mems_allowed_list of /proc/self/status, which come in this order. */
static void read_status(struct hl_placement *placement, const struct hl_roots *roots) {
    struct hl_nodes *cpuset = &placement->cpuset;
    struct hl_text path;
    struct hl_lines lines;
    const char *line, *end, *at;
    uint64_t first, last;
    bool found = false;
    placement->is_traced = false;
    fill_nodes(cpuset, 0);
    hl_set_text(&path, roots->proc);
    hl_add_text(&path, "/self/status");
    hl_open_lines(&lines, path.at);
    while (!found && hl_next_line(&lines, &line, &end)) {
        if ((at = find_value(line, end, "TracerPid:\t")) != NULL)
            placement->is_traced = *at != '0';
        if ((at = find_value(line, end, "Mems_allowed_list:\t")) == NULL)
            continue;
        while (hl_scan_range(&at, end, &first, &last))
            for (uint64_t i = first; i <= last && i < HL_NODE_NUMBERS; i++)
                add_node(cpuset, i);
        found = true;
    }
    hl_close_lines(&lines);
    if (!found)
        fill_nodes(cpuset, ~(uint64_t)0);
}

void hl_read_placement(struct hl_placement *placement, const struct hl_roots *roots, unsigned numa) {
    int mode = MPOL_DEFAULT;
    unsigned cpu = 0, node = 0;
    placement->numa = numa;
    read_status(placement, roots);

    fill_nodes(&placement->bound, 0);
    long result = HL_CALL(__NR_get_mempolicy, &mode, &placement->bound, HL_NODE_NUMBERS, 0, 0, 0);
    /* Of relative nodes the kernel tells the numbers as the process gave them: they don't name any. */
    placement->binds =
        !hl_is_error(result) && (mode & ~MPOL_MODE_FLAGS) == MPOL_BIND && !(mode & MPOL_F_RELATIVE_NODES);
    HL_CALL(__NR_getcpu, &cpu, &node, 0, 0, 0, 0);
    placement->local_node = node;
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

int hl_place_memory(const struct hl_placement *placement, uint64_t memory, uint64_t bytes) {
    struct hl_nodes usable;
    unsigned n_cpuset = 0, n_usable = 0;
    if (placement->numa == HL_NUMA_ANY)
        return 0;
    fill_nodes(&usable, 0);
    for (uint64_t node = 0; node < HL_NODE_NUMBERS; node++) {
        if (contains(&placement->cpuset, node))
            n_cpuset++;
        if (hl_find_node_use(placement, node) != HL_NODE_USABLE)
            continue;
        add_node(&usable, node);
        n_usable++;
    }
    if (n_cpuset <= 1 && n_usable == n_cpuset)
        return 0; /* there is no choice, and containers that forbid mbind(2) are mostly like this */
    int mode = placement->numa == HL_NUMA_LOCAL ? MPOL_BIND : MPOL_INTERLEAVE;
    long result = HL_CALL(__NR_mbind, memory, bytes, mode, &usable, HL_NODE_NUMBERS + 1, 0);
    return hl_is_error(result) && result != -ENOSYS ? HL_SKIP_NUMA : 0; /* ENOSYS: a kernel without NUMA */
}
