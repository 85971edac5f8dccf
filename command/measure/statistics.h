/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: how much faster, and how sure that is. */
#ifndef HL_BENCH_STATISTICS_H
#define HL_BENCH_STATISTICS_H

#include "command/lib/common.h"

/* PLAIN and HUGE are the means of the pairs in the middle half by their ratio; RATIO is that of these means, HUGE over PLAIN, with
   its 95 % interval.  Pairs without a plain time are left out; unknown if that is half of them. */
struct hl_ratio {
    bool known;
    double ratio, low, high;
    double plain, huge;
};
double hl_median(const double *value, size_t n);

/* Half of the interval's width, in per cent of the ratio. */
static inline double hl_half_width(const struct hl_ratio *ratio) {
    return ratio->ratio > 0 ? 50 * (ratio->high - ratio->low) / ratio->ratio : 0;
}

/* "faster", "slower" or "no difference"; static. */
const char *hl_name_ratio(const struct hl_ratio *ratio);

/* The same for a measurement: "faster" if either time is shorter. */
const char *hl_find_verdict(const struct hl_ratio *wall, const struct hl_ratio *processor);

struct hl_ratio hl_compare_pairs(const double *plain, const double *huge, size_t n);

#endif
