/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An object's addresses as a map in the terminal, with a legend. */
#ifndef HL_DRAW_H
#define HL_DRAW_H

#include "command/file/remedy.h"

/* Marks of what is on huge pages; what is on small ones gets a letter of its own for each reason. */
enum {
    HL_MARK_SMALL = 0,
    HL_MARK_HUGETLB = 'H',
    HL_MARK_THP = 'T',
    HL_MARK_IMAGE = 'I',
    HL_MARK_FILE = 'F',
    HL_MARK_PARTS = '?',    /* some of it is on huge pages */
    HL_MARK_UNTOUCHED = '-' /* mapped, and without a page yet */
};

/* A part of the object that is on one kind of pages for one reason. */
struct hl_stretch {
    uint64_t start, end;
    uint64_t huge_bytes; /* how much of it is on huge pages */
    char mark;
    char *words;
};

/* Zeroed, with the first two, to begin with. */
struct hl_drawing {
    uint64_t huge_page_bytes;
    const char *why_not_moved; /* said of what the plan has and the drawing has not */
    size_t n;
    struct hl_stretch *stretch;
};

/* Stretches must not overlap.  WORDS are copied. */
void hl_add_stretch(struct hl_drawing *drawing, uint64_t start, uint64_t end, char mark, uint64_t huge_bytes,
                    const char *words);

/* After those on huge pages: what the N_PARTS of an object (hl_list_parts) have beside them, on small pages, and why. */
void hl_add_small_stretches(struct hl_drawing *drawing, const struct hl_part *parts, size_t n_parts);

/* Writes map and legend to standard output, and empties the drawing. */
void hl_finish_drawing(struct hl_drawing *drawing);

#endif
