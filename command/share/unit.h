/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld share unit: services of systemd that run from images. */
#ifndef HL_SHARE_UNIT_H
#define HL_SHARE_UNIT_H

/* The command, with the arguments behind "unit" in ARGV; the exit code. */
int hl_share_unit(int argc, char **argv);

/* The program that the unit of systemd ("x.service") starts, without symbolic links; for a script, the program that runs it.  The
   caller frees it.  NULL, after a message that it cannot be found and that COMMAND takes a file instead. */
char *hl_find_unit_program(const char *unit, const char *command);

#endif
