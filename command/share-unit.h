/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld share unit: services of systemd that run from images. */
#ifndef HL_SHARE_UNIT_H
#define HL_SHARE_UNIT_H

/* The command, with what follows "unit" in ARGV; the exit code. */
int hl_share_unit(int argc, char **argv);

#endif
