/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the types and functions that its parts share. */
#ifndef HL_SURVEY_H
#define HL_SURVEY_H

#include "command/lib/common.h"
#include "command/lib/process.h"
#include "command/measure/sample.h"
#include "command/measure/sample-resolve.h"
#include "command/measure/tlb.h"
#include "command/image/verdict.h"

/* A program that executes less text has nothing to gain, unless it is scattered. */
#define HL_HOT_MIN ((uint64_t)2 << 20)
/* Programs that executed as many pages at a time gained 7 % of their processor time and more, and one of 2,500 pages gained 1 % where
   these lay in 42 frames, 4 % in 251, 11 % in 990 and 25 % in 1,735.  Of fewer than 250 pages none gained more than 2 %. */
#define HL_PAGES_MANY 1000
#define HL_PAGES_FEW 250
#define HL_FRAMES_MANY 500

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
    uint64_t huge_bytes; /* at least, on huge pages, */
    uint64_t hot_bytes;  /* and at least, on small pages that were executed in the window */
    double share;        /* of the program's samples on small pages */
    uint64_t samples, huge_samples;
    size_t n_chunks;
    struct hl_hot_chunk *chunk;
};

/* What hugeld can do for a program. */
struct hl_advice {
    enum hl_way way;   /* for the object that executes most of what can be huge */
    char *reason;      /* why there is nothing to enable; or NULL */
    char *command;     /* "hugeld enable FILE...", as a shell reads it; or NULL */
    double share;      /* of the hot text that would be on huge pages */
    uint64_t pages;    /* huge pages of all its files */
    bool already_huge; /* its text is on huge pages, and the rest would gain nothing */
};

/* All processes of one executable. */
struct hl_surveyed {
    struct hl_file_id id;
    char *path;
    unsigned processes;
    pid_t pid; /* the process with most processor time */
    uint64_t pid_started;
    double pid_ms, cpu_share; /* processor time: of that process; of all, 1 for a whole processor */
    size_t n_objects;
    struct hl_hot_object *object;
    uint64_t text_bytes, huge_bytes, hot_bytes; /* of all objects */
    uint64_t likely_bytes;                      /* an estimate of hot_bytes after a long window */
    uint64_t frames; /* of 2 MiB, in which the parts of its files lie that had samples; 0: unknown */
    uint64_t samples, huge_samples, memory_samples; /* the last: in text without a file, on small pages */
    struct hl_advice advice;
};

static inline bool hl_has_many_pages(const struct hl_surveyed *program) {
    return program->likely_bytes / 4096 >= HL_PAGES_MANY;
}
static inline bool hl_has_many_frames(const struct hl_surveyed *program) {
    return program->frames >= HL_FRAMES_MANY && program->likely_bytes / 4096 >= HL_PAGES_FEW;
}
static inline bool hl_may_gain(const struct hl_surveyed *program) {
    return program->likely_bytes > HL_HOT_MIN || hl_has_many_frames(program);
}

struct hl_survey {
    double seconds; /* the length of the window */
    unsigned hz;
    bool of_threads; /* samples are only of the threads at the beginning, and of those that they started */
    struct hl_sampler_counts sampled;
    uint64_t samples_ended, samples_refused; /* of processes that had ended, or may not be read */
    bool undecided;                          /* too many samples were lost */
    struct hl_tlb tlb;
    unsigned watched, ended, refused, others;
    size_t n_programs;
    struct hl_surveyed *
        program; /* those first of which both pages and frames are many, then one of these; among equals those that spend most
                     processor time in text that becomes huge */
};

/* Which processes are looked at. */
struct hl_survey_filter {
    bool all_users;
    size_t n_programs;
    struct stat *program; /* only processes of these executables, if there are any */
    pid_t pid;            /* only this process; or 0 */
};

/* The clock of the window, and what is sampled in it: functions of basics.h, sample.h and sample-resolve.h, or a test's. */
struct hl_sample_source {
    double (*now_ms)(void);
    int (*open)(struct hl_sampler **opened, const struct hl_sampler_request *request);
    void (*read)(struct hl_sampler *sampler, double ms,
                 void (*handle)(void *data, const struct hl_sample *sample), void *data);
    const struct hl_sampler_counts *(*count)(struct hl_sampler *sampler);
    void (*close)(struct hl_sampler *sampler);
    void (*resolve)(struct hl_resolver *resolver, const struct hl_sample *sample,
                    struct hl_resolved_sample *resolved);
};

/* Watches the processes of FILTER for SECONDS, by the samples of SOURCE.  0, or the exit code after one line. */
int hl_watch_processes(struct hl_survey *survey, const struct hl_survey_filter *filter, double seconds,
                       const struct hl_sample_source *source);
void hl_free_survey(struct hl_survey *survey);

/* Finds what hugeld can do for PROGRAM. */
void hl_advise(struct hl_surveyed *program, const struct hl_survey *survey);

/* The answer with --json; and without, from that. */
json_t *hl_json_survey(const struct hl_survey *survey);
void hl_print_survey(const struct hl_survey *survey, const json_t *answer);

#endif
