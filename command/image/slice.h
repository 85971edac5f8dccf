/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who pays for an image: the memory cgroup of the process that writes it. */
#ifndef HL_SLICE_H
#define HL_SLICE_H

#include <stdbool.h>

/* Whether hl_enter_slice has something to do: systemd is this machine's process 1, the user is root, and this process is not in
   hugeld.slice yet. */
bool hl_has_slice(void);

/* Moves this process into a scope in hugeld.slice, which has no limit of its own, so that no session and no service pays
   for what it writes.  Where that does not work it stays where it is, and the limits there apply.  Nothing is said. */
void hl_enter_slice(void);

#endif
