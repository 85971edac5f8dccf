/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pointer chases: chains of lines, in random order, that are read or jumped through, and what a translation costs. */
#ifndef HL_POINTER_CHASE_H
#define HL_POINTER_CHASE_H

#include "elf/hugeld.h"

/* Where lines may lie: PAGES places of 4 KiB. */
struct hl_field {
    char *base;
    uint64_t bytes; /* mapped from BASE on */
    void *map;      /* what hl_release_field unmaps */
    uint64_t map_bytes;
};

/* Reserves an anonymous field on a boundary of huge pages; FLAGS are added to mmap(2)'s.  False: no memory. */
bool hl_reserve_field(struct hl_field *field, uint64_t bytes, int flags, const struct hl_geometry *geometry);
void hl_release_field(struct hl_field *field);

/* The same, with a small page at each STEP; what is there is to be released after false, too. */
bool hl_reserve_small_field(struct hl_field *field, uint64_t bytes, uint64_t step,
                            const struct hl_geometry *geometry);

/* Touches a byte of each STEP by a system call, which reports a missing page instead of raising SIGBUS.  How many
   bytes from BASE on are there. */
uint64_t hl_fill_field(const struct hl_field *field, uint64_t step);

/* Packed lines are dealt to PAGES pages that lie as far apart as this, so that jumps go as far as those of lines with a
   page each, and their targets are as hard to predict.  An odd number of pages, or all would fall into one set of a
   TLB. */
#define HL_PACKED_STEP ((uint64_t)127 * 4096)

/* A chain lies in one of so many slots of its lines, which does not touch the others'. */
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

/* After all chains of FIELD are written: makes it executable, and no longer writable.  False: a policy forbids that,
   or the file system. */
bool hl_seal_field(const struct hl_field *field);

/* ns for a line, over PASSES passes through CHAIN by reads, and by jumps. */
double hl_time_reads(const struct hl_chain *chain, unsigned passes);
double hl_time_jumps(const struct hl_chain *chain, unsigned passes);

/* Whether all of FIELD is on huge pages, by AnonHugePages, FilePmdMapped and ShmemPmdMapped of its mapping, after the kernel was
   asked once more. */
bool hl_is_field_huge(const struct hl_field *field);

#endif
