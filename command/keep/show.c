/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld list: what is enabled, what came of it, and who has it. */
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/elf-file.h"
#include "command/keep/keep.h"
#include "command/lib/remedy.h"
#include "command/lib/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- one file --- */

struct shown {
    char *path;
    const struct hl_entry *entry; /* NULL: none names it */
    const struct hl_record *record;
    struct hl_store_item *item; /* NULL: the store has none */
    const char *state;
    struct hl_use *use;
};

/* Finds how SHOWN's file is mapped, and how much of its image is huge just now. */
static void read_item(struct shown *shown, const struct hl_store *store) {
    struct hl_elf_file file;
    struct hl_store_item *item = shown->item;
    if (hl_open_elf_soon(&file, shown->path) == HL_ELF_FINE) {
        shown->use->device = hl_find_mapped_device(file.fd, file.stat.st_dev);
        shown->use->inode = file.stat.st_ino;
        hl_close_elf(&file);
    }
    if (item == NULL)
        return;
    hl_measure_store_item(store, item);
    char *path = hl_xasprintf("%s/%s", item->key, HL_IMAGE_LINK);
    int image = item->is_in_place ? -1 : openat(store->folder, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    uint64_t pages, small = 0;
    free(path);
    if (image < 0)
        return;
    shown->use->image_device = hl_find_mapped_device(image, item->device);
    shown->use->image_inode = item->inode;
    if (hl_prove_huge(&store->geometry, image, false, &pages, &small) == 0 && small > 0 && pages > 0)
        item->text_huge_bytes -= item->text_huge_bytes * small / pages;
    close(image);
}

/* The state of a file, by what was tried, what the store has, and the file as it is now. */
static const char *find_state(const struct shown *shown, const char *key) {
    const struct hl_record *record = shown->record;
    const struct hl_store_item *item = shown->item;
    if (shown->entry == NULL)
        return "unnamed";
    if (record == NULL || record->key[0] == '\0')
        return item != NULL ? hl_item_state_name(item->state) : "new";
    if (record->result != HL_RESULT_MADE)
        return strcmp(record->key, key) == 0 ? hl_result_name(record->result) : "changed";
    if (item == NULL) /* a run that renews may have been killed between the old image and the new one */
        return strcmp(record->key, key) == 0 ? "broken" : "changed";
    return hl_item_state_name(item->state);
}

static char *find_advice(const struct shown *shown, bool is_known) {
    const struct hl_use *use = shown->use;
    bool is_fine = strcmp(shown->state, "fresh") == 0;
    if (is_fine && shown->item != NULL && shown->item->is_in_place && shown->item->text_bytes > 0 &&
        shown->item->text_huge_bytes == 0)
        return hl_explain_reason(HL_REASON_PLACE_LOST, shown->path);
    if (!is_known || !is_fine || use->processes == use->huge)
        return NULL;
    if (shown->item != NULL && shown->item->is_in_place)
        return hl_xasprintf("restart it");
    if (shown->entry->is_unit)
        return hl_xasprintf("systemctl restart %s", shown->entry->text);
    if (use->in_units > 0)
        return hl_xasprintf("hugeld enable %s, and restart it", use->unit);
    return hl_xasprintf("%s", hl_is_library_name(shown->path) ? hl_reason_remedy(HL_REASON_LIBRARY_UNNAMED)
                                                              : "start it by hugeld run");
}

/* SEES_ALL: no process was left out. */
static json_t *make_file(const struct shown *shown, bool is_known, bool sees_all) {
    const struct hl_store_item *item = shown->item;
    /* That of another version of the file says nothing of this one. */
    const struct hl_record *record = strcmp(shown->state, "changed") != 0 ? shown->record : NULL;
    char *advice = find_advice(shown, is_known);
    const char *sentence = record != NULL && record->sentence[0] != '\0' ? record->sentence : NULL;
    if (sees_all && record != NULL && strcmp(record->reason, "in-use") == 0 && shown->use->processes == 0)
        sentence = "no process runs it now; enable it again";
    json_t *file =
        json_pack("{s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o}", "path", hl_json_text(shown->path), "entry",
                  hl_json_text(shown->entry != NULL ? shown->entry->text : NULL), "source",
                  hl_json_text(shown->entry != NULL ? shown->entry->source : NULL), "way",
                  item != NULL ? json_string(item->is_in_place ? "in-place" : "image") : json_null(), "state",
                  shown->state, "reason",
                  hl_json_text(record != NULL && record->reason[0] != '\0' ? record->reason : NULL),
                  "sentence", hl_json_text(sentence), "key", hl_json_text(item != NULL ? item->key : NULL),
                  "image", hl_json_text(item != NULL && !item->is_in_place ? item->image : NULL));
    json_object_set_new(file, "bytes", json_integer(item != NULL ? (json_int_t)item->bytes : 0));
    json_object_set_new(file, "huge_pages", json_integer(item != NULL ? (json_int_t)item->huge_pages : 0));
    json_object_set_new(file, "text_share",
                        item != NULL && item->text_bytes > 0
                            ? hl_json_share(item->text_huge_bytes, item->text_bytes)
                            : json_null());
    json_object_set_new(file, "processes", json_integer(shown->use->processes));
    json_object_set_new(file, "effective", is_known ? json_integer(shown->use->huge) : json_null());
    json_object_set_new(file, "advice", hl_json_text(advice));
    free(advice);
    return file;
}

/* --- a store --- */

/* Notes PROBLEM, which it takes over, and what repairs it: to remove the image ITEM, if that is not NULL, and hugeld apply. */
static void advise_apply(struct hl_apply *apply, char *problem, const struct hl_store_item *item) {
    bool is_of_root = geteuid() != 0 && strcmp(apply->store_path, HL_SYSTEM_STORE) == 0;
    hl_append(&problem, "; %s", is_of_root ? "as root: " : "");
    if (item != NULL) {
        char *folder = hl_xasprintf("%s/%s", apply->store.path, item->key);
        hl_append(&problem, "rm -r");
        hl_add_word(&problem, folder);
        hl_append(&problem, "; ");
        free(folder);
    }
    hl_append(&problem, "hugeld apply");
    hl_add_option(&problem, "--store=", apply->is_store_named ? apply->store_path : NULL);
    hl_add_option(&problem, "--list=", apply->list);
    if (apply->list != NULL && item != NULL && (item->marks & HL_ADD_ANY_DISK))
        hl_append(&problem, " --any-disk");
    hl_note_problem(apply, problem);
}

static void check(struct hl_apply *apply, const struct shown *shown) {
    const struct hl_store_item *item = shown->item;
    char *problem = item != NULL ? hl_check_store_item(&apply->store, item) : NULL;
    if (problem != NULL)
        advise_apply(apply,
                     hl_xasprintf("%s: %s %s: %s", shown->path, item->is_in_place ? "in place," : "its image",
                                  item->key, problem),
                     item);
    free(problem);
}

json_t *hl_list_one(struct hl_apply *apply, bool checks) {
    struct hl_store_item *items = NULL;
    size_t n_items = 0, n = 0;
    uint64_t bytes = 0, used = 0, held = 0;
    apply->is_dry = true; /* nothing is written */
    bool is_begun = hl_begin_apply(apply);
    if (apply->has_store) {
        hl_measure_store(&apply->store, &bytes, &used);
        if (!hl_read_items_of(&apply->store, NULL, &items, &n_items))
            hl_note_problem(apply, hl_xasprintf("%s: the store cannot be read", apply->store_path));
    } else if (is_begun && hl_is_store_lost(apply->store_path)) {
        advise_apply(apply,
                     hl_xasprintf("%s: the store was unmounted, and its images are lost", apply->store_path),
                     NULL);
    } else if (is_begun && apply->lists.n > 0) {
        advise_apply(apply, hl_xasprintf("%s: there is no store yet", apply->store_path), NULL);
    }
    hl_find_listed(apply);
    struct shown *shown = hl_xmalloc((apply->wanted.n + n_items + 1) * sizeof *shown);
    for (size_t i = 0; i < apply->wanted.n; i++) {
        const struct hl_wanted *wanted = &apply->wanted.file[i];
        struct hl_line key;
        hl_set_image_key(&key, &wanted->state);
        shown[n] = (struct shown){.path = wanted->path,
                                  .entry = wanted->entry,
                                  .record = hl_find_record(&apply->records, wanted->path)};
        for (size_t j = 0; j < n_items && shown[n].item == NULL; j++)
            shown[n].item = strcmp(items[j].origin, wanted->path) == 0 ? &items[j] : NULL;
        shown[n].state = find_state(&shown[n], key.at);
        n += wanted->is_named || shown[n].item != NULL || strcmp(shown[n].state, "pending") == 0;
    }
    for (size_t i = 0; i < n_items; i++)
        if (hl_find_wanted_file(&apply->wanted, items[i].origin) == NULL)
            shown[n++] = (struct shown){.path = items[i].origin, .item = &items[i], .state = "unnamed"};
    for (size_t i = 0; i < n_items; i++)
        held += items[i].is_in_place ? 0 : items[i].huge_pages * apply->store.geometry.huge_page_bytes;
    struct stat records;
    if (apply->has_store && fstatat(apply->store.folder, HL_RECORDS_FILE, &records, AT_SYMLINK_NOFOLLOW) == 0)
        held += (uint64_t)records.st_blocks * 512;
    /* Other stores may share their tmpfs. */
    bool is_own = apply->has_store && strcmp(apply->store_path, HL_SYSTEM_STORE) == 0;
    held = is_own && used > held ? (used - held) & ~(apply->store.geometry.huge_page_bytes - 1) : 0;
    struct hl_use *use = hl_xmalloc((n + 1) * sizeof *use);
    unsigned left_out = 0;
    for (size_t i = 0; i < n; i++) {
        shown[i].use = &use[i];
        read_item(&shown[i], &apply->store);
        if (checks)
            check(apply, &shown[i]);
    }
    bool is_known = hl_find_users(use, n, &left_out);
    for (size_t i = 0; i < n; i++) {
        apply->pending += strcmp(shown[i].state, "pending") == 0;
        apply->failed |= strcmp(shown[i].state, "refused") == 0 || strcmp(shown[i].state, "broken") == 0;
        json_array_append_new(apply->files, make_file(&shown[i], is_known, geteuid() == 0 && left_out == 0));
    }
    json_t *list = json_pack(
        "{s:o, s:b, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "path", hl_json_text(apply->store_path),
        "exists", apply->has_store, "bytes", (json_int_t)bytes, "used_bytes", (json_int_t)used, "applied",
        apply->records.applied > 0 ? json_integer((json_int_t)apply->records.applied) : json_null(),
        "held_bytes", (json_int_t)held, "enabled", (json_int_t)apply->lists.n, "pending",
        (json_int_t)apply->pending, "users_left_out", (json_int_t)left_out, "files", apply->files, "problems",
        apply->problems);
    free(use);
    free(shown);
    hl_free_store_items(items, n_items);
    hl_end_apply(apply);
    return list;
}

/* --- the table --- */

static void print_list(const json_t *list) {
    const json_t *files = json_object_get(list, "files"), *file;
    size_t i;
    if (json_is_true(json_object_get(list, "exists")))
        hl_print_fields(list, "{path}: {used_bytes:KiB} of {bytes:KiB}; {enabled} enabled");
    else if (json_integer_value(json_object_get(list, "enabled")) == 0)
        hl_print("nothing is enabled; hugeld enable PROGRAM|FILE|NAME.service");
    if (json_integer_value(json_object_get(list, "held_bytes")) > 0)
        hl_print_fields(list,
                        "{held_bytes:KiB} of it are of removed images that processes map until they end");
    if (json_array_size(files) > 0)
        hl_print("WAY       STATE       TEXT   PAGES  RUN BY  HUGE  FILE");
    json_array_foreach(files, i, file) {
        hl_print_row(file,
                     "{way:-8}  {state:-8} {text_share:7%}  {huge_pages:6}  {processes:6}  {effective:4}  ");
        if (json_is_string(json_object_get(file, "sentence")))
            hl_print_fields(file, "    {sentence}");
        if (json_is_string(json_object_get(file, "advice")))
            hl_print_fields(file, "    {advice}");
        if (hl_output.is_verbose && json_is_string(json_object_get(file, "source")))
            hl_print_fields(file, "    {entry} in {source}");
        if (hl_output.is_verbose && json_is_string(json_object_get(file, "image")))
            hl_print_fields(file, "    {image}");
    }
    if (json_integer_value(json_object_get(list, "users_left_out")) > 0)
        hl_print_fields(list,
                        "{users_left_out} users' processes were not read, since one of them did not answer");
}

struct request {
    bool checks;
    const char *list, *store;
};

static const struct hl_flag command_flags[] = {
    {"check", 'c', NULL, "Compare the bytes of each image with its file", HL_SWITCH(struct request, checks)},
    {"list", 0, "FILE", "This list, not those in enabled.d", HL_STRING(struct request, list)},
    {"store", 0, "FOLDER", "This store, not the machine's and your own", HL_STRING(struct request, store)},
    HL_NO_ARGUMENTS,
};

/* *CODE becomes the exit code of this list, if that is worse. */
static json_t *list_for(const struct request *request, bool is_root, int *code) {
    char *configuration = hl_find_configuration(is_root),
         *store = is_root ? hl_xasprintf("%s", HL_SYSTEM_STORE) : hl_default_store();
    struct hl_apply apply = {.list = request->list,
                             .configuration = configuration,
                             .is_store_named = request->store != NULL,
                             .store_path = request->store != NULL ? request->store : store};
    bool has_lists = configuration != NULL || request->list != NULL;
    json_t *list = apply.store_path != NULL && has_lists ? hl_list_one(&apply, request->checks) : NULL;
    if (apply.failed)
        *code = HL_EXIT_NO;
    else if (apply.pending > 0 && *code == HL_EXIT_DONE)
        *code = HL_EXIT_PENDING;
    free(configuration);
    free(store);
    return list;
}

int hl_list_enabled(int argc, char **argv) {
    static const struct hl_command command = {
        "list",
        "Shows what is enabled, what came of it, and which processes have it.\v"
        "Exit status: 0, 1 if something is wrong, 3 if something is pending.",
        command_flags, false};
    struct request request = {0};
    int code = hl_read_flags(&command, argc, argv, &request);
    if (code != 0)
        return code;
    json_t *stores = json_array();
    bool is_one = request.store != NULL || request.list != NULL;
    json_t *first = list_for(&request, is_one ? geteuid() == 0 : true, &code);
    json_t *own = !is_one && geteuid() != 0 ? list_for(&request, false, &code) : NULL;
    if (is_one && first == NULL) {
        hl_warn("XDG_RUNTIME_DIR or HOME is not set, so there is no store or no list of your own; name both: "
                "hugeld list --list=FILE --store=FOLDER");
        code = HL_EXIT_NO;
    }
    json_array_append_new(stores, first); /* which adds nothing if that is NULL */
    json_array_append_new(stores, own);
    for (size_t i = 0; i < json_array_size(stores); i++) {
        const json_t *list = json_array_get(stores, i), *problems = json_object_get(list, "problems");
        bool is_empty = json_array_size(json_object_get(list, "files")) + json_array_size(problems) == 0;
        if (!(is_empty && i == 0 && own != NULL))
            print_list(list);
    }
    hl_print_answer(json_pack("{s:o}", "stores", stores), code == HL_EXIT_NO);
    return code;
}
