/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock of root's, or of one user's own, by a file that no other user can open. */
#ifndef HL_LOCK_H
#define HL_LOCK_H

#include <stdbool.h>

/* Whether PATH still leads to the open FILE, and is no symbolic link. */
bool hl_is_at(int file, const char *path);

/* Locks the open FILE (flock), which no other user can open; WAITS: until it is free.  0; -EWOULDBLOCK: another process has it; or
   another negated errno. */
int hl_lock_file(int file, bool waits);

/* Opens the file PATH, which lies where no other user can write, or makes it, and locks it (flock).  WAITS: until it is free.  A
   descriptor for hl_drop_lock; -EWOULDBLOCK: another process has it; or another negated errno.  Nothing is said. */
int hl_take_lock(const char *path, bool waits);

/* Removes the file PATH that LOCK is of, and gives it back.  LOCK may be negative: then nothing is done. */
void hl_drop_lock(const char *path, int lock);

#endif
