/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file of the records, STORE/.records: a line for each file, of words between blanks.  Bytes of paths and sentences that would
   end a word are written as %XX. */
#include "command/keep/record.h"
#include "command/base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME ".records"
#define NEW_FILE ".records.new"
#define BYTES_MAX (64 << 20)
#define WORDS 10

static const char *const result_names[HL_RESULTS] = {"made", "nothing", "refused", "pending"};

const char *hl_result_name(enum hl_result result) { return result_names[result]; }

static void write_word(FILE *out, const char *text) {
    if (text[0] == '\0')
        fputc('-', out);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        bool is_plain = *at > ' ' && *at != '%' && *at != 0x7f && !(*at == '-' && text[1] == '\0');
        fprintf(out, is_plain ? "%c" : "%%%02x", *at);
    }
}

/* The text that WORD stands for; the caller frees it. */
static char *read_word(const char *word) {
    char *text = hl_xmalloc(strlen(word) + 1), *end = text;
    if (strcmp(word, "-") == 0)
        return text;
    for (const char *at = word; *at != '\0'; at++) {
        unsigned byte;
        if (*at == '%' && sscanf(at + 1, "%2x", &byte) == 1) {
            *end++ = (char)byte;
            at += 2;
        } else {
            *end++ = *at;
        }
    }
    return text;
}

static void free_record(struct hl_record *record) {
    free(record->path);
    free(record->key);
    free(record->reason);
    free(record->sentence);
}

/* False: LINE is none that hl_write_records has written. */
static bool parse(struct hl_record *record, char *line) {
    char *word[WORDS], *rest = line;
    for (size_t i = 0; i < WORDS; i++)
        if ((word[i] = strsep(&rest, " \n")) == NULL || word[i][0] == '\0')
            return false;
    unsigned result = 0;
    while (result < HL_RESULTS && strcmp(word[0], result_names[result]) != 0)
        result++;
    if (result == HL_RESULTS || word[8][0] != '/')
        return false;
    *record = (struct hl_record){.path = read_word(word[8]),
                                 .key = read_word(word[6]),
                                 .result = result,
                                 .is_in_place = strcmp(word[1], "in-place") == 0,
                                 .asked = (unsigned)strtoul(word[2], NULL, 10),
                                 .unnamed = (unsigned)strtoul(word[3], NULL, 10),
                                 .tried = strtod(word[4], NULL),
                                 .delay = strtod(word[5], NULL),
                                 .reason = read_word(word[7]),
                                 .sentence = read_word(word[9])};
    return true;
}

static int compare_records(const void *a, const void *b) {
    return strcmp(((const struct hl_record *)a)->path, ((const struct hl_record *)b)->path);
}

static struct hl_record *append(struct hl_records *records, struct hl_record record) {
    if (records->n % 256 == 0)
        records->record = hl_xrealloc(records->record, (records->n + 256) * sizeof record);
    records->record[records->n] = record;
    return &records->record[records->n++];
}

void hl_read_records(struct hl_records *records, const struct hl_store *store) {
    struct stat stat;
    struct hl_record record;
    char *line = NULL;
    size_t size = 0;
    *records = (struct hl_records){0};
    int file = openat(store->folder, FILE_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool is_ours = file >= 0 && fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) &&
                   stat.st_size <= BYTES_MAX && hl_only_writable_by(&stat, store->owner);
    FILE *in = is_ours ? fdopen(file, "r") : NULL;
    if (in == NULL) {
        if (file >= 0)
            close(file);
        return;
    }
    while (getline(&line, &size, in) >= 0)
        if (parse(&record, line))
            append(records, record);
    records->applied = (double)stat.st_mtim.tv_sec;
    free(line);
    fclose(in);
    if (records->n > 0)
        qsort(records->record, records->n, sizeof *records->record, compare_records);
}

int hl_write_records(struct hl_records *records, const struct hl_store *store) {
    if (!records->changed && utimensat(store->folder, FILE_NAME, NULL, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    unlinkat(store->folder, NEW_FILE, 0); /* the leftover of a killed process */
    int file = openat(store->folder, NEW_FILE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    FILE *out = file >= 0 && fchmod(file, 0644) == 0 ? fdopen(file, "w") : NULL; /* umask(2) */
    if (out == NULL)
        return -errno;
    for (size_t i = 0; i < records->n; i++) {
        const struct hl_record *record = &records->record[i];
        const char *const texts[] = {record->key, record->reason, record->path, record->sentence};
        fprintf(out, "%s %s %u %u %.0f %.0f", result_names[record->result],
                record->is_in_place ? "in-place" : "image", record->asked, record->unnamed, record->tried,
                record->delay);
        for (size_t j = 0; j < sizeof texts / sizeof texts[0]; j++) {
            fputc(' ', out);
            write_word(out, texts[j]);
        }
        fputc('\n', out);
    }
    int result = fflush(out) != 0 ? -errno : 0;
    if (fclose(out) != 0 && result == 0)
        result = -errno;
    if (result == 0 && renameat(store->folder, NEW_FILE, store->folder, FILE_NAME) != 0)
        result = -errno;
    if (result != 0)
        unlinkat(store->folder, NEW_FILE, 0);
    records->changed &= result != 0;
    return result;
}

void hl_free_records(struct hl_records *records) {
    for (size_t i = 0; i < records->n; i++)
        free_record(&records->record[i]);
    free(records->record);
    *records = (struct hl_records){0};
}

struct hl_record *hl_find_record(const struct hl_records *records, const char *path) {
    const struct hl_record wanted = {.path = (char *)path};
    return records->n > 0 ? bsearch(&wanted, records->record, records->n, sizeof wanted, compare_records)
                          : NULL;
}

struct hl_record *hl_add_record(struct hl_records *records, const char *path) {
    struct hl_record *found = hl_find_record(records, path);
    if (found != NULL)
        return found;
    append(records, (struct hl_record){.path = hl_xasprintf("%s", path),
                                       .key = hl_xasprintf("%s", ""),
                                       .reason = hl_xasprintf("%s", ""),
                                       .sentence = hl_xasprintf("%s", "")});
    records->changed = true;
    size_t at = records->n - 1;
    struct hl_record fresh = records->record[at];
    for (; at > 0 && strcmp(records->record[at - 1].path, path) > 0; at--)
        records->record[at] = records->record[at - 1];
    records->record[at] = fresh;
    return &records->record[at];
}

void hl_drop_record(struct hl_records *records, const char *path) {
    struct hl_record *record = hl_find_record(records, path);
    if (record == NULL)
        return;
    free_record(record);
    size_t behind = records->n - (size_t)(record - records->record) - 1;
    memmove(record, record + 1, behind * sizeof *record);
    records->n--;
    records->changed = true;
}
