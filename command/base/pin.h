/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Paths in a process that must not wait for any server.

   Between the check of a path and its use, the owner of a folder above it may mount a FUSE there, which does not answer.  So such a
   process opens the path once, and uses the descriptor. */
#ifndef HL_PIN_H
#define HL_PIN_H

#include <stdbool.h>
#include <sys/stat.h>

/* hl_open_local_path in a process that must not wait for any server: the service's, and that of `hugeld share refresh`.  NULL in
   others. */
extern int (*hl_pins_by)(const char *path, bool follows, struct stat *status);

/* A path for calls that take one. */
struct hl_pin {
    const char *path;
    int file; /* the open file, or -1 */
    char link[32];
};

/* Sets PIN->path to PATH; but if this process must not wait for any server, to a path of the file that PATH leads to just now,
   which stays open until hl_unpin.  FOLLOWS: a symbolic link at PATH is then followed.  False, and errno: EREMOTE for a file system
   that may not answer, or another one; hl_unpin does nothing then. */
bool hl_pin(struct hl_pin *pin, const char *path, bool follows);
/* errno stays. */
void hl_unpin(struct hl_pin *pin);

#endif
