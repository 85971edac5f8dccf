/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: the types that its parts share. */
#ifndef HL_BENCH_H
#define HL_BENCH_H

#include "command/lib/common.h"
#include "command/lib/program.h"
#include "command/run/run.h"

/* The measured values of one run.  PEAK_RSS counts no hugetlb pages (getrusage(2)). */
enum hl_metric {
    HL_WALL,
    HL_PROCESSOR, /* user and system time */
    HL_USER,
    HL_SYSTEM,
    HL_MINOR_FAULTS,
    HL_MAJOR_FAULTS,
    HL_PEAK_RSS,
    HL_METRICS
};
#define HL_TIMES (HL_SYSTEM + 1) /* the first metrics are times in ms */

/* How a run's environment is made.  PLAIN: without libhugeld.so.  AS_IS: it is not changed. */
enum hl_side { HL_PLAIN, HL_ON_HUGE, HL_SIDES, HL_AS_IS = HL_SIDES };

/* The program, and how `hugeld run` starts it. */
struct hl_subject {
    char **argv;
    struct hl_program program;
    struct hl_run run;
    int input; /* its input: a file, from the position of the command's standard input; or -1 */
    off_t input_from;
};

struct hl_bytes {
    char *at;
    size_t bytes;
};

/* One run. */
struct hl_trial {
    double value[HL_METRICS];
    int status;                /* as from waitpid(2) */
    struct hl_bytes stream[2]; /* its standard output and error, without hugeld's lines */
    char *said;                /* hugeld's lines */
};

/* perf's counters of the TLB and its walks, as far as this machine has them. */
struct hl_counters {
    char *events; /* comma-separated, or NULL */
    char *reason; /* why there are none; or NULL */
};

/* The measured values: PAIRS of each metric for each side, in the order of the pairs. */
struct hl_bench {
    struct hl_subject *subject;
    /* Runs the program: hl_try_program, or a test's. */
    int (*try_program)(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                       struct hl_trial *trial);
    size_t pairs;
    bool at_once;              /* both sides of a pair at the same time */
    int processors[HL_SIDES];  /* the sides' processors in the first pair */
    struct hl_trial reference; /* the first plain run */
    bool comparable;           /* without hugeld its output is the same each time */
    double *value[HL_SIDES][HL_METRICS];
    json_t *maps[HL_SIDES], *counts[HL_SIDES];
    struct hl_counters counters;
    json_t *own_images; /* the files that had no image, so that one was made for the measurement */
    char *lack;         /* why one could not be made; or NULL */
};

struct hl_own_store;
/* Runs both sides of BENCH, in which SUBJECT, TRY_PROGRAM, PAIRS and arrays for all values and maps are set, and keeps what they
   took.  Its images stay in OWN.  0, or the exit code after one line. */
int hl_measure_sides(struct hl_bench *bench, struct hl_own_store *own, bool ignore_failure);

#endif
