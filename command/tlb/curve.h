/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The curve of estimate.h: measured, kept in a cache, and read from there. */
#ifndef HL_CURVE_H
#define HL_CURVE_H

#include "command/base/estimate.h"
#include "command/tlb/tlb.h"

/* Measures jumps over 2 to 512 MiB, as far as memory goes; takes some seconds.  NULL, or why it could not; static. */
const char *hl_measure_curve(struct hl_curve *curve);

/* Makes a short one of what was measured in passing; n is 0 where that was nothing. */
void hl_derive_curve(struct hl_curve *curve, const struct hl_tlb *tlb);

/* Where it is kept: $XDG_CACHE_HOME/hugeld; where that is not set, /var/cache/hugeld for root and ~/.cache/hugeld for
   others.  NULL: none of these is known.  The caller frees it. */
char *hl_curve_path(void);

/* 0, or a negated errno: -ENOENT where there is none; -EPERM for a file that others could have written; -EINVAL for one
   that is no curve, or of another processor. */
int hl_load_curve(struct hl_curve *curve, const char *path);
/* Beside CURVE it keeps whether huge pages reach the TLB whole: VERDICT. */
int hl_save_curve(const struct hl_curve *curve, enum hl_tlb_verdict verdict, const char *path);

/* What was kept so since the machine was started, where this user keeps it; HL_TLB_UNKNOWN if it is not there or would not be
   loaded.  Nothing is measured. */
enum hl_tlb_verdict hl_load_tlb_verdict(void);

json_t *hl_json_curve(const struct hl_curve *curve);

#endif
