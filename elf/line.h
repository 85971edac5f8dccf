/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Text without libc: lines built on the stack, and the small files of /proc and /sys. */
#ifndef HL_LINE_H
#define HL_LINE_H

#include "kernel.h"
#include "options.h"

/* A line or path under construction; text that does not fit is dropped. */
struct hl_line {
    size_t bytes;
    char at[1024]; /* always terminated once it was set */
};

/* Begins TEXT anew with STRING.  (Not an initialiser: the compiler would call memset for it.) */
void hl_set_line(struct hl_line *text, const char *string);
void hl_add_text(struct hl_line *text, const char *string);
void hl_add_bytes(struct hl_line *text, const char *from, size_t bytes);
/* Adds at most 200 characters of STRING, which came from outside, with control characters as '?'. */
void hl_add_foreign(struct hl_line *text, struct hl_string string);
void hl_add_number(struct hl_line *text, uint64_t number);
void hl_add_hex(struct hl_line *text, uint64_t number);

size_t hl_strlen(const char *text);
bool hl_same_bytes(const char *a, const char *b, size_t bytes);

/* Reads a number in BASE 10 or 16 at *AT, not beyond END, and moves *AT behind it.  False if there is no
   digit or it exceeds 64 bits. */
bool hl_scan_number(const char **at, const char *end, unsigned base, uint64_t *number);

/* Moves AT behind KEY and the blanks after it, if the line [*at, end) begins with KEY. */
bool hl_skip_key(const char **at, const char *end, const char *key);

/* Reads a whole small file (one that fits) into BUFFER and terminates it.  Its length, or a negated errno;
   -EFBIG if it is longer than BUFFER_BYTES - 1. */
long hl_read_file(const char *path, char *buffer, size_t buffer_bytes);

/* The same for the first line of a file, without its newline: as few calls as possible. */
long hl_read_line(const char *path, char *buffer, size_t buffer_bytes);

/* Reads the file at PATH, which holds one decimal number.  False if it can't be read or holds none. */
bool hl_read_number(const char *path, uint64_t *number);

/* A text file read line by line, in constant space. */
struct hl_lines {
    long fd;             /* or a negated errno */
    bool failed;         /* there may be more, which cannot be read */
    size_t next, filled; /* in buffer: the start of the next line, and the end of the bytes read */
    char *buffer;
    size_t buffer_bytes;
};

/* Enough for most files at once. */
#define HL_LINES_BYTES ((size_t)8192)

/* Begins to read FD, an open file or a negated errno, through BUFFER. */
void hl_begin_lines(struct hl_lines *lines, long fd, char *buffer, size_t buffer_bytes);
/* Opens PATH, to be read through BUFFER; a file that cannot be opened has no lines, and lines->fd says
   why. */
void hl_open_lines(struct hl_lines *lines, const char *path, char *buffer, size_t buffer_bytes);
/* The next line, [*at, *end) without its newline, valid until the next call; one longer than the buffer comes
   in pieces.  False at the end. */
bool hl_next_line(struct hl_lines *lines, const char **at, const char **end);
void hl_close_lines(struct hl_lines *lines);

/* A number behind KEY at the start of a line; 0 until it is found. */
struct hl_number {
    const char *key;
    uint64_t value;
    bool is_found;
};

static inline void hl_seek_number(struct hl_number *number, const char *key) {
    number->key = key;
    number->value = 0;
    number->is_found = false;
}

/* Reads the file at PATH until all N NUMBERs are found, or it ends.  False if it can't be read. */
bool hl_read_numbers(const char *path, struct hl_number *number, unsigned n);

#endif
