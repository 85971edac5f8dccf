/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether huge pages reach the TLB whole. */
#ifndef HL_TLB_H
#define HL_TLB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The memory of the lines that are read, or jumped to: side by side, on a small page each, or on a 4 KiB part of a huge page
   each. */
enum hl_tlb_memory {
    HL_TLB_PACKED,
    HL_TLB_SMALL,
    HL_TLB_HUGETLB,
    HL_TLB_THP,
    HL_TLB_IMAGE, /* a tmpfs, as for images */
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

/* The measurements of one memory from one side. */
struct hl_tlb_figures {
    struct hl_tlb_time size[HL_TLB_SIZES];
    struct hl_tlb_time page[HL_TLB_PAGES]; /* the lines of one huge page alone */
};

struct hl_tlb {
    struct hl_tlb_figures figures[HL_TLB_SIDES][HL_TLB_MEMORIES];
    const char *reason[HL_TLB_SIDES][HL_TLB_MEMORIES]; /* why it was not measured; or NULL; static */
    double ms;                                         /* the duration of all measurements */
};

enum hl_tlb_verdict { HL_TLB_UNKNOWN, HL_TLB_WHOLE, HL_TLB_PIECES, HL_TLB_SOME };

/* The verdict on the memory with the figures HUGE, with those of PACKED and SMALL of the same side.  *WHOLE_PAGES of the *PAGES
   that can be judged one by one reach the TLB whole; either may be NULL. */
enum hl_tlb_verdict hl_judge_memory(const struct hl_tlb_figures *packed, const struct hl_tlb_figures *small,
                                    const struct hl_tlb_figures *huge, unsigned *whole_pages,
                                    unsigned *pages);

/* The verdicts on SIDE alone, and on both sides together. */
enum hl_tlb_verdict hl_judge_side(const struct hl_tlb *tlb, enum hl_tlb_side side);
enum hl_tlb_verdict hl_judge_tlb(const struct hl_tlb *tlb);

/* "whole", "pieces", "some", "unknown"; "hugetlb"; "text"; static. */
const char *hl_tlb_verdict_name(enum hl_tlb_verdict verdict);
const char *hl_tlb_memory_name(enum hl_tlb_memory memory);
const char *hl_tlb_side_name(enum hl_tlb_side side);

/* "huge pages reach the TLB whole"; static. */
const char *hl_tlb_verdict_words(enum hl_tlb_verdict verdict);

/* Measures, in less than half a second.  It takes at most half of the pool's pages that are not reserved, and gives everything
   back. */
void hl_measure_tlb(struct hl_tlb *tlb);

/* "huge pages reach the TLB in pieces: ...", with the figures and their meaning; the caller frees it. */
char *hl_describe_tlb(const struct hl_tlb *tlb);

/* The remedy for a host's administrator; NULL if nothing has to be done; static. */
const char *hl_find_tlb_remedy(const struct hl_tlb *tlb);

/* Verdict and sentence; and with figures. */
json_t *hl_json_tlb_verdict(const struct hl_tlb *tlb);
json_t *hl_json_tlb(const struct hl_tlb *tlb);

#endif
