/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Gauges for the textfile collector of Prometheus' node_exporter. */
#include "command/lib/local.h"
#include "command/keep/keep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The gauges: numbers of hugeld list --json, or sums over its files, which are left out where one is unknown. */
static const struct {
    const char *name, *field, *help;
    bool is_sum;
} gauges[] = {
    {"enabled", "enabled", "Entries of the lists.", false},
    {"store_limit_bytes", "bytes", "How much the store may hold.", false},
    {"store_bytes", "used_bytes", "How much it holds.", false},
    {"users_left_out", "users_left_out",
     "Users whose processes were not read, since one of them did not answer.", false},
    {"last_apply_timestamp_seconds", "applied", "When hugeld apply last ended.", false},
    {"processes", "processes", "Processes that run an enabled file.", true},
    {"effective", "effective", "Those of them that have its text on huge pages.", true},
    {"huge_pages", "huge_pages", "Huge pages of images and of files in place.", true},
};

static void print_head(FILE *out, const char *name, const char *help) {
    fprintf(out, "# HELP hugeld_%s %s\n# TYPE hugeld_%s gauge\n", name, help, name);
}

/* The sum of FIELD over all files; *IS_KNOWN: it is a number in each. */
static json_int_t add_up(const json_t *files, const char *field, bool *is_known) {
    json_int_t sum = 0;
    *is_known = true;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *value = json_object_get(json_array_get(files, i), field);
        *is_known &= json_is_integer(value);
        sum += json_integer_value(value);
    }
    return sum;
}

/* The pending files by their reasons. */
static void print_pending(FILE *out, const json_t *files) {
    json_t *reasons = json_object(), *file, *number;
    const char *reason;
    size_t i;
    json_array_foreach(files, i, file) {
        const char *word = json_string_value(json_object_get(file, "reason"));
        if (strcmp(json_string_value(json_object_get(file, "state")), "pending") != 0)
            continue;
        word = word != NULL ? word : "unknown";
        json_object_set_new(reasons, word,
                            json_integer(json_integer_value(json_object_get(reasons, word)) + 1));
    }
    if (json_object_size(reasons) == 0)
        json_object_set_new(reasons, "none", json_integer(0));
    print_head(out, "pending", "Files that cannot be on huge pages just now.");
    json_object_foreach(reasons, reason, number) fprintf(
        out, "hugeld_pending{reason=\"%s\"} %" JSON_INTEGER_FORMAT "\n", reason, json_integer_value(number));
    json_decref(reasons);
}

static char *format_metrics(const json_t *list) {
    const json_t *files = json_object_get(list, "files");
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return hl_xasprintf("%s", "");
    for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++) {
        bool is_known = true;
        json_int_t value = gauges[i].is_sum ? add_up(files, gauges[i].field, &is_known)
                                            : json_integer_value(json_object_get(list, gauges[i].field));
        if (!is_known)
            continue;
        print_head(out, gauges[i].name, gauges[i].help);
        fprintf(out, "hugeld_%s %" JSON_INTEGER_FORMAT "\n", gauges[i].name, value);
    }
    print_head(out, "problems", "What is wrong with lists, units and the store.");
    fprintf(out, "hugeld_problems %zu\n", json_array_size(json_object_get(list, "problems")));
    print_pending(out, files);
    fclose(out);
    return text;
}

int hl_write_metrics(const char *path, const json_t *list) {
    struct hl_local local = {.only_roots = geteuid() == 0};
    struct stat status;
    const char *slash = strrchr(path, '/');
    char *name = hl_xasprintf("%.*s/", slash != NULL ? (int)(slash - path) : 1, slash != NULL ? path : ".");
    int folder = hl_open_local(&local, name, true, &status);
    int result = folder == -EPERM ? -ELOOP : folder < 0 ? folder : 0;
    if (result == 0 && !hl_only_writable_by(&status, geteuid()))
        result = -ELOOP;
    char *text = format_metrics(list);
    if (result == 0) /* node_exporter is another user */
        result = hl_replace_file(folder, slash != NULL ? slash + 1 : path, text, strlen(text), 0644);
    if (folder >= 0)
        close(folder);
    hl_close_local(&local);
    free(text);
    free(name);
    return result;
}
