/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images that are made at first use, beside the program. */
#ifndef HL_RUN_LATER_H
#define HL_RUN_LATER_H

#include "command/file/program.h"
#include "elf/options.h"

/* The option of hugeld-command for that, beside the arguments of `run`. */
#define HL_FIRST_USE "first-use"

/* Before this process becomes a program: has the program's missing images made by another process, which is no child of this one
   and for which no process waits.  ARGUMENTS are those of `run`, and VARIABLES the environment before any were set for the program,
   of which few are passed on.  PROGRAM must be large, so that its images are worth making unasked; NULL: this is not checked.
   HAS_STOP: hl_start_exec_stop has been called.  True: it was begun.  False: there is no store that this user fills, a store was
   named, it is not time for it yet (hl_note_sharing), or another process must not be begun here; prints nothing. */
bool hl_share_later(const struct hl_options *options, const struct hl_program *program, char **arguments,
                    char **variables, bool has_stop);

/* Notes that the process has worked for MS: it may be begun again in the store of OPTIONS only after so much time that it takes one
   hundredth of one processor at most. */
void hl_note_sharing(const struct hl_options *options, double ms);

#endif
