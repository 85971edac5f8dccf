/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starting a program on huge pages: what `run` and `bench` share. */
#ifndef HL_RUN_H
#define HL_RUN_H

#include "command/base/common.h"
#include "command/run/way.h"

/* The rows of argp_options, and what reads them: 0, EINVAL after one line on stderr, or ARGP_ERR_UNKNOWN. */
enum { HL_RUN_OLD_NAME = 1000 }; /* --loader, as --via was called in snapshots */
#define HL_RUN_OPTIONS                                                                                       \
    {"objects", 'p', "PATTERNS", 0, "Which objects, as in LD_HUGEPAGES: 'main:libLLVM*:!libc.so*'", 0},      \
        {"options",                                                                                          \
         'o',                                                                                                \
         "NAME=VALUE,...",                                                                                   \
         0,                                                                                                  \
         "How, as in LD_HUGEPAGES_OPTIONS; may be repeated; the last one wins",                              \
         0},                                                                                                 \
        {"loader", HL_RUN_OLD_NAME, "NAME", OPTION_HIDDEN, NULL, 0},                                         \
        {"via",                                                                                              \
         'l',                                                                                                \
         "WAY",                                                                                              \
         0,                                                                                                  \
         "auto (at the exec stop if it has an image, else preload), preload, ldso or image",                 \
         0},                                                                                                 \
    {                                                                                                        \
        "ld-so", 'L', "FILE", 0, "The patched dynamic linker, if not the one beside this command", 0         \
    }
error_t hl_parse_run(struct hl_run *run, int key, char *argument);

/* Sets this process's environment (and mounts) for the program at PATH with the argv PROGRAM, and chooses the
   way.  0, or the exit code when strict=on forbids what is left.  WAY is zeroed before; hl_free_way frees it. */
int hl_prepare_run(const struct hl_run *run, char *const *program, const char *path, struct hl_way *way);

/* "auto", "preload", "ldso" or "image"; static. */
const char *hl_loader_name(const struct hl_run *run);
void hl_free_way(struct hl_way *way);

/* Becomes the program at PATH.  Where the kernel has no room for the variables that were added, with PLAIN_VARIABLES, unless that is
   NULL.  Returns only when that fails, with the exit code. */
int hl_become_program(struct hl_way *way, const char *path, char **program, char **plain_variables);

/* Why the program NAME can't be run (errno), in the words and with the exit codes of env(1). */
int hl_refuse_program(const char *name);

#endif
