/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mounts one file over another, for a program and its children alone. */
#ifndef HL_MOUNT_H
#define HL_MOUNT_H

/* Puts the file open as FROM over the file open as TO for this process and its children: a bind mount in a mount namespace of their
   own.  If the caller may not make one, it is made with a user namespace, in which no IDs change.  Exactly these two files: -ESTALE
   if one is no longer at its path.  0, or a negated errno, and nothing changed.  Does not return if the mount fails although the
   trial succeeded: there is no way back out of a namespace, so the command then ends with one line and HL_EXIT_CANNOT_RUN. */
int hl_mount_over(int from, int to);

#endif
