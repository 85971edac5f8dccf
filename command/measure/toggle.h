/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: attaching and detaching in turns. */
#ifndef HL_BENCH_TOGGLE_H
#define HL_BENCH_TOGGLE_H

#include "command/measure/bench.h"

/* Attaches to the process PID and detaches in turns, and prints the cost of a unit of its work; the exit
   code. */
struct hl_toggle_settings {
    size_t pairs;       /* 0: until the interval is narrow, or as many as it may take */
    double seconds;     /* of a block */
    const char *metric; /* a command that prints the work done so far; NULL: instructions */
};
int hl_bench_toggle(pid_t pid, const struct hl_toggle_settings *settings);

#endif
