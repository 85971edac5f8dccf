/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program that only starts another one starts. */
#ifndef HL_LAUNCHER_H
#define HL_LAUNCHER_H

#include <stdbool.h>

struct hl_target {
    char *executable;     /* as hl_find_executable; NULL if there is none */
    char *const *program; /* its argv, as far as it is part of the one that was given */
    bool followed;        /* PATH was a launcher, and EXECUTABLE is what it starts */
    bool is_unknown;      /* EXECUTABLE is a shell, and what its script starts cannot be told */
};

/* Follows the program at PATH with the argv PROGRAM: "#!" lines, env(1), and shell scripts that exec a file
   whose name can be read in them.  Nothing is run.  The caller frees TARGET->executable. */
void hl_follow_launchers(struct hl_target *target, const char *path, char *const *program);

#endif
