/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The memory cgroup that is charged for an image is that of the process that writes it. */
#ifndef HL_SLICE_H
#define HL_SLICE_H

#include <stdbool.h>

/* Whether hl_enter_slice has something to do: systemd is this machine's process 1, the user is root, and this process is not in
   hugeld.slice yet. */
bool hl_has_slice(void);

/* Moves this process into a scope in hugeld.slice, which has no limit of its own, so that no session and no service is charged for
   the images that it writes.  If that fails, the process stays in its cgroup, under the limits there.  Prints nothing. */
void hl_enter_slice(void);

#endif
