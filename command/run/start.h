/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starts a program.  This is linked into hugeld alone, with a libc and nothing else. */
#ifndef HL_RUN_START_H
#define HL_RUN_START_H

#include "command/run/run.h"

/* One request to start a program. */
struct hl_request {
    struct hl_run run;
    char **words;     /* of `hugeld run` */
    char **program;   /* the program's own */
    char **variables; /* the original environment */
    int gate; /* --gate: this process writes a byte there when it is ready, and goes on when it can read one, or its end;
                 or -1.  `bench` begins to trace it meanwhile */
};

/* Becomes the program of REQUEST on huge pages, or as it is.  Returns the exit code if that fails, or if strict=on forbids it. */
int hl_start_program(const struct hl_request *request);

/* Becomes hugeld-command with WORDS and VARIABLES.  Returns after a line with the reason if it cannot; QUIET: without one. */
void hl_become_command(char **words, char **variables, bool quiet);

#endif
