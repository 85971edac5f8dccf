/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: the times of several commands. */
#ifndef HL_BENCH_COMMANDS_H
#define HL_BENCH_COMMANDS_H

#include "command/bench/bench.h"

#define HL_COMMANDS_MAX 16

/* Times the commands in WORDS, and does nothing else, in so many ROUNDS, each [@]NAME [VARIABLE=VALUE]... PROGRAM
   [ARGUMENT]..., with "--" between them, in turns, or two AT_ONCE, and prints two lines for each: NAME and its times in ms, or
   with @ the numbers that it prints; NAME:cpu and the processor time in ms, its children's included.  After them, for each but
   the first, NAME:ratio: its ratio to the first, as hl_compare_pairs finds it, both ends of the interval, and the medians of the
   first and of itself.  WORDS are changed.  The exit code; a command that fails ends the measurement. */
int hl_time_commands(char **words, size_t rounds, bool at_once);

#endif
