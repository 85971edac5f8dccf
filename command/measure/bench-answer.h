/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: its answer. */
#ifndef HL_BENCH_ANSWER_H
#define HL_BENCH_ANSWER_H

#include "command/measure/bench.h"
#include "command/measure/statistics.h"

/* Prints the results, as JSON or for people, and writes the report to the path REPORT if that is not NULL; the exit code. */
int hl_tell_answer(const struct hl_bench *bench, const char *report);

json_t *hl_json_ratio(const struct hl_ratio *ratio);

#endif
