/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether there is memory for private copies: file text is shared and can be dropped, a copy in anonymous
   memory is neither. */
#ifndef HL_MEMORY_LIMIT_H
#define HL_MEMORY_LIMIT_H

#include "numa.h"

/* /proc/meminfo, in bytes. */
struct hl_machine {
    uint64_t total; /* without the hugetlb pool, which serves nothing else; 0: it cannot be read */
    uint64_t available;
    uint64_t commit_limit, commit_room; /* CommitLimit, and what of it is not committed */
    uint64_t pools;                     /* of hugetlb pages of all sizes; UINT64_MAX before Linux 4.19 */
};
void hl_read_machine(struct hl_machine *machine, const struct hl_roots *roots);

/* Whether BYTES of private copies may be made on MACHINE although they were not asked for.  0, or
   HL_REASON_MEMORY_LIMIT: a limit applies to this process.  Its memory cgroup or an ancestor of that has less than the machine (v1
   memory.limit_in_bytes, v2 memory.max and memory.high), or vm.overcommit_memory is 2 and less than a quarter of CommitLimit, or
   than the copies' size, would not be committed.

   HL_REASON_MEMORY_UNKNOWN: one of these cannot be read, or the ancestors cannot be seen from here.

   HL_REASON_MEMORY_SHORT: with the copies less than a quarter of the machine's memory would be available, or of
   the usable nodes' if these are not all, or less than the copies' own size. */
int hl_check_memory_limit(const struct hl_roots *roots, const struct hl_placement *placement,
                          const struct hl_machine *machine, uint64_t bytes);

/* A copy takes as much of RLIMIT_AS as what it replaces, and of RLIMIT_DATA nothing more, as soon as it is in place; before, it
   takes its size, which another thread could miss.  0; HL_REASON_MEMORY_LIMIT: one of them is finite; or HL_REASON_MEMORY_UNKNOWN. */
int hl_check_resource_limits(void);

/* The same of RLIMIT_AS alone, of which a copy that fills gaps takes more for good. */
int hl_check_address_limit(void);

/* Bytes that this process can still charge: the least of MemAvailable, of the free or reclaimable memory
   on the usable nodes if these are not all (the kernel kills when the nodes of a policy are full), with
   vm.overcommit_memory=2 of the rest of CommitLimit, and, for its memory cgroup and every ancestor, of its
   limit less the usage that it cannot reclaim.  UINT64_MAX if nothing can be read. */
uint64_t hl_read_memory_headroom(const struct hl_roots *roots, const struct hl_placement *placement);

#endif
