/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of all parts of the hugeld command, including hugeld.c, which starts programs: that is linked only with a libc, which
   may be another one.

   Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 something is pending; `run` adds 126 and 127 as env(1) does. */
#ifndef HL_BASICS_H
#define HL_BASICS_H

#include "elf/hugeld.h"
#include "elf/options.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifndef MADV_COLLAPSE /* glibc before 2.37 */
#define MADV_COLLAPSE 25
#endif

enum {
    HL_EXIT_DONE = 0,
    HL_EXIT_NO = 1,
    HL_EXIT_USAGE = 2,
    HL_EXIT_PENDING = 3,
    HL_EXIT_CANNOT_RUN = 126,
    HL_EXIT_NOT_FOUND = 127
};

/* What the options ask for that all commands have (flags.c).  Nothing writes it but what reads options. */
struct hl_output {
    bool is_json, is_quiet, is_verbose, is_wide, is_help;
};
extern struct hl_output hl_output;

/* Whether the answer is printed as text. */
static inline bool hl_prints_text(void) { return !hl_output.is_json && !hl_output.is_quiet; }

/* hl_warn: an error, one line "hugeld: ..." on stderr, in one write.  hl_note: the same for what is no error, unless -q was given.
   hl_print: one line of the answer on stdout, if that is text.  A newline is added, and control characters (names from files and /proc
   may hold some) become '?'. */
void hl_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hl_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hl_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What hl_warn has said last, without "hugeld: "; "" if nothing. */
const char *hl_last_warning(void);

/* malloc (zeroed), realloc and asprintf that end the command if there is no memory. */
void *hl_xmalloc(size_t bytes);
void *hl_xrealloc(void *at, size_t bytes);
char *hl_xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds to the end of *TEXT, which is from malloc. */
void hl_append(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces *TEXT, from malloc or NULL, by a copy of BY, or of "" if that is NULL. */
void hl_replace_text(char **text, const char *by);

/* The number of bytes of the character at TEXT if it is invisible, or changes the look of others: control characters, and those of
   Unicode that turn the direction of writing or have no width.  0: it is none of these. */
size_t hl_hidden_bytes(const char *text);

/* Whether TEXT has such a character. */
bool hl_has_hidden(const char *text);

/* Texts from malloc; zero at first. */
struct hl_texts {
    size_t n;
    char **text;
};
/* Adds a copy. */
void hl_add_to_texts(struct hl_texts *texts, const char *text);
void hl_free_texts(struct hl_texts *texts);

/* Opens NAME in FOLDER to be read as text; NULL: it cannot be opened (errno). */
FILE *hl_open_text(int folder, const char *name);
/* The same for the folder NAME, which is no symbolic link, to be listed. */
DIR *hl_open_list(int folder, const char *name);

/* Whether no user but OWNER and root can write to the file of STATUS.  An access control list shows in the group's bit. */
static inline bool hl_only_writable_by(const struct stat *status, uint64_t owner) {
    return (status->st_uid == owner || status->st_uid == 0) && (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The target of the symbolic link NAME in FOLDER; NULL and errno: it cannot be read.  The caller frees it. */
char *hl_read_link(int folder, const char *name);

/* The path of the open FILE, without symbolic links; NULL if unknown.  The caller frees it. */
char *hl_find_file_path(int file);

/* The path of hugeld's own file NAME that may be accessed in MODE (access(2)): beside the running command, or if BUILT is not NULL,
   at that path from the command's folder, as in a build; in ../lib/hugeld; or where it was installed (HL_LIBDIR).  NULL if it is in
   none of them; else without symbolic links, and the caller frees it.  (Debian has an ld.so of its own in /usr/bin.) */
char *hl_find_part(const char *name, const char *built, int mode);

/* "A,B"; either may be NULL or empty.  Frees nothing; the caller owns the result, which is never NULL. */
char *hl_join_options(const char *a, const char *b);

/* "r-x" for PF_R | PF_X; static. */
const char *hl_flags_text(uint32_t flags);

/* Whether TEXT ends in END, and is longer. */
bool hl_ends_in(const char *text, const char *end);

/* The page sizes of this machine. */
struct hl_geometry hl_read_geometry(void);

/* "s" for the plural of a noun, unless N is 1. */
static inline const char *hl_plural(uint64_t n) { return n == 1 ? "" : "s"; }

/* PART of WHOLE in tenths of a percent, rounded down, so that 100.0 means all; 0 of 0 is 0. */
unsigned hl_permille(uint64_t part, uint64_t whole);

/* Whether the running kernel is Linux VERSION.PATCH_LEVEL or newer; true also if it does not say. */
bool hl_is_kernel(unsigned version, unsigned patch_level);

/* Lets this process open as many files as its hard limit allows, and returns that; 0: unknown. */
size_t hl_raise_file_limit(void);

/* Milliseconds of CLOCK_MONOTONIC, for differences. */
double hl_now_ms(void);

/* Adds WORD, quoted for a shell, to *TEXT, from malloc, after a space unless *TEXT is empty. */
void hl_add_word(char **text, const char *word);

/* The same with the word that is BEFORE and VALUE, as "--store=" and a path; nothing if VALUE is NULL. */
void hl_add_option(char **text, const char *before, const char *value);

#endif
