/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: one run of the program, or two at the same time. */
#ifndef HL_BENCH_TRIAL_H
#define HL_BENCH_TRIAL_H

#include "command/measure/bench.h"

/* Runs SUBJECT once, to its end.  MAPS: the run is traced, and MAPS gets a row (map_process in trace.c) for each executable that
   it ran; NULL: it is not traced.  LOG: a descriptor that the program inherits under its number, or -1.  0, or a negated errno;
   then nothing ran. hl_free_trial frees TRIAL's memory. */
int hl_try_program(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                   struct hl_trial *trial);

/* Runs two at the same time, each on its processor; the one with the index FIRST is started first, but neither before both are
   ready.  0, or a negated errno; hl_free_trial frees each TRIAL's memory. */
struct hl_runner {
    const struct hl_subject *subject;
    enum hl_side side;
    int processor;
};
int hl_try_pair(const struct hl_runner runner[HL_SIDES], size_t first, struct hl_trial trial[HL_SIDES]);
void hl_free_trial(struct hl_trial *trial);

/* The words of `hugeld run` for RUN and the program ARGV; GATE is its --gate, or -1.  The caller frees the array. */
char **hl_list_run_words(const struct hl_run *run, char **argv, int gate);

/* The executable that starts programs; NULL if it is not installed.  The caller frees it. */
char *hl_find_starter(void);

/* The processors for two runs at once: the first two that this process may use.  False after one line if there is only one. */
bool hl_find_processors(int processors[HL_SIDES]);

/* "exit status 1", of a STATUS of waitpid(2); the caller frees it. */
char *hl_describe_status(int status);

#endif
