/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Holds and watches images.

   A process finds an image by numbers of the original that change with each of its attributes; a hard link changes them, too.
   So each original is watched, and the folders above it, whose mode decides who can read it.  An event there is only a reason to
   look: hl_refresh_store_item opens the file and checks everything anew.  Each original has its turn at most every three
   seconds, and one at a time, since a backup touches all of them. */
#include "command/service/keep.h"
#include "command/base/common.h"
#include "command/base/local.h"
#include "command/image/in-place.h"
#include "command/image/store.h"
#include "command/service/lookout.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ORIGIN_EVENTS (IN_ATTRIB | IN_MODIFY | IN_DELETE_SELF | IN_MOVE_SELF)
#define FOLDER_EVENTS (IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR)
#define STORE_EVENTS (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR)

/* Milliseconds: until a change is looked at, since it seldom comes alone; between two looks at one file; until a file that
   is gone, or whose image could not be made, is tried again, the latter after twice as long each time, up to a day; between two files;
   between two looks at the store's path, and at events. */
#define SETTLES 200
#define REST 3000
#define PATIENCE 60000
#define PATIENCE_MAX 86400000.0
#define PATIENCE_KEPT 3600000.0 /* for files that may be fine: they are looked at as often as all others */
#define PACE 100
#define STORE_LOOK 10000
#define EVENTS_LOOK 20
/* The processor time in which it finds out which processes map a file, or gives up: meanwhile it has the store's lock. */
#define COUNT_MS 1000

#define NOT_DUE INFINITY
#define FOLDERS_MAX 64
/* The limit of lines about files that appear, until hl_keep_all_anew. */
#define APPEARED_MAX 20

struct held {
    ino_t inode;
    void *at;
    uint64_t bytes;
};

struct kept {
    bool is_there;     /* in the store */
    bool is_unmounted; /* the file system with the original is gone */
    char *origin, *key;
    int watch; /* of the original, or -1 */
    size_t n_folders;
    int folder[FOLDERS_MAX];
    size_t n_held;
    struct held *held;
    double due, done; /* hl_now_ms */
    double
        patience; /* until it is tried again, after attempts in vain; 0: there was none since the last success */
    double gone_since; /* the original; 0: it is there */
    bool has_appeared; /* lines about it are limited */
    char *said;        /* its last error, which is not printed again */
};

struct hl_keeper {
    char *path;
    int events;
    int store; /* the watch of the store's folder, or -1 */
    bool changed;
    unsigned said_appeared;               /* lines about files that appeared, since hl_keep_all_anew */
    int watch_said, find_said, lock_said; /* errors of watching, finding, locking the store, printed once */
    size_t n;
    struct kept *kept;
    double next, next_events; /* before that no file is due, and no events are read, */
    double next_store;        /* and no new files are looked for, as there is no store to use */
    const struct hl_configuration *configuration;
    const char *source;       /* the path of that, */
    struct timespec mistaken; /* and its ctime when it had a mistake, which was printed */
    struct hl_lookout *lookout;
    struct hl_placer placer;
    struct hl_keeper_counts counts;
};

/* --- holding --- */

static void release(struct kept *kept) {
    for (size_t i = 0; i < kept->n_held; i++)
        munmap(kept->held[i].at, kept->held[i].bytes);
    free(kept->held);
    kept->held = NULL;
    kept->n_held = 0;
}

/* Maps all of IMAGE, and each page of it by an entry of its own. */
static void hold_file(struct kept *kept, const struct hl_geometry *geometry, int image) {
    uint64_t unit = geometry->huge_page_bytes;
    struct stat stat;
    if (fstat(image, &stat) != 0 || stat.st_size == 0 || unit == 0)
        return;
    uint64_t bytes = hl_round_up((uint64_t)stat.st_size, unit);
    char *room = mmap(NULL, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return;
    char *at = (char *)hl_round_up((uint64_t)room, unit);
    if (at > room)
        munmap(room, (size_t)(at - room));
    munmap(at + bytes, (size_t)(room + unit - at));
    /* Shared and not executable, by which hl_count_processes knows it. */
    if (mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, image, 0) != at) {
        munmap(at, bytes);
        return;
    }
    for (uint64_t page = 0; page < (uint64_t)stat.st_size; page += unit)
        (void)*(volatile char *)(at + page);
    kept->held = hl_xrealloc(kept->held, (kept->n_held + 1) * sizeof *kept->held);
    kept->held[kept->n_held++] = (struct held){stat.st_ino, at, bytes};
}

/* Whether the held files are those that the store has. */
static bool holds(const struct kept *kept, const struct hl_store_item *item) {
    return kept->n_held == 1 && kept->held[0].inode == item->inode;
}

static void hold_link(struct kept *kept, const struct hl_store *store, const char *link) {
    char *path = hl_xasprintf("%s/%s", kept->key, link);
    int image = openat(store->folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (image < 0)
        return;
    hold_file(kept, &store->geometry, image);
    close(image);
}

static void hold(struct kept *kept, const struct hl_store *store, const struct hl_store_item *item) {
    if (holds(kept, item)) /* a file in place has no image to hold */
        return;
    release(kept);
    hold_link(kept, store, HL_IMAGE_LINK);
}

/* --- watching --- */

/* Prints the error of a file that appeared.  A user who may write such files could fill the log by them.  False: it was not
   printed. */
static bool say_appeared(struct hl_keeper *keeper, const char *path, const char *sentence) {
    if (keeper->said_appeared++ < APPEARED_MAX) {
        hl_warn("%s: %s", path, sentence);
        return true;
    }
    if (keeper->said_appeared == APPEARED_MAX + 1)
        hl_warn(
            "service: nothing more is said about enabled files that appear until the hour is over; hugeld "
            "service status lists those that are pending");
    return false;
}

/* Prints SENTENCE if it is new, and keeps it; NULL: there is no error any more. */
static void say_once(struct hl_keeper *keeper, struct kept *kept, char *sentence) {
    bool is_new = sentence != NULL && (kept->said == NULL || strcmp(kept->said, sentence) != 0);
    if (is_new && kept->has_appeared && !say_appeared(keeper, kept->origin, sentence)) {
        free(sentence);
        sentence = NULL;
    } else if (is_new && !kept->has_appeared) {
        hl_warn("%s: %s", kept->origin, sentence);
    }
    free(kept->said);
    kept->said = sentence;
}

/* Like inotify_add_watch(2), for PATH, unless its file system may not answer. */
static int watch_path(const struct hl_keeper *keeper, struct hl_local *local, const char *path, bool follows,
                      uint32_t events) {
    struct stat status;
    char name[64];
    int file = hl_open_local(local, path, follows, &status);
    if (file < 0) {
        errno = -file;
        return -1;
    }
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    int watch = inotify_add_watch(keeper->events, name, events);
    int error = errno;
    close(file);
    errno = error;
    return watch;
}

static void watch_origin(struct hl_keeper *keeper, struct kept *kept) {
    struct hl_local local = {0};
    if (kept->origin[0] != '/')
        return;
    kept->watch = watch_path(keeper, &local, kept->origin, false, ORIGIN_EVENTS);
    if (kept->watch < 0 && errno == ENOSPC)
        say_once(keeper, kept, hl_xasprintf("it cannot be watched; raise fs.inotify.max_user_watches"));
    char *path = hl_xasprintf("%s", kept->origin);
    kept->n_folders = 0;
    for (char *end; (end = strrchr(path, '/')) != NULL && kept->n_folders < FOLDERS_MAX;) {
        *end = '\0';
        int watch = watch_path(keeper, &local, path[0] != '\0' ? path : "/", true, FOLDER_EVENTS);
        if (watch >= 0)
            kept->folder[kept->n_folders++] = watch;
    }
    hl_close_local(&local);
    free(path);
}

static void unwatch(const struct hl_keeper *keeper, struct kept *kept) {
    /* The folders stay watched: others share them, and they are few. */
    if (kept->watch >= 0)
        inotify_rm_watch(keeper->events, kept->watch);
    kept->watch = -1;
    kept->n_folders = 0;
}

static bool is_about(const struct kept *kept, int watch) {
    bool found = kept->watch == watch;
    for (size_t i = 0; i < kept->n_folders && !found; i++)
        found = kept->folder[i] == watch;
    return found;
}

static void set_due(struct kept *kept, double wait) {
    double at = hl_now_ms() + wait, earliest = kept->done + REST;
    if (at < earliest)
        at = earliest;
    if (at < kept->due)
        kept->due = at;
}

/* Opens and locks the store.  0; -EWOULDBLOCK: another process has the lock; or another negated errno: there is none, or the
   error was printed once. */
static int open_store(struct hl_keeper *keeper, struct hl_store *store) {
    int result = hl_find_store_again(store, keeper->path, &keeper->find_said);
    if (result != 0)
        return result;
    result = hl_lock_store(store, false);
    if (result != 0 && result != -EWOULDBLOCK && result != keeper->lock_said)
        hl_warn("%s: the store cannot be locked: %s; make it writable", keeper->path, strerror(-result));
    if (result != -EWOULDBLOCK)
        keeper->lock_said = result;
    if (result == 0)
        store->placer = &keeper->placer;
    else
        hl_close_store(store);
    return result;
}

/* The same for KEPT, which is tried again after false. */
static bool lock_store(struct hl_keeper *keeper, struct hl_store *store, struct kept *kept) {
    kept->done = hl_now_ms();
    int result = open_store(keeper, store);
    kept->due = kept->done + (result == -EWOULDBLOCK ? REST : PATIENCE);
    return result == 0;
}

/* The device of the original. */
static dev_t find_device(const struct kept *kept) {
    uint64_t device = 0;
    sscanf(kept->key, "0x%" SCNx64 "-", &device);
    return device;
}

/* The file system with the original is gone, and its numbers may belong to another next: so no file is looked at. */
static void drop(struct hl_keeper *keeper, struct kept *kept) {
    struct hl_store store;
    if (!lock_store(keeper, &store, kept))
        return;
    int result = hl_remove_store_item(&store, kept->key);
    keeper->counts.removed += result == 0;
    kept->is_unmounted = result != 0 && result != -ENOENT;
    hl_forget_device(keeper->lookout, find_device(kept));
    keeper->changed = true;
    hl_close_store(&store);
}

/* An event with a name is about a file in a watched folder.  In /tmp any user causes these, and the folders above an original
   are watched for changes of their own only. */
static void handle_event(struct hl_keeper *keeper, const struct inotify_event *event) {
    if (event->len > 0 && event->wd != keeper->store)
        return;
    if (event->wd == keeper->store || (event->mask & IN_Q_OVERFLOW)) {
        keeper->changed = true;
        if (event->mask & (IN_IGNORED | IN_UNMOUNT))
            keeper->store = -1;
    }
    for (size_t i = 0; i < keeper->n; i++) {
        struct kept *kept = &keeper->kept[i];
        if (!(event->mask & IN_Q_OVERFLOW) && !is_about(kept, event->wd))
            continue;
        set_due(kept, SETTLES);
        if (event->mask & IN_UNMOUNT) { /* also of its folder alone, when the file was removed just before */
            kept->is_unmounted = true;
            drop(keeper, kept);
        }
        if (event->wd == kept->watch && (event->mask & (IN_IGNORED | IN_MOVE_SELF | IN_DELETE_SELF)))
            keeper->changed = true; /* the path may lead to another file now */
        if (event->wd == kept->watch && (event->mask & IN_IGNORED))
            kept->watch = -1;
    }
}

/* A user who can write a folder beside an original's, such as /tmp, can cause events without end: only those of one read are
   taken. */
static void read_events(struct hl_keeper *keeper) {
    char buffer[1 << 16] __attribute__((aligned(__alignof__(struct inotify_event))));
    const struct inotify_event *event;
    double now = hl_now_ms();
    ssize_t bytes = now < keeper->next_events ? 0 : read(keeper->events, buffer, sizeof buffer);
    if (bytes > 0)
        keeper->next_events = now + EVENTS_LOOK;
    for (char *at = buffer; at < buffer + bytes; at += sizeof *event + event->len) {
        event = (const struct inotify_event *)(const void *)at;
        handle_event(keeper, event);
    }
}

/* --- following the store --- */

static void forget(const struct hl_keeper *keeper, struct kept *kept) {
    release(kept);
    unwatch(keeper, kept);
    free(kept->origin);
    free(kept->key);
    free(kept->said);
}

static struct kept *find_key(const struct hl_keeper *keeper, const char *key) {
    for (size_t i = 0; i < keeper->n; i++)
        if (strcmp(keeper->kept[i].key, key) == 0)
            return &keeper->kept[i];
    return NULL;
}

/* The entry of ITEM: by its KEY, or else by its original, if that has a new key; a new one is added. */
static struct kept *find_kept(struct hl_keeper *keeper, const struct hl_store_item *item) {
    struct kept *same = find_key(keeper, item->key);
    if (same != NULL)
        return same;
    for (size_t i = 0; i < keeper->n; i++)
        if (!keeper->kept[i].is_there && strcmp(keeper->kept[i].origin, item->origin) == 0)
            return &keeper->kept[i];
    keeper->kept = hl_xrealloc(keeper->kept, (keeper->n + 1) * sizeof *keeper->kept);
    struct kept *kept = &keeper->kept[keeper->n++];
    *kept = (struct kept){.origin = hl_xasprintf("%s", item->origin),
                          .key = hl_xasprintf("%s", item->key),
                          .watch = -1,
                          .due = NOT_DUE,
                          .done = -REST};
    return kept;
}

/* Sets when KEPT has to be looked at again; its item was just found in STATE. */
static void judge(struct kept *kept, enum hl_item_state state) {
    if (state != HL_ITEM_GONE)
        kept->gone_since = 0;
    switch (state) {
    case HL_ITEM_FRESH:
        break;
    case HL_ITEM_GONE: /* it may be about to come back */
        set_due(kept, PATIENCE);
        break;
    case HL_ITEM_PENDING:
    case HL_ITEM_UNREADABLE:
    case HL_ITEM_REMOTE:
        set_due(kept, fmax(kept->patience, PATIENCE));
        break;
    default:
        set_due(kept, fmax(kept->patience, SETTLES));
    }
}

static void follow_image(struct hl_keeper *keeper, const struct hl_store *store,
                         const struct hl_store_item *item) {
    struct kept *kept = find_kept(keeper, item);
    if (strcmp(kept->key, item->key) != 0) {
        free(kept->key);
        kept->key = hl_xasprintf("%s", item->key);
        unwatch(keeper, kept); /* the path may have another file now */
        kept->is_unmounted = false;
    }
    kept->is_there = true;
    if (kept->watch < 0)
        watch_origin(keeper, kept);
    hold(kept, store, item);
    keeper->counts.huge_pages += item->huge_pages;
    keeper->counts.pending += item->state == HL_ITEM_PENDING;
    judge(kept, item->state);
}

/* Notes which entries are among ITEMS by their own key. */
static void mark_present(struct hl_keeper *keeper, const struct hl_store_item *items, size_t n) {
    for (size_t i = 0; i < keeper->n; i++) {
        keeper->kept[i].is_there = false;
        for (size_t j = 0; j < n; j++)
            keeper->kept[i].is_there |= strcmp(keeper->kept[i].key, items[j].key) == 0;
    }
}

/* Holds and watches the present contents of the open STORE, and nothing else. */
static void follow_store(struct hl_keeper *keeper, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n, left = 0;
    if (!hl_read_store(store, &items, &n)) {
        hl_free_store_items(items, n);
        return; /* the held images stay */
    }
    keeper->counts.huge_pages = 0;
    keeper->counts.pending = 0;
    mark_present(keeper, items, n);
    for (size_t i = 0; i < n; i++)
        follow_image(keeper, store, &items[i]);
    for (size_t i = 0; i < keeper->n; i++) {
        if (keeper->kept[i].is_there)
            keeper->kept[left++] = keeper->kept[i];
        else
            forget(keeper, &keeper->kept[i]);
    }
    keeper->n = left;
    keeper->counts.images = (unsigned)left;
    hl_free_store_items(items, n);
}

static void forget_all(struct hl_keeper *keeper) {
    for (size_t i = 0; i < keeper->n; i++)
        forget(keeper, &keeper->kept[i]);
    keeper->n = 0;
    keeper->counts.images = keeper->counts.pending = 0;
    keeper->counts.huge_pages = 0;
}

/* Another file system may be mounted at its path now, while the old one is there for as long as its images are held: no event
   tells that, and its images may have the same numbers. */
static void watch_store(struct hl_keeper *keeper) {
    int watch = inotify_add_watch(keeper->events, keeper->path, STORE_EVENTS);
    int error = watch < 0 && errno != ENOENT ? errno : 0;
    if (error != 0 && error != keeper->watch_said)
        hl_warn("%s: the store cannot be watched: %s%s", keeper->path, strerror(error),
                error == ENOSPC ? "; raise fs.inotify.max_user_watches" : "");
    keeper->watch_said = error;
    if (watch == keeper->store)
        return;
    if (keeper->store >= 0)
        inotify_rm_watch(keeper->events, keeper->store);
    forget_all(keeper);
    keeper->store = watch;
    keeper->changed = true;
}

/* Reads twice: a change before the watch shows in the second reading. */
static void follow(struct hl_keeper *keeper) {
    struct hl_store store;
    keeper->changed = false;
    if (hl_find_store_again(&store, keeper->path, &keeper->find_said) != 0) {
        forget_all(keeper);
        return;
    }
    follow_store(keeper, &store);
    follow_store(keeper, &store);
    hl_close_store(&store);
}

/* --- making right --- */

static void note_outcome(struct hl_keeper *keeper, struct kept *kept, struct hl_add_outcome *outcome) {
    bool failed = outcome->result == HL_SHARE_FAILED;
    keeper->counts.failed += failed;
    keeper->counts.refreshed += !failed;
    kept->patience =
        failed ? fmin(fmax(2 * kept->patience, PATIENCE), outcome->is_kept ? PATIENCE_KEPT : PATIENCE_MAX)
               : 0;
    if (failed)
        set_due(kept, kept->patience);
    say_once(keeper, kept, outcome->sentence != NULL ? hl_xasprintf("%s", outcome->sentence) : NULL);
    hl_free_add_outcome(outcome);
}

/* Whether the original may be gone for a moment only: a user who replaces a file by hand removes it first. */
static bool may_come_back(struct kept *kept, enum hl_item_state state) {
    double now = hl_now_ms();
    if (state != HL_ITEM_GONE)
        return false;
    if (kept->gone_since == 0)
        kept->gone_since = now;
    return now - kept->gone_since < PATIENCE;
}

static void refresh_item(struct hl_keeper *keeper, struct kept *kept, const struct hl_store *store,
                         const struct hl_store_item *item) {
    struct hl_add_outcome outcome;
    if (may_come_back(kept, item->state)) {
        set_due(kept, PATIENCE);
        return;
    }
    switch (hl_refresh_store_item(&outcome, store, item, HL_ADD_UNATTENDED | HL_ADD_WHEN_CALM)) {
    case HL_REFRESH_FINE:
        kept->patience = 0;
        return;
    case HL_REFRESH_REMOVED:
        keeper->counts.removed++;
        break;
    case HL_REFRESH_TRIED:
        note_outcome(keeper, kept, &outcome);
    }
    keeper->changed = true;
}

static void refresh_key(struct hl_keeper *keeper, struct kept *kept, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n, i = 0;
    hl_read_store(store, &items, &n);
    while (i < n && strcmp(items[i].key, kept->key) != 0)
        i++;
    if (i < n)
        refresh_item(keeper, kept, store, &items[i]);
    else
        keeper->changed = true;
    hl_free_store_items(items, n);
}

static void refresh(struct hl_keeper *keeper, struct kept *kept) {
    struct hl_store store;
    if (!lock_store(keeper, &store, kept))
        return;
    kept->due = NOT_DUE;
    refresh_key(keeper, kept, &store);
    hl_close_store(&store);
}

/* --- new files --- */

/* Reads the file of the configuration, if that is possible now: it may be about to be replaced, or to be corrected.  A mistake
   in it is printed once. hl_free_configuration frees it. */
static bool read_source(struct hl_keeper *keeper, struct hl_configuration *configuration) {
    struct stat status;
    if (stat(keeper->source, &status) != 0 ||
        memcmp(&status.st_ctim, &keeper->mistaken, sizeof keeper->mistaken) == 0)
        return false;
    if (hl_read_configuration(configuration, keeper->source) == 0)
        return true;
    keeper->mistaken = status.st_ctim;
    return false;
}

/* Whether ENTRY is in the configuration that was just read: `hugeld disable` may have taken it out, without a reload of the
   service. */
static bool is_enabled(const struct hl_configuration *configuration, const char *entry) {
    bool found = false;
    for (size_t i = 0; i < configuration->enabled.n && !found; i++)
        found = strcmp(configuration->enabled.text[i], entry) == 0;
    return found;
}

static bool has_origin(const struct hl_keeper *keeper, const char *path) {
    bool found = false;
    char *real = hl_find_local_path(path);
    for (size_t i = 0; real != NULL && i < keeper->n && !found; i++)
        found = strcmp(keeper->kept[i].origin, real) == 0;
    free(real);
    return found;
}

/* An image that could not be made, as OUTCOME says, is pending, and tried again, unless the store has that file by another
   path.  IS_SAID: the reason was printed, and it is taken over. */
static void note_pending(struct hl_keeper *keeper, const struct hl_store *store,
                         struct hl_add_outcome *outcome, unsigned marks, bool is_said) {
    struct hl_store_item pending = {.key = outcome->key.at, .origin = outcome->path, .marks = marks};
    if (outcome->path == NULL || find_key(keeper, outcome->key.at) != NULL ||
        hl_set_pending(store, &pending) != 0)
        return;
    follow_store(keeper, store);
    struct kept *kept = find_key(keeper, outcome->key.at);
    if (kept == NULL)
        return;
    kept->has_appeared = true;
    if (!is_said)
        return;
    kept->said = outcome->sentence;
    outcome->sentence = NULL;
}

/* Adds the file at PATH, which was not there before, to the open STORE.  Most files of a folder or a pattern are of no use. */
static void add(struct hl_keeper *keeper, const struct hl_store *store, const char *path, const char *entry,
                bool is_inside, bool was_there) {
    struct hl_add_outcome outcome;
    unsigned disk = keeper->configuration->any_disk ? HL_ADD_ANY_DISK : 0;
    hl_add_path(&outcome, store, path,
                disk | (is_inside ? HL_ADD_IF_WORTH : 0) | HL_ADD_UNATTENDED | HL_ADD_WHEN_CALM);
    bool failed = outcome.result == HL_SHARE_FAILED;
    bool is_named = strcmp(path, entry) == 0, is_said = was_there;
    if (!was_there && (failed || (outcome.result == HL_SHARE_NOTHING && is_named)))
        is_said = say_appeared(keeper, path, outcome.sentence);
    if (failed)
        note_pending(keeper, store, &outcome, disk, is_said);
    keeper->counts.failed += failed;
    keeper->counts.refreshed += outcome.result == HL_SHARE_MADE;
    keeper->changed |= outcome.result != HL_SHARE_NOTHING;
    hl_free_add_outcome(&outcome);
}

/* hl_handle_file */
static bool handle_file(void *keeper_, const char *path, const char *entry, bool is_inside, bool was_there) {
    struct hl_keeper *keeper = keeper_;
    struct hl_configuration configuration;
    struct hl_store store;
    if (has_origin(keeper, path))
        return true;
    if (hl_now_ms() < keeper->next_store)
        return false;
    if (!read_source(keeper, &configuration))
        return false;
    bool is_meant = is_enabled(&configuration, entry);
    hl_free_configuration(&configuration);
    if (!is_meant)
        return true;
    int result = open_store(keeper, &store);
    if (result != 0 && result != -EWOULDBLOCK)
        keeper->next_store = hl_now_ms() + STORE_LOOK;
    if (result != 0)
        return false;
    add(keeper, &store, path, entry, is_inside, was_there);
    hl_close_store(&store);
    return true;
}

static struct kept *find_next(const struct hl_keeper *keeper) {
    struct kept *first = NULL;
    for (size_t i = 0; i < keeper->n; i++)
        if (first == NULL || keeper->kept[i].due < first->due)
            first = &keeper->kept[i];
    return first;
}

/* Nothing is due before another rest. */
static void put_off(struct hl_keeper *keeper) {
    double rested = hl_now_ms() + REST;
    for (size_t i = 0; i < keeper->n; i++)
        if (keeper->kept[i].due < rested && !keeper->kept[i].is_unmounted)
            keeper->kept[i].due = rested;
    hl_look_out_later(keeper->lookout);
}

/* --- the interface --- */

struct hl_keeper *hl_start_keeping(const char *path, const struct hl_configuration *configuration,
                                   const char *source) {
    int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (events < 0) {
        hl_warn("files cannot be watched: %s; raise fs.inotify.max_user_instances", strerror(errno));
        return NULL;
    }
    struct hl_keeper *keeper = hl_xmalloc(sizeof *keeper);
    *keeper = (struct hl_keeper){.path = hl_xasprintf("%s", path),
                                 .events = events,
                                 .store = -1,
                                 .next = -INFINITY,
                                 .next_events = -INFINITY,
                                 .next_store = -INFINITY,
                                 .configuration = configuration,
                                 .source = source,
                                 .lookout = hl_start_looking_out()};
    keeper->placer.count_ms_max = COUNT_MS;
    watch_store(keeper);
    follow(keeper);
    return keeper;
}

void hl_stop_keeping(struct hl_keeper *keeper) {
    for (size_t i = 0; i < keeper->n; i++)
        forget(keeper, &keeper->kept[i]);
    close(keeper->events);
    hl_stop_looking_out(keeper->lookout);
    hl_free_placer(&keeper->placer);
    free(keeper->kept);
    free(keeper->path);
    free(keeper);
}

int hl_keeper_events(const struct hl_keeper *keeper) {
    return hl_now_ms() < keeper->next_events ? -1 : keeper->events;
}

int hl_keeper_timeout(const struct hl_keeper *keeper) {
    const struct kept *first = find_next(keeper);
    if (keeper->changed)
        return 0;
    double at = hl_find_look(keeper->lookout, keeper->configuration);
    if (first != NULL)
        at = fmin(at, fmax(first->due, keeper->next));
    double now = hl_now_ms();
    if (now < keeper->next_events)
        at = fmin(at, keeper->next_events);
    double wait = at - now;
    return wait > 0 ? (int)fmin(wait, STORE_LOOK) + 1 : 0;
}

void hl_keep(struct hl_keeper *keeper, bool makes) {
    read_events(keeper);
    watch_store(keeper);
    if (keeper->changed)
        follow(keeper);
    double now = hl_now_ms();
    for (size_t i = 0; i < keeper->n; i++)
        if (keeper->kept[i].is_unmounted && keeper->kept[i].due <= now)
            drop(keeper, &keeper->kept[i]);
    if (!makes) {
        put_off(keeper);
        return;
    }
    hl_look_out(keeper->lookout, keeper->configuration, handle_file, keeper);
    struct kept *first = find_next(keeper); /* not before: the entries may have moved */
    if (first == NULL || first->due > now || keeper->next > now)
        return;
    refresh(keeper, first);
    keeper->next = hl_now_ms() + PACE;
}

void hl_keep_configured(struct hl_keeper *keeper) { hl_look_out_anew(keeper->lookout); }

void hl_keep_all_anew(struct hl_keeper *keeper, bool all) {
    keeper->changed = true;
    keeper->said_appeared = 0;
    for (size_t i = 0; i < keeper->n; i++)
        if (all || keeper->kept[i].due == NOT_DUE)
            set_due(&keeper->kept[i], 0);
}

void hl_read_keeper(const struct hl_keeper *keeper, struct hl_keeper_counts *counts) {
    *counts = keeper->counts;
}
