/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What was tried for each listed file, kept in the store: so no attempt is repeated before the file, the boot or a delay has
   changed, and every command gives the same reason. */
#ifndef HL_RECORD_H
#define HL_RECORD_H

#include "command/image/store.h"

enum hl_result {
    HL_RESULT_MADE,    /* it is on huge pages, as an image or in place */
    HL_RESULT_NOTHING, /* it would gain nothing */
    HL_RESULT_REFUSED, /* this version of the file cannot be */
    HL_RESULT_PENDING, /* it can be later */
    HL_RESULTS
};

struct hl_record {
    char *path, *key; /* the file, and its version (elf/store.h) */
    enum hl_result result;
    bool is_in_place;
    unsigned asked;      /* HL_ADD_IMAGE, HL_ADD_IN_PLACE or 0: the way that its entry asks for */
    unsigned unnamed;    /* the runs in which no entry named it */
    bool is_gone;        /* it is not written */
    double tried, delay; /* seconds since boot, and from then until another attempt */
    char *reason;        /* one word: of reason.def, or why it is pending (HL_ADD_...); "" */
    char *sentence;      /* why, and the remedy; "" */
};

struct hl_records {
    size_t n;
    struct hl_record *record; /* ascending by their paths */
    bool changed;
    double applied; /* when it was written, as time(2); 0: never */
};

/* Reads the records of STORE; there are none if they cannot be read. hl_free_records frees them. */
void hl_read_records(struct hl_records *records, const struct hl_store *store);

/* Writes them if they have changed, and notes the time in any case.  0, or a negated errno. */
int hl_write_records(struct hl_records *records, const struct hl_store *store);
void hl_free_records(struct hl_records *records);

/* A listed file as it is at an apply, beside its record. */
struct hl_present {
    double uptime;  /* seconds since boot */
    bool is_same;   /* it is the version that the record is about, and its entry asks for the same way */
    bool is_whole;  /* what was made of it is as it was made */
    bool is_named;  /* an entry names the file itself */
    bool is_wanted; /* a user asks for it, now */
};

/* Whether the file is to be put on huge pages now.  An attempt that failed, or did only a part, is repeated after a delay; nothing
   is repeated for a file that gains nothing. */
bool hl_is_attempt_due(const struct hl_record *record, const struct hl_present *present);

/* Notes what came of an attempt, and the delay until the next one.  IS_PARTIAL: it is made, and not all of its text is huge. */
void hl_note_attempt(struct hl_record *record, const struct hl_present *present, enum hl_result result,
                     bool is_partial);

/* Notes that no entry names the file in this run.  Whether its image is removed. */
bool hl_note_unnamed(struct hl_record *record);

/* The record of PATH, or NULL; hl_add_record makes one if there is none. A later call of hl_add_record moves it. */
struct hl_record *hl_find_record(const struct hl_records *records, const char *path);
struct hl_record *hl_add_record(struct hl_records *records, const char *path);

const char *hl_result_name(enum hl_result result);

#endif
