/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The common part of hugeld service and the commands that ask about it. */
#ifndef HL_SERVICE_H
#define HL_SERVICE_H

#include "command/share/configuration.h"

#include <jansson.h>
#include <stdbool.h>

/* Held (flock) by the one service that runs; only root can open it. */
#define HL_SERVICE_LOCK HL_SERVICE_FOLDER "/lock"
#define HL_SERVICE_OBSERVED HL_SERVICE_FOLDER "/observed.json" /* in the format of hl_json_observed */
#define HL_SERVICE_OBSERVED_NEW HL_SERVICE_OBSERVED ".new"

#define HL_SERVICE_READING HL_SERVICE_FOLDER "/reading" /* for hl_watch_readings */

/* Removes what a service has published, or left when it was killed; the caller holds the lock. */
void hl_forget_observed(void);

/* Prints the entries of CONFIGURATION, which was read from PATH, and their state.  The exit code. */
int hl_show_service(const struct hl_configuration *configuration, const char *path, bool json);

/* Prints OBSERVED, which hl_json_observed has made. */
void hl_print_observed(const json_t *observed);

/* Removes all images of this user's store, root's being the system's, and prints the lines of hugeld share remove.  Whether it
   succeeded. */
bool hl_remove_all_images(void);

/* Unmounts the system's store, whose images are removed, and removes its folder; waits for SECONDS at most until no process,
   this machine's service included, maps an image or has one open.  *WAS_THERE: whether there was a store.  0; -EBUSY: processes
   still do, and with DETACHES the store is unmounted all the same, so that it goes with the last of them; or another negated
   errno.  No error is printed. */
int hl_unmount_store(double seconds, bool detaches, bool *was_there);

/* Stops the service from acting, removes all files that it made, and waits for SECONDS at most until no process uses them.
   Prints what is left.  The exit code. */
int hl_undo_service(double seconds);

#endif
