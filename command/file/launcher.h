/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program that only starts another one starts. */
#ifndef HL_LAUNCHER_H
#define HL_LAUNCHER_H

#include "command/file/program.h"

struct hl_target {
    struct hl_program *program; /* the one that was given, or another, which is closed with it */
    char *const *argv;          /* PROGRAM's, as far as it is part of the one that was given */
    bool followed;              /* what was given is a launcher, and starts PROGRAM */
    bool is_unknown; /* PROGRAM is a shell, env, nice or the like, and what that starts cannot be told */
};

/* Follows the open PROGRAM with the argv ARGV, if it is env(1) or a script of that.  Nothing is run.  The result's program has been
   read (hl_read_program).  It is found the first time, and is good until PROGRAM, which must stay where it is, is closed. */
const struct hl_target *hl_follow_launchers(struct hl_program *program, char *const *argv);

#endif
