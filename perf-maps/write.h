/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The perf map: its lines, and the file in a folder that others can write to.

       START SIZE NAME        in hexadecimal without 0x, one line for each piece of a function
       0 1 hugeld             before and behind hugeld's lines: nothing else in the format tells it from a JIT's

   perf reads /tmp/perf-PID.map for executable memory that has no file: PID is the one of the process's own
   PID namespace, /tmp the one of its mount namespace (tools/perf/util/dso.c, namespaces.c). */
#ifndef HL_WRITE_H
#define HL_WRITE_H

#include "symbols.h"

/* Text under construction.  With a descriptor it is written whenever the buffer is full; else the buffer grows. */
struct hl_map_text {
    int fd; /* or -1 */
    char *at;
    uint64_t filled, allocated_bytes;
    uint64_t written, most_bytes; /* to fd; RLIMIT_FSIZE: a write beyond is SIGXFSZ */
    uint64_t lines;
    uint64_t ends; /* of the lines of one object: the next one begins below this */
    int result;    /* the first error, negated; then nothing more is added */
};

#define HL_MAP_MARK "0 1 hugeld\n"

/* Begins TEXT with the mark; an error (-ENOMEM) stands in TEXT->result. */
void hl_begin_map(struct hl_map_text *text, int fd);

/* Adds the pieces of SYMBOLS, which are chosen, that lie in the N ranges: ascending and disjoint, like the
   lines.  Where functions overlap, the one that begins last has the bytes.  -ENOEXEC: symbols of a file that
   share long names would make a map beyond HL_TEXT_PER_FILE times the file (at most 0.24 times, for the 3621
   files of a Debian 12), and there are lines up to that; else 0. */
#define HL_TEXT_PER_FILE 4
int hl_write_symbols(struct hl_map_text *text, const struct hl_symbols *symbols,
                     const struct hl_text_range *range, size_t n);

/* Adds the mark, writes the rest of the buffer, if there is a descriptor, and returns TEXT->result. */
int hl_finish_map(struct hl_map_text *text);
void hl_free_map(struct hl_map_text *text);

/* Writes all of it.  0, or a negated errno. */
int hl_write_bytes(int fd, const char *at, uint64_t bytes);

/* Why a map, or one object's lines, were not written, and the remedy, for a negated errno; NULL for an unusual one. */
const char *hl_explain_map_error(int result);

/* "perf-PID.map". */
#define HL_MAP_NAME_BYTES 32
void hl_name_map(char name[HL_MAP_NAME_BYTES], uint64_t pid);

/* A file under a name that cannot be guessed in the folder FOLDER, created for this process alone: O_EXCL,
   mode 0600.  It gets the name of the map when it is complete, so that a reader sees all of it or nothing. */
struct hl_new_map {
    int folder; /* the caller's */
    int fd;
    char name[HL_MAP_NAME_BYTES];               /* its final name */
    char temporary[HL_MAP_NAME_BYTES + 2 + 16]; /* ".perf-PID.map.0123456789abcdef" */
};

/* Moves FD to a number above 2 and closes the old one; returns FD if it is above 2 already, or a negated errno.  A program may
   begin without standard error, and lines for that must not get into a map. */
long hl_move_up(long fd);

/* 0, or a negated errno and nothing is left.  After 0 the map has to be placed or dropped. */
int hl_create_map(struct hl_new_map *map, int folder, uint64_t pid);

/* Renames it over any file of that name: a file of another user in a sticky folder is in the way (-EPERM), a folder is
   (-EISDIR), a link is replaced and never followed.  After an error nothing is left. */
int hl_place_map(struct hl_new_map *map);
void hl_drop_map(struct hl_new_map *map);

#endif
