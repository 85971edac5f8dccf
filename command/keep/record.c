/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file of the records, STORE/.records: for each file its numbers and four texts, each of which ends with a NUL. */
#include "command/keep/record.h"
#include "command/lib/common.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* More than it ever has; fallocate(2) wants an end. */
#define BYTES_MAX (1 << 30)
/* Seconds until an attempt in vain is repeated: twice as long each time, up to a day. */
#define DELAY 300.0
#define DELAY_MAX 86400.0
/* The runs until an image that no entry names is removed. */
#define RUNS_UNNAMED 2

const char *hl_result_name(enum hl_result result) {
    static const char *const names[HL_RESULTS] = {"made", "nothing", "refused", "pending"};
    return names[result];
}

static void free_record(struct hl_record *record) {
    free(record->path);
    free(record->key);
    free(record->reason);
    free(record->sentence);
}

/* False: there is none more that hl_write_records has written. */
static bool read_record(FILE *in, struct hl_record *record) {
    char *text[5] = {NULL};
    bool is_whole = true;
    unsigned result = HL_RESULTS, is_in_place = 0;
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        is_whole &= getdelim(&text[i], &(size_t){0}, '\0', in) > 0;
    *record = (struct hl_record){.path = text[1], .key = text[2], .reason = text[3], .sentence = text[4]};
    is_whole = is_whole && record->path[0] == '/' &&
               sscanf(text[0], "%u %u %u %u %lf %lf", &result, &is_in_place, &record->asked, &record->unnamed,
                      &record->tried, &record->delay) == 6 &&
               result < HL_RESULTS;
    record->result = result;
    record->is_in_place = is_in_place != 0;
    free(text[0]);
    if (!is_whole)
        free_record(record);
    return is_whole;
}

bool hl_is_attempt_due(const struct hl_record *record, const struct hl_present *present) {
    if (!present->is_same)
        return true;
    if (record->result == HL_RESULT_NOTHING)
        return present->is_named && present->is_wanted;
    bool is_over = present->is_wanted || present->uptime >= record->tried + record->delay;
    if (record->result == HL_RESULT_MADE)
        return !present->is_whole || (record->delay > 0 && is_over);
    return is_over;
}

void hl_note_attempt(struct hl_record *record, const struct hl_present *present, enum hl_result result,
                     bool is_partial) {
    bool is_vain = result == HL_RESULT_PENDING || result == HL_RESULT_REFUSED || is_partial;
    bool is_again = present->is_same && record->delay > 0;
    record->delay = !is_vain ? 0 : is_again ? fmin(2 * record->delay, DELAY_MAX) : DELAY;
    record->result = result;
    record->tried = present->uptime;
}

bool hl_note_unnamed(struct hl_record *record) { return ++record->unnamed >= RUNS_UNNAMED; }

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
    *records = (struct hl_records){0};
    int file = hl_open_trusted(store->folder, HL_RECORDS_FILE, O_RDONLY | O_NOFOLLOW, store->owner);
    FILE *in = file >= 0 ? fdopen(file, "r") : NULL;
    if (in == NULL)
        return;
    while (read_record(in, &record))
        append(records, record);
    records->applied = fstat(file, &stat) == 0 ? (double)stat.st_mtim.tv_sec : 0;
    fclose(in);
    if (records->n > 0)
        qsort(records->record, records->n, sizeof *records->record, compare_records);
}

int hl_write_records(struct hl_records *records, const struct hl_store *store) {
    char *text = NULL;
    size_t bytes = 0;
    if (!records->changed && utimensat(store->folder, HL_RECORDS_FILE, NULL, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    FILE *out = open_memstream(&text, &bytes);
    for (size_t i = 0; i < records->n && out != NULL; i++) {
        const struct hl_record *record = &records->record[i];
        if (record->is_gone)
            continue;
        fprintf(out, "%u %u %u %u %.0f %.0f%c%s%c%s%c%s%c%s%c", record->result, record->is_in_place,
                record->asked, record->unnamed, record->tried, record->delay, 0, record->path, 0, record->key,
                0, record->reason, 0, record->sentence, 0);
    }
    int result = out == NULL || fclose(out) != 0
                     ? -errno
                     : hl_replace_file(store->folder, HL_RECORDS_FILE, text, bytes, 0644);
    free(text);
    if (result != 0)
        return result;
    records->changed = false;
    /* The kernel takes a huge page for it, as for every file of the store; the rest of that is given back. */
    uint64_t page = store->geometry.page_bytes, end = hl_round_up(bytes, page);
    int file = openat(store->folder, HL_RECORDS_FILE, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file >= 0) {
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)end, BYTES_MAX);
        close(file);
    }
    return 0;
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
