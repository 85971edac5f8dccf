/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether huge pages reach the TLB whole. */
#ifndef HL_TLB_H
#define HL_TLB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* What the lines that are read, or jumped to, lie in: side by side, on a small page each, or on a 4 KiB part of a
   huge page each. */
enum hl_tlb_memory {
    HL_TLB_PACKED,
    HL_TLB_SMALL,
    HL_TLB_HUGETLB,
    HL_TLB_THP,
    HL_TLB_IMAGE, /* a tmpfs, as images are on */
    HL_TLB_MEMORIES
};
enum hl_tlb_side { HL_TLB_DATA, HL_TLB_TEXT, HL_TLB_SIDES };

/* Lines in one chain: on one huge page, on two and on all. */
#define HL_TLB_SIZES 3
#define HL_TLB_PAGES 8
extern const unsigned hl_tlb_lines[HL_TLB_SIZES]; /* 384, 1024, 4096 */

/* The fastest time for a line, in ns (0: not measured), and how much longer the third fastest took. */
struct hl_tlb_time {
    double ns, noise_ns;
};

/* What was measured in one memory from one side. */
struct hl_tlb_figures {
    struct hl_tlb_time size[HL_TLB_SIZES];
    struct hl_tlb_time page[HL_TLB_PAGES]; /* the lines of one huge page alone */
};

struct hl_tlb {
    struct hl_tlb_figures figures[HL_TLB_SIDES][HL_TLB_MEMORIES];
    const char *reason[HL_TLB_SIDES][HL_TLB_MEMORIES]; /* why it was not measured; or NULL; static */
    double ms;                                         /* all of it took so long */
};

enum hl_tlb_verdict { HL_TLB_UNKNOWN, HL_TLB_WHOLE, HL_TLB_PIECES, HL_TLB_SOME };

/* What one memory's figures say, with PACKED's and SMALL's of the same side.  *WHOLE_PAGES of *PAGES reach the TLB
   whole, of those that can be told by themselves; either may be NULL. */
enum hl_tlb_verdict hl_judge_memory(const struct hl_tlb_figures *packed, const struct hl_tlb_figures *small,
                                    const struct hl_tlb_figures *huge, unsigned *whole_pages,
                                    unsigned *pages);

/* What all of them say together, and about SIDE alone. */
enum hl_tlb_verdict hl_judge_side(const struct hl_tlb *tlb, enum hl_tlb_side side);
enum hl_tlb_verdict hl_judge_tlb(const struct hl_tlb *tlb);

/* "whole", "pieces", "some", "unknown"; "hugetlb"; "text"; static. */
const char *hl_tlb_verdict_name(enum hl_tlb_verdict verdict);
const char *hl_tlb_memory_name(enum hl_tlb_memory memory);
const char *hl_tlb_side_name(enum hl_tlb_side side);

/* "huge pages reach the TLB whole"; static. */
const char *hl_tlb_verdict_words(enum hl_tlb_verdict verdict);

/* Measures, in less than half a second.  Of the pool it takes what is not reserved, half of that at most, and
   gives everything back. */
void hl_measure_tlb(struct hl_tlb *tlb);

/* "huge pages reach the TLB in pieces: ...", with the figures and what that means; the caller frees it. */
char *hl_describe_tlb(const struct hl_tlb *tlb);

/* What a host's administrator can do about it; NULL where nothing has to be done; static. */
const char *hl_find_tlb_remedy(const struct hl_tlb *tlb);

/* Verdict and sentence; and with figures. */
json_t *hl_json_tlb_verdict(const struct hl_tlb *tlb);
json_t *hl_json_tlb(const struct hl_tlb *tlb);

#endif
