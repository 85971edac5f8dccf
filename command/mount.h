/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One file over another, for a program and its children alone. */
#ifndef HL_MOUNT_H
#define HL_MOUNT_H

#include <stdbool.h>

/* Puts the file that is open as FROM over the one that is open as TO for this process and its children: a bind
   mount in a mount namespace of their own.  Where the caller may not make one, and MAY_ENTER_USER_NAMESPACE, it
   gets a user namespace with it, in which nobody's IDs change.  Exactly these two files: -ESTALE if one is not
   found at its path any more.  0, or a negated errno, and nothing changed. */
int hl_mount_over(int from, int to, bool may_enter_user_namespace);

#endif
