/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Estimates a program's gain from huge pages, by the amount of text that it executes. */
#ifndef HL_ESTIMATE_H
#define HL_ESTIMATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The cost of a jump to another page, by the amount of text that such jumps go over. */
struct hl_cost_point {
    double mib, small_ns, huge_ns;
};
#define HL_COST_POINTS 9 /* 2, 4, ... 512 MiB */
struct hl_jump_costs {
    size_t n; /* 0: unknown */
    struct hl_cost_point point[HL_COST_POINTS];
    bool calibrated; /* by `hugeld survey --calibrate`, not just in passing */
};

/* Whether COSTS can be believed: finite, positive, ascending. */
bool hl_are_jump_costs_sane(const struct hl_jump_costs *costs);

/* The ns that a jump costs less on huge pages if HOT_BYTES of text are executed: between two points in a straight line, below the
   first in one from 0, behind the last as at the last; never less than 0. */
double hl_saved_ns(const struct hl_jump_costs *costs, double hot_bytes);

/* For a program that executes HOT_BYTES of text on small pages: the share of its processor time that it would gain with SHARE of
   the text on huge pages. */
double hl_estimate_gain(const struct hl_jump_costs *costs, double hot_bytes, double share);

/* How many pages are executed if samples fell into SEEN of them, once into ONCE of these and twice into TWICE: a lower bound (Chao
   1984, without bias), since rare pages leave no trace.  Never less than SEEN. */
double hl_estimate_seen(uint64_t seen, uint64_t once, uint64_t twice);

/* Extrapolates the VALUE of a counter that ran for RUNNING of the ENABLED ns to all of these; false: it never ran. */
bool hl_scale_count(uint64_t value, uint64_t enabled, uint64_t running, double *count);

/* The gain of hl_estimate_gain, from counters: WALK_SHARE is the share of the program's cycles in which it waits for walks. */
double hl_estimate_from_walks(const struct hl_jump_costs *costs, double hot_bytes, double walk_share,
                              double share);

#endif
