/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: what perf counts. */
#ifndef HL_BENCH_COUNTERS_H
#define HL_BENCH_COUNTERS_H

#include "command/bench/bench.h"

void hl_find_counters(struct hl_counters *counters);
void hl_free_counters(struct hl_counters *counters);

/* What perf counts in one run of SUBJECT, or in SECONDS of the process PID: {EVENT: number}.  NULL if it couldn't. */
json_t *hl_count_run(const struct hl_counters *counters, const struct hl_subject *subject, enum hl_side side);
json_t *hl_count_process(const struct hl_counters *counters, pid_t pid, double seconds);

#endif
