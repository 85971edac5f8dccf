/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pointer chases: chains of lines, in random order, that are read or jumped through, to measure the cost of a translation. */
#ifndef HL_POINTER_CHASE_H
#define HL_POINTER_CHASE_H

#include "elf/hugeld.h"

/* Memory for lines: places of 4 KiB. */
struct hl_field {
    char *base;
    uint64_t bytes; /* mapped from BASE on */
    void *map;      /* the whole mapping, for hl_release_field */
    uint64_t map_bytes;
};

/* Reserves an anonymous field on a boundary of huge pages; FLAGS are added to mmap(2)'s.  False: no memory. */
bool hl_reserve_field(struct hl_field *field, uint64_t bytes, int flags, const struct hl_geometry *geometry);
void hl_release_field(struct hl_field *field);

/* The same, with a small page at each STEP; FIELD is to be released after false, too. */
bool hl_reserve_small_field(struct hl_field *field, uint64_t bytes, uint64_t step,
                            const struct hl_geometry *geometry);

/* Touches a byte of each STEP by a system call, which reports a missing page instead of raising SIGBUS.  Returns how many bytes
   from BASE on have pages. */
uint64_t hl_fill_field(const struct hl_field *field, uint64_t step);

/* Packed lines are spread over PAGES pages at this distance, so that jumps go as far as those of lines with a page each, and their
   targets are as hard to predict.  The distance is an odd number of pages, or all would fall into one set of a TLB. */
#define HL_PACKED_STEP ((uint64_t)127 * 4096)

/* A chain uses one of this many slots of its lines, and leaves the others alone. */
#define HL_CHAIN_SLOTS 3
struct hl_chain {
    char *base;
    unsigned slot, lines;
    unsigned pages;    /* 0: each line has a page of its own; else they are packed, 64 at most in each */
    const char *first; /* set by hl_make_chain */
    uint64_t (*enter)(void); /* likewise */
};

/* Writes CHAIN, whose order is drawn from *STATE.  False: no memory for the order. */
bool hl_make_chain(struct hl_chain *chain, uint64_t *state);

/* After all chains of FIELD are written: makes it executable, and no longer writable.  False: a policy or the file system forbids
   it. */
bool hl_seal_field(const struct hl_field *field);

/* ns for a line, over PASSES passes through CHAIN by reads, and by jumps. */
double hl_time_reads(const struct hl_chain *chain, unsigned passes);
double hl_time_jumps(const struct hl_chain *chain, unsigned passes);

/* Whether all of FIELD is on huge pages, by AnonHugePages, FilePmdMapped and ShmemPmdMapped of its mapping, if necessary after
   another request to the kernel. */
bool hl_is_field_huge(const struct hl_field *field);

#endif
