/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The costs of estimate.h: measured, kept in a cache, and read from there. */
#ifndef HL_JUMP_COSTS_H
#define HL_JUMP_COSTS_H

#include "command/base/estimate.h"
#include "command/tlb/tlb.h"

/* Measures jumps over 2 to 512 MiB, as far as there is memory; takes some seconds.  NULL, or why it could not; static. */
const char *hl_measure_jump_costs(struct hl_jump_costs *costs);

/* Takes a few points from the measurement of TLB; n is 0 if that has none. */
void hl_derive_jump_costs(struct hl_jump_costs *costs, const struct hl_tlb *tlb);

/* The file in which they are kept: in $XDG_CACHE_HOME/hugeld; if that is not set, in /var/cache/hugeld for root and ~/.cache/hugeld
   for others.  NULL: none of these is known.  The caller frees it. */
char *hl_jump_costs_path(void);

/* 0, or a negated errno: -ENOENT if there is no file; -EPERM for a file that others could have written; -EINVAL for one without
   costs, or with those of another processor. */
int hl_load_jump_costs(struct hl_jump_costs *costs, const char *path);
/* Writes COSTS to the file, with VERDICT: whether huge pages reach the TLB whole. */
int hl_save_jump_costs(const struct hl_jump_costs *costs, enum hl_tlb_verdict verdict, const char *path);

/* The verdict in this user's file, if it was written since the machine was started; HL_TLB_UNKNOWN if there is none or it would not
   be loaded.  Nothing is measured. */
enum hl_tlb_verdict hl_load_tlb_verdict(void);

json_t *hl_json_jump_costs(const struct hl_jump_costs *costs);

#endif
