/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starts a program on huge pages, for `run` and `bench`. */
#ifndef HL_RUN_H
#define HL_RUN_H

#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/run/start.h"

/* The options of both.  RUN is the field, a struct hl_run, of their request, a TYPE. */
#define HL_RUN_FLAGS(type, run)                                                                              \
    {"objects", 'p', "PATTERNS", "Which objects, as in LD_HUGEPAGES: 'main:libLLVM*:!libc.so*'",             \
     HL_STRING(type, run.patterns)},                                                                         \
        {"options", 'o', "NAME=VALUE,...",                                                                   \
         "How, as in LD_HUGEPAGES_OPTIONS; may be repeated; the last one wins",                              \
         HL_OPTIONS(type, run.options)},                                                                     \
        {"via", 'l', "WAY",                                                                                  \
         "auto (at the exec stop if it has an image, else preload), preload or ldso",                 \
         HL_CHOICE(type, run.via, hl_via_names)},                                                            \
        {"loader", 0, "NAME", NULL, HL_CALL(hl_refuse_loader)}, {                                            \
        "ld-so", 'L', "FILE", "The patched dynamic linker, if not the one beside this command",              \
            HL_CALL_ON(hl_set_linker, type, run)                                                             \
    }
extern const struct hl_choice hl_via_names[];
int hl_refuse_loader(void *request, const char *name); /* --loader, the name of --via in snapshots */
int hl_set_linker(void *run, const char *path);

/* Part of the line that verbose=1 prints about a program that is started as it is. */
#define HL_IN_PLACE_SENTENCE "its file is kept on huge pages in place"

/* Sets this process's environment (and mounts) for the open PROGRAM with the argv ARGV, and chooses the way.  0, or the exit code
   if strict=on forbids to run it so.  PLAN is zeroed before. */
int hl_prepare_run(const struct hl_run *run, char *const *argv, struct hl_program *program,
                   struct hl_start_plan *plan);

/* "auto", "preload" or "ldso"; static. */
const char *hl_via_name(const struct hl_run *run);

/* Becomes PROGRAM with the argv ARGV.  If the kernel refuses, tries execvp(3) with PLAIN_VARIABLES, unless that is NULL.  Returns
   only when that fails, with the exit code. */
int hl_become_program(struct hl_start_plan *plan, struct hl_program *program, char **argv,
                      char **plain_variables);

/* Why the program NAME can't be run (errno), in the words and with the exit codes of env(1). */
int hl_refuse_program(const char *name);

#endif
