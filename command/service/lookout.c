/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file is known by its path, its number and its ctime.  Each is shown once: a user who removes an image of what is enabled has
   his way until the file is another one. */
#include "command/service/lookout.h"
#include "command/base/common.h"

#include <fcntl.h>
#include <fts.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Milliseconds: from one look at everything to the next; since a file was seen first, before it is shown, for it may still be
   written; of work without a rest; the least of such rests, which are so many times as long as what was done. */
#define LOOK 10000
#define SETTLES 5000
#define STEP 10
#define PACE 100
#define REST 100

struct seen {
    uint64_t hash;
    dev_t device;
    double since; /* hl_now_ms */
    bool was_there, is_taken;
};

struct list {
    size_t n, room;
    struct seen *at;
};

struct hl_lookout {
    bool is_first, is_looking; /* of the looks since the configuration was read; one is under way */
    double next, began;        /* hl_now_ms: of the next step, and when this look has begun */
    size_t entry;              /* of the enabled ones: those before it were looked at */
    FTS *tree;                 /* what the last of them means, as far as that is left, or NULL */
    struct list old, now;      /* of the last look, by their hashes, and of this one */
};

/* --- what was seen --- */

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
    return XXH3_64bits_withSeed(numbers, sizeof numbers, XXH3_64bits(path, strlen(path)));
}

/* --- one look --- */

/* Whether root alone can write in FOLDER.  What others can put there is never taken, and could be without end. */
static bool is_of_root(const FTSENT *folder) {
    struct stat stat;
    return fstatat(AT_FDCWD, folder->fts_accpath, &stat, folder->fts_level > 0 ? AT_SYMLINK_NOFOLLOW : 0) ==
               0 &&
           stat.st_uid == 0 && (stat.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Says once that nothing is looked for in FOLDER, which was named. */
static void leave_out(const struct hl_lookout *lookout, const FTSENT *folder) {
    if (folder->fts_level == 0 && lookout->is_first)
        hl_warn("service: %s: users other than root can write in it, so nothing in it is taken; chown root, "
                "chmod 755, then reload the service",
                folder->fts_path);
}

/* The next file of the tree, or NULL: it has none any more, and is closed. */
static FTSENT *read_tree(struct hl_lookout *lookout) {
    FTSENT *file;
    while (lookout->tree != NULL && (file = fts_read(lookout->tree)) != NULL) {
        if (file->fts_info == FTS_F || file->fts_info == FTS_NSOK)
            return file;
        if (file->fts_info == FTS_D && !is_of_root(file)) {
            leave_out(lookout, file);
            fts_set(lookout->tree, file, FTS_SKIP);
        }
    }
    if (lookout->tree != NULL)
        fts_close(lookout->tree);
    lookout->tree = NULL;
    return NULL;
}

/* Files and folders that ENTRY means now; symbolic links in folders are not followed.  The files of a folder are asked for one by
   one (FTS_NOSTAT), since a disk may be slow. */
static FTS *open_tree(const char *entry) {
    glob_t found;
    FTS *tree = NULL;
    if (hl_is_unit(entry) || glob(entry, 0, NULL, &found) != 0)
        return NULL;
    tree = fts_open(found.gl_pathv, FTS_PHYSICAL | FTS_NOCHDIR | FTS_NOSTAT | FTS_COMFOLLOW, NULL);
    globfree(&found);
    return tree;
}

/* The next file that is enabled, or NULL: that was all. */
static FTSENT *find_file(struct hl_lookout *lookout, const struct hl_configuration *configuration) {
    FTSENT *file = read_tree(lookout);
    while (file == NULL && lookout->entry < configuration->enabled.n) {
        lookout->tree = open_tree(configuration->enabled.text[lookout->entry++]);
        file = read_tree(lookout);
    }
    return file;
}

/* Whether the file was shown. */
static bool look_at(struct hl_lookout *lookout, const FTSENT *file, const char *entry, hl_take_file *take,
                    void *data) {
    struct stat stat;
    if (fstatat(AT_FDCWD, file->fts_path, &stat, file->fts_level > 0 ? AT_SYMLINK_NOFOLLOW : 0) != 0 ||
        !S_ISREG(stat.st_mode))
        return false;
    struct seen seen = {.hash = hash_file(file->fts_path, &stat),
                        .device = stat.st_dev,
                        .since = hl_now_ms(),
                        .was_there = lookout->is_first};
    const struct seen *known =
        lookout->old.n > 0 ? bsearch(&seen, lookout->old.at, lookout->old.n, sizeof seen, compare) : NULL;
    if (known != NULL)
        seen = *known;
    bool shows = !seen.is_taken && hl_now_ms() - seen.since >= SETTLES;
    if (shows)
        seen.is_taken = take(data, file->fts_path, entry, file->fts_level > 0, seen.was_there);
    add(&lookout->now, &seen);
    return shows;
}

static void begin_look(struct hl_lookout *lookout) {
    if (lookout->tree != NULL)
        fts_close(lookout->tree);
    lookout->tree = NULL;
    lookout->entry = 0;
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
    free(lookout);
}

void hl_look_out_anew(struct hl_lookout *lookout) {
    lookout->is_first = true;
    lookout->is_looking = false;
}

void hl_forget_device(struct hl_lookout *lookout, dev_t device) {
    for (size_t i = 0; i < lookout->old.n; i++)
        lookout->old.at[i].is_taken &= lookout->old.at[i].device != device;
    for (size_t i = 0; i < lookout->now.n; i++)
        lookout->now.at[i].is_taken &= lookout->now.at[i].device != device;
}

void hl_look_out_later(struct hl_lookout *lookout) {
    lookout->next = fmax(lookout->next, hl_now_ms() + LOOK);
}

double hl_find_look(const struct hl_lookout *lookout, const struct hl_configuration *configuration) {
    return configuration->enabled.n > 0 ? lookout->next : INFINITY;
}

void hl_look_out(struct hl_lookout *lookout, const struct hl_configuration *configuration, hl_take_file *take,
                 void *data) {
    double now = hl_now_ms(), began = now, took;
    bool shown = false;
    FTSENT *file = NULL;
    if (now < hl_find_look(lookout, configuration))
        return;
    if (!lookout->is_looking)
        begin_look(lookout);
    lookout->is_looking = true;
    do {
        file = find_file(lookout, configuration);
        took = hl_now_ms() - began; /* which is not what TAKE takes */
        if (file != NULL)
            shown = look_at(lookout, file, configuration->enabled.text[lookout->entry - 1], take, data);
    } while (file != NULL && !shown && took < STEP);
    lookout->next = hl_now_ms() + fmax(PACE, REST * took);
    if (file == NULL)
        end_look(lookout);
}
