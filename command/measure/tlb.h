/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether huge pages reach the TLB. */
#ifndef HL_TLB_H
#define HL_TLB_H

#include <jansson.h>

enum hl_tlb_answer { HL_TLB_UNKNOWN, HL_TLB_YES, HL_TLB_PIECES, HL_TLB_NO };

/* The lines of a chain of jumps lie close together, on a small page each, or on a 4 KiB part of a huge page each. */
enum hl_tlb_memory { HL_TLB_PACKED, HL_TLB_SMALL, HL_TLB_HUGE, HL_TLB_MEMORIES };

struct hl_tlb {
    double ns[HL_TLB_MEMORIES]; /* the fastest time for a jump; 0: not measured */
    double noise_ns;            /* how much longer the third fastest took, at most */
    const char *reason;         /* why nothing was measured, static; or NULL */
    enum hl_tlb_answer answer;
};

/* Measures for some 50 ms, and gives back all memory. */
void hl_check_tlb(struct hl_tlb *tlb);

/* The answer of these times. */
enum hl_tlb_answer hl_judge_tlb(const struct hl_tlb *tlb);

/* "huge pages reach the TLB in pieces: ...", with the times; the caller frees it. */
char *hl_describe_tlb(const struct hl_tlb *tlb);

/* One short line for a command that measures or surveys; NULL if there is nothing to say; static. */
const char *hl_note_on_tlb(const struct hl_tlb *tlb);

/* "yes", "in pieces", "no", or null. */
json_t *hl_json_tlb(const struct hl_tlb *tlb);

#endif
