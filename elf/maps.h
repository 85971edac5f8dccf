/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/self/maps, smaps and pagemap: the mappings, their kinds, and whether they were written to. */
#ifndef HL_MAPS_H
#define HL_MAPS_H

#include "area.h"
#include "line.h"

struct hl_mapping {
    uint64_t start, end;
    uint64_t offset, device, inode; /* inode is 0 for anonymous memory */
    uint64_t name;                  /* a hash of it */
    int prot;                       /* PROT_READ, PROT_WRITE, PROT_EXEC */
    bool shared;
};

/* PROCMAP_QUERY of <linux/fs.h>, Linux 6.11, which asks an open /proc/PID/maps for one mapping. */
struct hl_mapping_query {
    uint64_t size, query_flags, address, start, end, flags, page_bytes, offset, inode;
    uint32_t major, minor, name_bytes, build_id_bytes;
    uint64_t name, build_id;
};
#define HL_MAPPING_QUERY 0xc0686611 /* _IOWR('f', 17, struct hl_mapping_query) */
enum {
    HL_QUERY_READABLE = 1,
    HL_QUERY_WRITABLE = 2,
    HL_QUERY_EXECUTABLE = 4,
    HL_QUERY_SHARED = 8,
    HL_QUERY_OR_NEXT = 16
};

/* Enough for an object, with some to spare. */
#define HL_MAPPINGS_FEW 16

/* Ascending.  It points into itself, so it can't be copied. */
struct hl_maps {
    struct hl_mapping *mapping;
    size_t n;
    struct hl_area area; /* the memory for them, if they are many */
    struct hl_mapping few[HL_MAPPINGS_FEW];
};

/* Makes MAPS empty, so that hl_free_maps has nothing to do. */
void hl_clear_maps(struct hl_maps *maps);

/* Reads the mappings that overlap [start, end), or all from 0 to UINT64_MAX.  Mappings before them cost nothing if the kernel
   answers for an address (PROCMAP_QUERY, Linux 6.11); else /proc/self/maps is read up to END.  MAY_QUERY: ioctl(2) may be
   called, no filter can kill for it.  0, HL_REASON_NO_PROC or HL_REASON_NO_MEMORY.  After 0 the caller frees MAPS. */
int hl_read_maps(struct hl_maps *maps, uint64_t start, uint64_t end, bool may_query);
void hl_free_maps(struct hl_maps *maps);

/* The index of the first mapping that ends after ADDRESS; maps->n if there is none. */
size_t hl_find_mapping(const struct hl_maps *maps, uint64_t address);

/* Whether A and B say the same about [start, end). */
bool hl_same_maps(const struct hl_maps *a, const struct hl_maps *b, uint64_t start, uint64_t end);

/* Whether in A and B the same bytes of the same files are mapped in [start, end), whatever their protection, without a hole. */
bool hl_same_files(const struct hl_maps *a, const struct hl_maps *b, uint64_t start, uint64_t end);

/* /proc/self/smaps, mapping by mapping, in constant space.  The kernel walks the page tables of each mapping
   that is read, so stop reading at the last one that is wanted. */
struct hl_smaps {
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    struct hl_mapping mapping; /* the one that hl_next_smaps read; prot without PROT_BTI */
    uint64_t thp_bytes;        /* AnonHugePages */
    uint64_t file_huge_bytes;  /* FilePmdMapped (Linux 5.4) and ShmemPmdMapped */
    bool is_guarded;           /* VmFlags has bt: PROT_BTI, AArch64 */
    bool
        is_special; /* VmFlags has one that a new mapping would not have (mlock, madvise, userfaultfd), or it has a
                                  protection key */
};

/* A file that cannot be opened has no mappings. */
void hl_open_smaps(struct hl_smaps *smaps);
bool hl_next_smaps(struct hl_smaps *smaps);
void hl_close_smaps(struct hl_smaps *smaps);

/* The protection of the executable mappings in [start, end) beside PROT_READ and PROT_EXEC, through EXTRA: HL_PROT_BTI or 0.  0;
   HL_REASON_MAPPING_CHANGED where some have it and some don't; HL_REASON_NO_PROC. */
int hl_read_branch_protection(uint64_t start, uint64_t end, int *extra);
/* The same of another process, whose smaps FILE is, or a negated errno; it is closed. */
int hl_read_branch_protection_in(long file, uint64_t start, uint64_t end, int *extra);

/* Whether nothing in [start, end) was locked, advised, registered or given a protection key: a mapping in its place
   would not have that.  0, HL_REASON_MAPPED_SPECIALLY or HL_REASON_NO_PROC. */
int hl_check_flags(uint64_t start, uint64_t end);

/* Whether the line of two-letter flags [at, end), VmFlags of smaps without its key, has one for is_special. */
bool hl_has_special_flags(const char *at, const char *end);

/* An open /proc/self/pagemap, or a negated errno.  The caller closes it. */
long hl_open_pagemap(void);

/* Whether a page of [start, end), a private mapping of a file, was written to: it is there and is not the
   file's (bit 61 of pagemap clear).  MAY_SCAN: ioctl(2) may be called, no filter can kill for it.  0,
   HL_REASON_TEXT_MODIFIED, or HL_REASON_NO_PROC (no pagemap). */
int hl_check_unmodified(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, bool may_scan);

/* Whether the kernel tells by one call that no page of [start, end), whatever is mapped there, was written to as in
   hl_check_unmodified.  False also if it can't tell (before Linux 6.7). */
bool hl_scan_unmodified(int pagemap, uint64_t start, uint64_t end);

/* Whether a page of [start, end) is a guard page, which cannot be read (MADV_GUARD_INSTALL).  False before Linux 6.15. */
bool hl_has_guard_page(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes);

/* How many bytes of [start, end), a private mapping of a file, were written to and are in memory: a copy of these pages takes no
   more memory than they do.  Swapped pages don't count.  MAY_SCAN as above; -1: no pagemap. */
int64_t hl_measure_written(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, bool may_scan);

/* Whether all of [start, end) is mapped by huge entries.  0, HL_REASON_THP_UNAVAILABLE, or -1: the kernel does not
   tell (before Linux 6.7), or PAGEMAP is negative. */
int hl_check_huge(int pagemap, uint64_t start, uint64_t end);

/* How many bytes of [start, end) are mapped by huge entries, or -1 as above. */
int64_t hl_measure_huge(int pagemap, uint64_t start, uint64_t end);

#endif
