/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a program for its output. */
#ifndef HL_SUBPROCESS_H
#define HL_SUBPROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* The overflow user, who owns nothing, without an environment: for programs that read files of other users.  It is not the user's
   number: 65534 itself may own a database, and then runs the program with the present environment. */
#define HL_NOBODY ((uid_t)-2)

struct hl_answer {
    bool succeeded; /* it exited with 0 */
    char *output, *errors;
};

/* Runs the file PATH with ARGV, as the user OWNER unless that is (uid_t)-1, to its end; after 30 seconds it is killed.
   LD_HUGEPAGES is empty for it, so that libhugeld.so, preloaded or not, moves nothing.  hl_free_answer frees ANSWER. */
void hl_ask_program(struct hl_answer *answer, const char *path, char *const *argv, uid_t owner);

/* The same with the string INPUT as its standard input.  It may take 1 GiB of memory, and write eight times the input and a MiB. */
void hl_filter_text(struct hl_answer *answer, const char *path, char *const *argv, uid_t owner,
                    const char *input);

/* The same for this command itself, as the same user, for as long as it takes; ARGV begins with "hugeld". */
void hl_ask_itself(struct hl_answer *answer, const char *const *argv);

/* The same, but the program's output goes to this process's output.  Returns whether it succeeded. */
bool hl_run_itself(const char *const *argv);
void hl_free_answer(struct hl_answer *answer);

/* Calls WORK(DATA) in a child, for at most MS milliseconds.  Whether it returned true in time; what it changes in memory that is not
   shared is lost. */
bool hl_call_in_child(bool (*work)(void *data), void *data, double ms);

#endif
