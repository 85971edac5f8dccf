/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/self/maps and /proc/self/pagemap: what is mapped where, and whether somebody wrote to it. */
#ifndef HL_MAPS_H
#define HL_MAPS_H

#include "hugeld.h"

struct hl_mapping {
    uint64_t start, end;
    uint64_t offset, device, inode; /* inode is 0 for anonymous memory */
    int prot;                       /* PROT_READ, PROT_WRITE, PROT_EXEC */
    bool shared;
    bool is_heap; /* named [heap]: it has something of the heap in it, and may begin with .bss */
};

/* In memory of its own, ascending. */
struct hl_maps {
    struct hl_mapping *mapping;
    size_t n;
    uint64_t allocated_bytes;
};

/* Reads /proc/self/maps.  0, HL_SKIP_NO_PROC or HL_SKIP_NO_MEMORY.  After 0 the caller frees MAPS. */
int hl_read_maps(struct hl_maps *maps);
void hl_free_maps(struct hl_maps *maps);

/* The index of the first mapping that ends after ADDRESS; maps->n if there is none. */
size_t hl_find_mapping(const struct hl_maps *maps, uint64_t address);

/* Whether A and B say the same about [start, end). */
bool hl_same_maps(const struct hl_maps *a, const struct hl_maps *b, uint64_t start, uint64_t end);

/* An open /proc/self/pagemap, or a negated errno.  The caller closes it. */
long hl_open_pagemap(void);

/* Whether a page of [start, end), a private mapping of a file, was written to: it is there and is not the
   file's (bit 61 of pagemap clear).  0, HL_SKIP_TEXT_MODIFIED, or HL_SKIP_NO_PROC (no pagemap). */
int hl_check_unmodified(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes);

#endif
