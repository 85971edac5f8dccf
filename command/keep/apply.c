/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld apply: makes the store what the lists say, once.

   Nothing is remembered but what is in the store: its items, and the records of what was tried.  A dry run goes the same way up to the
   first write.  A run that could not read a list, a folder or a mount removes nothing, since what it did not see may be wanted. */
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/local.h"
#include "command/lib/progress.h"
#include "command/image/eligible.h"
#include "command/keep/keep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds, for --every. */
#define EVERY_MAX 86400.0

void hl_note_problem(struct hl_apply *apply, char *text) {
    hl_hide_progress();
    if (!apply->is_quiet)
        hl_warn("%s", text);
    json_array_append_new(apply->problems, hl_json_text(text));
    apply->failed = true;
    free(text);
}

/* --- the store --- */

bool hl_begin_apply(struct hl_apply *apply) {
    apply->files = json_array();
    apply->problems = json_array();
    hl_read_lists(&apply->lists, apply->configuration, apply->list);
    for (size_t i = 0; i < apply->lists.problems.n; i++)
        hl_note_problem(apply, hl_xasprintf("%s", apply->lists.problems.text[i]));
    apply->any_disk |= apply->lists.settings.any_disk;
    /* Without a path hl_make_store says why, and fails. */
    bool wants = apply->lists.n > 0 && (!apply->is_dry || apply->store_path == NULL);
    int result = wants ? hl_make_store(&apply->store, apply->store_path, apply->lists.settings.store_size)
                       : hl_find_store(&apply->store, apply->store_path);
    if (result == 0 && !wants && !apply->is_dry)
        result = hl_lock_store(&apply->store);
    apply->has_store = result == 0;
    bool cannot_mount = wants && result == -EPERM && geteuid() == 0; /* as in a container */
    if (result != 0 && !cannot_mount && (result != -ENOENT || wants)) {
        json_array_append_new(apply->problems, hl_json_text(hl_last_warning()));
        apply->failed = true;
        return false;
    }
    if (!apply->has_store && (apply->is_dry || cannot_mount)) { /* the one that would be made */
        apply->store =
            (struct hl_store){.path = hl_xasprintf("%s", apply->store_path), .folder = -1, .lock = -1};
        apply->store.owner = hl_find_store_owner();
        apply->store.bytes_if_made = hl_store_bytes(apply->lists.settings.store_size);
        apply->store.for_all = geteuid() == 0 && strcmp(apply->store_path, HL_SYSTEM_STORE) == 0;
        apply->store.geometry = hl_read_geometry();
    }
    apply->store.collapser = &apply->collapser;
    if (apply->has_store && apply->store.problem != NULL)
        hl_note_problem(apply, hl_xasprintf("%s", apply->store.problem));
    if (apply->has_store)
        hl_read_records(&apply->records, &apply->store);
    return true;
}

/* --- results --- */

static void note(struct hl_apply *apply, const char *path, const struct hl_entry *entry, const char *result,
                 const char *way, uint64_t huge_pages, const char *reason, const char *sentence) {
    json_array_append_new(
        apply->files,
        json_pack("{s:o, s:o, s:s, s:o, s:I, s:o, s:o}", "path", hl_json_text(path), "entry",
                  entry != NULL ? hl_json_text(entry->text) : json_null(), "result", result, "way",
                  way != NULL ? json_string(way) : json_null(), "huge_pages", (json_int_t)huge_pages,
                  "reason", hl_json_text(reason != NULL && reason[0] != '\0' ? reason : NULL), "sentence",
                  hl_json_text(sentence != NULL && sentence[0] != '\0' ? sentence : NULL)));
}

static const char *name_way(bool is_in_place) { return is_in_place ? "in-place" : "image"; }

/* "in place, 84.9 % of its text, 9 huge pages" */
static void say_made(const struct hl_add_outcome *outcome) {
    unsigned share = hl_permille(outcome->text_huge_bytes, outcome->text_bytes);
    const char *rest = outcome->is_in_place ? outcome->sentence : outcome->not_in_place;
    const char *says = outcome->is_in_place ? "; the rest is not: " : "; not in place: ";
    hl_hide_progress();
    hl_print("%s: %s, %u.%u %% of its text, %" PRIu64 " huge page%s%s%s", outcome->path,
             outcome->is_in_place ? "in place" : "image", share / 10, share % 10, outcome->huge_pages,
             hl_plural(outcome->huge_pages), rest != NULL ? says : "", rest != NULL ? rest : "");
}

static void count_result(struct hl_apply *apply, const struct hl_wanted *wanted,
                         const struct hl_record *record) {
    unsigned *const counts[HL_RESULTS] = {&apply->present, &apply->nothing, &apply->refused, &apply->pending};
    bool is_made = record->result == HL_RESULT_MADE;
    *counts[record->result] += 1;
    /* A list for many machines may name a file that gains nothing on some. */
    apply->failed |= wanted->is_named && record->result == HL_RESULT_REFUSED;
    if (wanted->is_named || record->result == HL_RESULT_PENDING)
        note(apply, wanted->path, wanted->entry, is_made ? "present" : hl_result_name(record->result),
             is_made ? name_way(record->is_in_place) : NULL, 0, is_made ? NULL : record->reason,
             is_made ? NULL : record->sentence);
}

/* --- one file --- */

/* Removes ITEM.  0, or a negated errno, which was noted. */
static int remove_item(struct hl_apply *apply, const struct hl_store_item *item) {
    uint64_t bytes = item->is_in_place ? 0 : item->huge_pages * apply->store.geometry.huge_page_bytes;
    if (apply->is_dry) {
        apply->store.planned -= (int64_t)bytes;
        return 0;
    }
    int result = hl_remove_store_item(&apply->store, item->key);
    if (result != 0 && result != -ENOENT)
        hl_note_problem(apply, hl_xasprintf("%s: its image cannot be removed: %s; make the store writable",
                                            item->origin, strerror(-result)));
    return result == -ENOENT ? 0 : result;
}

/* Removes the items of PATH that are of no use any more, before a new one is made, since the store may not take both.  One whose
   file only has another ctime may become the new one.  ALL: also that. */
static void remove_old_items(struct hl_apply *apply, const char *path, const char *key, bool all) {
    struct hl_store_item *items;
    size_t n;
    if (!apply->has_store)
        return;
    hl_read_items_of(&apply->store, path, &items, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(items[i].key, key) != 0 && (all || items[i].state != HL_ITEM_TOUCHED))
            remove_item(apply, &items[i]);
    hl_free_store_items(items, n);
}

/* Whether other users may still read the file, or this cannot be found out now.  The mode of the file itself is part of its key, so one
   file of each folder is looked at. */
static bool is_still_public(struct hl_apply *apply, const struct hl_wanted *wanted) {
    static char *checked;
    int unknown = 0;
    size_t length = (size_t)(strrchr(wanted->path, '/') - wanted->path) + 1;
    bool is_beside = checked != NULL && strncmp(wanted->path, checked, length) == 0 &&
                     strchr(checked + length, '/') == NULL;
    if (!apply->store.for_all || is_beside)
        return true;
    int file = hl_open_local_path(wanted->path, &(struct stat){0});
    char *problem = file < 0 ? NULL : hl_explain_private(file, wanted->path, &unknown);
    if (file >= 0)
        close(file);
    bool is = problem == NULL || unknown != 0;
    free(checked);
    checked = problem == NULL ? hl_xasprintf("%s", wanted->path) : NULL;
    free(problem);
    return is;
}

/* Whether the image of the file is there, may be used, and is huge; small pages are joined above the memory margin, else
   they stay. */
static bool is_image_whole(struct hl_apply *apply, const struct hl_wanted *wanted) {
    struct hl_line path;
    uint64_t pages, small = 0;
    struct hl_file_state found = {0};
    long image =
        hl_open_image_in_store(apply->store.folder, apply->store.owner, &wanted->state, &path, &found);
    if (image < 0 || !is_still_public(apply, wanted)) {
        if (image >= 0)
            close((int)image);
        return false;
    }
    struct hl_line key;
    struct stat folder;
    hl_set_image_key(&key, &wanted->state);
    bool is_open = !apply->store.for_all ||
                   (fstatat(apply->store.folder, key.at, &folder, 0) == 0 && (folder.st_mode & S_IXOTH) != 0);
    if (is_open && hl_prove_huge(&apply->store.geometry, (int)image, false, &pages, &small) == 0 &&
        small > 0 && !apply->is_dry && hl_leaves_margin(small * apply->store.geometry.huge_page_bytes))
        hl_prove_huge(&apply->store.geometry, (int)image, true, &pages, &small);
    close((int)image);
    return is_open;
}

/* Whether all of the file that can be in place is so, or as much as the last attempt could reach. */
static bool is_still_in_place(const struct hl_apply *apply, const struct hl_wanted *wanted,
                              const struct hl_record *record) {
    struct hl_elf_file file;
    struct hl_chunks chunks;
    bool is = false;
    if (hl_open_elf_soon(&file, wanted->path) != HL_ELF_FINE)
        return false;
    if (hl_examine_chunks(&chunks, &file, &apply->store.geometry) == 0) {
        uint64_t huge = hl_huge_text_bytes(&chunks);
        is = huge == chunks.n_chunks * chunks.chunk_bytes ||
             (record->delay > 0 && (hl_covers_enough(huge, chunks.text_bytes) ||
                                    (wanted->entry->way == HL_ADD_IN_PLACE && huge > 0)));
        hl_free_chunks(&chunks);
    }
    hl_close_elf(&file);
    return is;
}

/* Notes in RECORD what came out of the attempt, and when it may be repeated. */
static void record_outcome(struct hl_record *record, const struct hl_present *present,
                           const struct hl_add_outcome *outcome, const char *key, unsigned asked) {
    bool is_made = outcome->result == HL_SHARE_MADE || outcome->result == HL_SHARE_PRESENT;
    enum hl_result result = is_made                               ? HL_RESULT_MADE
                            : outcome->result == HL_SHARE_NOTHING ? HL_RESULT_NOTHING
                            : outcome->is_pending                 ? HL_RESULT_PENDING
                                                                  : HL_RESULT_REFUSED;
    hl_note_attempt(record, present, result, is_made && outcome->is_in_place && outcome->sentence != NULL);
    record->is_in_place = outcome->is_in_place;
    record->asked = asked;
    hl_replace_text(&record->key, outcome->key.bytes > 0 ? outcome->key.at : key);
    hl_replace_text(&record->reason, outcome->reason);
    hl_replace_text(&record->sentence,
                    is_made && !outcome->is_in_place ? outcome->not_in_place : outcome->sentence);
}

/* What a dry run would have made already of the same file, by another of its names; NULL: nothing. */
static const struct hl_record *find_planned(const struct hl_apply *apply, const char *path, const char *key) {
    for (size_t i = 0; i < apply->records.n && apply->is_dry; i++) {
        const struct hl_record *record = &apply->records.record[i];
        if (record->result == HL_RESULT_MADE && strcmp(record->key, key) == 0 &&
            strcmp(record->path, path) != 0)
            return record;
    }
    return NULL;
}

/* Tries to put the file on huge pages, and notes the result. */
static void attempt(struct hl_apply *apply, const struct hl_wanted *wanted, struct hl_record *record,
                    const struct hl_present *present, const char *key) {
    struct hl_add_outcome outcome;
    unsigned flags = (apply->any_disk ? HL_ADD_ANY_DISK : 0) | (apply->is_dry ? HL_ADD_DRY : 0) |
                     (wanted->is_named ? 0 : HL_ADD_IF_WORTH) | wanted->entry->way;
    hl_show_progress(1000, "%u images, %" PRIu64 " huge pages; %.60s", apply->made, apply->huge_pages,
                     hl_base_name(wanted->path));
    /* An item of the same version goes if something is wrong with it, or if another way is asked for now. */
    bool is_broken =
        present->is_same && record->result == HL_RESULT_MADE && !present->is_whole && !record->is_in_place;
    bool is_other = record->key[0] != '\0' && record->asked != wanted->entry->way;
    remove_old_items(apply, wanted->path, is_broken || is_other ? "" : key, false);
    const struct hl_record *planned = find_planned(apply, wanted->path, key);
    if (planned != NULL)
        outcome = (struct hl_add_outcome){.result = HL_SHARE_PRESENT, .is_in_place = planned->is_in_place};
    else
        hl_add_path(&outcome, &apply->store, wanted->path, flags);
    record_outcome(record, present, &outcome, key, wanted->entry->way);
    apply->records.changed = true;
    bool is_made = outcome.result == HL_SHARE_MADE;
    if (!apply->is_dry) /* else the old ones are still there, and would count twice */
        remove_old_items(apply, wanted->path, record->result == HL_RESULT_MADE ? record->key : "", true);
    if (is_made) {
        *(outcome.is_in_place ? &apply->in_place : &apply->made) += 1;
        apply->huge_pages += outcome.huge_pages;
        if (apply->is_dry && !outcome.is_in_place)
            apply->store.planned += (int64_t)(outcome.huge_pages * apply->store.geometry.huge_page_bytes);
        say_made(&outcome);
        note(apply, wanted->path, wanted->entry, "made", name_way(outcome.is_in_place), outcome.huge_pages,
             outcome.reason, record->sentence);
    } else {
        hl_hide_progress();
        if (record->result == HL_RESULT_PENDING)
            hl_note("%s: pending: %s", wanted->path, record->sentence);
        else if (wanted->is_named && record->result != HL_RESULT_MADE)
            hl_warn("%s: not on huge pages: %s", wanted->path, record->sentence);
        count_result(apply, wanted, record);
    }
    hl_free_add_outcome(&outcome);
}

static void apply_file(struct hl_apply *apply, const struct hl_wanted *wanted) {
    struct hl_line key;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now); /* no one sets this clock */
    hl_set_image_key(&key, &wanted->state);
    struct hl_record *record = hl_add_record(&apply->records, wanted->path);
    struct hl_present present = {
        .uptime = (double)now.tv_sec,
        .is_same = strcmp(record->key, key.at) == 0 && record->asked == wanted->entry->way,
        .is_named = wanted->is_named,
        .is_wanted = apply->retries || (apply->any_disk && strcmp(record->reason, HL_OTHER_DISK) == 0) ||
                     (apply->store.is_larger && strcmp(record->reason, HL_STORE_FULL) == 0)};
    if (record->unnamed > 0)
        apply->records.changed = true;
    record->unnamed = 0;
    if (present.is_same && record->result == HL_RESULT_MADE)
        present.is_whole =
            record->is_in_place ? is_still_in_place(apply, wanted, record) : is_image_whole(apply, wanted);
    if (hl_is_attempt_due(record, &present)) {
        attempt(apply, wanted, record, &present, key.at);
        return;
    }
    count_result(apply, wanted, record);
    if (hl_output.is_verbose && record->result == HL_RESULT_MADE)
        hl_print("%s: %s, as before", wanted->path, record->is_in_place ? "in place" : "image");
    else if (hl_output.is_verbose)
        hl_print("%s: still %s: %s", wanted->path, hl_result_name(record->result), record->sentence);
}

/* --- what no entry names --- */

/* Whether the file system with the original of ITEM may be unmounted just now: the nearest folder that is left of its path lies on
   another one. */
static bool is_unmounted(const struct hl_store_item *item) {
    struct hl_local local = {0};
    uint64_t device = 0;
    struct stat status;
    char *path = hl_xasprintf("%s", item->origin), *end;
    int result;
    while ((result = hl_stat_local(&local, path[0] != '\0' ? path : "/", true, &status)) != 0 &&
           (end = strrchr(path, '/')) != NULL)
        *end = '\0';
    hl_close_local(&local);
    free(path);
    return result != 0 || sscanf(item->key, "0x%" SCNx64 "-", &device) != 1 || device != status.st_dev;
}

void hl_drop_pages(const char *path) {
    struct hl_elf_file file;
    if (hl_open_elf_soon(&file, path) != HL_ELF_FINE)
        return;
    posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    hl_close_elf(&file);
}

/* Removes ITEM, also from the page cache if it was in place, and says WHY.  Whether it is removed. */
static bool remove_unnamed(struct hl_apply *apply, const struct hl_store_item *item, const char *why) {
    if (remove_item(apply, item) != 0)
        return false;
    if (item->is_in_place && !apply->is_dry)
        hl_drop_pages(item->origin);
    apply->removed++;
    hl_hide_progress();
    note(apply, item->origin, NULL, "removed", name_way(item->is_in_place), item->huge_pages, NULL, why);
    hl_print("%s: %s, %s", item->origin, item->is_in_place ? "no longer in place" : "image removed", why);
    return true;
}

static bool is_unnamed(const void *wanted, const char *origin) {
    return hl_find_wanted_file(wanted, origin) == NULL;
}

/* Removes what was named by no entry in two runs. */
static void prune(struct hl_apply *apply) {
    struct hl_store_item *items = NULL;
    size_t n = 0;
    bool prunes = apply->lists.is_whole && apply->only == NULL;
    if (!apply->has_store || apply->only != NULL ||
        !hl_list_store(&apply->store, is_unnamed, &apply->wanted, &items, &n)) {
        hl_free_store_items(items, n);
        return;
    }
    for (size_t i = 0; i < n && prunes; i++) {
        if (is_unmounted(&items[i]))
            continue;
        struct hl_record *record = hl_add_record(&apply->records, items[i].origin);
        bool goes = hl_note_unnamed(record);
        record->result = HL_RESULT_MADE;
        record->is_in_place = items[i].is_in_place;
        hl_replace_text(&record->key, items[i].key);
        apply->records.changed = true;
        record->is_gone = goes && remove_unnamed(apply, &items[i], "since no list names it");
    }
    /* Records without an item and without an entry. */
    for (size_t i = 0; i < apply->records.n && prunes; i++) {
        struct hl_record *record = &apply->records.record[i];
        if (record->unnamed == 0 && hl_find_wanted_file(&apply->wanted, record->path) == NULL)
            record->is_gone = apply->records.changed = true;
    }
    hl_free_store_items(items, n);
}

/* Whether the original of ITEM is no longer there, PATTERNS match it, and those of no entry do. */
static bool is_rest_of(const struct hl_texts *patterns, const struct hl_apply *apply,
                       const struct hl_store_item *item) {
    bool is =
        item->state == HL_ITEM_GONE && apply->lists.is_whole && hl_find_match(patterns, item->origin) != NULL;
    for (size_t i = 0; i < apply->lists.n && is; i++)
        is = hl_find_match(&apply->lists.entry[i].files, item->origin) == NULL;
    return is && !is_unmounted(item);
}

void hl_remove_unlisted(struct hl_apply *apply, const struct hl_wanted_files *gone,
                        const struct hl_texts *patterns, const char *why) {
    struct hl_store_item *items;
    size_t n;
    if (!apply->has_store)
        return;
    apply->failed |= !hl_read_items_of(&apply->store, NULL, &items, &n);
    for (size_t i = 0; i < n; i++) {
        const char *origin = items[i].origin;
        bool goes = hl_find_wanted_file(gone, origin) != NULL || is_rest_of(patterns, apply, &items[i]);
        if (goes && hl_find_wanted_file(&apply->wanted, origin) == NULL &&
            remove_unnamed(apply, &items[i], why))
            hl_add_record(&apply->records, origin)->is_gone = apply->records.changed = true;
    }
    hl_free_store_items(items, n);
    for (size_t i = 0; i < gone->n; i++)
        if (hl_find_wanted_file(&apply->wanted, gone->file[i].path) == NULL)
            hl_add_record(&apply->records, gone->file[i].path)->is_gone = apply->records.changed = true;
}

/* --- the run --- */

void hl_find_listed(struct hl_apply *apply) {
    hl_find_wanted(&apply->wanted, &apply->lists, apply->only, apply->store.for_all);
    for (size_t i = 0; i < apply->lists.n; i++) {
        const struct hl_entry *entry = &apply->lists.entry[i];
        const char *problem = entry->problem;
        if (apply->only != NULL && apply->only != entry)
            continue;
        if (problem == NULL && entry->is_unit && !hl_knows_unit(entry->text))
            problem = "there is no such unit; systemctl list-unit-files names all";
        if (problem != NULL)
            hl_note_problem(apply,
                            hl_xasprintf("%s:%u: %s: %s", entry->source, entry->line, entry->text, problem));
    }
}

void hl_apply_lists(struct hl_apply *apply) {
    hl_find_listed(apply);
    prune(apply);
    for (size_t i = 0; i < apply->wanted.n; i++)
        apply_file(apply, &apply->wanted.file[i]);
    hl_hide_progress();
}

int hl_end_apply(struct hl_apply *apply) {
    if (apply->has_store && !apply->is_dry) {
        int result = hl_write_records(&apply->records, &apply->store);
        if (result != 0)
            hl_note_problem(
                apply,
                hl_xasprintf(
                    "%s: the results cannot be recorded: %s; enlarge the store: store_size in hugeld.conf",
                    apply->store_path, strerror(-result)));
    }
    if (apply->store.path != NULL)
        hl_close_store(&apply->store);
    hl_free_wanted(&apply->wanted);
    hl_free_lists(&apply->lists);
    hl_free_records(&apply->records);
    return apply->failed ? HL_EXIT_NO : apply->pending > 0 ? HL_EXIT_PENDING : HL_EXIT_DONE;
}

static void print_applied(const struct hl_apply *apply, int code) {
    bool changed = apply->made + apply->in_place + apply->removed > 0;
    const struct {
        unsigned n;
        const char *what;
    } counts[] = {{apply->made, "as an image"},         {apply->in_place, "in place"},
                  {apply->removed, "removed"},          {apply->present, "as before"},
                  {apply->nothing, "without any gain"}, {apply->refused, "refused"},
                  {apply->pending, "pending"}};
    char *line = hl_xasprintf("%s%" PRIu64 " new huge page%s", apply->is_dry ? "dry run: " : "",
                              apply->huge_pages, hl_plural(apply->huge_pages));
    const char *before = "; files: ";
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].n == 0)
            continue;
        hl_append(&line, "%s%u %s", before, counts[i].n, counts[i].what);
        before = ", ";
    }
    hl_print("%s%s", line, apply->refused + apply->pending > 0 ? "; hugeld list says why" : "");
    free(line);
    hl_print_answer(json_pack("{s:b, s:b, s:O, s:O, s:I, s:I, s:o}", "changed", changed, "dry_run",
                              apply->is_dry, "files", apply->files, "problems", apply->problems, "pending",
                              (json_int_t)apply->pending, "huge_pages", (json_int_t)apply->huge_pages,
                              "store", hl_json_text(apply->store_path)),
                    code == HL_EXIT_NO);
}

/* --- the command --- */

struct request {
    bool dry_run, any_disk, boot;
    const char *list, *store, *metrics, *every;
};

static const struct hl_flag command_flags[] = {
    {"dry-run", 'n', NULL, "Say what would be done, and change nothing", HL_SWITCH(struct request, dry_run)},
    {"metrics", 0, "FILE.prom", "Write gauges for Prometheus", HL_STRING(struct request, metrics)},
    {"every", 0, "TIME", "Do it again after that time: 300, 5m, 1h (for containers)",
     HL_STRING(struct request, every)},
    {"boot", 0, NULL, "Put files that nothing maps in place on a busy machine, too",
     HL_SWITCH(struct request, boot)},
    {"list", 0, "FILE", "This list, not those in enabled.d", HL_STRING(struct request, list)},
    {"store", 0, "FOLDER", "This store, not the machine's (root) or your own",
     HL_STRING(struct request, store)},
    {"any-disk", 0, NULL, "Accept files on mounts other than / and /usr",
     HL_SWITCH(struct request, any_disk)},
    HL_NO_ARGUMENTS,
};

/* Seconds in TEXT; 0: it is none. */
static double parse_time(const char *text) {
    double number = 0;
    char unit = 's', rest;
    int n = sscanf(text, "%lf%c%c", &number, &unit, &rest);
    double seconds = number * (unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0);
    return n > 0 && n < 3 && seconds >= 1 && seconds <= EVERY_MAX ? seconds : 0;
}

/* The administrator's `systemctl stop` holds until the next boot, since the link by which the timer is enabled stays. */
void hl_switch_timer(const struct hl_lists *lists) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool is_root = geteuid() == 0, is_on = lists->n > 0;
    char *folder = is_root          ? hl_xasprintf("/etc/systemd/system")
                   : config != NULL ? hl_xasprintf("%s/systemd/user", config)
                                    : hl_xasprintf("%s/.config/systemd/user", home != NULL ? home : "");
    char *link = hl_xasprintf("%s/timers.target.wants/hugeld.timer", folder);
    bool is_enabled = faccessat(AT_FDCWD, link, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_enabled != is_on && (is_on || lists->is_whole))
        hl_ask_manager(is_on ? "enable" : "disable", "--now", "hugeld.timer");
    free(link);
    free(folder);
}

/* Writes the gauges to the file at PATH, after APPLY. */
static bool write_metrics(const struct hl_apply *apply, const char *path) {
    struct hl_apply seen = {.is_quiet = true,
                            .list = apply->list,
                            .configuration = apply->configuration,
                            .store_path = apply->store_path};
    json_t *list = hl_list_one(&seen, false);
    int result = hl_write_metrics(path, list);
    if (result != 0)
        hl_warn("%s: the metrics cannot be written: %s", path,
                result == -ELOOP ? "users other than root can change its folder; name a file elsewhere"
                                 : strerror(-result));
    json_decref(list);
    return result == 0;
}

static int apply_once(const struct request *request) {
    char *configuration = hl_find_configuration(geteuid() == 0), *own = hl_default_store(), *metrics = NULL;
    struct hl_apply apply = {.is_dry = request->dry_run,
                             .any_disk = request->any_disk,
                             .collapser.is_at_boot = request->boot,
                             .list = request->list,
                             .configuration = configuration,
                             .store_path = request->store != NULL ? request->store : own};
    int code = HL_EXIT_NO;
    if (configuration == NULL && request->list == NULL) {
        hl_warn("apply: there is no folder for your lists; set HOME, or name a list with --list");
    } else {
        bool is_begun = hl_begin_apply(&apply), is_default = request->list == NULL && request->store == NULL;
        if (is_begun)
            hl_apply_lists(&apply);
        if (is_begun && is_default && !apply.is_dry)
            hl_switch_timer(&apply.lists);
        const char *named = request->metrics != NULL ? request->metrics : apply.lists.settings.metrics;
        metrics = named != NULL && !apply.is_dry ? hl_xasprintf("%s", named) : NULL;
        code = hl_end_apply(&apply);
        code = metrics == NULL || write_metrics(&apply, metrics) ? code : HL_EXIT_NO;
        print_applied(&apply, code);
        json_decref(apply.files);
        json_decref(apply.problems);
    }
    free(metrics);
    free(configuration);
    free(own);
    return code;
}

/* Runs in a child each time, which begins with nothing of the run before. */
static int apply_again(const struct request *request, double seconds) {
    for (;;) {
        pid_t child = fork();
        if (child == 0)
            exit(apply_once(request));
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        for (unsigned left = (unsigned)seconds; left > 0;)
            left = sleep(left);
    }
}

int hl_apply(int argc, char **argv) {
    static const struct hl_command command = {
        "apply",
        "Puts what is enabled on huge pages, renews what has changed, and removes what is no "
        "longer enabled.\v"
        "Root's lists are in /etc/hugeld/enabled.d.  hugeld.timer runs it.  Exit status: 0 done or "
        "unchanged, 1 some of it failed, 3 some of it is pending; 'hugeld list' says why.",
        command_flags, false};
    struct request request = {0};
    int code = hl_read_flags(&command, argc, argv, &request);
    double seconds = request.every != NULL ? parse_time(request.every) : 0;
    if (code != 0)
        return code;
    if (request.every != NULL && seconds == 0) {
        hl_warn("apply: --every=%s: give a time from 1 second to 24 hours, as in 5m", request.every);
    } else if (request.metrics != NULL && !hl_ends_in(request.metrics, ".prom")) {
        hl_warn("apply: --metrics=%s: name a file NAME.prom", request.metrics);
    } else if (request.dry_run && (request.metrics != NULL || request.every != NULL)) {
        hl_warn("apply: --dry-run goes with neither --metrics nor --every");
    } else {
        if (!request.dry_run && request.store == NULL)
            hl_enter_slice(argc, argv, "apply");
        return request.every != NULL ? apply_again(&request, seconds) : apply_once(&request);
    }
    return HL_EXIT_USAGE;
}
