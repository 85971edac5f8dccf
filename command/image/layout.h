/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plans the image of an ELF file: the same file laid out for huge pages. */
#ifndef HL_LAYOUT_H
#define HL_LAYOUT_H

#include "command/lib/elf-file.h"

/* In hl_piece.from: the bytes are trap instructions. */
#define HL_TRAPS UINT64_MAX

/* Bytes of an image that belong to no header. */
struct hl_piece {
    uint64_t to, bytes; /* where in the image */
    uint64_t from;      /* where in the original, or HL_TRAPS */
};

struct hl_image {
    uint64_t base;       /* the address of the image's first byte: p_vaddr - p_offset of each PT_LOAD */
    uint64_t bytes;      /* how long it is, a multiple of the page size */
    uint64_t huge_pages; /* how many of its huge pages hold anything */
    size_t n_pieces;
    struct hl_piece *piece; /* ascending, disjoint */
    uint32_t trap;          /* one or four trap instructions of its machine; 0: unknown */

    /* The headers, written over the pieces.  header.e_phoff and e_shoff say where the tables are. */
    Elf64_Ehdr header;
    uint64_t loaded_header; /* where a PT_LOAD has the ELF header; 0: at the image's begin, or nowhere */
    bool has_loaded_header;
    size_t phnum, shnum;
    Elf64_Phdr *phdr;
    Elf64_Shdr *shdr; /* NULL: it has no sections */
};

/* Plans the image of FILE, whose headers may be hostile; reads FILE and changes nothing.  0, or the reason why there can be no
   image (enum hl_reason): then there is nothing to free. */
int hl_plan_image(struct hl_image *image, const struct hl_elf_file *file, const struct hl_geometry *geometry);
void hl_free_image(struct hl_image *image);

/* The memory that IMAGE takes in a store, where it has no holes.  False: most of it would be holes (HL_REASON_TOO_SPARSE). */
bool hl_fits_store(const struct hl_image *image, const struct hl_geometry *geometry, uint64_t *bytes);

/* How much of FILE's text is on huge pages if its image is used: all bytes of the text, and those on huge pages by each way of
   starting. */
struct hl_coverage {
    uint64_t text_bytes;
    uint64_t mapped_bytes;   /* without executing it */
    uint64_t executed_bytes; /* if the image is executed; 0 for a library */
};

/* 0, or an enum hl_reason if its headers are malformed. */
int hl_find_coverage(struct hl_coverage *coverage, const struct hl_elf_file *file,
                     const struct hl_geometry *geometry);

#endif
