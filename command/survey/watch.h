/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the common part of its two ways of watching. */
#ifndef HL_SURVEY_WATCH_H
#define HL_SURVEY_WATCH_H

#include "command/survey/survey.h"

/* One process. */
struct hl_watched {
    pid_t pid;
    struct hl_usage first, last;
    bool has_text;        /* it could be read */
    struct hl_file_id id; /* its executable */
    char *path;
    uint64_t samples;
    struct hl_watch_counters *counters;
    size_t n_objects; /* exact */
    struct hl_hot_object *object;
};

struct hl_watch {
    struct hl_survey *survey;
    const struct hl_survey_filter *filter;
    size_t n;
    struct hl_watched *process;
    int code; /* 0, or the exit code: one line was printed */
};

/* Prints why the process of filter->pid is not watched, and sets watch->code. */
void hl_refuse_process(struct hl_watch *watch);

/* Looks through /proc for processes that are not watched yet, and adds those for which BEGIN, which may be NULL, returns true.
   Sets watch->code if /proc cannot be read. */
void hl_find_processes(struct hl_watch *watch,
                       bool (*begin)(struct hl_watch *watch, const struct hl_process *process));

/* The process that had the number PID and STARTED then; NULL if it is not watched. */
struct hl_watched *hl_find_watched(struct hl_watch *watch, pid_t pid, uint64_t started);
/* The caller sets the fields that it knows; they stay the caller's. */
struct hl_watched *hl_add_watched(struct hl_watch *watch, const struct hl_watched *watched);

/* Sets WATCHED to PROCESS's present executable.  0, or a negated errno, and WATCHED is unchanged. */
int hl_note_executable(struct hl_watched *watched, const struct hl_process *process);

/* Whether a process of OWNER, and one of this executable, is looked at. */
bool hl_is_owner_wanted(const struct hl_watch *watch, uid_t owner);
bool hl_is_program_wanted(const struct hl_watch *watch, const struct hl_file_id *id);

/* Whether filter->child has ended; its other children end unseen. */
bool hl_has_child_ended(const struct hl_survey_filter *filter);

struct hl_surveyed *hl_find_surveyed(struct hl_survey *survey, const struct hl_file_id *id, const char *path);
struct hl_hot_object *hl_find_hot_object(struct hl_hot_object **object, size_t *n,
                                         const struct hl_file_id *id, const char *path);
void hl_free_hot_objects(struct hl_hot_object *object, size_t n);
void hl_raise_to(uint64_t *value, uint64_t candidate);

/* The two ways: each watches for SECONDS, and fills survey->program's objects and sums (the first: by hl_add_exact, for
   each process). */
void hl_watch_exactly(struct hl_watch *watch, double seconds);
void hl_add_exact(struct hl_surveyed *program, const struct hl_watched *watched);
void hl_watch_by_samples(struct hl_watch *watch, double seconds);

/* After samples: finds how much text of its objects PROGRAM has mapped, from maps of its busiest process, if that lives. */
void hl_measure_text(struct hl_surveyed *program);

/* The name of text on huge pages that no file has. */
#define HL_HOT_MEMORY "text on huge pages"

#endif
