/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keeps the images of the system's store up to date, for as long as the service runs: holds each one mapped, so that no user is
   the only one who maps a page of it and can have it split, watches the originals, and adds files that the configuration enables
   when they appear. */
#ifndef HL_KEEP_H
#define HL_KEEP_H

#include "command/share/configuration.h"

#include <stdbool.h>
#include <stdint.h>

struct hl_keeper;

/* The results so far. */
struct hl_keeper_counts {
    unsigned images, refreshed, removed, failed;
    unsigned pending;    /* the images that could not be made yet */
    uint64_t huge_pages; /* of held images */
};

/* Keeps the store at PATH, for CONFIGURATION, which was read from SOURCE and stays.  The store and the files need not exist
   yet.  NULL: the reason was printed. hl_stop_keeping frees it. */
struct hl_keeper *hl_start_keeping(const char *path, const struct hl_configuration *configuration,
                                   const char *source);
void hl_stop_keeping(struct hl_keeper *keeper);

/* A descriptor that becomes readable when hl_keep has work; -1: not before hl_keeper_timeout. */
int hl_keeper_events(const struct hl_keeper *keeper);

/* Milliseconds until hl_keep has work without an event: ten seconds at most, since no event tells that another store is mounted
   at its path. */
int hl_keeper_timeout(const struct hl_keeper *keeper);

/* Does the work that is due, at most for one image; without MAKES it only holds and watches the store's present images.  An
   error of an image is printed once. */
void hl_keep(struct hl_keeper *keeper, bool makes);

/* Call when CONFIGURATION was read again. */
void hl_keep_configured(struct hl_keeper *keeper);

/* Looks at every image again; without ALL at none that waits for another attempt. */
void hl_keep_all_anew(struct hl_keeper *keeper, bool all);

void hl_read_keeper(const struct hl_keeper *keeper, struct hl_keeper_counts *counts);

#endif
