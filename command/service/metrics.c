/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/service/metrics.h"
#include "command/base/common.h"
#include "command/base/local.h"
#include "command/proc/reading.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Collectors keep a series for each file for years, so these are few. */
#define FILES_MAX 20

static void print_number(FILE *out, const char *name, const char *type, const char *help, uint64_t value) {
    fprintf(out, "# HELP hugeld_%s %s\n# TYPE hugeld_%s %s\nhugeld_%s %" PRIu64 "\n", name, help, name, type,
            name, value);
}

static void print_kept(FILE *out, const struct hl_keeper_counts *kept, bool is_stopped) {
    print_number(out, "service_stopped", "gauge", "Whether the kill switch is there.", is_stopped);
    print_number(out, "users_left_out", "gauge",
                 "Users whose processes are not looked at, since one of them did not answer.",
                 hl_count_left_out());
    print_number(out, "stored_files", "gauge", "Images and files in place that are kept.", kept->images);
    print_number(out, "stored_pending", "gauge", "Those of them that could not be made yet.", kept->pending);
    print_number(out, "stored_huge_pages", "gauge", "Huge pages of images.", kept->huge_pages);
    print_number(out, "stored_refreshed_total", "counter", "Images made anew.", kept->refreshed);
    print_number(out, "stored_removed_total", "counter", "Images removed.", kept->removed);
    print_number(out, "stored_failed_total", "counter", "Images that could not be made.", kept->failed);
}

static void print_unused(FILE *out, const char *reason, uint64_t value) {
    fprintf(out, "hugeld_samples_unused_total{reason=\"%s\"} %" PRIu64 "\n", reason, value);
}

static void print_samples(FILE *out, const struct hl_observed_counts *counts) {
    print_number(out, "windows_total", "counter", "Windows of sampling that have ended.", counts->windows);
    print_number(out, "windows_lost_total", "counter", "Windows that lost too many samples to count.",
                 counts->windows_lost);
    print_number(out, "windows_cut_total", "counter", "Windows that were ended early, being too costly.",
                 counts->windows_cut);
    print_number(out, "samples_total", "counter", "Samples of processors in user mode.", counts->samples);
    print_number(out, "samples_lost_total", "counter", "Samples that the kernel could not keep.",
                 counts->lost);
    print_number(out, "samples_huge_total", "counter", "Samples on huge pages.", counts->huge);
    fprintf(out, "# HELP hugeld_samples_unused_total Samples that belong to no file of the table.\n"
                 "# TYPE hugeld_samples_unused_total counter\n");
    print_unused(out, "ended", counts->ended);
    print_unused(out, "refused", counts->refused);
    print_unused(out, "memory", counts->memory);
    print_unused(out, "ineligible", counts->ineligible);
    print_unused(out, "unlisted", counts->unlisted);
}

static void print_acts(FILE *out, const struct hl_act_counts *acts) {
    print_number(out, "acts_huge_total", "counter", "Huge pages that were put in place.", acts->huge);
    print_number(out, "acts_failed_total", "counter", "Huge pages that could not be put in place.",
                 acts->failed);
    print_number(out, "acts_lost_total", "counter", "Huge pages in place that became small again.",
                 acts->lost);
    print_number(out, "acts_put_off_total", "counter",
                 "Times that an act was put off: too little memory, load, canary, delay, kill switch.",
                 acts->put_off);
    print_number(out, "acts_kept_bytes", "gauge", "Text that acts have put in place and that is kept so.",
                 acts->kept_bytes);
}

/* A hash of the fields that identify a file. */
static uint64_t hash_file(const struct hl_observed_file *file) {
    const uint64_t numbers[] = {file->id.device, file->id.inode};
    return hl_hash(hl_hash(0, file->path, strlen(file->path)), numbers, sizeof numbers);
}

/* PATH as the value of a label: UTF-8, and three characters are escaped. */
static void print_path(FILE *out, const char *path) {
    json_t *text = hl_json_text(path);
    for (const char *at = json_string_value(text); at != NULL && *at != '\0'; at++) {
        if (*at == '\n')
            fputs("\\n", out);
        else if (*at == '\\' || *at == '"')
            fprintf(out, "\\%c", *at);
        else
            fputc(*at, out);
    }
    json_decref(text);
}

static const struct file_metric {
    const char *name, *help;
} file_metrics[] = {
    {"info", "Which file it is."},
    {"samples", "Samples in it; those of earlier windows count half with each window."},
    {"huge_samples", "Those of them on huge pages."},
    {"huge_bytes", "Its text that is on huge pages of the page cache."},
    {"possible_bytes", "Its text that could be."},
};

static void print_value(FILE *out, const struct hl_observed_file *file, size_t metric) {
    const double values[] = {1, file->samples, file->huge, (double)file->huge_bytes,
                             (double)file->possible_bytes};
    fprintf(out, "hugeld_file_%s{file=\"%016" PRIx64 "\"", file_metrics[metric].name, hash_file(file));
    if (metric == 0) {
        fputs(",path=\"", out);
        print_path(out, file->path);
        fputc('"', out);
    }
    fprintf(out, "} %.17g\n", values[metric]);
}

static void print_files(FILE *out, const struct hl_observed_file *file, size_t n) {
    for (size_t i = 0; i < sizeof file_metrics / sizeof file_metrics[0]; i++) {
        fprintf(out, "# HELP hugeld_file_%s %s\n# TYPE hugeld_file_%s gauge\n", file_metrics[i].name,
                file_metrics[i].help, file_metrics[i].name);
        for (size_t j = 0; j < n && j < FILES_MAX; j++)
            print_value(out, &file[j], i);
    }
}

char *hl_format_metrics(const struct hl_keeper_counts *kept, struct hl_observer *observer,
                        const struct hl_act_counts *acts, bool is_stopped) {
    char *text = NULL;
    size_t bytes, n;
    const struct hl_observed_file *file = hl_list_observed(observer, &n);
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return hl_xasprintf("%s", "");
    print_kept(out, kept, is_stopped);
    print_samples(out, hl_read_observed(observer));
    print_acts(out, acts);
    print_files(out, file, n);
    fclose(out);
    return text;
}

/* Opens the folder of PATH, by O_PATH, and sets NAME to its last component; or a negated errno as hl_write_metrics returns it. */
static int open_folder(const char *path, const char **name) {
    struct hl_local local = {.only_roots = true};
    struct stat status;
    const char *slash = strrchr(path, '/');
    char *folder = hl_xasprintf("%.*s/", (int)(slash - path), path);
    int file = hl_open_local(&local, folder, true, &status);
    hl_close_local(&local);
    free(local.exposed);
    free(folder);
    *name = slash + 1;
    return file == -EPERM ? -ELOOP : file;
}

void hl_remove_metrics(const char *path) {
    const char *name;
    int folder = open_folder(path, &name);
    if (folder < 0)
        return;
    unlinkat(folder, name, 0);
    close(folder);
}

/* Always writes a new file. */
static int write_in(int folder, const char *name, const char *text) {
    char *fresh = hl_xasprintf("%s.new", name);
    size_t bytes = strlen(text);
    unlinkat(folder, fresh, 0);
    int file = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    int result = file < 0 ? -errno : 0;
    if (result == 0)
        fchmod(file, 0644); /* whatever the umask: node_exporter is another user */
    ssize_t written = result == 0 ? write(file, text, bytes) : 0;
    if (result == 0 && written != (ssize_t)bytes)
        result = written < 0 ? -errno : -ENOSPC;
    if (file >= 0)
        close(file);
    if (result == 0 && renameat(folder, fresh, folder, name) != 0)
        result = -errno;
    if (result != 0 && file >= 0)
        unlinkat(folder, fresh, 0);
    free(fresh);
    return result;
}

int hl_write_metrics(const char *path, const char *text) {
    const char *name;
    int folder = open_folder(path, &name);
    int result = folder < 0 ? folder : write_in(folder, name, text);
    if (folder >= 0)
        close(folder);
    return result;
}
