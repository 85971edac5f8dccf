/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the types and functions that its parts share. */
#ifndef HL_SURVEY_H
#define HL_SURVEY_H

#include "command/base/common.h"
#include "command/base/estimate.h"
#include "command/proc/process.h"
#include "command/survey/sample.h"
#include "command/survey/sample-resolve.h"
#include "command/tlb/tlb.h"
#include "command/tlb/reach.h"
#include "command/verdict/verdict.h"

/* 2 MiB of a file, from a multiple of 2 MiB on. */
struct hl_hot_chunk {
    uint64_t offset;
    uint64_t samples, huge_samples;
    uint64_t pages; /* the small ones that had samples */
};

/* Text of one file, or of one image, that is mapped executable. */
struct hl_hot_object {
    struct hl_file_id id; /* of memory without a file: inode 0 */
    char *path;
    uint64_t text_bytes; /* that is mapped, */
    uint64_t huge_bytes; /* on huge pages (of samples: at least), */
    uint64_t hot_bytes;  /* and on small pages that were executed in the window (likewise) */
    double share;        /* of the program's executed text on small pages */
    uint64_t samples, huge_samples;
    size_t n_chunks;
    struct hl_hot_chunk *chunk; /* those with most samples first */
};

/* The processor's counts in user mode. */
struct hl_event_counts {
    bool known, has_walks;
    double cycles, instructions, itlb_misses, walk_cycles;
};

/* The best way of hugeld for a program. */
struct hl_advice {
    enum hl_way way;
    char *reason;       /* why there is none, or why not another way; or NULL */
    char *command[2];   /* as a shell reads them, one after the other; or NULL */
    double share;       /* of the hot text that would be on huge pages, */
    uint64_t pages;     /* in so many of them for one process, */
    uint64_t all_pages; /* and in so many for all present processes */
    bool already_huge;  /* its text is on huge pages, and the rest would gain nothing */
    bool by_walks;      /* the estimate comes from counters */
    double gain;        /* the estimate: of its processor time */
};

/* All processes of one executable. */
struct hl_surveyed {
    struct hl_file_id id;
    char *path;
    unsigned processes;
    pid_t pid; /* the process with most processor time */
    uint64_t pid_started;
    double pid_ms, cpu_ms;
    unsigned long minor_faults, major_faults;
    struct hl_event_counts counts;
    size_t n_objects;
    struct hl_hot_object *object;
    uint64_t text_bytes, huge_bytes, hot_bytes;     /* of all objects */
    uint64_t likely_bytes;                          /* an estimate of hot_bytes after a long window */
    uint64_t samples, huge_samples, memory_samples; /* the last: in text without a file, on small pages */
    struct hl_advice advice;
};

struct hl_survey {
    double seconds; /* the length of the window */
    bool exact;     /* every accessed page was counted; else there were samples */
    unsigned hz;
    bool of_threads; /* samples are only of the threads at the beginning, and of those that they started */
    struct hl_sampler_counts sampled;
    uint64_t samples_ended, samples_refused; /* of processes that had ended, or may not be looked at */
    bool undecided;                          /* too many samples were lost */
    struct hl_tlb tlb;
    struct hl_tlb_reach reach;
    struct hl_jump_costs jump_costs;
    char *costs_problem;     /* why the cached costs are not used; or NULL */
    uint64_t limit_bytes;    /* programs that execute less have nothing to gain */
    const char *no_counters; /* why there are no counts; or NULL */
    unsigned watched, ended, kernel_threads, zombies, refused, others, too_large;
    double clear_ms_max, read_ms_max; /* the longest time of each, if exact */
    size_t n_programs;
    struct hl_surveyed *program; /* largest gain first */
};

/* Which processes are looked at. */
struct hl_survey_filter {
    bool all_users;
    size_t n_programs;
    struct stat *program; /* only processes of these executables, if there are any */
    pid_t child;          /* only this process and those that it starts; or 0 */
    int go;               /* CHILD waits until this is closed, as soon as it is watched */
    pid_t pid;            /* only this process; or 0 */
};

/* Watches the processes of FILTER for SECONDS, or until filter->child has ended; survey->exact selects the way. 0, or the exit
   code after one line. */
int hl_watch_processes(struct hl_survey *survey, const struct hl_survey_filter *filter, double seconds);
void hl_free_survey(struct hl_survey *survey);

/* Finds the best way for PROGRAM. */
void hl_advise(struct hl_surveyed *program, const struct hl_survey *survey);

/* The processor's counters of one process's threads. */
struct hl_watch_counters;
/* NULL, or why this machine has none; static. */
const char *hl_try_watch_counters(void);
struct hl_watch_counters *hl_open_watch_counters(pid_t pid);
/* Adds the counts, and closes COUNTERS, which may be NULL. */
void hl_close_watch_counters(struct hl_watch_counters *counters, struct hl_event_counts *counts);

/* The answer with --json, and without. */
json_t *hl_json_survey(const struct hl_survey *survey);
void hl_print_survey(const struct hl_survey *survey);

#endif
