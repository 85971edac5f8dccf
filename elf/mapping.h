/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The few memory operations that more than one step needs. */
#ifndef HL_MAPPING_H
#define HL_MAPPING_H

#include "area.h"
#include "kernel.h"

/* PROT_READ, PROT_WRITE and PROT_EXEC for PF_R, PF_W and PF_X. */
int hl_protection(uint32_t flags);

/* MAP_HUGETLB (or MFD_HUGETLB's) with the size named: the default size need not be ours. */
int hl_hugetlb_flags(const struct hl_geometry *geometry);

/* An empty memfd, close-on-exec, or a negated errno.  IS_HUGETLB: MFD_HUGETLB.  The caller closes it. */
long hl_create_memfd(const struct hl_geometry *geometry, bool is_hugetlb);

/* Lets nobody change what is in MEMFD from now on (Linux 5.1), except by mappings that are there. */
void hl_seal_memfd(int memfd);

/* Takes the address space [at, at + bytes) with a mapping that allows no access, if nothing is there:
   looking would not be enough, since another thread may map something meanwhile.  0; -EEXIST: something is
   there; or another negated errno. */
int hl_claim_range(uint64_t at, uint64_t bytes);

/* Copies BYTES at address FROM of this process to TO by a system call: a page that cannot be read, or a
   missing huge page at TO, is an error here and no signal.  The number of bytes copied, which may be
   fewer, or a negated errno. */
long hl_read_memory(void *to, uint64_t from, size_t bytes);

/* The same with the UNIT bytes at FROM again and again.  BYTES is at most HL_REPEATS_MAX units. */
#define HL_REPEATS_MAX 128
long hl_repeat_memory(void *to, size_t bytes, const void *from, size_t unit);

/* Spare mappings against vm.max_map_count: when that is nearly reached, the way back from half-moved
   mappings would fail as well.  Held during the first step. */
struct hl_ballast {
    struct hl_area area;
    uint64_t page_bytes;
};

/* 0, or HL_REASON_MAP_COUNT; drop it in either case. */
int hl_reserve_ballast(struct hl_ballast *ballast, uint64_t page_bytes);
void hl_drop_ballast(struct hl_ballast *ballast);

#endif
