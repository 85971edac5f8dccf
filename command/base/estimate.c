/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The estimate of `hugeld survey`.

   The cost of a jump to another page on this machine is measured (tlb/jump-costs.c), with jumps to pages in random order.  How
   often a program jumps is not known without counters.  cc1plus, traced (valgrind's lackey, through a first level of 64 entries),
   leaves the pages that the TLB holds 3.65 times in a thousand instructions, which take some 0.3 ns each: once in 100 ns.  But its
   jumps are not random, and the second level holds many of them.  So one in 200 ns is assumed.  Group survey of bench/RESULTS.md
   has the estimate beside the measurement for ten programs: 0.94 and 0.96 of rustc's time, 0.96 and 1.00 of clang's, 0.99 and 1.00
   of node's.  Programs differ by a factor of two or three either way, and so does the estimate. */
#include "command/base/estimate.h"

#include <math.h>

#define JUMP_EACH_NS 200.0
/* No estimate is larger than this. */
#define GAIN_MAX 0.5
#define NS_MAX 1e5
#define MIB_MAX 65536

bool hl_are_jump_costs_sane(const struct hl_jump_costs *costs) {
    double last = 0;
    if (costs->n == 0 || costs->n > HL_COST_POINTS)
        return false;
    for (size_t i = 0; i < costs->n; i++) {
        const struct hl_cost_point *point = &costs->point[i];
        if (!(point->mib > last) || !(point->mib <= MIB_MAX) || !(point->small_ns > 0) ||
            !(point->small_ns < NS_MAX) || !(point->huge_ns > 0) || !(point->huge_ns < NS_MAX))
            return false;
        last = point->mib;
    }
    return true;
}

static double saved_at(const struct hl_cost_point *point) {
    return fmax(point->small_ns - point->huge_ns, 0);
}

double hl_saved_ns(const struct hl_jump_costs *costs, double hot_bytes) {
    double mib = hot_bytes / (1 << 20), before_mib = 0, before = 0;
    for (size_t i = 0; i < costs->n; i++) {
        const struct hl_cost_point *point = &costs->point[i];
        if (mib <= point->mib)
            return before + (saved_at(point) - before) * (mib - before_mib) / (point->mib - before_mib);
        before_mib = point->mib;
        before = saved_at(point);
    }
    return before;
}

double hl_estimate_gain(const struct hl_jump_costs *costs, double hot_bytes, double share) {
    return fmin(share * hl_saved_ns(costs, hot_bytes) / JUMP_EACH_NS, GAIN_MAX);
}

double hl_estimate_from_walks(const struct hl_jump_costs *costs, double hot_bytes, double walk_share,
                              double share) {
    /* Whole huge pages leave next to no walks; huge pages in pieces leave a share of them, by the measured costs. */
    double left = 0;
    for (size_t i = 0; i < costs->n; i++)
        if (costs->point[i].mib * (1 << 20) <= hot_bytes || i == 0)
            left = fmin(costs->point[i].huge_ns / costs->point[i].small_ns, 1);
    return fmin(fmax(walk_share * share * (1 - left), 0), GAIN_MAX);
}

bool hl_scale_count(uint64_t value, uint64_t enabled, uint64_t running, double *count) {
    if (running == 0)
        return false;
    *count = (double)value * (running < enabled ? (double)enabled / (double)running : 1);
    return true;
}

double hl_estimate_seen(uint64_t seen, uint64_t once, uint64_t twice) {
    double more = once > 0 ? (double)once * (double)(once - 1) / (2 * ((double)twice + 1)) : 0;
    return (double)seen + more;
}
