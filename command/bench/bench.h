/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: what its parts hand to each other. */
#ifndef HL_BENCH_H
#define HL_BENCH_H

#include "command/run/run.h"

#include <sys/resource.h>

/* What is measured of one run.  PEAK_RSS counts no hugetlb pages (getrusage(2)); PAGES are the huge pages
   that hugeld reported, or those of the traced run where the program takes its report away. */
enum hl_metric {
    HL_WALL,
    HL_USER,
    HL_SYSTEM,
    HL_MINOR_FAULTS,
    HL_MAJOR_FAULTS,
    HL_PEAK_RSS,
    HL_PAGES,
    HL_METRICS
};
#define HL_TIMES (HL_SYSTEM + 1) /* the first metrics are times in ms */

/* How a run's environment is made.  PLAIN: without libhugeld.so, or as --against says.  AS_IS: only the subject's variables are set. */
enum hl_side { HL_PLAIN, HL_ON_HUGE, HL_SIDES, HL_AS_IS = HL_SIDES };

/* The program and how it runs on huge pages. */
struct hl_subject {
    char **argv;
    struct hl_program program;
    struct hl_run run;
    char *against; /* options: the other side is on huge pages too, with these; NULL: it is plain */
    int input;     /* what it reads: a file, from where the command's standard input stood; or -1 */
    off_t input_from;
    char **variables; /* "NAME=VALUE", which AS_IS sets, up to a word without "=" or NULL; or NULL */
};

struct hl_bytes {
    char *at;
    size_t bytes;
};

/* Whether SIDE runs without hugeld; if not, how it runs on huge pages. */
static inline bool hl_is_plain(const struct hl_subject *subject, enum hl_side side) {
    return side == HL_PLAIN && subject->against == NULL;
}
static inline struct hl_run hl_run_of_side(const struct hl_subject *subject, enum hl_side side) {
    struct hl_run run = subject->run;
    if (side == HL_PLAIN)
        run.options = subject->against;
    return run;
}

/* One run. */
struct hl_trial {
    double value[HL_METRICS];
    int status;                /* as waitpid(2) has it */
    struct hl_bytes stream[2]; /* what it wrote to standard output and error, without hugeld's lines */
    char *said;                /* hugeld's lines */
};

/* Runs SUBJECT once, to its end.  MAPS: it is traced, and gets a row (map_process in trace.c) for each
   executable that it ran; NULL: it is left alone.  LOG: a descriptor that the program inherits under its number, or -1.
   0, or a negated errno; then nothing ran.  hl_free_trial frees what TRIAL has. */
int hl_try_program(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                   struct hl_trial *trial);

/* Runs two at the same time, each on its processor; the one with the index FIRST is started first, but neither
   before both are there.  0, or a negated errno; hl_free_trial frees what each TRIAL has. */
struct hl_runner {
    const struct hl_subject *subject;
    enum hl_side side;
    int processor;
};
int hl_try_pair(const struct hl_runner runner[HL_SIDES], size_t first, struct hl_trial trial[HL_SIDES]);
void hl_free_trial(struct hl_trial *trial);

/* The processors that two runs at once have: the first two that this process may use.  False after one line if there is
   only one. */
bool hl_find_processors(int processors[HL_SIDES]);

/* "exit status 1", of a STATUS of waitpid(2); the caller frees it. */
char *hl_describe_status(int status);

/* Waits for CHILD, which waits for GO to be closed, and describes it and its children as they exit.  Where
   tracing is not allowed it only waits. */
int hl_trace_program(pid_t child, int go, json_t *maps, struct rusage *usage);

/* The huge pages in MAPS, of which hl_try_program made them. */
uint64_t hl_count_mapped_pages(const json_t *maps);

/* The mean of the middle half of the pairs' ratios, HUGE over PLAIN, with its 95 % interval.  Pairs without a
   plain time are left out; unknown if that is half of them. */
struct hl_ratio {
    bool known;
    double ratio, low, high;
};
double hl_median(const double *value, size_t n);

/* Half of the interval's width, in per cent of the ratio. */
static inline double hl_half_width(const struct hl_ratio *ratio) {
    return ratio->ratio > 0 ? 50 * (ratio->high - ratio->low) / ratio->ratio : 0;
}

struct hl_ratio hl_compare_pairs(const double *plain, const double *huge, size_t n);

/* "faster", "slower" or "no difference"; static. */
const char *hl_name_ratio(const struct hl_ratio *ratio);
json_t *hl_json_ratio(const struct hl_ratio *ratio);

/* Reads pairs of numbers from the standard input, the plain one first, of which BLOCK after each other belong together, and prints
   six numbers: the mean of the middle half of their ratios, as above, and both ends of its interval; the same of their differences.
   "nan": a pair without a plain time has no ratio, and fewer than six blocks have no interval.  The exit code; what is no pair
   ends it, with one line. */
int hl_compare_values(size_t block);

/* perf's counters of the TLB and its walks, as far as this machine has them. */
struct hl_counters {
    char *events; /* comma-separated, or NULL */
    char *reason; /* why there are none; or NULL */
};
void hl_find_counters(struct hl_counters *counters);
void hl_free_counters(struct hl_counters *counters);

/* What perf counts in one run of SUBJECT, or, if PID is not 0, in SECONDS of a process: {EVENT: number}. NULL
   if it couldn't. */
json_t *hl_count_run(const struct hl_counters *counters, const struct hl_subject *subject, enum hl_side side);
json_t *hl_count_process(const struct hl_counters *counters, pid_t pid, double seconds);

/* What is measured: PAIRS values of each metric for each side, in the order of the pairs. */
struct hl_bench {
    struct hl_subject *subject;
    size_t pairs;
    bool at_once;              /* both sides of a pair at the same time */
    int processors[HL_SIDES];  /* on which, in the first pair */
    double precision;          /* the half of the interval's width that is asked for, in per cent; or 0 */
    struct hl_trial reference; /* the first plain run */
    bool comparable;           /* plainly it writes the same each time */
    uint64_t
        unsaid_pages; /* on huge pages in the traced run, of which no line of hugeld's came through; or 0 */
    double *value[HL_SIDES][HL_METRICS];
    json_t *maps[HL_SIDES], *counts[HL_SIDES];
    struct hl_counters counters;
};

/* Prints what was measured, as JSON or for people, and writes the page to REPORT if that is not NULL; the
   exit code. */
int hl_tell_answer(const struct hl_bench *bench, const char *report, bool json);

#define HL_COMMANDS_MAX 16

/* Times the commands in WORDS, no more than that, in so many ROUNDS, each [@]NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]..., with
   "--" between them, in turns, or two AT_ONCE, and prints two lines for each: NAME and its times in ms, or with @ the numbers that it
   prints; NAME:cpu and the processor time in ms, its children's included.  After them, for each but the first, NAME:ratio: its
   ratio to the first, as hl_compare_pairs finds it, both ends of the interval, and the medians of the first and of itself.  WORDS
   are changed.  The exit code; one that fails ends it. */
int hl_time_commands(char **words, size_t rounds, bool at_once);

/* Attaches to the process PID and detaches in turns, and says what a unit of its work takes; the exit code. */
struct hl_toggle_settings {
    size_t pairs;
    double seconds;       /* of a block */
    const char *patterns; /* which objects */
    const char
        *metric; /* a command that prints the work done so far; NULL: instructions, else context switches */
    bool keep;   /* attached */
    bool takes_running; /* threads that run are interrupted, too */
};
int hl_bench_toggle(pid_t pid, const struct hl_toggle_settings *settings, bool json);

#endif
