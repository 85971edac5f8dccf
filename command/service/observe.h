/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds out which files' text runs, and on which pages, by samples in windows (sample.h), and changes nothing.

   An entry is made only for a file that root owns and no other user may write, whose path is in the configuration, and which is
   the same file under this path here: so no user can fill the table, and no name in it is a user's choice. */
#ifndef HL_OBSERVE_H
#define HL_OBSERVE_H

#include "command/share/configuration.h"
#include "command/survey/sample-resolve.h"

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

/* Samples in a huge page of a file. */
struct hl_observed_chunk {
    uint64_t offset;
    double samples, huge;      /* the latter: on huge pages */
    bool can_be_huge, is_huge; /* in the page cache, whatever the samples say; set by hl_examine_observed */
};

/* One file.  Counts of earlier windows are halved with each new one. */
struct hl_observed_file {
    struct hl_file_id id;
    char *path;
    double samples, huge;
    size_t n_chunks;
    struct hl_observed_chunk *chunk;
    /* Set by hl_examine_observed. */
    bool is_examined;
    uint64_t text_bytes, huge_bytes, possible_bytes; /* of its text; huge now; possibly huge in place */
    char *obstacle;                                  /* why nothing of it can be put in place, or NULL */
};

/* Counts since the service was started. */
struct hl_observed_counts {
    uint64_t windows, windows_lost; /* the latter: too many samples were lost, so none were counted */
    uint64_t windows_cut;           /* windows that ended early, because they took too much time */
    uint64_t samples, lost;         /* all of them */
    uint64_t huge;                  /* on huge pages, whatever they belong to */
    uint64_t ended, refused;        /* the process had ended, or may not be looked at */
    uint64_t memory;                /* in text without a file */
    uint64_t ineligible,
        unlisted; /* of files that are none of those above; for which the table had no room */
};

struct hl_observer;

struct hl_observer *hl_start_observing(void);
void hl_stop_observing(struct hl_observer *observer);

/* Milliseconds until hl_observe has work, under CONFIGURATION; -1: it never has. */
int hl_observer_timeout(const struct hl_observer *observer, const struct hl_configuration *configuration);

/* Does the work that is due, in some 10 ms.  MAY: no kill switch is there; otherwise a window ends, and none begins.  True: a
   window has just ended.  An obstacle to sampling is printed once. */
bool hl_observe(struct hl_observer *observer, const struct hl_configuration *configuration, bool may);

/* CONFIGURATION was read again: the next window begins no later than it would if one had just begun. */
void hl_observe_anew(struct hl_observer *observer, const struct hl_configuration *configuration);

/* Observes one window, now, to its end. */
void hl_observe_once(struct hl_observer *observer, const struct hl_configuration *configuration);

const struct hl_observed_counts *hl_read_observed(const struct hl_observer *observer);

/* All files, those with most samples first, until the next hl_observe. */
struct hl_observed_file *hl_list_observed(struct hl_observer *observer, size_t *n);

/* Whether a window has begun and not ended. */
bool hl_is_observing(const struct hl_observer *observer);

/* Whether CONFIGURATION wants files at PATH to be looked at. */
bool hl_is_eligible_path(const struct hl_configuration *configuration, const char *path);

/* Whether DESCRIPTOR is of the very file that FILE stands for. */
bool hl_is_observed(const struct hl_observed_file *file, int descriptor);

/* A number from 0 to 1, to spread work that a thousand machines should not do together. */
double hl_draw_share(void);

/* The same as JSON. */
json_t *hl_json_observed(const struct hl_observer *observer);

/* Finds out how much of FILE could be put in place, from its headers and its part of the page cache. */
void hl_examine_observed(struct hl_observed_file *file);

#endif
