/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keeps the images of the system's store as they should be, for as long as a process stays: holds each one mapped, so that no
   user is the only one who maps a page of it and can have it split, watches the originals, and adds what the configuration enables
   when it appears. */
#ifndef HL_KEEP_H
#define HL_KEEP_H

#include "command/share/configuration.h"

#include <stdbool.h>
#include <stdint.h>

struct hl_keeper;

/* What came of it so far. */
struct hl_keeper_counts {
    unsigned images, refreshed, removed, failed;
    unsigned pending;    /* of the images: those that could not be made yet */
    uint64_t huge_pages; /* that are held */
};

/* Keeps the store at PATH, for CONFIGURATION, which was read from SOURCE and stays.  Nothing has to be there yet.  NULL: it was
   said why not.  hl_stop_keeping frees it. */
struct hl_keeper *hl_start_keeping(const char *path, const struct hl_configuration *configuration,
                                   const char *source);
void hl_stop_keeping(struct hl_keeper *keeper);

/* A descriptor that becomes readable when hl_keep has something to do; -1: not before hl_keeper_timeout. */
int hl_keeper_events(const struct hl_keeper *keeper);

/* Milliseconds until hl_keep has something to do by itself: ten seconds at most, since no event tells that another store
   is mounted at its path. */
int hl_keeper_timeout(const struct hl_keeper *keeper);

/* Does what is due, at most one image's work; without MAKES only what is held and watched follows the store.  What is wrong
   with an image is said once. */
void hl_keep(struct hl_keeper *keeper, bool makes);

/* CONFIGURATION was read again. */
void hl_keep_configured(struct hl_keeper *keeper);

/* Looks at every image again; without ALL at none that waits for another attempt. */
void hl_keep_all_anew(struct hl_keeper *keeper, bool all);

void hl_read_keeper(const struct hl_keeper *keeper, struct hl_keeper_counts *counts);

#endif
