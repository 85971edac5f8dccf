/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a program for its output. */
#ifndef HL_SUBPROCESS_H
#define HL_SUBPROCESS_H

#include <stdbool.h>
#include <sys/types.h>

struct hl_answer {
    bool succeeded; /* it exited with 0 */
    char *output, *errors;
};

/* Runs the file PATH with ARGV to its end; after 30 seconds it is killed.  LD_HUGEPAGES is empty for it, so that libhugeld.so,
   preloaded or not, moves nothing.  AS_NOBODY: with the rights of the overflow user, who owns nothing, and without an environment,
   for programs that read files of other users.  INPUT, if not NULL, is its standard input; then it may take 1 GiB of memory, and
   write eight times the input and a MiB.  hl_free_answer frees ANSWER. */
void hl_ask_program(struct hl_answer *answer, const char *path, char *const *argv, bool as_nobody,
                    const char *input);
void hl_free_answer(struct hl_answer *answer);

/* Calls WORK(DATA) in a child, for at most MS milliseconds.  What it returned, 0 to 255; or -1 if there was no child, or it did not
   end in time.  What it changes in memory that is not shared is lost. */
int hl_call_in_child(int (*work)(void *data), void *data, double ms);

#endif
