/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Makes the image of a file in a store.

   The file is opened once, and all checks use that descriptor: its kind, its writers, its path, and its state before and after the
   copy.  So a process that replaces or overwrites it meanwhile gets at most an image that no process finds.  The image has no name
   while it is written, so that its memory is free at once if its maker is killed; it becomes visible by one rename of its folder,
   when it is complete and proved to be huge.  It has no holes: a user who reads one through a mapping would have it filled. */
#include "command/lib/common.h"
#include "command/image/eligible.h"
#include "command/image/find.h"
#include "command/image/image.h"
#include "command/image/in-place.h"
#include "elf/memory-limit.h"
#include "command/lib/remedy.h"
#include "elf/image.h"
#include "elf/reason.h"
#include "command/image/store.h"
#include "elf/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The kernel stamps files with the time of its last tick, so two changes within a tick look the same: a state must be older than a
   tick.  A file system that keeps whole seconds cuts the time off, too. */
#define TICKS_NEEDED 2
#define SECONDS_NEEDED 2
/* Without a lease, a file that is being written to must not have changed for so long. */
#define SETTLED_SECONDS 300
#define IMAGE_MODE 0555

/* The file that is being added, and its image. */
struct job {
    struct hl_add_outcome *outcome;
    const struct hl_store *store;
    const struct hl_elf_file *file;
    struct hl_file_state state;
    struct hl_image image;
    unsigned flags;    /* HL_ADD_* */
    bool has_no_lease; /* it cannot be determined whether the file has a writer */
    const char *name;  /* the image's: the original's base name */
    char digest[HL_DIGEST_TEXT];
    int folder; /* .new in the store */
};

/* Notes why there is no image; takes SENTENCE over.  The result is always false. */
static bool fail(struct job *job, enum hl_share_result result, char *sentence) {
    job->outcome->result = result;
    free(job->outcome->sentence);
    job->outcome->sentence = sentence;
    return false;
}

/* The same for a reason that passes, REASON in one word. */
static bool fail_for_now(struct job *job, const char *reason, char *sentence) {
    job->outcome->is_pending = true;
    job->outcome->reason = reason;
    return fail(job, HL_SHARE_FAILED, sentence);
}

static bool refuse(struct job *job, enum hl_reason reason) {
    bool gains_nothing =
        reason == HL_REASON_TOO_SMALL || reason == HL_REASON_SPARSE_TEXT || reason == HL_REASON_IMAGE_USELESS;
    job->outcome->reason = hl_reason_name(reason);
    return fail(job, gains_nothing ? HL_SHARE_NOTHING : HL_SHARE_FAILED,
                gains_nothing && reason != HL_REASON_IMAGE_USELESS
                    ? hl_xasprintf("%s", hl_reason_sentence(reason))
                    : hl_explain_reason(reason, job->outcome->path != NULL ? job->outcome->path : "FILE"));
}

/* --- the file --- */

/* Whether another process has the file open for writing: a lease for reading is refused then.  An earlier mapping for writing
   counts, too: its stores need not show in ctime.  Only the file's owner and CAP_LEASE may ask (fs.leases-enable). */
enum writer { NO_WRITER, WRITER, WRITER_UNKNOWN };
static enum writer find_writer(int file) {
    struct sigaction inherited, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGIO, &ignore, &inherited); /* sent if a writer opens the file just now */
    bool granted = fcntl(file, F_SETLEASE, F_RDLCK) == 0;
    enum writer writer = granted ? NO_WRITER : errno == EAGAIN ? WRITER : WRITER_UNKNOWN;
    if (granted)
        fcntl(file, F_SETLEASE, F_UNLCK);
    sigaction(SIGIO, &inherited, NULL);
    return writer;
}

/* If it is not known whether the file has a writer, each change must show in ctime.  So fsync cleans the pages that processes have
   mapped for writing: the next store to a clean page sets ctime, and a store to a dirty one does not.  A long write(2) sets ctime
   when it begins, so await_age refuses a young file then.  False: it is impossible. */
static bool make_changes_show(struct job *job) {
    job->has_no_lease = find_writer(job->file->fd) == WRITER_UNKNOWN;
    return !job->has_no_lease || fsync(job->file->fd) == 0 || errno == EROFS || errno == EINVAL ||
           fail_for_now(job, "changing",
                        hl_xasprintf("it cannot be written back: %s; try again", strerror(errno)));
}

/* Whether there is a store, or would be one after a dry run. */
static bool has_store(const struct job *job) {
    return job->store->folder >= 0 || (job->flags & HL_ADD_DRY) != 0;
}

static bool check_file(struct job *job) {
    const struct hl_elf_file *file = job->file;
    struct stat now;
    if (!S_ISREG(file->stat.st_mode))
        return fail(job, HL_SHARE_FAILED, hl_xasprintf("it is no regular file"));
    if (!hl_is_native(file))
        return fail(job, HL_SHARE_NOTHING, hl_xasprintf("it is for another machine"));
    if (hl_has_privileges(file))
        return refuse(job, HL_REASON_PRIVILEGED);
    job->outcome->path = hl_find_file_path(file->fd);
    if (job->outcome->path == NULL || fstat(file->fd, &now) != 0 || now.st_nlink == 0)
        return fail(job, HL_SHARE_FAILED, hl_xasprintf("it has been removed or replaced; name it again"));
    job->name = strrchr(job->outcome->path, '/') + 1;
    int unknown = 0;
    /* Without a store it can only be in place, and what that needs is asked there. */
    if (!has_store(job) && !(job->flags & HL_ADD_IN_PLACE))
        return true;
    char *sentence = hl_explain_unsteady(file->fd, job->flags & HL_ADD_ANY_DISK);
    if (sentence != NULL && !(job->flags & HL_ADD_ANY_DISK))
        job->outcome->reason = HL_OTHER_DISK;
    /* Of a file that is only put in place, the store shows nothing but the path. */
    if (sentence == NULL && job->store->for_all && !(job->flags & HL_ADD_IN_PLACE))
        sentence = hl_explain_private(file->fd, job->outcome->path, &unknown);
    if (sentence != NULL && unknown != 0)
        return fail_for_now(job, "unknown", sentence);
    return sentence == NULL || fail(job, HL_SHARE_FAILED, sentence);
}

/* After note_coverage.  If there is none, the plan says what is wrong. */
static bool has_enough_text(struct job *job) {
    uint64_t bytes = job->outcome->text_bytes;
    return bytes == 0 || bytes >= hl_find_least_text_bytes(&job->store->geometry) ||
           refuse(job, HL_REASON_SPARSE_TEXT);
}

/* Nanoseconds since the state that was read; negative in the future.  By the clock that stamps files. */
static int64_t find_age(const struct job *job) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return ((int64_t)now.tv_sec - (int64_t)job->state.ctime_seconds) * 1000000000 +
           ((int64_t)now.tv_nsec - (int64_t)job->state.ctime_nanoseconds);
}

/* Waits until the state is so old that a later change of the file has another ctime. */
static bool await_age(struct job *job) {
    struct timespec tick;
    clock_getres(CLOCK_REALTIME_COARSE, &tick);
    int64_t age, needed = TICKS_NEEDED * ((int64_t)tick.tv_sec * 1000000000 + tick.tv_nsec);
    if (job->state.ctime_nanoseconds == 0)
        needed += SECONDS_NEEDED * INT64_C(1000000000);
    while ((age = find_age(job)) >= -needed && age <= needed) {
        int64_t left = needed - age + 1000000;
        nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
    }
    if (age < -needed)
        return fail_for_now(job, "changing",
                            hl_xasprintf("its ctime is in the future; fix the clock, then touch it"));
    if (job->has_no_lease && age < INT64_C(1000000000) * SETTLED_SECONDS)
        return fail_for_now(
            job, "changing",
            hl_xasprintf(
                "it changed in the last %d minutes, and only its owner and root can see whether it is "
                "still being written to; add it later, or let one of them do it",
                SETTLED_SECONDS / 60));
    return true;
}

static bool is_unchanged(struct job *job) {
    struct hl_file_state state;
    if (find_writer(job->file->fd) != WRITER && hl_read_file_state(&state, job->file->fd) == 0 &&
        hl_is_same_state(&state, &job->state))
        return true;
    return fail_for_now(
        job, "changing",
        hl_xasprintf(
            "it is being written to, or was changed or replaced meanwhile; the next hugeld apply tries "
            "again"));
}

/* --- space --- */

static bool fail_for_space(struct job *job, const char *reason, const char *of_what, uint64_t needed,
                           uint64_t there, const char *remedy) {
    return fail_for_now(job, reason,
                        hl_xasprintf("its image takes %" PRIu64 " MiB, and %s has only %" PRIu64
                                     " MiB left; %s",
                                     needed >> 20, of_what, there >> 20, remedy));
}

static bool check_store(struct job *job) {
    return has_store(job) ||
           fail_for_now(job, "no-store", hl_xasprintf("there is no store in this container"));
}

/* The setting is for the machine's store alone. */
static const char *find_room(const struct hl_store *store) {
    return store->for_all ? "disable other files, or enlarge it: store_size in hugeld.conf"
                          : "disable other files";
}

/* Before anything is written, since processes are killed if the memory is missing. */
static bool check_space(struct job *job) {
    const struct hl_store *store = job->store;
    uint64_t needed;
    if (!hl_fits_store(&job->image, &store->geometry, &needed))
        return refuse(job, HL_REASON_TOO_SPARSE);
    if (needed > hl_store_free_bytes(store))
        return fail_for_space(job, HL_STORE_FULL, "the store", needed, hl_store_free_bytes(store),
                              find_room(store));
    int64_t there = (int64_t)hl_free_memory_bytes() - store->planned;
    if (there < 0 || needed > (uint64_t)there)
        return fail_for_space(job, "memory", "the machine or a memory limit", needed,
                              there > 0 ? (uint64_t)there : 0, "free memory, or raise the limit");
    /* The image cannot be dropped or swapped, so it would take memory that other programs need next. */
    int64_t bytes = (int64_t)needed + store->planned;
    return hl_leaves_margin(bytes > 0 ? (uint64_t)bytes : 0) ||
           fail_for_now(job, "memory",
                        hl_xasprintf("its image takes %" PRIu64
                                     " MiB, and less than %d %% of the memory would stay "
                                     "available; free memory",
                                     needed >> 20, HL_AVAILABLE_MIN));
}

/* --- writing --- */

/* Makes .new in the store, which is locked. */
static bool make_folder(struct job *job) {
    unsigned marks = job->flags & (HL_ADD_ANY_DISK | HL_ADD_IN_PLACE);
    job->folder = hl_make_new_folder(job->store, marks);
    return job->folder >= 0 ||
           fail_for_now(
               job, "store",
               hl_xasprintf("the store cannot be written to: %s; make it writable, or " HL_NAME_ANOTHER_STORE,
                            strerror(-job->folder)));
}

static bool fail_to_write(struct job *job, int result) {
    if (result > 0)
        return refuse(job, (enum hl_reason)result);
    if (result == -ENOSPC || result == -EDQUOT)
        return fail_for_now(job, HL_STORE_FULL, hl_xasprintf("the store is full; %s", find_room(job->store)));
    return fail_for_now(job, "store",
                        hl_xasprintf("its image cannot be written: %s; %s", strerror(-result),
                                     result == -EFBIG ? "raise the limit of files' sizes: ulimit -f"
                                                      : "free memory and try again"));
}

/* Proves that OUT is on huge pages only, *PAGES of them; else there is no image. */
static bool prove(struct job *job, int out, uint64_t *pages) {
    uint64_t small = 0;
    *pages = 0;
    int result = hl_prove_huge(&job->store->geometry, out, true, pages, &small);
    if (result == -EOPNOTSUPP)
        return fail(
            job, HL_SHARE_FAILED,
            hl_xasprintf(
                "this kernel makes no huge pages in such a folder (Linux 6.12 and newer do); let root "
                "enable it"));
    if (result == 0 && small > 0)
        result = -ENOMEM;
    if (result == -ENOMEM)
        return fail_for_now(job, "no-huge-page",
                            hl_xasprintf("%" PRIu64
                                         " of its pages did not become huge; free or compact memory: echo "
                                         "1 > /proc/sys/vm/compact_memory",
                                         small));
    return result == 0 ||
           fail_for_now(job, "unknown",
                        hl_xasprintf("cannot verify that the image is on huge pages: %s; mount /proc",
                                     strerror(-result)));
}

/* Proves it for one huge page of zeros first: if that cannot be huge, the whole image would be written in vain. */
static bool prove_first_page(struct job *job, int out) {
    uint64_t unit = job->store->geometry.huge_page_bytes, pages;
    uint64_t bytes = job->image.bytes < unit ? job->image.bytes : unit;
    char *zeros = hl_xmalloc(bytes);
    ssize_t put = ftruncate(out, (off_t)job->image.bytes) == 0 ? pwrite(out, zeros, bytes, 0) : -1;
    int error = put < 0 ? errno : ENOSPC;
    free(zeros);
    return put == (ssize_t)bytes ? prove(job, out, &pages) : fail_to_write(job, -error);
}

/* Whether a process would take the image in OUT, by the core's own check. */
static bool is_acceptable(struct job *job, int out) {
    const struct hl_geometry *geometry = &job->store->geometry;
    struct hl_object object;
    return (hl_load_object(&object, job->file, "", 0, geometry) == 0 &&
            hl_check_image(&object, out, geometry) == 0) ||
           fail(job, HL_SHARE_FAILED,
                hl_xasprintf("no process would take its image (it has more than 64 program headers, or they "
                             "are unusual); use hugeld run --copy"));
}

static bool give_name(struct job *job, int out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", out);
    return linkat(AT_FDCWD, path, job->folder, job->name, AT_SYMLINK_FOLLOW) == 0 ||
           fail_to_write(job, -errno);
}

/* Writes the image into job->folder. */
static bool write_image(struct job *job) {
    bool done = false;
    int out = openat(job->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    bool named = out < 0; /* this file system has no files without a name */
    if (named)
        out = openat(job->folder, job->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return fail_to_write(job, -errno);
    if (!prove_first_page(job, out)) {
        close(out);
        return false;
    }
    uint64_t pages;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, job->file->stat.st_mtim};
    int result = fallocate(out, 0, 0, (off_t)job->image.bytes) != 0 ? -errno : 0;
    if (result == 0)
        result = hl_write_image(&job->image, job->file, out);
    if (result == 0 && futimens(out, times) != 0)
        result = -errno;
    if (result == 0 && fchmod(out, IMAGE_MODE) != 0)
        result = -errno;
    if (result == 0)
        result = hl_digest_image(job->digest, out);
    if (result != 0)
        fail_to_write(job, result);
    else
        done = is_acceptable(job, out) && prove(job, out, &pages) && (named || give_name(job, out));
    job->outcome->huge_pages = done ? pages : 0;
    close(out);
    return done;
}

static bool link_to(struct job *job, const char *target, const char *name) {
    return symlinkat(target, job->folder, name) == 0 || fail_to_write(job, -errno);
}

/* One rename makes the folder visible, if it IS_COMPLETE; else it is removed. */
static bool publish(struct job *job, bool is_complete) {
    int result = is_complete ? hl_publish_folder(job->store, job->outcome->key.at) : 0;
    bool done = result == 0 ? is_complete : fail_to_write(job, result);
    if (job->folder >= 0)
        close(job->folder);
    if (done)
        job->outcome->result = HL_SHARE_MADE;
    else
        hl_remove_leftovers(job->store);
    return done;
}

static void make_image(struct job *job) {
    if (job->flags & HL_ADD_DRY) {
        uint64_t bytes;
        hl_fits_store(&job->image, &job->store->geometry, &bytes);
        job->outcome->huge_pages = bytes / job->store->geometry.huge_page_bytes;
        job->outcome->result = HL_SHARE_MADE;
        return;
    }
    publish(job, make_folder(job) && write_image(job) && is_unchanged(job) &&
                     link_to(job, job->name, HL_IMAGE_LINK) && link_to(job, job->digest, HL_DIGEST_LINK) &&
                     link_to(job, job->outcome->path, HL_ORIGIN_LINK));
}

/* --- in place --- */

/* Whether the store has a record that the file is in place; with REMOVES_OLD, records of earlier versions of the file are
   removed. */
static bool is_recorded(const struct job *job, bool removes_old) {
    const struct hl_add_outcome *outcome = job->outcome;
    struct hl_store_item *items;
    size_t n;
    hl_read_items_of(job->store, outcome->path, &items, &n);
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        if (!items[i].is_in_place)
            continue;
        if (strcmp(items[i].key, outcome->key.at) == 0)
            found = true;
        else if (removes_old)
            hl_remove_store_item(job->store, items[i].key);
    }
    hl_free_store_items(items, n);
    return found;
}

/* Records in the store that the file is in place, instead of an image that it may have there. */
static bool record(struct job *job) {
    if ((job->flags & HL_ADD_DRY) || job->store->folder < 0 || is_recorded(job, true)) {
        job->outcome->result = HL_SHARE_MADE;
        return true;
    }
    job->flags |= HL_ADD_IN_PLACE;
    return publish(job, make_folder(job) && link_to(job, job->outcome->path, HL_ORIGIN_LINK));
}

/* Makes CHUNKS huge, and records the file as in place.  False: this kernel or file system cannot, so it gets an
   image.  What only the moment forbids is tried again later: the way does not depend on the moment. */
static bool put_in_place(struct job *job, struct hl_chunks *chunks) {
    struct hl_add_outcome *outcome = job->outcome;
    bool forced = (job->flags & HL_ADD_IN_PLACE) != 0;
    bool was_huge = hl_huge_text_bytes(chunks) == chunks->n_chunks * chunks->chunk_bytes;
    job->store->collapser->only_looks = (job->flags & HL_ADD_DRY) != 0;
    char *why = hl_make_huge_in_place(job->store->collapser, chunks, job->file, outcome->path);
    uint64_t huge_bytes = hl_huge_text_bytes(chunks);
    if (huge_bytes == 0 || !(forced || hl_covers_enough(huge_bytes, chunks->text_bytes))) {
        if (chunks->obstacle != NULL)
            return !fail_for_now(job, chunks->obstacle, why);
        if (forced)
            fail(job, HL_SHARE_FAILED, why);
        else
            outcome->not_in_place = why;
        return forced;
    }
    bool was_recorded = is_recorded(job, false);
    if (record(job)) {
        outcome->is_in_place = true;
        outcome->text_bytes = chunks->text_bytes;
        outcome->text_huge_bytes = huge_bytes;
        outcome->huge_pages = huge_bytes / chunks->chunk_bytes;
        outcome->sentence = why;
        if (was_recorded && was_huge)
            outcome->result = HL_SHARE_PRESENT;
    } else {
        free(why);
    }
    return true;
}

/* Tries the mildest way.  True: the file is in place, or must be in place or nowhere; the result is in OUTCOME. */
static bool add_in_place(struct job *job) {
    struct hl_chunks chunks;
    bool forced = (job->flags & HL_ADD_IN_PLACE) != 0, done = forced;
    if (job->flags & HL_ADD_IMAGE)
        return false;
    int result = hl_examine_chunks(&chunks, job->file, &job->store->geometry);
    if (result != 0) {
        if (result > 0 && forced)
            refuse(job, (enum hl_reason)result);
        else if (forced)
            fail(job, HL_SHARE_FAILED,
                 hl_xasprintf("its pages cannot be looked at: %s; run it as root", strerror(-result)));
        if (result == -EPERM)
            hl_free_chunks(&chunks);
        return forced;
    }
    if (forced || hl_covers_enough(chunks.n_chunks * chunks.chunk_bytes, chunks.text_bytes))
        done = put_in_place(job, &chunks);
    hl_free_chunks(&chunks);
    return done;
}

/* Whether the image of ITEM is huge and equal to one made now. */
static bool is_as_made_now(struct job *job, const struct hl_store_item *item) {
    char *path = hl_xasprintf("%s/" HL_IMAGE_LINK, item->key);
    uint64_t pages, small;
    int image = openat(job->store->folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool same = image >= 0 && hl_compare_written(&job->image, job->file, image) == 0 &&
                hl_prove_huge(&job->store->geometry, image, true, &pages, &small) == 0 && small == 0;
    if (image >= 0)
        close(image);
    free(path);
    return same;
}

/* If only the ctime of the file has changed since its image was made: gives the image its new key.  The state is read before the
   bytes are compared and is the same afterwards, as with a copy. */
static bool give_new_key(struct job *job) {
    const struct hl_store *store = job->store;
    struct hl_store_item *items;
    size_t n;
    hl_read_items_of(store, job->outcome->path, &items, &n);
    bool done = false;
    for (size_t i = 0; i < n && !done; i++)
        done = items[i].state == HL_ITEM_TOUCHED && is_as_made_now(job, &items[i]) && is_unchanged(job) &&
               ((job->flags & HL_ADD_DRY) ||
                renameat(store->folder, items[i].key, store->folder, job->outcome->key.at) == 0);
    hl_free_store_items(items, n);
    if (done)
        job->outcome->result = HL_SHARE_PRESENT;
    return done;
}

static bool is_present(const struct job *job) {
    struct hl_line path;
    struct hl_file_state image_state = {0};
    long image =
        hl_open_image_in_store(job->store->folder, job->store->owner, &job->state, &path, &image_state);
    if (image >= 0)
        close((int)image);
    return image >= 0;
}

/* Notes how much of the text the image brings onto huge pages, by the way of starting that brings most.  False: none. */
static bool note_coverage(struct job *job) {
    struct hl_add_outcome *outcome = job->outcome;
    struct hl_coverage coverage;
    if (hl_find_coverage(&coverage, job->file, &job->store->geometry) != 0)
        return true; /* the plan says what is wrong */
    outcome->text_bytes = coverage.text_bytes;
    outcome->text_huge_bytes =
        coverage.executed_bytes > coverage.mapped_bytes ? coverage.executed_bytes : coverage.mapped_bytes;
    return outcome->text_huge_bytes > 0;
}

static void add_file(struct hl_add_outcome *outcome, const struct hl_store *store,
                     const struct hl_elf_file *file, unsigned flags) {
    const struct stat *status = &file->stat;
    struct job job = {.outcome = outcome, .store = store, .file = file, .flags = flags, .folder = -1};
    memset(outcome, 0, sizeof *outcome);
    /* From before the headers were read and who may read it is checked, so that a change since then shows. */
    job.state = (struct hl_file_state){status->st_dev, status->st_ino, (uint64_t)status->st_size,
                                       (uint64_t)status->st_ctim.tv_sec, (uint64_t)status->st_ctim.tv_nsec};
    hl_set_image_key(&outcome->key, &job.state);
    bool covers = note_coverage(&job);
    /* First, since the rest cannot be told in a container without rights; last, since it writes to the file's disk. */
    if (((flags & HL_ADD_IMAGE) && !check_store(&job)) ||
        ((flags & HL_ADD_IF_WORTH) && !has_enough_text(&job)) || !check_file(&job) ||
        !make_changes_show(&job))
        return;
    if (!(flags & HL_ADD_IN_PLACE) && is_present(&job)) {
        outcome->result = HL_SHARE_PRESENT;
        return;
    }
    if (add_in_place(&job))
        return;
    int result = hl_plan_image(&job.image, file, &store->geometry);
    if (result != 0) {
        refuse(&job, (enum hl_reason)result);
        if (outcome->not_in_place != NULL)
            hl_append(&outcome->sentence, "; nor in place: %s", outcome->not_in_place);
    } else if (!covers)
        refuse(&job, HL_REASON_IMAGE_USELESS);
    else if (((flags & HL_ADD_IMAGE) || has_enough_text(&job)) && check_store(&job) && await_age(&job) &&
             is_unchanged(&job) && !give_new_key(&job) && job.outcome->sentence == NULL && check_space(&job))
        make_image(&job);
    if (result == 0)
        hl_free_image(&job.image);
}

void hl_add_path(struct hl_add_outcome *outcome, const struct hl_store *store, const char *path,
                 unsigned flags) {
    struct hl_elf_file file;
    enum hl_elf_problem problem = hl_open_elf_soon(&file, path);
    if (problem == HL_ELF_FINE) {
        add_file(outcome, store, &file, flags);
        hl_close_elf(&file);
        return;
    }
    bool no_object = problem != HL_ELF_UNREADABLE && problem != HL_ELF_TRUNCATED && problem != HL_ELF_BROKEN;
    *outcome = (struct hl_add_outcome){.result = no_object ? HL_SHARE_NOTHING : HL_SHARE_FAILED};
    outcome->sentence = hl_xasprintf("%s", hl_elf_problem_sentence(problem));
}

void hl_free_add_outcome(struct hl_add_outcome *outcome) {
    free(outcome->path);
    free(outcome->sentence);
    free(outcome->not_in_place);
}
