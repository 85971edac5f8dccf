/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of the parts of the hugeld command beside basics.h: for words and JSON. */
#ifndef HL_COMMON_H
#define HL_COMMON_H

#include "command/lib/basics.h"

#include <jansson.h>
#include <sys/types.h>

/* How many letters must be added, removed or replaced to turn A into B, which has at most HL_WORD_MAX bytes. */
#define HL_WORD_MAX 64
size_t hl_count_edits(const char *a, const char *b);

/* Whether WORD may be OTHER with a mistake or two. */
bool hl_is_near(const char *word, const char *other);

/* A process ID: digits only, and in range.  0 if TEXT is none. */
pid_t hl_parse_pid(const char *text);

/* For --json.  hl_json_text: a byte that is not UTF-8 becomes '?', and NULL null.  hl_json_hex: "0x...".  hl_json_share:
   PART of WHOLE, 0 to 1. */
json_t *hl_json_text(const char *text);
json_t *hl_json_hex(uint64_t number);
json_t *hl_json_share(uint64_t part, uint64_t whole);

/* With --json, writes ANSWER to stdout; if it HAS_FAILED, with {"error": {"message": what hl_warn said last}} in it.  Drops it in any
   case. */
void hl_print_answer(json_t *answer, bool has_failed);
/* The same for a command that ends with CODE and may have no answer: an error alone, if it has failed. */
void hl_answer_failure(int code);

/* Opens the file or folder NAME in FOLDER (or AT_FDCWD), by which this user acts: no user but OWNER and root can write it.  A descriptor, or a
   negated errno: -EPERM if others can; -EINVAL: it is no regular file, which it is to be without O_DIRECTORY. */
int hl_open_trusted(int folder, const char *name, int flags, uint64_t owner);

/* Replaces the file NAME of FOLDER, where no other user can write, by one with these BYTES of TEXT, and with MODE whatever the umask.
   It is renamed, so at each moment the old one or the new one is there, complete.  0; or a negated errno, and the old one stays. */
int hl_replace_file(int folder, const char *name, const char *text, size_t bytes, mode_t mode);

/* LINE with the members of the object FROM in the places of their names: "{path}: {own.thp_bytes:KiB}, {kind:-6}, {share:8%}".  Behind
   the colon are a width as in printf(3), and what the member is: a share of 1 "%", bytes "KiB", an address "x", a number whose noun
   gets a plural "s", or a text "()" that stands in parentheses.  Null is "-", or with "()" nothing.  So the text of a command has no
   other data than its JSON.  The caller frees hl_format_fields'. */
char *hl_format_fields(const json_t *from, const char *line);
void hl_print_fields(const json_t *from, const char *line);
/* The same for a row of a table, whose last column is {path}: if that is too long for the terminal, its beginning is left out, unless
   --wide was given. */
void hl_print_row(const json_t *from, const char *line);

/* For qsort(3) of doubles, ascending. */
int hl_compare_doubles(const void *a, const void *b);

/* The next number of *STATE, which is not 0: the same numbers in each run. */
uint64_t hl_draw(uint64_t *state);

/* Files that list processors reserved for chosen programs: isolcpus, nohz_full, isolated cpusets. */
#define HL_ISOLATED_LISTS 3
extern const char *const hl_isolated_lists[HL_ISOLATED_LISTS];

#endif
