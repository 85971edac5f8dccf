/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of the sub-commands: words and JSON. */
#include "command/lib/common.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Levenshtein's distance, of short words. */
size_t hl_count_edits(const char *a, const char *b) {
    size_t n = strlen(b), row[HL_WORD_MAX + 1];
    if (n > HL_WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t before = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t other = before + (a[i - 1] != b[j - 1]);
            before = row[j];
            row[j] = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = other < row[j] ? other : row[j];
        }
    }
    return row[n];
}

bool hl_is_near(const char *word, const char *other) {
    size_t edits = hl_count_edits(word, other);
    return edits <= 2 && edits < strlen(other) / 2 + 1;
}

pid_t hl_parse_pid(const char *text) {
    char *end;
    if (text[0] < '1' || text[0] > '9')
        return 0;
    errno = 0;
    long pid = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && pid <= INT32_MAX ? (pid_t)pid : 0;
}

json_t *hl_json_text(const char *text) {
    json_t *value = text != NULL ? json_string(text) : json_null();
    if (value != NULL)
        return value;
    char *clean = hl_xasprintf("%s", text);
    for (char *p = clean; *p != '\0'; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    value = json_string(clean);
    free(clean);
    return value;
}

json_t *hl_json_hex(uint64_t number) { return json_sprintf("0x%" PRIx64, number); }

json_t *hl_json_share(uint64_t part, uint64_t whole) {
    uint64_t millionths = whole == 0 ? 0 : (uint64_t)((long double)part * 1e6L / (long double)whole);
    return json_real((double)millionths / 1e6); /* rounded down: 1 means all */
}

int hl_open_trusted(int folder, const char *name, int flags, uint64_t owner) {
    struct stat stat;
    int file = openat(folder, name, flags | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return -errno;
    int result = fstat(file, &stat) != 0                            ? -errno
                 : !(flags & O_DIRECTORY) && !S_ISREG(stat.st_mode) ? -EINVAL
                 : !hl_only_writable_by(&stat, owner)               ? -EPERM
                                                                    : 0;
    if (result == 0)
        return file;
    close(file);
    return result;
}

int hl_replace_file(int folder, const char *name, const char *text, size_t bytes, mode_t mode) {
    char *fresh = hl_xasprintf("%s.new", name);
    unlinkat(folder, fresh, 0); /* the leftover of a killed process */
    int file = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    ssize_t written = file >= 0 && fchmod(file, mode) == 0 ? write(file, text, bytes) : -1;
    int result = written < 0 ? -errno : written != (ssize_t)bytes ? -ENOSPC : 0;
    if (result == 0 && (fsync(file) != 0 || renameat(folder, fresh, folder, name) != 0))
        result = -errno;
    if (file >= 0)
        close(file);
    if (result != 0)
        unlinkat(folder, fresh, 0);
    free(fresh);
    return result;
}

int hl_compare_doubles(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* xorshift64*, Marsaglia and Vigna. */
uint64_t hl_draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

const char *const hl_isolated_lists[HL_ISOLATED_LISTS] = {"/sys/devices/system/cpu/isolated",
                                                          "/sys/devices/system/cpu/nohz_full",
                                                          "/sys/fs/cgroup/cpuset.cpus.isolated"};

/* VALUE in words, by UNIT (hl_format_fields); the caller frees it. */
static char *format_value(const json_t *value, const char *unit) {
    uint64_t number = (uint64_t)json_integer_value(value);
    const char *text = json_string_value(value);
    unsigned millionths = (unsigned)(json_number_value(value) * 1e6 + 0.5);
    if (json_is_null(value))
        return hl_xasprintf("%s", unit[0] == '(' ? "" : "-");
    if (unit[0] == '%')
        return hl_xasprintf("%u.%u %%", millionths / 10000, millionths / 1000 % 10);
    if (unit[0] == 'K')
        return hl_xasprintf("%" PRIu64 " KiB", number / 1024 + (number % 1024 != 0));
    if (unit[0] == 's')
        return hl_xasprintf("%s", hl_plural(number));
    if (unit[0] == '(')
        return text != NULL ? hl_xasprintf(" (%s)", text) : hl_xasprintf("%s", "");
    if (unit[0] == 'x' && text != NULL)
        return hl_xasprintf("0x%012llx", strtoull(text, NULL, 16));
    return text != NULL ? hl_xasprintf("%s", text) : hl_xasprintf("%" PRIu64, number);
}

char *hl_format_fields(const json_t *from, const char *line) {
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    while (to != NULL && *line != '\0') {
        if (*line != '{') {
            fputc(*line++, to);
            continue;
        }
        const json_t *value = from;
        do {
            size_t length = strcspn(++line, ".:}");
            value = json_object_getn(value, line, length);
            line += length;
        } while (*line == '.');
        int width = *line == ':' ? (int)strtol(line + 1, (char **)&line, 10) : 0;
        char *field = format_value(value, line);
        fprintf(to, "%*s", width, field);
        free(field);
        line += strcspn(line, "}") + 1;
    }
    return to != NULL && fclose(to) == 0 ? text : hl_xasprintf("%s", "");
}

void hl_print_fields(const json_t *from, const char *line) {
    char *text = hl_format_fields(from, line);
    hl_print("%s", text);
    free(text);
}

/* The columns of the terminal that shows standard output; SIZE_MAX: there is none, or --wide was given. */
static size_t find_columns(void) {
    struct winsize window;
    bool is_known =
        !hl_output.is_wide && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0;
    return is_known && window.ws_col > 0 ? window.ws_col : SIZE_MAX;
}

void hl_print_row(const json_t *from, const char *line) {
    char *start = hl_format_fields(from, line), *path = hl_format_fields(from, "{path}");
    size_t used = strlen(start), all = used + strlen(path), columns = find_columns();
    const char *tail = path;
    if (all > columns && used < columns)
        tail += all + 1 - columns;
    while ((*tail & 0xc0) == 0x80) /* a byte inside of a character (UTF-8) */
        tail++;
    hl_print("%s%s%s", start, tail > path ? "…" : "", tail);
    free(path);
    free(start);
}

static bool has_answered;

void hl_print_answer(json_t *answer, bool has_failed) {
    const char *warning = hl_last_warning();
    if (hl_output.is_json) {
        has_answered = true;
        if (has_failed)
            json_object_set_new(
                answer, "error",
                json_pack("{s:o}", "message", hl_json_text(warning[0] != '\0' ? warning : "see the answer")));
        if (answer == NULL ||
            json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6) | JSON_ENSURE_ASCII) != 0)
            hl_warn("the answer cannot be written as JSON; try without --json");
        else
            putchar('\n');
    }
    json_decref(answer);
}

void hl_answer_failure(int code) {
    if (!has_answered && code != HL_EXIT_DONE)
        hl_print_answer(json_object(), true);
}
