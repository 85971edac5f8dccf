/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: a traced run, to see what is on huge pages. */
#ifndef HL_BENCH_TRACE_H
#define HL_BENCH_TRACE_H

#include "command/measure/bench.h"

#include <sys/resource.h>

/* Waits for CHILD, which waits for GO to be closed, and describes it and its children as they exit in MAPS: the executables, the
   objects that PATTERNS (as hl_find_patterns takes them) name, and those with huge pages.  Where tracing is not allowed it only
   waits. */
int hl_trace_program(pid_t child, int go, const char *patterns, json_t *maps, struct rusage *usage);

/* How much of the memory in MAPS, which hl_try_program has filled, is on huge pages of BACKENDS, words, where FLAG is among its flags. */
#define HL_MOVED "hugetlb thp image" /* those that hugeld moves memory to */
uint64_t hl_sum_huge_bytes(const json_t *maps, const char *backends, char flag);

#endif
