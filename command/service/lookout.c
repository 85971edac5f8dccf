/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file is known by its path, its number and its ctime.  Each is shown once: if a user removes the image of an enabled file, it
   stays removed until the file changes. */
#include "command/service/lookout.h"
#include "command/base/common.h"
#include "command/base/local.h"

#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Milliseconds: from one look at everything to the next; from the first sight of a file until it is shown, for it may still be
   written; of work without a rest; the least of such rests, which last this many times as long as the work. */
#define LOOK 10000
#define SETTLES 5000
#define STEP 10
#define PACE 100
#define REST 100

struct seen {
    uint64_t hash;
    dev_t device;
    double since; /* hl_now_ms */
    bool was_there, is_handled;
};

/* A path to look at. */
struct left {
    char *path;
    unsigned level; /* its depth in folders, below the path of an entry */
};

struct list {
    size_t n, room;
    struct seen *at;
};

struct hl_lookout {
    bool is_first, is_looking; /* the first look since the configuration was read; a look is under way */
    double next, began;        /* hl_now_ms: of the next step, and when this look began */
    size_t entry;              /* of the enabled ones: those before it are done, */
    size_t n_left, room_left;
    struct left *left;     /* except these paths of the last of them */
    struct hl_local local; /* for that last one; closed between two steps */
    bool said_full;        /* it was printed that its names are too many */
    struct list old, now;  /* files of the last look, by their hashes, and of this one */
};

/* --- seen files --- */

static void add(struct list *list, const struct seen *seen) {
    if (list->n == list->room) {
        list->room = list->room > 0 ? 2 * list->room : 16;
        list->at = hl_xrealloc(list->at, list->room * sizeof *list->at);
    }
    list->at[list->n++] = *seen;
}

static int compare(const void *a, const void *b) {
    const struct seen *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

static void clear(struct list *list) {
    free(list->at);
    *list = (struct list){0};
}

static uint64_t hash_file(const char *path, const struct stat *stat) {
    const uint64_t numbers[] = {stat->st_dev, stat->st_ino, (uint64_t)stat->st_size,
                                (uint64_t)stat->st_ctim.tv_sec, (uint64_t)stat->st_ctim.tv_nsec};
    return hl_hash(hl_hash(0, path, strlen(path)), numbers, sizeof numbers);
}

/* --- one look --- */

enum step { NOT_YET, FOUND, NO_MORE };

static void push(struct hl_lookout *lookout, char *path, unsigned level) {
    if (lookout->n_left == lookout->room_left) {
        lookout->room_left = lookout->room_left > 0 ? 2 * lookout->room_left : 16;
        lookout->left = hl_xrealloc(lookout->left, lookout->room_left * sizeof *lookout->left);
    }
    lookout->left[lookout->n_left++] = (struct left){path, level};
}

/* Adds the files and folders that ENTRY stands for now. */
static void expand(struct hl_lookout *lookout, const char *entry) {
    glob_t found = {0};
    if (!hl_is_unit(entry))
        hl_glob_local(&lookout->local, entry, &found);
    for (size_t i = found.gl_pathc; i-- > 0;)
        push(lookout, hl_xasprintf("%s", found.gl_pathv[i]), 0);
    globfree(&found);
}

/* Adds the files and folders in the folder at PATH.  Other users may write in folders below those of entries, and no line is
   printed for that. */
static void list(struct hl_lookout *lookout, const char *path, unsigned level) {
    const struct dirent *name;
    DIR *folder = hl_open_folder(&lookout->local, path, level == 0);
    while (folder != NULL && (name = hl_read_folder(&lookout->local, folder)) != NULL)
        if (name->d_type == DT_REG || name->d_type == DT_DIR || name->d_type == DT_UNKNOWN)
            push(lookout, hl_xasprintf("%s/%s", path, name->d_name), level + 1);
    if (folder != NULL)
        closedir(folder);
}

/* Prints once what was left out of the last entry, and forgets it. */
static void end_entry(struct hl_lookout *lookout, const char *entry) {
    struct hl_local *local = &lookout->local;
    if (local->is_remote && lookout->is_first)
        hl_warn("service: %s: the part of it that lies on a file system that may not answer, such as FUSE or "
                "NFS, is "
                "left out; keep it on a local disk, then reload the service",
                entry);
    if (local->exposed != NULL && lookout->is_first)
        hl_warn("service: %s: %s " HL_LOCAL_EXPOSED ", then reload the service", entry, local->exposed);
    free(local->exposed);
    local->exposed = NULL;
    local->is_remote = local->is_full = false;
    local->entries = 0;
}

static void say_full(struct hl_lookout *lookout, const char *entry) {
    if (lookout->local.is_full && !lookout->said_full)
        hl_warn("service: %s: " HL_ENABLED_NAMES_TOO_MANY ", then reload the service", entry);
    lookout->said_full |= lookout->local.is_full;
}

/* Looks at the next path that is left.  Symbolic links in folders are not followed, and folders that other users can write are
   left out: their contents could be without end. */
static enum step look_at_path(struct hl_lookout *lookout, struct left *found, struct stat *status) {
    *found = lookout->left[--lookout->n_left];
    bool is_there = hl_stat_local(&lookout->local, found->path, found->level == 0, status) == 0;
    if (is_there && S_ISREG(status->st_mode))
        return FOUND;
    if (is_there && S_ISDIR(status->st_mode))
        list(lookout, found->path, found->level);
    free(found->path);
    return NOT_YET;
}

/* Finds the next regular file that is enabled, and its STATUS. */
static enum step find_file(struct hl_lookout *lookout, const struct hl_configuration *configuration,
                           struct left *found, struct stat *status) {
    if (lookout->n_left > 0) {
        enum step step = look_at_path(lookout, found, status);
        say_full(lookout, configuration->enabled.text[lookout->entry - 1]);
        return step;
    }
    if (lookout->entry > 0)
        end_entry(lookout, configuration->enabled.text[lookout->entry - 1]);
    if (lookout->entry == configuration->enabled.n)
        return NO_MORE;
    expand(lookout, configuration->enabled.text[lookout->entry++]);
    say_full(lookout, configuration->enabled.text[lookout->entry - 1]);
    return NOT_YET;
}

/* Whether the file was shown.  That may take long, so lookout->local is closed before. */
static bool look_at(struct hl_lookout *lookout, const struct left *file, const struct stat *status,
                    const char *entry, hl_handle_file *handle, void *data) {
    struct seen seen = {.hash = hash_file(file->path, status),
                        .device = status->st_dev,
                        .since = hl_now_ms(),
                        .was_there = lookout->is_first};
    const struct seen *known =
        lookout->old.n > 0 ? bsearch(&seen, lookout->old.at, lookout->old.n, sizeof seen, compare) : NULL;
    if (known != NULL)
        seen = *known;
    bool shows = !seen.is_handled && hl_now_ms() - seen.since >= SETTLES;
    if (shows) {
        hl_close_local(&lookout->local);
        seen.is_handled = handle(data, file->path, entry, file->level > 0, seen.was_there);
    }
    add(&lookout->now, &seen);
    return shows;
}

static void begin_look(struct hl_lookout *lookout) {
    while (lookout->n_left > 0)
        free(lookout->left[--lookout->n_left].path);
    lookout->entry = 0;
    free(lookout->local.exposed);
    lookout->local = (struct hl_local){.only_roots = true, .entries_max = HL_ENABLED_NAMES_MAX};
    clear(&lookout->now);
    lookout->began = hl_now_ms();
}

static void end_look(struct hl_lookout *lookout) {
    clear(&lookout->old);
    lookout->old = lookout->now;
    lookout->now = (struct list){0};
    if (lookout->old.n > 0)
        qsort(lookout->old.at, lookout->old.n, sizeof lookout->old.at[0], compare);
    lookout->next = fmax(lookout->next, lookout->began + LOOK);
    lookout->is_first = false;
    lookout->is_looking = false;
}

/* --- the interface --- */

struct hl_lookout *hl_start_looking_out(void) {
    struct hl_lookout *lookout = hl_xmalloc(sizeof *lookout);
    *lookout = (struct hl_lookout){.is_first = true, .next = -INFINITY};
    return lookout;
}

void hl_stop_looking_out(struct hl_lookout *lookout) {
    begin_look(lookout);
    clear(&lookout->old);
    free(lookout->left);
    free(lookout);
}

void hl_look_out_anew(struct hl_lookout *lookout) {
    lookout->is_first = true;
    lookout->is_looking = lookout->said_full = false;
}

void hl_forget_device(struct hl_lookout *lookout, dev_t device) {
    for (size_t i = 0; i < lookout->old.n; i++)
        lookout->old.at[i].is_handled &= lookout->old.at[i].device != device;
    for (size_t i = 0; i < lookout->now.n; i++)
        lookout->now.at[i].is_handled &= lookout->now.at[i].device != device;
}

void hl_look_out_later(struct hl_lookout *lookout) {
    lookout->next = fmax(lookout->next, hl_now_ms() + LOOK);
}

double hl_find_look(const struct hl_lookout *lookout, const struct hl_configuration *configuration) {
    return configuration->enabled.n > 0 ? lookout->next : INFINITY;
}

void hl_look_out(struct hl_lookout *lookout, const struct hl_configuration *configuration,
                 hl_handle_file *handle, void *data) {
    double now = hl_now_ms(), began = now, took;
    bool shown = false;
    enum step step;
    if (now < hl_find_look(lookout, configuration))
        return;
    if (!lookout->is_looking)
        begin_look(lookout);
    lookout->is_looking = true;
    do {
        struct left file;
        struct stat status;
        step = find_file(lookout, configuration, &file, &status);
        took = hl_now_ms() - began; /* the time of HANDLE does not count */
        if (step == FOUND) {
            shown = look_at(lookout, &file, &status, configuration->enabled.text[lookout->entry - 1], handle,
                            data);
            free(file.path);
        }
    } while (step != NO_MORE && !shown && took < STEP);
    hl_close_local(&lookout->local);
    lookout->next = hl_now_ms() + fmax(PACE, REST * took);
    if (step == NO_MORE)
        end_look(lookout);
}
