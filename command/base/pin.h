/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Paths in a process that may wait for no server.

   Between a look at a path and its use, who owns a folder above it may mount a FUSE there, which does not answer.  So such a
   process looks once, and uses what it has found. */
#ifndef HL_PIN_H
#define HL_PIN_H

#include <stdbool.h>
#include <sys/stat.h>

/* hl_open_local_path in a process that may wait for no server: the service's, and that of `hugeld share refresh`.  NULL in others. */
extern int (*hl_pins_by)(const char *path, bool follows, struct stat *status);

/* A path for calls that take one. */
struct hl_pin {
    const char *path;
    int file; /* what it means, or -1 */
    char link[32];
};

/* PIN->path is PATH; but if this process may wait for no server, it means what PATH leads to just now, which stays open until
   hl_unpin.  FOLLOWS: a symbolic link at PATH is followed then.  False, and errno: EREMOTE for what may not answer, or another one;
   hl_unpin does nothing then. */
bool hl_pin(struct hl_pin *pin, const char *path, bool follows);
/* errno stays. */
void hl_unpin(struct hl_pin *pin);

#endif
