/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld share unit: services of systemd that run from images. */
#ifndef HL_SHARE_UNIT_H
#define HL_SHARE_UNIT_H

/* The command, with what follows "unit" in ARGV; the exit code. */
int hl_share_unit(int argc, char **argv);

/* What the unit of systemd NAME ("x.service") starts, without symbolic links and, where it is a script, what that runs.  The
   caller frees it.  NULL: it was said that this cannot be found, and that COMMAND takes a file instead. */
char *hl_find_unit_program(const char *unit, const char *command);

#endif
