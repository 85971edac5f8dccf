/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An object's addresses as a map in the terminal, with a legend. */
#ifndef HL_DRAW_H
#define HL_DRAW_H

#include "command/ask/parts.h"

/* Marks of parts on huge pages; parts on small pages get a letter for each reason. */
enum {
    HL_MARK_SMALL = 0,
    HL_MARK_HUGETLB = 'H',
    HL_MARK_THP = 'T',
    HL_MARK_IMAGE = 'I',
    HL_MARK_FILE = 'F',
    HL_MARK_PARTS = '?',    /* partly on huge pages */
    HL_MARK_UNTOUCHED = '-' /* mapped, and without a page yet */
};

/* A part of the object that is on one kind of pages for one reason. */
struct hl_stretch {
    uint64_t start, end;
    uint64_t huge_bytes; /* the bytes on huge pages */
    char mark;
    char *words;
};

/* At first all zero except the first two. */
struct hl_drawing {
    uint64_t huge_page_bytes;
    const char *why_not_moved; /* the reason for parts that are in the plan but not in the drawing */
    size_t n;
    struct hl_stretch *stretch;
};

/* Stretches must not overlap.  WORDS are copied. */
void hl_add_stretch(struct hl_drawing *drawing, uint64_t start, uint64_t end, char mark, uint64_t huge_bytes,
                    const char *words);

/* After the stretches on huge pages: adds the rest of the N_PARTS of an object (hl_list_parts), on small pages, with the
   reasons. */
void hl_add_small_stretches(struct hl_drawing *drawing, const struct hl_part *parts, size_t n_parts);

/* Writes map and legend to standard output, and empties the drawing. */
void hl_finish_drawing(struct hl_drawing *drawing);

#endif
