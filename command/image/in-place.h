/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file's text on huge pages of its own page cache: no copy, no image, and nothing of hugeld in any process. */
#ifndef HL_IN_PLACE_H
#define HL_IN_PLACE_H

#include "command/file/elf-file.h"

/* A huge page of a file that all processes map as a whole. */
struct hl_chunk {
    uint64_t offset; /* in the file */
    bool is_huge;    /* one entry maps it, as far as can be known: a number read is already old */
    unsigned mappers;
};

struct hl_place {
    uint64_t text_bytes; /* of the file */
    size_t n_chunks;
    struct hl_chunk *chunk; /* ascending; hl_free_place frees them */
    uint64_t chunk_bytes;
    bool
        is_mapped; /* known after hl_make_huge_in_place, unless the placer only joins and cannot: some process maps the
                       file */
    double made_ms; /* after the same: how long the kernel took for the slowest chunk */
};

/* What one command, or the service, has found out about this machine; zero at first. */
struct hl_placer {
    /* Set by the caller: what is cached is joined, and no file is read anew; and, with that: nothing is made, and the answer is
       what would come of it. */
    bool only_joins, only_looks;
    /* Set by the caller: to look who maps a file takes no more of the processor, and four times that altogether; 0: as it takes. */
    double count_ms_max;
    bool cannot_join;         /* the file that was tried last can only be read anew here */
    bool is_pressure_unknown; /* the kernel keeps no pressure information (PSI) */
    size_t n_superblocks;
    struct hl_superblock *superblock; /* hl_free_placer frees them */
};
void hl_free_placer(struct hl_placer *placer);

/* Finds the parts of FILE's text that can be on huge pages of the page cache, and which of them are.  Reads nothing from the
   disk and changes nothing.  0; HL_SKIP_FILE_PLACE or HL_SKIP_TOO_SMALL where there are none; another enum hl_skip where its
   headers are malformed; -EPERM: only who owns the file is told which pages are cached; or another negated errno.  PLACE is
   to be freed after 0 and -EPERM, and has all but is_huge then. */
int hl_look_in_place(struct hl_place *place, const struct hl_elf_file *file,
                     const struct hl_geometry *geometry);
void hl_free_place(struct hl_place *place);

/* Whether any of FILE's text is on huge pages of the page cache, for any user that may read it; a page of it may be read for that. */
bool hl_has_huge_text(const struct hl_elf_file *file, const struct hl_geometry *geometry);

/* How many bytes of the text are on huge pages. */
uint64_t hl_huge_text_bytes(const struct hl_place *place);

/* Whether so many bytes of a text in place are enough to do without an image, which reaches more, but takes memory. */
bool hl_is_place_enough(uint64_t place_bytes, uint64_t text_bytes);

/* That processors are kept for programs of their own (hl_isolated_lists); NULL: none are.  To join pages, the kernel waits for all
   processors, and for one that is never left to it without an end. */
const char *hl_explain_isolated(void);

/* Why BYTES of FILE, which lies at PATH, cannot be put in place by this user, whatever the machine is busy with now; NULL if
   they can, or the reason and what to do, which the caller frees. */
char *hl_explain_not_in_place(const struct hl_elf_file *file, const char *path, uint64_t bytes);

/* Makes those chunks huge that are not, after hl_look_in_place.  FILE lies at PATH, which has no symbolic links.  The file's
   pages are in the page cache afterwards, huge or not, unless they cannot be read.  NULL: all chunks are huge; or why some are not and what to do, which
   the caller frees. */
char *hl_make_huge_in_place(struct hl_placer *placer, struct hl_place *place, const struct hl_elf_file *file,
                            const char *path);

/* Percent of the memory that stay available after what no person has asked for, an image or what is put in place. */
#define HL_AVAILABLE_MIN 15

/* Whether that much of the machine's memory is available with BYTES less of it.  The pool of huge pages is no part of it.  False
   also where /proc/meminfo cannot be read. */
bool hl_leaves_margin(uint64_t bytes);

/* What the machine is short of now, so that nothing should be put in place for a later benefit; NULL: nothing, or PLACER
   has noted that it is not known.  The caller frees it. */
char *hl_explain_busy(struct hl_placer *placer);

/* Finds PLACE's is_mapped and mappers alone.  0, or a negated errno; -EAGAIN: it cannot be known, or took too long. */
int hl_find_mapped(const struct hl_placer *placer, struct hl_place *place, const struct hl_elf_file *file);

#endif
