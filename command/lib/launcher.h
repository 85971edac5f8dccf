/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the program that a launcher starts. */
#ifndef HL_LAUNCHER_H
#define HL_LAUNCHER_H

#include "command/lib/program.h"

struct hl_target {
    struct hl_program *program; /* the given one, or another, which is closed with it */
    char *const *argv;          /* PROGRAM's, if it is a part of the given one */
    bool followed;              /* the given program is a launcher, and starts PROGRAM */
    bool is_unknown;            /* PROGRAM is a shell, env, nice or the like, and starts an unknown program */
};

/* Follows the open PROGRAM with the argv ARGV, if it is env(1) or a script of env's.  Nothing is run.  The result's program has
   been read (hl_read_program).  The first call finds it, and it is valid until PROGRAM, which must not be moved, is closed. */
const struct hl_target *hl_follow_launchers(struct hl_program *program, char *const *argv);

#endif
