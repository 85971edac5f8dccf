/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/keep/list.h"
#include "command/lib/common.h"
#include "command/lib/local.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX (1 << 20)

bool hl_is_unit(const char *name) { return strchr(name, '/') == NULL && hl_ends_in(name, ".service"); }

char *hl_find_configuration(bool is_root) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (is_root)
        return hl_xasprintf("/etc/hugeld");
    if (config != NULL && config[0] == '/')
        return hl_xasprintf("%s/hugeld", config);
    return home != NULL && home[0] == '/' ? hl_xasprintf("%s/.config/hugeld", home) : NULL;
}

/* Notes a problem; takes TEXT over. */
static void note_problem(struct hl_lists *lists, char *text) {
    hl_add_to_texts(&lists->problems, text);
    free(text);
}

static char *explain_open(const char *path, int error) {
    return hl_xasprintf("%s: %s%s", path,
                        error == EPERM ? "other users can write it, so it is not used; chown it to the user "
                                         "whose list it is, and chmod go-w"
                        : error == EINVAL ? "it is not a regular file"
                        : error == EFBIG  ? "it has more than 1 MiB; write patterns instead of files"
                                          : "it cannot be read: ",
                        error == EPERM || error == EINVAL || error == EFBIG ? "" : strerror(error));
}

/* --- settings --- */

static char *parse_setting(struct hl_lists *lists, const char *line) {
    struct hl_settings *settings = &lists->settings;
    char name[32];
    int end = 0;
    if (sscanf(line, "%31[^ \t=] = %n", name, &end) != 1 || end == 0)
        return hl_xasprintf("the line is not name = value; begin a comment with #");
    const char *value = line + end;
    if (strcmp(name, "store_size") == 0) {
        if (hl_store_bytes(value) == 0)
            return hl_xasprintf(
                "store_size: give a number of bytes, as in 512M or 2G, or a share of the memory, as in 25%%");
        hl_replace_text(&settings->store_size, value);
    } else if (strcmp(name, "any_disk") == 0) {
        settings->any_disk = strcmp(value, "yes") == 0;
        if (!settings->any_disk && strcmp(value, "no") != 0)
            return hl_xasprintf("any_disk: write yes or no");
    } else if (strcmp(name, "metrics") == 0) {
        if (value[0] != '/' || !hl_ends_in(value, ".prom"))
            return hl_xasprintf("metrics: write the absolute path of a file NAME.prom");
        hl_replace_text(&settings->metrics, value);
    } else {
        return hl_xasprintf("%s: there is no such setting; hugeld(1) names them all", name);
    }
    return NULL;
}

/* --- lists --- */

/* Cuts the next word off *REST, at a blank without '\' before it.  NULL: there is none.  The caller frees it. */
static char *cut_word(const char **rest) {
    const char *at = *rest + strspn(*rest, " \t"), *end = at;
    while (*end != '\0' && *end != ' ' && *end != '\t')
        end += end[0] == '\\' && end[1] != '\0' ? 2 : 1;
    *rest = end;
    return end > at ? hl_xasprintf("%.*s", (int)(end - at), at) : NULL;
}

/* WORD behind the first one of an entry: a file of a unit, or a way. */
static char *add_word(struct hl_entry *entry, const char *word) {
    if (strcmp(word, "way=image") == 0 || strcmp(word, "way=in-place") == 0)
        entry->way = strcmp(word, "way=image") == 0 ? HL_ADD_IMAGE : HL_ADD_IN_PLACE;
    else if (!entry->is_unit)
        return hl_xasprintf("%s: write way=image or way=in-place, or \\ before a blank of the path", word);
    else if (word[0] != '/')
        return hl_xasprintf("%s: the files of a unit are absolute paths", word);
    else
        hl_add_to_texts(&entry->files, word);
    return NULL;
}

static void free_entry(struct hl_entry *entry) {
    hl_free_texts(&entry->files);
    free(entry->text);
    free(entry->source);
    free(entry->problem);
}

/* Adds the entry or mask of LINE.  NULL, or the problem with it, which the caller frees. */
static char *parse_entry(struct hl_lists *lists, const char *line, const char *source, unsigned number) {
    const char *rest = line;
    char *first = cut_word(&rest), *problem = NULL, *word;
    if (first[0] == '!') {
        word = cut_word(&rest);
        if (word != NULL || (first[1] != '/' && !hl_is_unit(first + 1)))
            problem = hl_xasprintf("%s: write ! and an entry of another list, alone", first);
        else
            hl_add_to_texts(&lists->masks, first + 1);
        free(word);
        free(first);
        return problem;
    }
    struct hl_entry entry = {
        .text = first, .is_unit = hl_is_unit(first), .source = hl_xasprintf("%s", source), .line = number};
    if (first[0] != '/' && !entry.is_unit)
        problem = hl_xasprintf("%s: it is neither an absolute path nor a unit of systemd, as in name.service",
                               first);
    while (problem == NULL && (word = cut_word(&rest)) != NULL) {
        problem = add_word(&entry, word);
        free(word);
    }
    if (!entry.is_unit)
        hl_add_to_texts(&entry.files, first);
    else if (problem == NULL && entry.files.n == 0)
        problem = hl_xasprintf("%s: name its files behind it; 'hugeld enable %s' finds them", first, first);
    if (problem != NULL) {
        free_entry(&entry);
        return problem;
    }
    lists->entry = hl_xrealloc(lists->entry, (lists->n + 1) * sizeof *lists->entry);
    lists->entry[lists->n++] = entry;
    return NULL;
}

/* Parses each line of the file at PATH that is not empty and no comment, without blanks around it.  False: it could not be read to
   its end, or had a wrong line; that was noted. */
static bool read_lines(struct hl_lists *lists, const char *path, bool is_settings) {
    struct stat stat;
    int file = hl_open_trusted(AT_FDCWD, path, O_RDONLY, geteuid());
    if (file == -ENOENT && is_settings)
        return true;
    if (file >= 0 && fstat(file, &stat) == 0 && stat.st_size > BYTES_MAX) {
        close(file);
        file = -EFBIG;
    }
    FILE *stream = file >= 0 ? fdopen(file, "r") : NULL;
    if (stream == NULL) {
        note_problem(lists, explain_open(path, file < 0 ? -file : errno));
        return false;
    }
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    bool fine = true;
    for (unsigned number = 1; (length = getline(&line, &size, stream)) >= 0; number++) {
        char *at = line + strspn(line, " \t"), *problem = NULL;
        bool has_nul = strlen(line) != (size_t)length;
        size_t left = strlen(at);
        while (left > 0 && strchr(" \t\r\n", at[left - 1]) != NULL && (left < 2 || at[left - 2] != '\\'))
            at[--left] = '\0';
        if (has_nul)
            problem = hl_xasprintf("the line holds a NUL byte; write the file as text");
        else if (at[0] != '\0' && at[0] != '#')
            problem = is_settings ? parse_setting(lists, at) : parse_entry(lists, at, path, number);
        if (problem != NULL)
            note_problem(lists, hl_xasprintf("%s:%u: %s", path, number, problem));
        fine &= problem == NULL;
        free(problem);
    }
    if (ferror(stream))
        note_problem(lists, explain_open(path, errno));
    fine &= !ferror(stream);
    free(line);
    fclose(stream);
    return fine;
}

/* Takes out what a mask names, in whichever order the lists were read. */
static void drop_masked(struct hl_lists *lists) {
    size_t n = 0;
    for (size_t i = 0; i < lists->n; i++) {
        bool is_masked = false;
        for (size_t j = 0; j < lists->masks.n; j++)
            is_masked |= strcmp(lists->masks.text[j], lists->entry[i].text) == 0;
        if (is_masked)
            free_entry(&lists->entry[i]);
        else
            lists->entry[n++] = lists->entry[i];
    }
    lists->n = n;
}

void hl_read_lists(struct hl_lists *lists, const char *configuration, const char *list) {
    *lists = (struct hl_lists){.is_whole = true};
    if (list != NULL) {
        lists->is_whole = read_lines(lists, list, false);
        drop_masked(lists);
        return;
    }
    char *settings = hl_xasprintf("%s/hugeld.conf", configuration);
    lists->is_whole = read_lines(lists, settings, true);
    free(settings);
    lists->folder = hl_xasprintf("%s/enabled.d", configuration);
    int folder = hl_open_trusted(AT_FDCWD, lists->folder, O_RDONLY | O_DIRECTORY, geteuid());
    struct dirent **names = NULL;
    int n = folder >= 0 ? scandirat(folder, ".", &names, NULL, alphasort) : folder == -ENOENT ? 0 : -1;
    if (n < 0) {
        note_problem(lists, explain_open(lists->folder, folder < 0 ? -folder : errno));
        lists->is_whole = false;
    }
    for (int i = 0; i < n; i++) {
        char *path = hl_xasprintf("%s/%s", lists->folder, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && hl_ends_in(names[i]->d_name, ".list"))
            lists->is_whole &= read_lines(lists, path, false);
        free(path);
        free(names[i]);
    }
    free(names);
    if (folder >= 0)
        close(folder);
    drop_masked(lists);
}

void hl_free_lists(struct hl_lists *lists) {
    for (size_t i = 0; i < lists->n; i++)
        free_entry(&lists->entry[i]);
    free(lists->entry);
    hl_free_texts(&lists->masks);
    hl_free_texts(&lists->problems);
    free(lists->settings.store_size);
    free(lists->settings.metrics);
    free(lists->folder);
    *lists = (struct hl_lists){0};
}

/* --- the files that entries mean --- */

struct finding {
    struct hl_lists *lists;
    struct hl_wanted_files *wanted;
    struct hl_local local;
    struct hl_entry *entry;
    size_t found;
};

const char *hl_find_match(const struct hl_texts *patterns, const char *path) {
    for (size_t i = 0; i < patterns->n; i++)
        if (fnmatch(patterns->text[i], path, FNM_PATHNAME | FNM_LEADING_DIR) == 0)
            return patterns->text[i];
    return NULL;
}

/* Notes that a part of the entry was left out or is not there; takes PROBLEM over.  The first one is said.  UNREAD: there may be
   files that were not seen. */
static void note_missing(struct finding *finding, char *problem, bool unread) {
    finding->lists->is_whole &= !unread;
    if (finding->entry->problem == NULL)
        finding->entry->problem = problem;
    else
        free(problem);
}

/* Notes why PATH could not be opened, which is ERROR. */
static void note_unopened(struct finding *finding, const char *path, int error) {
    note_missing(
        finding,
        error == EREMOTE
            ? hl_xasprintf("%s is left out, since " HL_LOCAL_PROBLEM "; keep it on a local disk", path)
        : error == EPERM ? hl_xasprintf("%s " HL_LOCAL_EXPOSED, path)
                         : hl_xasprintf("%s: it cannot be read: %s", path, strerror(error)),
        true);
}

static void add_file(struct finding *finding, int file, const struct stat *status, bool is_named) {
    struct hl_wanted_files *wanted = finding->wanted;
    char *path = hl_find_file_path(file);
    const char *mask = path != NULL ? hl_find_match(&finding->lists->masks, path) : NULL;
    if (path == NULL || mask != NULL) {
        wanted->mask = wanted->mask != NULL ? wanted->mask : mask;
        finding->found += path != NULL;
        free(path);
        return;
    }
    if (wanted->n % 256 == 0)
        wanted->file = hl_xrealloc(wanted->file, (wanted->n + 256) * sizeof *wanted->file);
    wanted->file[wanted->n++] =
        (struct hl_wanted){path, finding->entry, is_named,
                           .state = {status->st_dev, status->st_ino, (uint64_t)status->st_size,
                                     (uint64_t)status->st_ctim.tv_sec, (uint64_t)status->st_ctim.tv_nsec}};
    finding->found++;
}

static void add_path(struct finding *finding, const char *path, bool is_named, bool is_inside);

/* Adds every regular file below the folder PATH. */
static void add_folder(struct finding *finding, const char *path, bool is_inside) {
    const struct dirent *name;
    DIR *folder = hl_open_folder(&finding->local, path, !is_inside);
    if (folder == NULL) {
        if (errno != ENOENT && (errno != EPERM || !is_inside))
            note_unopened(finding, path, errno);
        return;
    }
    while ((name = hl_read_folder(&finding->local, folder)) != NULL) {
        char *inner = hl_xasprintf("%s/%s", path, name->d_name);
        add_path(finding, inner, false, true);
        free(inner);
    }
    if (errno != 0)
        note_unopened(finding, path, errno);
    closedir(folder);
}

/* Adds the file or folder at PATH; symbolic links inside of named folders are not followed. */
static void add_path(struct finding *finding, const char *path, bool is_named, bool is_inside) {
    struct stat status;
    int file = hl_open_local(&finding->local, path, !is_inside, &status);
    if (file >= 0 && S_ISREG(status.st_mode))
        add_file(finding, file, &status, is_named);
    else if (file >= 0 && is_named && !S_ISDIR(status.st_mode))
        note_missing(finding, hl_xasprintf("%s: it is no regular file and no folder", path), false);
    bool is_folder = file >= 0 && S_ISDIR(status.st_mode);
    char *folder = is_folder ? hl_find_file_path(file) : NULL;
    if (file >= 0)
        close(file);
    if (is_folder) {
        finding->found++;
        /* A glob of files may match a link to a whole folder, such as /usr/bin/X11. */
        bool is_link = !is_inside && !is_named && hl_stat_local(&finding->local, path, false, &status) == 0 &&
                       S_ISLNK(status.st_mode);
        if (folder != NULL && !is_link)
            add_folder(finding, folder, is_inside);
        free(folder);
    } else if (file < 0 && file != -ENOENT && file != -ENOTDIR) {
        note_unopened(finding, path, -file);
    }
}

/* Whether PATTERN matches one path alone, which it is without its '\\'; that becomes *PATH. */
static bool is_path(const char *pattern, char **path) {
    char *end = *path = hl_xmalloc(strlen(pattern) + 1);
    for (const char *at = pattern; *at != '\0'; at++) {
        if (strchr("*?[", *at) != NULL)
            return false;
        at += at[0] == '\\' && at[1] != '\0';
        *end++ = *at;
    }
    return true;
}

/* Adds what PATTERN matches. */
static void add_pattern(struct finding *finding, const char *pattern) {
    glob_t matches;
    char *path;
    if (is_path(pattern, &path)) {
        add_path(finding, path, true, false);
        free(path);
        return;
    }
    free(path);
    int result = hl_glob_local(&finding->local, pattern, &matches);
    for (size_t i = 0; i < matches.gl_pathc; i++)
        add_path(finding, matches.gl_pathv[i], false, false);
    globfree(&matches);
    if (result == GLOB_NOSPACE || result == GLOB_ABORTED)
        note_missing(finding, hl_xasprintf("%s: it cannot be read", pattern), true);
}

bool hl_is_local(const char *source) { return hl_ends_in(source, "/enabled.d/" HL_LOCAL_LIST); }

unsigned hl_rank_entry(const struct hl_entry *entry) {
    return 2 * (entry->way != 0) + hl_is_local(entry->source);
}

static int compare_files(const void *a, const void *b) {
    const struct hl_wanted *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    if (order != 0)
        return order;
    /* What is said of a file itself counts more than what is said of its folder. */
    int x_says = 4 * x->is_named + (int)hl_rank_entry(x->entry),
        y_says = 4 * y->is_named + (int)hl_rank_entry(y->entry);
    return x_says != y_says ? y_says - x_says : x->entry < y->entry ? -1 : x->entry > y->entry;
}

void hl_find_wanted(struct hl_wanted_files *wanted, struct hl_lists *lists, const struct hl_entry *only,
                    bool only_roots) {
    *wanted = (struct hl_wanted_files){0};
    for (size_t i = 0; i < lists->n; i++) {
        if (only != NULL && only != &lists->entry[i])
            continue;
        struct finding finding = {.lists = lists,
                                  .wanted = wanted,
                                  .entry = &lists->entry[i],
                                  .local = {.only_roots = only_roots, .entries_max = HL_NAMES_MAX}};
        for (size_t j = 0; j < lists->entry[i].files.n; j++) {
            size_t before = finding.found;
            add_pattern(&finding, lists->entry[i].files.text[j]);
            if (finding.local.exposed != NULL)
                note_missing(&finding, hl_xasprintf("%s " HL_LOCAL_EXPOSED, finding.local.exposed), true);
            else if (finding.local.is_remote)
                note_missing(
                    &finding,
                    hl_xasprintf("a part of it " HL_LOCAL_LIES ", and is left out; keep it on a local disk"),
                    true);
            else if (finding.local.is_full)
                note_missing(
                    &finding,
                    hl_xasprintf(
                        "it has more than %d names, and only the first ones are looked at; name fewer",
                        HL_NAMES_MAX),
                    true);
            else if (finding.found == before)
                note_missing(&finding, hl_xasprintf("there is no such file"), false);
        }
        hl_close_local(&finding.local);
    }
    if (wanted->n > 0)
        qsort(wanted->file, wanted->n, sizeof *wanted->file, compare_files);
    size_t n = 0;
    for (size_t i = 0; i < wanted->n; i++) {
        if (n > 0 && strcmp(wanted->file[n - 1].path, wanted->file[i].path) == 0)
            free(wanted->file[i].path);
        else
            wanted->file[n++] = wanted->file[i];
    }
    wanted->n = n;
}

void hl_free_wanted(struct hl_wanted_files *wanted) {
    for (size_t i = 0; i < wanted->n; i++)
        free(wanted->file[i].path);
    free(wanted->file);
    *wanted = (struct hl_wanted_files){0};
}

static int compare_path(const void *path, const void *wanted) {
    return strcmp(path, ((const struct hl_wanted *)wanted)->path);
}

struct hl_wanted *hl_find_wanted_file(const struct hl_wanted_files *wanted, const char *path) {
    return wanted->n > 0 ? bsearch(path, wanted->file, wanted->n, sizeof *wanted->file, compare_path) : NULL;
}

/* --- changing a list --- */

char *hl_quote_path(const char *path, bool is_path) {
    if (strpbrk(path, "\n\r\t") != NULL || path[0] != '/' || (is_path && hl_has_hidden(path)))
        return NULL;
    char *word = hl_xmalloc(2 * strlen(path) + 1);
    size_t bytes = 0;
    for (const char *at = path; *at != '\0'; at++) {
        if (*at == ' ' ? at == path || at[-1] != '\\' || is_path : is_path && strchr("*?[\\", *at) != NULL)
            word[bytes++] = '\\';
        word[bytes++] = *at;
    }
    word[bytes] = '\0';
    return word;
}

/* Whether the first word of LINE is that of WANTED. */
static bool is_same_entry(const char *line, const char *wanted) {
    const char *rest = line, *other = wanted;
    char *a = cut_word(&rest), *b = cut_word(&other);
    bool same = a != NULL && b != NULL && strcmp(a, b) == 0;
    free(a);
    free(b);
    return same;
}

int hl_change_list(int folder, const char *added, const char *removed, bool *changed) {
    struct stat stat = {.st_mode = 0644};
    char *line = NULL, *text = NULL;
    size_t size = 0, bytes = 0;
    bool is_there = false;
    *changed = false;
    int file = hl_open_trusted(folder, HL_LOCAL_LIST, O_RDONLY | O_NOFOLLOW, geteuid());
    if (file < 0 && file != -ENOENT)
        return file;
    FILE *old = file >= 0 && fstat(file, &stat) == 0 ? fdopen(file, "r") : NULL,
         *out = open_memstream(&text, &bytes);
    if (out == NULL || (file >= 0 && old == NULL))
        return -ENOMEM;
    while (old != NULL && getline(&line, &size, old) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        bool is_added = added != NULL && strcmp(line, added) == 0;
        bool goes = (removed != NULL && is_same_entry(line, removed)) ||
                    (added != NULL && !is_added && is_same_entry(line, added));
        is_there |= is_added;
        *changed |= goes;
        if (!goes)
            fprintf(out, "%s\n", line);
    }
    int result = old != NULL && ferror(old) ? -errno : 0;
    if (added != NULL && !is_there) {
        fprintf(out, "%s\n", added);
        *changed = true;
    }
    if (old != NULL)
        fclose(old);
    if (fclose(out) != 0 && result == 0)
        result = -ENOMEM;
    if (result == 0 && *changed && bytes > 0)
        result = hl_replace_file(folder, HL_LOCAL_LIST, text, bytes, stat.st_mode & 0777);
    else if (result == 0 && *changed && unlinkat(folder, HL_LOCAL_LIST, 0) != 0)
        result = -errno;
    free(line);
    free(text);
    return result;
}
