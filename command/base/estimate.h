/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What huge pages would be worth to a program, from how much text it executes. */
#ifndef HL_ESTIMATE_H
#define HL_ESTIMATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a jump to another page costs, by how much text such jumps go over. */
struct hl_cost_point {
    double mib, small_ns, huge_ns;
};
#define HL_COST_POINTS 9 /* 2, 4, ... 512 MiB */
struct hl_jump_costs {
    size_t n; /* 0: nothing is known */
    struct hl_cost_point point[HL_COST_POINTS];
    bool calibrated; /* by `hugeld survey --calibrate`, not just in passing */
};

/* Whether COSTS can be believed: finite, positive, ascending. */
bool hl_are_jump_costs_sane(const struct hl_jump_costs *costs);

/* What a jump costs less on huge pages, in ns, where HOT_BYTES of text are executed: between two points in a straight
   line, below the first in one from 0, behind the last what the last says; never less than 0. */
double hl_saved_ns(const struct hl_jump_costs *costs, double hot_bytes);

/* The share of its processor time that a program which executes HOT_BYTES of text on small pages would gain with
   SHARE of them on huge pages. */
double hl_estimate_gain(const struct hl_jump_costs *costs, double hot_bytes, double share);

/* How many pages are executed, of which samples fell into SEEN, once into ONCE of these and twice into TWICE: a lower bound
   as far as samples can tell (Chao 1984, without bias), since pages that are rare leave no trace.  Never less than SEEN. */
double hl_estimate_seen(uint64_t seen, uint64_t once, uint64_t twice);

/* What a counter would have counted all the time, from its VALUE after it ran for RUNNING of the ENABLED ns; false: it
   never ran. */
bool hl_scale_count(uint64_t value, uint64_t enabled, uint64_t running, double *count);

/* The same from counters: the share of its cycles in which it waits for walks. */
double hl_estimate_from_walks(const struct hl_jump_costs *costs, double hot_bytes, double walk_share,
                              double share);

#endif
