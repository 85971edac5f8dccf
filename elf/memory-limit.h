/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether there is memory for private copies: file text is shared and can be dropped, a copy in anonymous
   memory is neither. */
#ifndef HL_MEMORY_LIMIT_H
#define HL_MEMORY_LIMIT_H

#include "numa.h"

/* Whether BYTES of private copies may be made although they were not asked for.  0, or
   HL_REASON_MEMORY_LIMIT: a limit applies to this process.  RLIMIT_AS or RLIMIT_DATA is finite,
   vm.overcommit_memory is 2, or its memory cgroup or an ancestor of that has less than the machine (v1
   memory.limit_in_bytes, v2 memory.max and memory.high).

   HL_REASON_MEMORY_UNKNOWN: one of these cannot be read, or the ancestors cannot be seen from here.

   HL_REASON_MEMORY_SHORT: with the copies less than a quarter of the machine's memory would be available
   (the hugetlb pool is no part of that), or of the usable nodes' if these are not all, or less than the
   copies' own size. */
int hl_check_memory_limit(const struct hl_roots *roots, const struct hl_placement *placement, uint64_t bytes);

/* Bytes that this process can still charge: the least of MemAvailable, of the free or reclaimable memory
   on the usable nodes if these are not all (the kernel kills when the nodes of a policy are full), with
   vm.overcommit_memory=2 of the rest of CommitLimit, and, for its memory cgroup and every ancestor, of its
   limit less the usage that it cannot reclaim.  UINT64_MAX if nothing can be read. */
uint64_t hl_read_memory_headroom(const struct hl_roots *roots, const struct hl_placement *placement);

#endif
