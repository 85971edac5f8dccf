/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Text without libc: the parts of stdio and string.h that the core needs. */
#include "line.h"
#include "sys.h"

#include <linux/fcntl.h>

void hl_add_bytes(struct hl_line *text, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes && text->bytes + 1 < sizeof text->at; i++)
        text->at[text->bytes++] = from[i];
    text->at[text->bytes] = '\0';
}

void hl_set_line(struct hl_line *text, const char *string) {
    text->bytes = 0;
    hl_add_text(text, string);
}

void hl_add_text(struct hl_line *text, const char *string) { hl_add_bytes(text, string, hl_strlen(string)); }

void hl_add_foreign(struct hl_line *text, struct hl_string string) {
    for (size_t i = 0; i < string.bytes; i++) {
        unsigned char c = (unsigned char)string.at[i];
        if (i == 200) {
            hl_add_text(text, "...");
            return;
        }
        hl_add_bytes(text, c < 0x20 || c == 0x7f ? "?" : &string.at[i], 1);
    }
}

static void add_in_base(struct hl_line *text, uint64_t number, unsigned base) {
    char digits[20];
    size_t n = 0;
    do
        digits[n++] = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    while (n > 0)
        hl_add_bytes(text, &digits[--n], 1);
}

void hl_add_number(struct hl_line *text, uint64_t number) { add_in_base(text, number, 10); }

void hl_add_hex(struct hl_line *text, uint64_t number) {
    hl_add_text(text, "0x");
    add_in_base(text, number, 16);
}

size_t hl_strlen(const char *text) {
    size_t bytes = 0;
    while (text[bytes] != '\0')
        bytes++;
    return bytes;
}

bool hl_same_bytes(const char *a, const char *b, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

static unsigned digit_value(char c) {
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    if (c >= 'a' && c <= 'f')
        return (unsigned)(c - 'a') + 10;
    return 16;
}

bool hl_scan_number(const char **at, const char *end, unsigned base, uint64_t *number) {
    const char *p = *at;
    uint64_t value = 0;
    for (; p < end && digit_value(*p) < base; p++)
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit_value(*p), &value))
            return false;
    if (p == *at)
        return false;
    *at = p;
    *number = value;
    return true;
}

long hl_read_file(const char *path, char *buffer, size_t buffer_bytes) {
    long fd = hl_open(path, O_RDONLY | O_CLOEXEC);
    if (hl_is_error(fd))
        return fd;
    size_t filled = 0;
    long n = 0;
    while (filled < buffer_bytes && (n = hl_read((int)fd, buffer + filled, buffer_bytes - filled)) > 0)
        filled += (size_t)n;
    hl_close((int)fd);
    if (hl_is_error(n))
        return n;
    if (filled == buffer_bytes)
        return -EFBIG;
    buffer[filled] = '\0';
    return (long)filled;
}

void hl_begin_lines(struct hl_lines *lines, long fd, char *buffer, size_t buffer_bytes) {
    lines->fd = fd;
    lines->next = lines->filled = 0;
    lines->buffer = buffer;
    lines->buffer_bytes = buffer_bytes;
    lines->failed = hl_is_error(lines->fd);
}

void hl_open_lines(struct hl_lines *lines, const char *path, char *buffer, size_t buffer_bytes) {
    hl_begin_lines(lines, hl_open(path, O_RDONLY | O_CLOEXEC), buffer, buffer_bytes);
}

/* Reads more behind the bytes that are in the buffer already, which move to its beginning.  False at the
   end of the file. */
static bool read_more(struct hl_lines *lines) {
    for (size_t i = lines->next; i < lines->filled; i++)
        lines->buffer[i - lines->next] = lines->buffer[i];
    lines->filled -= lines->next;
    lines->next = 0;
    if (lines->filled == lines->buffer_bytes || hl_is_error(lines->fd))
        return false;
    long n = hl_read((int)lines->fd, lines->buffer + lines->filled, lines->buffer_bytes - lines->filled);
    lines->failed = hl_is_error(n);
    if (n <= 0)
        return false;
    lines->filled += (size_t)n;
    return true;
}

bool hl_next_line(struct hl_lines *lines, const char **at, const char **end) {
    size_t stop = lines->next;
    for (;;) {
        while (stop < lines->filled && lines->buffer[stop] != '\n')
            stop++;
        if (stop < lines->filled)
            break;
        size_t unfinished = lines->filled - lines->next;
        if (!read_more(lines)) {
            if (unfinished == 0)
                return false;
            stop = lines->filled;
            break;
        }
        stop = unfinished;
    }
    *at = lines->buffer + lines->next;
    *end = lines->buffer + stop;
    lines->next = stop < lines->filled ? stop + 1 : stop;
    return true;
}

void hl_close_lines(struct hl_lines *lines) {
    if (!hl_is_error(lines->fd))
        hl_close((int)lines->fd);
}

bool hl_read_number(const char *path, uint64_t *number) {
    char buffer[64];
    const char *at = buffer;
    long bytes = hl_read_line(path, buffer, sizeof buffer);
    return bytes > 0 && hl_scan_number(&at, buffer + bytes, 10, number);
}

long hl_read_line(const char *path, char *buffer, size_t buffer_bytes) {
    struct hl_lines lines;
    const char *at = buffer, *end = buffer;
    hl_open_lines(&lines, path, buffer, buffer_bytes);
    bool is_any = hl_next_line(&lines, &at, &end);
    hl_close_lines(&lines);
    if (lines.failed)
        return hl_is_error(lines.fd) ? lines.fd : -EIO;
    if (end == buffer + buffer_bytes)
        return -EFBIG;
    buffer[end - buffer] = '\0';
    return is_any ? end - at : 0;
}

bool hl_skip_key(const char **at, const char *end, const char *key) {
    if (*key != '\0' && (*at == end || **at != *key)) /* most lines have another key */
        return false;
    size_t bytes = hl_strlen(key);
    if ((size_t)(end - *at) < bytes || !hl_same_bytes(*at, key, bytes))
        return false;
    for (*at += bytes; *at < end && (**at == ' ' || **at == '\t'); ++*at)
        ;
    return true;
}

/* Whether the line [at, end) begins with KEY, any blanks and a number. */
static bool scan_key(const char *at, const char *end, const char *key, uint64_t *number) {
    return hl_skip_key(&at, end, key) && hl_scan_number(&at, end, 10, number);
}

bool hl_read_numbers(const char *path, struct hl_number *number, unsigned n) {
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    const char *at, *end;
    unsigned n_found = 0;
    hl_open_lines(&lines, path, buffer, sizeof buffer);
    while (n_found < n && hl_next_line(&lines, &at, &end))
        for (unsigned i = 0; i < n; i++) {
            bool is_new = !number[i].is_found && scan_key(at, end, number[i].key, &number[i].value);
            number[i].is_found = number[i].is_found || is_new;
            n_found += is_new;
        }
    hl_close_lines(&lines);
    return !lines.failed;
}
