/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When transparent huge pages may stand in: anonymous text is private and charged, file text is neither. */
#ifndef HL_THP_H
#define HL_THP_H

#include "numa.h"

/* 0 if THP are neither switched off by the administrator (HL_SKIP_THP_NEVER) nor for this process
   (HL_SKIP_THP_DISABLED). */
int hl_check_thp_policy(const struct hl_roots *roots);

/* Bytes that this process can still charge: the least of MemAvailable, of what is free or reclaimable on the
   usable nodes where these are not all (the kernel kills when the nodes of a policy are full), and, for every
   ancestor memory cgroup (v2 memory.max and memory.high, v1 memory.limit_in_bytes), of its limit less what it
   uses and cannot reclaim. UINT64_MAX if nothing can be read. */
uint64_t hl_read_memory_headroom(const struct hl_roots *roots, const struct hl_placement *placement);

#endif
