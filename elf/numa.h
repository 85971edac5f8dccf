/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The NUMA nodes from which a span's pages may come: the cpuset, the memory policy, and numa=. */
#ifndef HL_NUMA_H
#define HL_NUMA_H

#include "options.h"
#include "status.h"

struct hl_placement {
    unsigned numa; /* one of HL_NUMA_ANY, _LOCAL, _INTERLEAVE */
    struct hl_nodes cpuset;
    bool binds; /* the process's memory policy takes pages from these nodes alone: */
    struct hl_nodes bound;
    unsigned local_node; /* the node of this thread's CPU; only with HL_NUMA_LOCAL */
    bool is_only_node;   /* the machine can have node 0 alone; false where that can't be asked */
};

/* Why a node serves this process, or doesn't. */
enum hl_node_use { HL_NODE_USABLE, HL_NODE_NOT_IN_CPUSET, HL_NODE_NOT_IN_POLICY, HL_NODE_NOT_LOCAL };

/* "usable", "cpuset", "policy", "local"; static. */
const char *hl_node_use_name(enum hl_node_use use);

/* The restrictions on the process of STATUS, which is this one, with numa=NUMA.  A process under a filter
   of system calls is not asked for its memory policy: it counts as having none. */
void hl_read_placement(struct hl_placement *placement, const struct hl_status *status, unsigned numa);

/* Pure.  A NODE beyond HL_NODE_NUMBERS is in no cpuset. */
enum hl_node_use hl_find_node_use(const struct hl_placement *placement, uint64_t node);

/* Gives the new mapping [memory, memory + bytes) the memory policy that numa= asks for; it decides where its
   pages come from.  0, or HL_REASON_NUMA. */
int hl_bind_memory(const struct hl_placement *placement, uint64_t memory, uint64_t bytes);

void hl_fill_nodes(struct hl_nodes *nodes, uint64_t bits);

/* Reads one number or range of a list like "0-1,4" at *AT, and the comma behind it.  False at its end. */
bool hl_scan_range(const char **at, const char *end, uint64_t *first, uint64_t *last);

#endif
