/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Decides for which files images may be made. */
#ifndef HL_ELIGIBLE_H
#define HL_ELIGIBLE_H

#include <stdbool.h>

/* Whether device, inode, size and ctime of the open FILE tell its versions apart as long as this machine runs: it lies on a file
   system that sets ctime by itself at every change, and that is mounted at / or /usr, so no other one takes its device number.
   ANY_DISK: it may be mounted elsewhere.  NULL, or why not, and the remedy, which the caller frees. */
char *hl_explain_unsteady(int file, bool any_disk);

/* Why other users than root can write to the open FILE or exchange it, or, if it is to be READABLE, why not every user can read it;
   PATH is its path without symbolic links.  NULL if neither is so, else a sentence without a remedy, which the caller frees;
   *ERROR, unless ERROR is NULL, is an errno if that cannot be determined now, else 0. */
char *hl_explain_exposed(int file, const char *path, bool readable, int *error);

/* Whether a store for all users may hold the open FILE at PATH, by hl_explain_exposed.  NULL, or why not, and the remedy, which the
   caller frees. */
char *hl_explain_private(int file, const char *path, int *error);

#endif
