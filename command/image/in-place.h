/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file's text on huge pages of its own page cache: no copy, no image, and no hugeld code in any process. */
#ifndef HL_IN_PLACE_H
#define HL_IN_PLACE_H

#include "command/lib/elf-file.h"

/* A huge page of a file that all processes map as a whole. */
struct hl_chunk {
    uint64_t offset;  /* in the file */
    bool is_huge;     /* one entry mapped it when it was looked at */
    unsigned mappers; /* mappings of it in all processes */
};

struct hl_chunks {
    uint64_t text_bytes; /* of the file */
    size_t n_chunks;
    struct hl_chunk *chunk; /* ascending; hl_free_chunks frees them */
    uint64_t chunk_bytes;
    bool is_mapped;       /* some process maps the file; known after hl_make_huge_in_place */
    const char *obstacle; /* after the same: what only the moment forbids, in one word; NULL: nothing does */
};

/* Findings of one command about this machine; zero at first. */
struct hl_collapser {
    /* Set by the caller. */
    bool only_looks; /* nothing is made huge, and the answer is the expected result */
    bool is_at_boot; /* pressure does not matter for files that no process maps */
    double pause_us; /* of the last collapse, for each process that mapped the chunk; 0: there was none */
};

/* Finds the parts of FILE's text that can be on huge pages of the page cache, and which of these are on them now.  Reads nothing
   from the disk and changes nothing.  0; HL_REASON_FILE_PLACE or HL_REASON_TOO_SMALL if there are none; another enum hl_reason if its
   headers are malformed; -EPERM: the kernel tells only the file's owner which pages are cached; or another negated errno.  After 0
   and -EPERM the caller frees CHUNKS; after -EPERM only is_huge is missing from it. */
int hl_examine_chunks(struct hl_chunks *chunks, const struct hl_elf_file *file,
                      const struct hl_geometry *geometry);
void hl_free_chunks(struct hl_chunks *chunks);

/* Whether any of FILE's text is on huge pages of the page cache.  Every user that may read the file gets an answer; a page may be
   read from the disk for it. */
bool hl_has_huge_text(const struct hl_elf_file *file, const struct hl_geometry *geometry);

/* How many bytes of the text are on huge pages. */
uint64_t hl_huge_text_bytes(const struct hl_chunks *chunks);

/* Whether COVERED_BYTES of the text in place are enough to do without an image, which reaches more but takes memory. */
bool hl_covers_enough(uint64_t covered_bytes, uint64_t text_bytes);

/* Why this user cannot put FILE, which lies at PATH, in place, regardless of the moment: the reason and the remedy, which the caller
   frees; NULL if the user can. */
char *hl_explain_not_in_place(const struct hl_elf_file *file, const char *path);

/* Makes the small chunks huge, after hl_examine_chunks.  FILE lies at PATH, which has no symbolic links.  The file's pages are in
   the page cache afterwards, huge or not, unless they cannot be read.  NULL: all chunks are huge; else why some are not, and the
   remedy, which the caller frees. */
char *hl_make_huge_in_place(struct hl_collapser *collapser, struct hl_chunks *chunks,
                            const struct hl_elf_file *file, const char *path);

#endif
