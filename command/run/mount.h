/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One file over another, for a program and its children alone. */
#ifndef HL_MOUNT_H
#define HL_MOUNT_H

#include <stdbool.h>

/* Whether a mount namespace of its own would still see what is mounted and unmounted later in this one, at the root and
   where the open FILE lies: whether these mounts are shared (mount_namespaces(7)). */
bool hl_sees_later_mounts(int file);

/* Puts the file that is open as FROM over the one that is open as TO for this process and its children: a bind
   mount in a mount namespace of their own.  Where the caller may not make one, it gets a user namespace with it, in
   which no IDs change.  Exactly these two files: -ESTALE if one is not found at its path any more.  0, or a negated
   errno, and nothing changed.  Does not return if it fails after it was tried and worked: there is no way back out of a
   namespace, so the command ends then with one line and HL_EXIT_CANNOT_RUN. */
int hl_mount_over(int from, int to);

#endif
