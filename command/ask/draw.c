/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The map of an object: a character for each huge page's worth of addresses.

       0x000000400000 HHHHHHHHHHHHHHHHbbc
         H  16 pages: text, hugetlb
         b  3552 KiB small: outside whole huge pages

   A row holds a multiple of 16 pages, as many as the window is wide, so that addresses are round and rows can be compared.  Of
   several equal rows one is drawn, so a hostile file of 2^46 bytes costs no more than another. */
#include "command/ask/draw.h"
#include "command/lib/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NOTHING '.'
#define ROW_UNIT 16
#define ADDRESS_WIDTH 19 /* "    0x0123456789ab " */
#define WIDTH_USUAL 80
#define WIDTH_MAX 1024

void hl_add_stretch(struct hl_drawing *drawing, uint64_t start, uint64_t end, char mark, uint64_t huge_bytes,
                    const char *words) {
    if (start >= end)
        return;
    if (drawing->n % 64 == 0)
        drawing->stretch = hl_xrealloc(drawing->stretch, (drawing->n + 64) * sizeof *drawing->stretch);
    drawing->stretch[drawing->n++] =
        (struct hl_stretch){start, end, huge_bytes, mark, hl_xasprintf("%s", words)};
}

/* The next address after AT, at most END, at which one of the first N stretches begins or ends. */
static uint64_t find_border(const struct hl_drawing *drawing, size_t n, uint64_t at, uint64_t end) {
    for (size_t i = 0; i < n; i++) {
        hl_lower_to(&end, drawing->stretch[i].start, at);
        hl_lower_to(&end, drawing->stretch[i].end, at);
    }
    return end;
}

/* The end of the stretch that holds AT; 0 if none does. */
static uint64_t find_end(const struct hl_drawing *drawing, size_t n, uint64_t at) {
    for (size_t i = 0; i < n; i++)
        if (at >= drawing->stretch[i].start && at < drawing->stretch[i].end)
            return drawing->stretch[i].end;
    return 0;
}

void hl_add_small_stretches(struct hl_drawing *drawing, const struct hl_part *parts, size_t n_parts) {
    size_t n_huge = drawing->n;
    for (size_t i = 0; i < n_parts; i++) {
        const struct hl_part *part = &parts[i];
        for (uint64_t at = part->start, next; at < part->end; at = next) {
            next = find_end(drawing, n_huge, at);
            if (next != 0)
                continue;
            next = find_border(drawing, n_huge, at, part->end);
            hl_add_stretch(drawing, at, next, HL_MARK_SMALL, 0,
                           part->sentence != NULL ? part->sentence : drawing->why_not_moved);
        }
    }
}

static int compare_stretches(const void *a, const void *b) {
    const struct hl_stretch *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Gives every reason a letter, and stretches with the same words the same letter. */
static void choose_letters(struct hl_drawing *drawing) {
    char letter = 'a';
    for (size_t i = 0; i < drawing->n; i++) {
        struct hl_stretch *stretch = &drawing->stretch[i];
        for (size_t j = 0; j < i && stretch->mark == HL_MARK_SMALL; j++)
            if (strcmp(stretch->words, drawing->stretch[j].words) == 0)
                stretch->mark = drawing->stretch[j].mark;
        if (stretch->mark == HL_MARK_SMALL)
            stretch->mark = letter < 'z' ? letter++ : letter;
    }
}

/* The mark for the huge page at AT: that of the stretch that fills most of it. */
static char choose_mark(const struct hl_drawing *drawing, uint64_t at) {
    char mark = NOTHING;
    uint64_t most = 0;
    for (size_t i = 0; i < drawing->n; i++) {
        const struct hl_stretch *stretch = &drawing->stretch[i];
        uint64_t bytes = hl_overlap(stretch->start, stretch->end, at, at + drawing->huge_page_bytes);
        if (bytes > most) {
            most = bytes;
            mark = stretch->mark;
        }
    }
    return mark;
}

static bool wants_colour(void) {
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && (refused == NULL || refused[0] == '\0') && terminal != NULL &&
           strcmp(terminal, "dumb") != 0;
}

/* The terminal's own colours, so that they suit its background. */
static const char *find_colour(char mark) {
    switch (mark) {
    case HL_MARK_HUGETLB:
        return "\033[30;42m"; /* black on green */
    case HL_MARK_THP:
        return "\033[30;46m"; /* on cyan */
    case HL_MARK_IMAGE:
        return "\033[30;44m"; /* on blue */
    case HL_MARK_FILE:
        return "\033[30;45m"; /* on magenta */
    case NOTHING:
    case HL_MARK_UNTOUCHED:
        return "\033[2m";
    default:
        return "\033[33m"; /* yellow */
    }
}

/* Prints N marks, each run of equal marks in its colour. */
static void put_marks(const char *marks, unsigned n, bool colour) {
    for (unsigned i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && marks[i + run] == marks[i];)
            run++;
        if (colour)
            printf("%s%.*s\033[0m", find_colour(marks[i]), (int)run, marks + i);
        else
            printf("%.*s", (int)run, marks + i);
    }
}

/* How many columns standard output has: its terminal's, else those of COLUMNS. */
static unsigned find_width(void) {
    struct winsize window;
    const char *columns = getenv("COLUMNS");
    unsigned width = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0)
        width = window.ws_col;
    else if (columns != NULL)
        width = (unsigned)strtoul(columns, NULL, 10);
    if (width == 0)
        width = WIDTH_USUAL;
    return width < WIDTH_MAX ? width : WIDTH_MAX;
}

static void draw_rows(const struct hl_drawing *drawing, uint64_t start, uint64_t end, bool colour) {
    char marks[WIDTH_MAX];
    uint64_t page = drawing->huge_page_bytes;
    unsigned width = find_width(),
             space = width > ADDRESS_WIDTH + ROW_UNIT ? width - ADDRESS_WIDTH : ROW_UNIT,
             most = space - space % ROW_UNIT;
    for (uint64_t at = start, n; (n = (end - at) / page < most ? (end - at) / page : most) > 0;) {
        for (unsigned i = 0; i < n; i++)
            marks[i] = choose_mark(drawing, at + i * page);
        printf("    0x%012" PRIx64 " ", at);
        put_marks(marks, (unsigned)n, colour);
        putchar('\n');
        uint64_t row = n * page, same = (find_border(drawing, drawing->n, at, end) - at) / row;
        if (same > 1)
            hl_print("    ... %" PRIu64 " more %s like this", same - 1, same > 2 ? "rows" : "row");
        at += row * (same > 1 ? same : 1);
    }
}

/* Prints one line for all stretches with the words of the INDEX-th, if that is the first of them. */
static void print_legend(const struct hl_drawing *drawing, size_t index, bool colour) {
    const struct hl_stretch *first = &drawing->stretch[index];
    uint64_t bytes = 0, huge_bytes = 0;
    for (size_t i = 0; i < drawing->n; i++) {
        const struct hl_stretch *stretch = &drawing->stretch[i];
        bool same = stretch->mark == first->mark && strcmp(stretch->words, first->words) == 0;
        if (same && i < index)
            return; /* has its line already */
        bytes += same ? stretch->end - stretch->start : 0;
        huge_bytes += same ? stretch->huge_bytes : 0;
    }
    uint64_t pages = huge_bytes / drawing->huge_page_bytes;
    fputs("      ", stdout);
    put_marks(&first->mark, 1, colour);
    if (first->huge_bytes > 0)
        hl_print("  %" PRIu64 " page%s: %s", pages, hl_plural(pages), first->words);
    else
        hl_print("  %" PRIu64 " KiB %s: %s", bytes / 1024 + (bytes % 1024 != 0),
                 first->mark == HL_MARK_UNTOUCHED ? "not touched yet" : "small", first->words);
}

void hl_finish_drawing(struct hl_drawing *drawing) {
    uint64_t start = UINT64_MAX, end = 0;
    bool colour = wants_colour();
    if (drawing->n > 0)
        qsort(drawing->stretch, drawing->n, sizeof *drawing->stretch, compare_stretches);
    choose_letters(drawing);
    for (size_t i = 0; i < drawing->n; i++) {
        start = drawing->stretch[i].start < start ? drawing->stretch[i].start : start;
        end = drawing->stretch[i].end > end ? drawing->stretch[i].end : end;
    }
    if (drawing->n > 0 && hl_prints_text())
        draw_rows(drawing, hl_round_down(start, drawing->huge_page_bytes),
                  hl_round_up(end, drawing->huge_page_bytes), colour);
    for (size_t i = 0; i < drawing->n && hl_prints_text(); i++)
        print_legend(drawing, i, colour);
    for (size_t i = 0; i < drawing->n; i++)
        free(drawing->stretch[i].words);
    free(drawing->stretch);
    drawing->stretch = NULL;
    drawing->n = 0;
}
