/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Judges the figures of tlb.c.

   A line on a small page of its own costs a translation, a packed one none; the difference is the effect.  If a huge page takes one
   entry, its lines cost as much as packed ones.  If it takes an entry for each 4 KiB, they cost as much as those on small pages
   while the second-level TLB holds them (1024 lines), and somewhat less beyond that, since the walk is shorter: the share of the
   effect that is gone was 0 to 0.2 for 1024 lines and 0.26 to 0.65 for 4096 on the machine where this was found.  So the smaller
   size is judged first.  Nothing is compared with a number of nanoseconds: a fast processor and a slow one are judged alike. */
#include "command/tlb/tlb.h"

/* The first is three quarters of a huge page: more lines than a first-level TLB has entries, but few enough for all to be in the
   first-level cache, at any place. */
const unsigned hl_tlb_lines[HL_TLB_SIZES] = {384, 1024, 4096};

/* Smaller effects, as a part of the packed time, are ignored. */
#define EFFECT_MIN 0.15
/* With more noise, as a part of the effect, there is no verdict. */
#define NOISE_MAX 0.33
/* Shares of the effect; in the gap between them there is no verdict. */
#define WHOLE_SHARE 0.85
#define PIECES_SHARE 0.7

static const char *const verdict_names[] = {"unknown", "whole", "pieces", "some"};
static const char *const verdict_words[] = {
    "whether huge pages reach the TLB whole cannot be told",
    "huge pages reach the TLB whole",
    "huge pages reach the TLB in pieces",
    "some huge pages reach the TLB whole, and some in pieces",
};
static const char *const memory_names[HL_TLB_MEMORIES] = {"packed", "small", "hugetlb", "thp", "image"};
static const char *const side_names[HL_TLB_SIDES] = {"data", "text"};

const char *hl_tlb_verdict_name(enum hl_tlb_verdict verdict) { return verdict_names[verdict]; }
const char *hl_tlb_verdict_words(enum hl_tlb_verdict verdict) { return verdict_words[verdict]; }
const char *hl_tlb_memory_name(enum hl_tlb_memory memory) { return memory_names[memory]; }
const char *hl_tlb_side_name(enum hl_tlb_side side) { return side_names[side]; }

/* Finds the share of the effect that is gone; false: it is unknown. */
static bool find_share(struct hl_tlb_time packed, struct hl_tlb_time small, struct hl_tlb_time huge,
                       double *share) {
    double effect = small.ns - packed.ns, noise = packed.noise_ns;
    noise = small.noise_ns > noise ? small.noise_ns : noise;
    noise = huge.noise_ns > noise ? huge.noise_ns : noise;
    if (!(packed.ns > 0) || !(huge.ns > 0) || !(effect >= packed.ns * EFFECT_MIN) ||
        !(noise <= effect * NOISE_MAX))
        return false;
    *share = (small.ns - huge.ns) / effect;
    return true;
}

static enum hl_tlb_verdict weigh(double share) {
    return share >= WHOLE_SHARE ? HL_TLB_WHOLE : share <= PIECES_SHARE ? HL_TLB_PIECES : HL_TLB_UNKNOWN;
}

/* By the smallest size of several pages that gives a verdict. */
static enum hl_tlb_verdict judge_share(const struct hl_tlb_figures *packed,
                                       const struct hl_tlb_figures *small,
                                       const struct hl_tlb_figures *huge) {
    double share;
    for (unsigned i = 1; i < HL_TLB_SIZES; i++)
        if (find_share(packed->size[i], small->size[i], huge->size[i], &share) &&
            weigh(share) != HL_TLB_UNKNOWN)
            return weigh(share);
    return HL_TLB_UNKNOWN;
}

static enum hl_tlb_verdict judge_count(unsigned whole, unsigned all) {
    if (all == 0)
        return HL_TLB_UNKNOWN;
    return whole == all ? HL_TLB_WHOLE : whole == 0 ? HL_TLB_PIECES : HL_TLB_SOME;
}

enum hl_tlb_verdict hl_judge_memory(const struct hl_tlb_figures *packed, const struct hl_tlb_figures *small,
                                    const struct hl_tlb_figures *huge, unsigned *whole_pages,
                                    unsigned *pages) {
    unsigned whole = 0, seen = 0;
    for (unsigned i = 0; i < HL_TLB_PAGES; i++) {
        double share;
        if (!find_share(packed->size[0], small->size[0], huge->page[i], &share) ||
            weigh(share) == HL_TLB_UNKNOWN)
            continue;
        whole += weigh(share) == HL_TLB_WHOLE;
        seen++;
    }
    if (whole_pages != NULL)
        *whole_pages = whole;
    if (pages != NULL)
        *pages = seen;
    enum hl_tlb_verdict by_page = judge_count(whole, seen), together = judge_share(packed, small, huge);
    if (by_page == HL_TLB_UNKNOWN || by_page == together)
        return together;
    if (together == HL_TLB_UNKNOWN)
        return by_page;
    /* A mixture is visible only page by page; "all whole" and "none whole" contradict each other. */
    return by_page == HL_TLB_SOME ? HL_TLB_SOME : HL_TLB_UNKNOWN;
}

/* A and B together. */
static enum hl_tlb_verdict join(enum hl_tlb_verdict a, enum hl_tlb_verdict b) {
    if (a == HL_TLB_UNKNOWN || a == b)
        return b;
    return b == HL_TLB_UNKNOWN ? a : HL_TLB_SOME;
}

enum hl_tlb_verdict hl_judge_side(const struct hl_tlb *tlb, enum hl_tlb_side side) {
    const struct hl_tlb_figures *figures = tlb->figures[side];
    enum hl_tlb_verdict verdict = HL_TLB_UNKNOWN;
    for (unsigned memory = HL_TLB_HUGETLB; memory < HL_TLB_MEMORIES; memory++)
        verdict = join(verdict, hl_judge_memory(&figures[HL_TLB_PACKED], &figures[HL_TLB_SMALL],
                                                &figures[memory], NULL, NULL));
    return verdict;
}

enum hl_tlb_verdict hl_judge_tlb(const struct hl_tlb *tlb) {
    return join(hl_judge_side(tlb, HL_TLB_DATA), hl_judge_side(tlb, HL_TLB_TEXT));
}
