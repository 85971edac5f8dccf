/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: perf's counts. */
#ifndef HL_BENCH_COUNTERS_H
#define HL_BENCH_COUNTERS_H

#include "command/measure/bench.h"

void hl_find_counters(struct hl_counters *counters);
void hl_free_counters(struct hl_counters *counters);

/* perf's counts for one run of SUBJECT, or for SECONDS of the process PID: {EVENT: number}.  NULL if perf failed. */
json_t *hl_count_run(const struct hl_counters *counters, const struct hl_subject *subject, enum hl_side side);
json_t *hl_count_process(const struct hl_counters *counters, pid_t pid, double seconds);

/* The first processor's value of NAME, such as "vendor_id", in /proc/cpuinfo; NULL if there is none.  The caller frees it. */
char *hl_read_cpuinfo(const char *name);

#endif
