/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/share/configuration.h"
#include "command/base/common.h"
#include "command/base/local.h"
#include "command/base/lock.h"
#include "command/share/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/etc/hugeld"
#define NEW HL_CONFIGURATION ".new"
#define LOCK HL_CONFIGURATION ".lock"
#define ENABLED "enabled"
#define WINDOW_SECONDS 10
#define INTERVAL_SECONDS 300
#define ATTEMPTS 100
#define DELAY_SECONDS 1800
#define PAGES_PER_MINUTE 60
#define BYTES_MAX (1 << 20)

/* The default: no files that users and programs bring along. */
static const char *const eligible[] = {"/usr/*", "/opt/*"};

bool hl_is_service_stopped(void) { return access(HL_SERVICE_STOP, F_OK) == 0; }

/* --- values --- */

bool hl_is_unit(const char *name) { return strchr(name, '/') == NULL && hl_ends_in(name, ".service"); }

/* Each of these reads VALUE into a field, and returns the problem with it, or NULL. */

static const char *parse_enabled(void *entries, const char *value) {
    if (value[0] != '/' && !hl_is_unit(value))
        return "it is neither an absolute path nor a unit of systemd, as in name.service";
    hl_add_to_texts(entries, value);
    return NULL;
}

static const char *parse_switch(void *is_on, const char *value) {
    bool on = strcmp(value, "yes") == 0;
    *(bool *)is_on = on;
    return on || strcmp(value, "no") == 0 ? NULL : "write yes or no";
}

static const char *parse_pattern(void *patterns, const char *value) {
    if (value[0] != '/')
        return "it is not a pattern of absolute paths";
    hl_add_to_texts(patterns, value);
    return NULL;
}

static const char *parse_metrics(void *metrics, const char *value) {
    char **path = metrics;
    if (value[0] != '/' || !hl_ends_in(value, ".prom"))
        return "write the absolute path of a file NAME.prom";
    free(*path);
    *path = hl_xasprintf("%s", value);
    return NULL;
}

/* Reads a number from MIN to MAX, which may have decimals.  False: VALUE is none. */
static bool parse_number(double *number, const char *value, double min, double max) {
    char *end;
    if (value[0] < '0' || value[0] > '9')
        return false;
    *number = strtod(value, &end);
    return *end == '\0' && *number >= min && *number <= max;
}

static const struct setting {
    const char *name;
    size_t field;
    const char *(*parse)(void *field, const char *value); /* NULL: it is a number */
    double min, max;                                      /* from MIN to MAX */
    const char *problem;                                  /* said of any other value */
} settings[] = {
#define FIELD(field) offsetof(struct hl_configuration, field)
    {.name = ENABLED, FIELD(enabled), parse_enabled},
    {.name = "observe", FIELD(observes), parse_switch},
    {"window", FIELD(window_seconds), NULL, 0.1, 60, "write seconds from 0.1 to 60"},
    {"interval", FIELD(interval_seconds), NULL, 1, 86400, "write seconds from 1 to 86400"},
    {.name = "eligible", FIELD(eligible), parse_pattern},
    {.name = "excluded", FIELD(excluded), parse_pattern},
    {.name = "metrics", FIELD(metrics), parse_metrics},
    {.name = "any_disk", FIELD(any_disk), parse_switch},
    {.name = "act", FIELD(acts), parse_switch},
    {"canary", FIELD(canary_percent), NULL, 0, 100, "write a percentage from 0 to 100, without %"},
    {"delay", FIELD(delay_seconds), NULL, 0, 86400, "write seconds from 0 to 86400"},
    {"rate", FIELD(pages_per_minute), NULL, 1, 60, "write huge pages in a minute, from 1 to 60"},
    {"budget", FIELD(budget_mib), NULL, 2, 1 << 20, "write MiB from 2 to 1048576"},
#undef FIELD
};
#define N_SETTINGS (sizeof settings / sizeof settings[0])

/* --- lines --- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* TEXT without blanks around it. */
static char *trim(char *text) {
    while (is_blank(*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && is_blank(text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

/* Cuts LINE into *NAME and *VALUE, which is NULL if the line has no '='.  False: the line is empty or a comment. */
static bool cut_line(char *line, char **name, char **value) {
    *name = trim(line);
    *value = strchr(*name, '=');
    if (**name == '\0' || **name == '#')
        return false;
    if (*value == NULL)
        return true;
    *(*value)++ = '\0';
    *name = trim(*name);
    *value = trim(*value);
    return true;
}

static const char *parse_value(struct hl_configuration *configuration, const struct setting *setting,
                               const char *value) {
    void *field = (char *)configuration + setting->field;
    if (setting->parse != NULL)
        return setting->parse(field, value);
    return parse_number(field, value, setting->min, setting->max) ? NULL : setting->problem;
}

static char *explain_unknown(const char *name) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strlen(name) <= HL_WORD_MAX && hl_is_near(name, settings[i].name))
            return hl_xasprintf("there is no such setting; did you mean %s?", settings[i].name);
    return hl_xasprintf("there is no such setting; hugeld(1) names them all");
}

/* Reads one setting.  NULL, or the problem, which the caller frees. */
static char *parse_line(struct hl_configuration *configuration, const char *name, const char *value) {
    const char *problem = NULL;
    if (value == NULL)
        return hl_xasprintf("the line has no =; write name = value, or begin a comment with #");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (strcmp(settings[i].name, name) != 0)
            continue;
        problem = value[0] == '\0' ? "there is no value behind the ="
                                   : parse_value(configuration, &settings[i], value);
        return problem == NULL ? NULL : hl_xasprintf("%s", problem);
    }
    return explain_unknown(name);
}

/* Whether getline(3) has ended at the end of FILE; if not, errno says why. */
static bool is_read(FILE *file) { return feof(file) && !ferror(file); }

/* Reads FILE up to its end, or to the first mistake.  0 or a negated errno, which was reported. */
static int read_lines(struct hl_configuration *configuration, FILE *file, const char *path) {
    char *line = NULL, *name, *value, *problem = NULL;
    size_t size = 0;
    ssize_t length;
    for (unsigned number = 1; problem == NULL && (length = getline(&line, &size, file)) >= 0; number++) {
        if (strlen(line) != (size_t)length) {
            hl_warn("%s:%u: the line holds a NUL byte; write the file anew as text", path, number);
            free(line);
            return -EINVAL;
        }
        if (cut_line(line, &name, &value))
            problem = parse_line(configuration, name, value);
        if (problem != NULL)
            hl_warn("%s:%u: %s: %s", path, number, name, problem);
    }
    int result = problem != NULL ? -EINVAL : is_read(file) ? 0 : -errno;
    if (problem == NULL && result != 0)
        hl_warn("%s: it cannot be read: %s", path, strerror(-result));
    free(problem);
    free(line);
    return result;
}

/* Opens PATH, by which root acts.  NULL, and *ERROR: there is no file (-ENOENT), or the error was reported. */
static FILE *open_configuration(const char *path, int *error) {
    struct stat stat = {0};
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *error = file < 0 || fstat(file, &stat) != 0 ? -errno : 0;
    if (*error == 0 && !S_ISREG(stat.st_mode)) {
        *error = -EINVAL;
        hl_warn("%s: it is not a regular file", path);
    } else if (*error == 0 && stat.st_size > BYTES_MAX) {
        *error = -EFBIG;
        hl_warn("%s: it has more than 1 MiB; write patterns instead of files", path);
    } else if (*error == 0 && !hl_only_writable_by(&stat, geteuid())) {
        *error = -EPERM;
        hl_warn("%s: other users can write it, so it is not believed; chown root, chmod 644", path);
    } else if (*error == -ENOENT && strcmp(path, HL_CONFIGURATION) != 0) {
        *error = -EINVAL; /* only the default file may be missing: nothing is configured */
        hl_warn("%s: there is no such configuration; check its name", path);
    } else if (*error != 0 && *error != -ENOENT) {
        hl_warn("%s: it cannot be read: %s", path, strerror(-*error));
    }
    FILE *stream = *error == 0 ? fdopen(file, "r") : NULL;
    if (stream == NULL && file >= 0)
        close(file);
    return stream;
}

int hl_read_configuration(struct hl_configuration *configuration, const char *path) {
    struct hl_configuration fresh = {.window_seconds = WINDOW_SECONDS,
                                     .interval_seconds = INTERVAL_SECONDS,
                                     .canary_percent = 100,
                                     .delay_seconds = DELAY_SECONDS,
                                     .pages_per_minute = PAGES_PER_MINUTE};
    int error;
    FILE *file = open_configuration(path, &error);
    if (file != NULL) {
        error = read_lines(&fresh, file, path);
        fclose(file);
    }
    if (error == 0 && fresh.interval_seconds < 2 * fresh.window_seconds) {
        error = -EINVAL;
        hl_warn("%s: interval: it is shorter than two windows; write at least %g", path,
                2 * fresh.window_seconds);
    }
    if (error == 0 && fresh.acts && !fresh.observes) {
        error = -EINVAL;
        hl_warn("%s: act: it needs observations; write observe = yes", path);
    }
    bool is_named = fresh.eligible.n > 0;
    for (size_t i = 0; !is_named && i < sizeof eligible / sizeof eligible[0]; i++)
        hl_add_to_texts(&fresh.eligible, eligible[i]);
    if (error != 0 && error != -ENOENT) {
        hl_free_configuration(&fresh);
        return error;
    }
    *configuration = fresh;
    return 0;
}

void hl_free_configuration(struct hl_configuration *configuration) {
    free(configuration->metrics);
    hl_free_texts(&configuration->enabled);
    hl_free_texts(&configuration->eligible);
    hl_free_texts(&configuration->excluded);
}

/* --- enabled files --- */

bool hl_expand_enabled(struct hl_texts *files, const char *entry, const char *configuration) {
    glob_t found;
    struct hl_local local = {.only_roots = true, .entries_max = HL_ENABLED_NAMES_MAX};
    *files = (struct hl_texts){0};
    if (hl_is_unit(entry)) {
        char *program = hl_find_unit_program(entry, "enable");
        if (program != NULL)
            hl_add_to_texts(files, program);
        free(program);
        return files->n > 0;
    }
    bool is_found = hl_glob_local(&local, entry, &found) == 0, is_whole = true;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat status;
        int result = hl_stat_local(&local, found.gl_pathv[i], true, &status);
        bool is_left_out = result == -EREMOTE || result == -EPERM;
        is_whole &= !is_left_out;
        if (!is_left_out)
            hl_add_to_texts(files, found.gl_pathv[i]);
    }
    hl_close_local(&local);
    if (local.is_remote)
        hl_warn(
            "%s: %s: the part of it that lies on a file system that may not answer, such as FUSE or NFS, is "
            "left out; keep it on a local disk",
            configuration, entry);
    if (local.exposed != NULL)
        hl_warn("%s: %s: %s " HL_LOCAL_EXPOSED, configuration, entry, local.exposed);
    if (local.is_full)
        hl_warn("%s: %s: " HL_ENABLED_NAMES_TOO_MANY, configuration, entry);
    if (!is_found && !local.is_remote && local.exposed == NULL)
        hl_warn("%s: %s: there is no such file", configuration, entry);
    globfree(&found);
    free(local.exposed);
    return is_found && is_whole;
}

/* --- changing it --- */

static bool is_link(const char *path) {
    struct stat stat;
    return lstat(path, &stat) == 0 && S_ISLNK(stat.st_mode);
}

int hl_lock_configuration(void) {
    int lock = -ENOENT;
    /* The previous holder of the lock may have removed the folder meanwhile. */
    for (unsigned i = 0; i < ATTEMPTS && lock == -ENOENT; i++) {
        if (mkdir(FOLDER, 0755) == 0)
            chmod(FOLDER, 0755); /* umask(2) */
        lock = hl_lock_path(AT_FDCWD, LOCK, true);
    }
    if (lock < 0)
        hl_warn(HL_CONFIGURATION ": it cannot be changed: %s; make its folder writable", strerror(-lock));
    if (lock < 0 || !is_link(HL_CONFIGURATION))
        return lock;
    hl_unlock_configuration(lock);
    hl_warn(HL_CONFIGURATION
            ": it is a symbolic link, which a new file would replace; change the file that it "
            "leads to by hand");
    return -ELOOP;
}

void hl_unlock_configuration(int lock) {
    hl_drop_lock(LOCK, lock);
    rmdir(FOLDER);
}

/* Copies OLD to NEW_FILE, except lines that enable ENTRY, for which *FOUND becomes true.  Returns the number of copied bytes, or a
   negated errno: OLD cannot be read to its end. */
static ssize_t copy_without(FILE *old, FILE *new_file, const char *entry, bool *found) {
    char *line = NULL, *name, *value;
    size_t size = 0;
    ssize_t copied = 0;
    while (old != NULL && getline(&line, &size, old) >= 0) {
        char *whole = hl_xasprintf("%s", line);
        if (cut_line(line, &name, &value) && value != NULL && strcmp(name, ENABLED) == 0 &&
            strcmp(value, entry) == 0) {
            *found = true;
        } else {
            fprintf(new_file, "%s%s", whole, strchr(whole, '\n') != NULL ? "" : "\n");
            copied += (ssize_t)strlen(whole);
        }
        free(whole);
    }
    if (old != NULL && !is_read(old))
        copied = -errno;
    free(line);
    return copied;
}

/* Makes NEW, with the group and mode of OLD, which may be NULL.  NULL, and errno. */
static FILE *open_new(FILE *old) {
    struct stat stat = {.st_mode = 0644};
    if (old != NULL && fstat(fileno(old), &stat) != 0)
        return NULL;
    unlink(NEW); /* the leftover of a killed process */
    int file = open(NEW, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0 && ((old != NULL && fchown(file, (uid_t)-1, stat.st_gid) != 0) ||
                      fchmod(file, stat.st_mode & 0777) != 0)) {
        close(file);
        return NULL;
    }
    FILE *stream = file >= 0 ? fdopen(file, "w") : NULL;
    if (stream == NULL && file >= 0)
        close(file);
    return stream;
}

/* Closes NEW_FILE once it is on the disk.  0 or a negated errno. */
static int finish(FILE *new_file) {
    int result = fflush(new_file) != 0 || fsync(fileno(new_file)) != 0 ? -errno : 0;
    return fclose(new_file) != 0 && result == 0 ? -errno : result;
}

/* Writes OLD, which may be NULL, anew, with a line for ENTRY at its end if ADDS, else without it. */
static int rewrite(FILE *old, const char *entry, bool adds, bool *changed) {
    bool found = false;
    FILE *new_file = open_new(old);
    if (new_file == NULL)
        return -errno;
    ssize_t bytes = copy_without(old, new_file, entry, &found);
    if (adds)
        fprintf(new_file, ENABLED " = %s\n", entry);
    *changed = adds != found;
    int result = finish(new_file);
    if (bytes < 0)
        result = (int)bytes;
    bool is_kept = result == 0 && *changed && (adds || bytes > 0);
    if (is_kept && rename(NEW, HL_CONFIGURATION) != 0)
        result = -errno;
    if (!is_kept || result != 0)
        unlink(NEW);
    if (result == 0 && *changed && !is_kept && unlink(HL_CONFIGURATION) != 0)
        result = -errno;
    return result;
}

/* The existing file is trusted only as by hl_read_configuration: another user's text must not become root's. */
static int change(const char *entry, bool adds, bool *changed) {
    int result;
    *changed = false;
    FILE *old = open_configuration(HL_CONFIGURATION, &result);
    if (old == NULL && result != -ENOENT)
        return result;
    result = old != NULL || adds ? rewrite(old, entry, adds, changed) : 0;
    if (old != NULL)
        fclose(old);
    if (result != 0)
        hl_warn(HL_CONFIGURATION ": it cannot be changed: %s; make it and its folder writable",
                strerror(-result));
    return result;
}

int hl_enable_entry(const char *entry, bool *changed) { return change(entry, true, changed); }

int hl_disable_entry(const char *entry, bool *changed) { return change(entry, false, changed); }
