/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld share: one copy of a program's text for all processes, as images in a store (command/image/store.h). */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/base/local.h"
#include "command/base/pin.h"
#include "command/base/progress.h"
#include "command/share/configuration.h"
#include "command/image/eligible.h"
#include "command/image/find.h"
#include "command/image/in-place.h"
#include "elf/kernel.h"
#include "command/file/libraries.h"
#include "command/file/program.h"
#include "command/proc/process.h"
#include "command/proc/reading.h"
#include "command/share/unit.h"
#include "command/image/slice.h"
#include "command/image/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    bool json, running, any_disk, all, unused, force, unattended;
    const char *store_path, *action, *configuration;
    char *size;         /* of the store; NULL: as it is */
    unsigned way_flags; /* HL_ADD_IMAGE, HL_ADD_IN_PLACE | HL_ADD_NO_IMAGE or 0 */
    struct hl_list names;
    struct hl_placer placer;
    bool is_enabled;             /* the configuration names the files that are added now; then: */
    struct hl_store_item *items; /* the items of the store before these */
    size_t n_items;
    /* the results */
    json_t *files;
    bool failed;
    unsigned made, in_place, present, nothing;
    uint64_t huge_pages;
};

/* "64M", "2G", "1000000" or "25%", as mount(8) takes it; NULL if it is none. */
static char *parse_size(const char *text) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    bool has_unit = *end != '\0' && strchr("kKmMgG%", *end) != NULL;
    if (text[0] < '0' || text[0] > '9' || errno != 0 || number == 0 || end[has_unit] != '\0' ||
        (*end == '%' && number > 100) || (*end != '%' && number > UINT64_MAX >> 30))
        return NULL;
    return hl_xasprintf("%s", text);
}

static int set_size(void *request_, const char *text) {
    struct request *request = request_;
    free(request->size);
    request->size = parse_size(text);
    if (request->size != NULL)
        return 0;
    hl_warn("--size=%s: give a number of bytes, as in 512M or 2G, or a share of the memory, as in 25%%",
            text);
    return EINVAL;
}

static int add_argument(void *request_, const char *argument) {
    struct request *request = request_;
    if (request->action == NULL)
        request->action = argument;
    else
        hl_add_to_list(&request->names, argument);
    return 0;
}

static const struct hl_choice ways_to_add[] = {
    {"place", HL_ADD_IN_PLACE | HL_ADD_NO_IMAGE}, {"image", HL_ADD_IMAGE}, {NULL, 0}};

static const struct hl_flag command_flags[] = {
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct request, json)},
    {"store", 0, "FOLDER", "This store, not the system's (root) or your own (other users)",
     HL_STRING(struct request, store_path)},
    {"way", 0, "place|image", "add: in place, or as an image; by itself it takes the mildest that serves",
     HL_CHOICE(struct request, way_flags, ways_to_add)},
    {"any-disk", 0, NULL, "add, refresh: files on disks that may be exchanged, too",
     HL_SWITCH(struct request, any_disk)},
    {"size", 0, "BYTES|PERCENT", "add, refresh: how much root lets the store hold (25% of the memory)",
     HL_CALL(set_size)},
    {"running", 0, NULL, "add: the files that processes of these names or PIDs have mapped",
     HL_SWITCH(struct request, running)},
    {"all", 'a', NULL, "remove: everything", HL_SWITCH(struct request, all)},
    {"unused", 0, NULL, "remove: the images that no process maps", HL_SWITCH(struct request, unused)},
    {"force", 0, NULL, "remove: images that processes map, too", HL_SWITCH(struct request, force)},
    {"config", 0, "FILE", "refresh: this configuration, not " HL_CONFIGURATION,
     HL_STRING(struct request, configuration)},
    {"unattended", 0, NULL, "refresh: as the service does it, with its switch and limits",
     HL_SWITCH(struct request, unattended)},
    {NULL, 0,
     "add FILE|FOLDER...\nadd --running NAME|PID...\nlist\ncheck\n"
     "remove FILE|KEY...|--all|--unused\nrefresh\nunit NAME.service [FILE...]",
     NULL, HL_CALL(add_argument)},
};

/* Milliseconds of processor time in which refresh may find the processes that map a file, since it holds the store's lock
   meanwhile. */
#define COUNT_MS 1000

static void show_progress(const struct request *request, const char *path) {
    hl_show_progress(1000, "%u images, %" PRIu64 " huge pages; %.60s", request->made, request->huge_pages,
                     hl_base_name(path));
}

/* --- the result for a file --- */

static const char *name_way(bool is_in_place) { return is_in_place ? "place" : "image"; }

static void note(struct request *request, const struct hl_store *store, const char *path, const char *key,
                 const char *result, bool is_in_place, uint64_t huge_pages, const char *reason,
                 const char *sentence) {
    json_array_append_new(request->files,
                          json_pack("{s:o, s:o, s:o, s:s, s:s, s:I, s:o, s:o}", "store",
                                    hl_json_text(store->path), "path", hl_json_text(path), "key",
                                    hl_json_text(key), "result", result, "way", name_way(is_in_place),
                                    "huge_pages", (json_int_t)huge_pages, "reason", hl_json_text(reason),
                                    "sentence", hl_json_text(sentence)));
}

/* " when it is executed (hugeld run --via=image), 0.0 % when it is mapped", if the two differ. */
static char *describe_ways(const struct hl_add_outcome *outcome) {
    static const char executed[] = "when it is executed (hugeld run --via=image)",
                      mapped[] = "when it is mapped";
    unsigned other = hl_permille(outcome->text_other_bytes, outcome->text_bytes);
    if (outcome->is_in_place || outcome->text_other_bytes == outcome->text_huge_bytes)
        return hl_xasprintf("%s", "");
    return hl_xasprintf(" %s, %u.%u %% %s", outcome->is_to_be_executed ? executed : mapped, other / 10,
                        other % 10, outcome->is_to_be_executed ? mapped : executed);
}

/* "in place, 84.9 % of its text, 9 huge pages" */
static void print_made(const char *name, const struct hl_add_outcome *outcome) {
    unsigned share = hl_permille(outcome->text_huge_bytes, outcome->text_bytes),
             in_place = hl_permille(outcome->text_in_place_bytes, outcome->text_bytes);
    char *more = hl_xasprintf("%s", "");
    if (outcome->is_in_place && outcome->sentence != NULL)
        more = hl_xasprintf("; the rest is not: %s", outcome->sentence);
    else if (outcome->not_in_place != NULL)
        more = hl_xasprintf("; not in place: %s", outcome->not_in_place);
    else if (!outcome->is_in_place && in_place > 0)
        more = hl_xasprintf("; in place it would be %u.%u %%", in_place / 10, in_place % 10);
    char *ways = describe_ways(outcome);
    hl_print("%s: %s, %u.%u %% of its text%s, %" PRIu64 " huge page%s%s", name,
             outcome->is_in_place ? "in place" : "image", share / 10, share % 10, ways, outcome->huge_pages,
             hl_plural(outcome->huge_pages), more);
    free(ways);
    free(more);
}

/* How the file of OUTCOME was put on huge pages, and how to choose the other way. */
static const char *describe_present(const struct request *request, const struct hl_add_outcome *outcome) {
    if (outcome->is_in_place)
        return "in place; --way=image makes an image instead";
    bool can_be_placed = geteuid() == 0 && request->way_flags == 0;
    return can_be_placed ? "as an image; --way=place tries to keep the file in place instead" : "as an image";
}

/* Reports the OUTCOME for PATH; QUIET: it was only found in a folder, where most files are no use as images. */
static void report_outcome(struct request *request, const struct hl_store *store, const char *path,
                           const struct hl_add_outcome *outcome, bool quiet) {
    static const char *const results[] = {"made", "present", "nothing", "failed"};
    const char *name = outcome->path != NULL ? outcome->path : path;
    bool is_made = outcome->result == HL_SHARE_MADE;
    hl_hide_progress();
    switch (outcome->result) {
    case HL_SHARE_MADE:
        *(outcome->is_in_place ? &request->in_place : &request->made) += 1;
        request->huge_pages += outcome->huge_pages;
        if (!request->json)
            print_made(name, outcome);
        break;
    case HL_SHARE_PRESENT:
        request->present += !request->is_enabled; /* else refresh_store has counted it */
        if (!request->json && !quiet)
            hl_print("%s: there already, %s", name, describe_present(request, outcome));
        break;
    case HL_SHARE_NOTHING:
        request->nothing++;
        if (quiet)
            return;
        __attribute__((fallthrough));
    case HL_SHARE_FAILED:
        request->failed = true;
        hl_warn("%s: %s: %s", name,
                outcome->is_kept        ? "it stays as it is"
                : outcome->is_for_place ? "not in place"
                                        : "no image",
                outcome->sentence);
    }
    note(request, store, name, outcome->key.bytes > 0 ? outcome->key.at : NULL, results[outcome->result],
         outcome->is_in_place || outcome->is_for_place, is_made ? outcome->huge_pages : 0, outcome->reason,
         outcome->sentence);
    json_object_set_new(json_array_get(request->files, json_array_size(request->files) - 1), "text_share",
                        outcome->text_bytes > 0 ? hl_json_share(outcome->text_huge_bytes, outcome->text_bytes)
                                                : json_null());
}

/* --- add --- */

static unsigned find_flags(const struct request *request, bool if_worth) {
    return (request->any_disk ? HL_ADD_ANY_DISK : 0) | (if_worth ? HL_ADD_IF_WORTH : 0) |
           (request->unattended ? HL_ADD_UNATTENDED : 0) | request->way_flags;
}

/* Whether refresh_store has just failed to make the image of the enabled file at PATH, in the same way. */
static bool was_tried(const struct request *request, const char *path) {
    bool found = false;
    char *real = request->is_enabled && request->n_items > 0 ? hl_find_local_path(path) : NULL;
    for (size_t i = 0; real != NULL && i < request->n_items && !found; i++) {
        const struct hl_store_item *item = &request->items[i];
        found = item->state == HL_ITEM_PENDING && strcmp(item->origin, real) == 0 &&
                request->any_disk == ((item->marks & HL_ADD_ANY_DISK) != 0);
    }
    free(real);
    return found;
}

/* Notes in the store that the enabled file of OUTCOME has no image, so that the service tries again.  An existing item of the same
   file stays if it was asked for in another way. */
static void note_pending(const struct request *request, const struct hl_store *store,
                         struct hl_add_outcome *outcome, unsigned flags) {
    bool is_there = false;
    if (!request->is_enabled || outcome->result != HL_SHARE_FAILED || outcome->path == NULL ||
        outcome->key.bytes == 0)
        return;
    for (size_t i = 0; i < request->n_items && !is_there; i++)
        is_there = strcmp(request->items[i].key, outcome->key.at) == 0 &&
                   (request->items[i].state != HL_ITEM_PENDING || !(flags & HL_ADD_ANY_DISK));
    struct hl_store_item pending = {
        .key = outcome->key.at, .origin = outcome->path, .marks = flags & HL_ADD_ANY_DISK};
    if (!is_there)
        hl_set_pending(store, &pending);
}

static void add_file(struct request *request, const struct hl_store *store, const char *path, bool quiet) {
    struct hl_add_outcome outcome;
    unsigned flags = find_flags(request, quiet);
    if (was_tried(request, path))
        return;
    show_progress(request, path);
    hl_add_path(&outcome, store, path, flags);
    note_pending(request, store, &outcome, flags);
    report_outcome(request, store, path, &outcome, quiet);
    hl_free_add_outcome(&outcome);
}

/* Says that PATH, or the files in that folder, are not added, because of ERROR. */
static void say_left_out(struct request *request, const char *path, int error) {
    hl_hide_progress();
    if (error == EPERM)
        hl_warn("%s " HL_LOCAL_EXPOSED, path);
    else if (error == EREMOTE)
        hl_warn("%s is left out, since " HL_LOCAL_PROBLEM "; keep it on a local disk", path);
    else
        hl_warn("%s: it cannot be read: %s; the files in it are left out", path, strerror(error));
    request->failed = true;
}

static void add_folder(struct request *request, const struct hl_store *store, struct hl_local *local,
                       const char *path, bool is_named);

/* Adds the file or folder at PATH, inside a named folder; symbolic links there are not followed. */
static void add_inner(struct request *request, const struct hl_store *store, struct hl_local *local,
                      const char *path) {
    struct stat status;
    int result = hl_stat_local(local, path, false, &status);
    if (result == -EREMOTE || (result == 0 && S_ISDIR(status.st_mode)))
        add_folder(request, store, local, path, false);
    else if (result == 0 && S_ISREG(status.st_mode))
        add_file(request, store, path, true);
}

/* Adds every regular file below the folder PATH. */
static void add_folder(struct request *request, const struct hl_store *store, struct hl_local *local,
                       const char *path, bool is_named) {
    const struct dirent *name;
    DIR *folder = hl_open_folder(local, path, is_named);
    if (folder == NULL && (is_named || errno != EPERM))
        say_left_out(request, path, errno);
    if (folder == NULL)
        return;
    while ((name = hl_read_folder(local, folder)) != NULL) {
        char *inner = hl_xasprintf("%s/%s", path, name->d_name);
        add_inner(request, store, local, inner);
        free(inner);
    }
    if (errno != 0)
        say_left_out(request, path, errno);
    closedir(folder);
}

/* Adds the file or folder at PATH, but no folder on a file system that may not answer: for a named one, is_left_out has said so. */
static void add_path(struct request *request, const struct hl_store *store, const char *path) {
    struct stat status;
    struct hl_local local = {.only_roots = request->is_enabled,
                             .entries_max = request->is_enabled ? HL_ENABLED_NAMES_MAX : 0};
    int result = hl_stat_local(&local, path, true, &status);
    hl_close_local(&local); /* adding a file may take long */
    if (result == 0 && S_ISDIR(status.st_mode))
        add_folder(request, store, &local, path, true);
    else if (request->is_enabled && (result == -EREMOTE || result == -EPERM))
        say_left_out(request, path, -result);
    else
        add_file(request, store, path, false);
    if (local.is_full)
        hl_warn("%s: " HL_ENABLED_NAMES_TOO_MANY, path);
    hl_close_local(&local);
    free(local.exposed);
}

/* Whether PATH is left out, with a message: a folder that may not answer, or a file there that gets no image.  This asks the file's
   own server, which may take long, so it is called before the store at STORE_PATH is locked. */
static bool is_left_out(struct request *request, const char *store_path, const char *path) {
    const struct hl_store store = {.path = (char *)store_path};
    struct hl_local local = {0};
    struct stat status;
    int result = hl_stat_local(&local, path, true, &status);
    hl_close_local(&local);
    int file = result == -EREMOTE && store_path != NULL ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (file < 0)
        return false;
    bool is_folder = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
    struct hl_add_outcome outcome = {.result = HL_SHARE_FAILED,
                                     .is_for_place = (request->way_flags & HL_ADD_IN_PLACE) != 0};
    if (is_folder)
        say_left_out(request, path, EREMOTE);
    else if ((outcome.sentence = hl_explain_unsteady(file, request->any_disk)) != NULL)
        report_outcome(request, &store, path, &outcome, false);
    close(file);
    bool is_left_out = is_folder || outcome.sentence != NULL;
    hl_free_add_outcome(&outcome);
    return is_left_out;
}

/* Whether PATH is a folder, or a file that may get an image; reports it if it is neither, before a store is made in vain. */
static bool is_object(struct request *request, const char *store_path, const char *path) {
    const struct hl_store store = {.path = (char *)store_path};
    struct hl_elf_file file;
    struct hl_add_outcome outcome;
    enum hl_elf_problem problem = hl_open_elf_soon(&file, path, true);
    if (problem == HL_ELF_FINE)
        hl_close_elf(&file);
    if (problem == HL_ELF_FINE || problem == HL_ELF_DIRECTORY)
        return true;
    hl_note_no_object(&outcome, problem, request->way_flags);
    report_outcome(request, &store, path, &outcome, false);
    hl_free_add_outcome(&outcome);
    return false;
}

/* Reads the path of PROCESS's executable; "" if that cannot be read. */
static void read_executable(const struct hl_process *process, char path[PATH_MAX]) {
    ssize_t bytes = readlinkat(process->folder, "exe", path, PATH_MAX - 1);
    path[bytes > 0 ? bytes : 0] = '\0';
}

/* Whether NAME is the process's ID or the base name of its executable.  Its own name (comm) can be anything. */
static bool has_name(const struct hl_process *process, const char *name) {
    char path[PATH_MAX];
    read_executable(process, path);
    const char *base = strrchr(path, '/');
    return hl_parse_pid(name) == process->pid || (base != NULL && strcmp(base + 1, name) == 0);
}

/* Whether PATH is EXECUTABLE or linked with it. */
static bool is_linked(const struct hl_texts *libraries, const char *executable, const char *path) {
    bool found = strcmp(executable, path) == 0;
    for (size_t i = 0; i < libraries->n && !found; i++)
        found = strcmp(libraries->text[i], path) == 0;
    return found;
}

/* Adds the object LOADED of a process, unless there is a PROBLEM with it, which then becomes the outcome's sentence. */
static void add_loaded(struct request *request, const struct hl_store *store, const struct hl_loaded *loaded,
                       char *problem) {
    struct hl_add_outcome outcome = {
        .result = hl_has_enough_text(&loaded->object, &store->geometry) ? HL_SHARE_FAILED : HL_SHARE_NOTHING,
        .sentence = problem};
    show_progress(request, loaded->object.path);
    if (problem == NULL)
        hl_add_image(&outcome, store, loaded->file, find_flags(request, true));
    report_outcome(request, store, loaded->object.path, &outcome, true);
    hl_free_add_outcome(&outcome);
}

/* Adds the objects that PROCESS has mapped, after hl_find_loaded.  Any user can start root's programs and have them map other files
   of root's.  So for a store for all users, all mapped objects count only if the process was named by its ID (IS_NAMED); else only
   the executable and the libraries it is linked with.  Another user may delay opening and examining them for as long as they like
   (FUSE), so the store is locked after that, and only files on the kernel's own file systems are looked at again.  False: there is
   no store, which was reported. */
static bool add_objects(struct request *request, const char *store_path, struct hl_process *process,
                        bool is_named) {
    struct hl_texts libraries = {0};
    struct hl_store store;
    struct hl_elf_file file;
    char executable[PATH_MAX];
    read_executable(process, executable);
    if (!is_named && hl_open_elf(&file, process->folder, "exe") == HL_ELF_FINE) {
        free(hl_list_libraries(&libraries, executable, &file, false));
        hl_close_elf(&file);
    }
    char **problem = hl_xmalloc((process->n_loaded + 1) * sizeof *problem);
    for (size_t i = 0; i < process->n_loaded; i++)
        problem[i] = hl_explain_unsteady(process->loaded[i].file->fd, request->any_disk);
    bool is_open = hl_make_store(&store, store_path, request->size, true) == 0;
    if (is_open)
        store.placer = &request->placer;
    for (size_t i = 0; i < process->n_loaded; i++) {
        char *path = hl_find_file_path(process->loaded[i].file->fd);
        bool is_meant = is_named || (path != NULL && is_linked(&libraries, executable, path));
        if (is_open && (is_meant || !store.for_all))
            add_loaded(request, &store, &process->loaded[i], problem[i]);
        else
            free(problem[i]);
        free(path);
    }
    if (is_open)
        hl_close_store(&store);
    free(problem);
    hl_free_texts(&libraries);
    return is_open;
}

/* Adds the objects of the processes NAME that may be read. */
static void add_running(struct request *request, const char *store_path, const char *name) {
    struct hl_geometry geometry;
    glob_t folders;
    unsigned found = 0;
    int last = 0;
    pid_t denied = 0;
    bool is_open = true;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    if (glob("/proc/[1-9]*", GLOB_ONLYDIR, NULL, &folders) != 0)
        folders.gl_pathc = 0;
    for (size_t i = 0; i < folders.gl_pathc && is_open; i++) {
        struct hl_process process = {0};
        pid_t pid = hl_parse_pid(folders.gl_pathv[i] + strlen("/proc/"));
        if (pid == 0 || pid == getpid() || hl_open_process(&process, pid) != 0)
            continue;
        if (has_name(&process, name)) {
            int result = hl_read_process(&process);
            if (result == 0)
                result = hl_find_loaded(&process, &geometry);
            if (result == 0) {
                found++;
                is_open = add_objects(request, store_path, &process, hl_parse_pid(name) == pid);
            } else {
                last = result;
                denied = pid;
            }
        }
        hl_close_process(&process);
    }
    if (folders.gl_pathc > 0)
        globfree(&folders);
    request->failed |= found == 0 || !is_open;
    if (found > 0)
        return;
    if (last != 0)
        hl_say_unreadable(denied, last);
    else if (hl_parse_pid(name) != 0)
        hl_say_unreadable(hl_parse_pid(name), -ESRCH);
    else
        hl_warn("%s: no process runs a file of this name; give the name that readlink /proc/PID/exe ends "
                "with, or a PID",
                name);
}

static void print_sum(const struct request *request) {
    if (!request->json && request->made + request->in_place + request->present + request->nothing > 1)
        hl_print("%u image%s made, %u file%s put in place, %" PRIu64
                 " huge page%s; %u there already; %u file%s would gain nothing",
                 request->made, hl_plural(request->made), request->in_place, hl_plural(request->in_place),
                 request->huge_pages, hl_plural(request->huge_pages), request->present, request->nothing,
                 hl_plural(request->nothing));
    if (request->in_place > 0 && request->placer.is_pressure_unknown)
        hl_warn(
            "this kernel does not say whether programs wait for memory or disks, so files were put in place "
            "without regard to that; boot with psi=1");
}

static void add_named(struct request *request, const char *store_path) {
    struct hl_store store;
    struct hl_list paths = {0};
    for (size_t i = 0; i < request->names.n; i++) { /* before the store is locked */
        char *path = hl_find_named_file(request->names.word[i]);
        if (store_path == NULL ||
            (!is_left_out(request, store_path, path) && is_object(request, store_path, path)))
            hl_add_to_list(&paths, path);
        else
            free(path);
    }
    if (paths.n > 0 && hl_make_store(&store, store_path, request->size, true) == 0) {
        store.placer = &request->placer;
        for (size_t i = 0; i < paths.n; i++)
            add_path(request, &store, paths.word[i]);
        hl_close_store(&store);
    } else {
        request->failed = true;
    }
    for (size_t i = 0; i < paths.n; i++)
        free((char *)paths.word[i]);
    free(paths.word);
}

static int add(struct request *request, const char *path) {
    if ((request->way_flags & HL_ADD_IN_PLACE) && geteuid() != 0) {
        hl_warn("share add: only root can put files in place; run hugeld as root, or leave --way=place out");
        return HL_EXIT_NO;
    }
    hl_enter_slice();
    for (size_t i = 0; i < request->names.n && request->running; i++)
        add_running(request, path, request->names.word[i]);
    if (!request->running)
        add_named(request, path);
    hl_hide_progress();
    print_sum(request);
    return request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

/* --- list, check --- */

static void print_item(const struct hl_store_item *item) {
    unsigned share = hl_permille(item->text_huge_bytes, item->text_bytes);
    char *text = item->text_bytes > 0 ? hl_xasprintf("%u.%u %%", share / 10, share % 10) : hl_xasprintf("-");
    hl_print("%-5s %7s %10" PRIu64 " %10" PRIu64 " %9u  %-8s %s  %s", name_way(item->is_in_place), text,
             item->huge_pages, item->bytes / 1024, item->processes,
             hl_item_state_name(item->state), item->origin, item->key);
    free(text);
}

static void print_store(const struct hl_store *store, const struct hl_store_item *items, size_t n) {
    uint64_t pages = 0, room = hl_store_room(store);
    size_t images = hl_count_images(items, n);
    for (size_t i = 0; i < n; i++)
        pages += items[i].is_in_place ? 0 : items[i].huge_pages;
    char *left =
        room == UINT64_MAX ? hl_xasprintf("any number") : hl_xasprintf("%" PRIu64 " MiB", room >> 20);
    hl_print("%s: tmpfs, %zu image%s, %" PRIu64 " huge page%s of %" PRIu64
             " KiB, room for %s; %zu file%s in place",
             store->path, images, hl_plural(images), pages, hl_plural(pages),
             store->geometry.huge_page_bytes / 1024, left, n - images, hl_plural(n - images));
    free(left);
    if (n > 0)
        hl_print("%-5s %7s %10s %10s %9s  %-8s %s", "WAY", "TEXT", "PAGES", "KIB", "PROCESSES",
                 "STATE", "FILE, KEY");
    for (size_t i = 0; i < n; i++)
        print_item(&items[i]);
}

static json_t *make_json_item(const struct hl_store_item *item) {
    json_t *share =
        item->text_bytes > 0 ? hl_json_share(item->text_huge_bytes, item->text_bytes) : json_null();
    return json_pack("{s:o, s:s, s:s, s:o, s:I, s:I, s:o, s:s, s:I}", "path", hl_json_text(item->origin),
                     "key", item->key, "way", name_way(item->is_in_place), "image",
                     item->is_in_place ? json_null() : hl_json_text(item->image), "bytes",
                     (json_int_t)item->bytes, "huge_pages", (json_int_t)item->huge_pages, "text_share", share,
                     "state", hl_item_state_name(item->state),
                     "processes", (json_int_t)item->processes);
}

static json_t *make_json_store(const struct hl_store *store, const struct hl_store_item *items, size_t n) {
    json_t *images = json_array();
    uint64_t room = hl_store_room(store);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(images, make_json_item(&items[i]));
    return json_pack("{s:o, s:I, s:o, s:b, s:o}", "path", hl_json_text(store->path), "huge_page_bytes",
                     (json_int_t)store->geometry.huge_page_bytes, "room_bytes",
                     room == UINT64_MAX ? json_null() : json_integer((json_int_t)room), "for_all",
                     store->for_all, "images", images);
}

/* Prints nothing with --json, whose answer is then empty.  OTHER may be NULL. */
static void say_no_store(const struct request *request, const char *path, const char *other) {
    if (!request->json)
        hl_print("there is no store at %s%s%s", path, other != NULL ? " or " : "",
                 other != NULL ? other : "");
}

/* Calls VISIT for the named store, or for those that processes of this user look into.  False: a store that should exist does
   not. */
static bool visit_stores(struct request *request, void (*visit)(struct request *, const struct hl_store *)) {
    char *mine = hl_default_store();
    const char *const paths[] = {request->store_path != NULL ? request->store_path : HL_SYSTEM_STORE,
                                 request->store_path == NULL && geteuid() != 0 ? mine : NULL};
    bool fine = true, is_none = true;
    for (unsigned i = 0; i < 2 && paths[i] != NULL; i++) {
        struct hl_store store;
        int result = hl_find_store(&store, paths[i]);
        is_none &= result == -ENOENT;
        if (result == 0) {
            visit(request, &store);
            hl_close_store(&store);
        } else if (result != -ENOENT || request->store_path != NULL) {
            fine = false;
            if (result == -ENOENT)
                hl_warn("%s: there is no store; make one: hugeld share add FILE", paths[i]);
        }
    }
    if (is_none && fine)
        say_no_store(request, paths[0], paths[1]);
    free(mine);
    return fine;
}

static void list_store(struct request *request, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n;
    request->failed |= !hl_read_store(store, &items, &n);
    hl_count_processes(items, n);
    for (size_t i = 0; i < n; i++)
        hl_measure_store_item(store, &items[i]);
    if (request->json)
        json_array_append_new(request->files, make_json_store(store, items, n));
    else
        print_store(store, items, n);
    hl_free_store_items(items, n);
}

static void print_fine(const struct hl_store *store, size_t images, size_t n) {
    char *in_place = n > images ? hl_xasprintf(", %zu file%s in place", n - images, hl_plural(n - images))
                                : hl_xasprintf("%s", "");
    hl_print("%s: %zu image%s%s, nothing is wrong", store->path, images, hl_plural(images), in_place);
    free(in_place);
}

static void check_store(struct request *request, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n;
    request->failed |= !hl_read_store(store, &items, &n);
    for (size_t i = 0; i < n; i++) {
        show_progress(request, items[i].origin);
        enum hl_fault fault;
        char *problem = hl_check_store_item(store, &items[i], 0, &fault);
        hl_hide_progress();
        if (problem != NULL) {
            request->failed = true;
            hl_warn("%s: %s %s: %s; run hugeld share refresh", items[i].origin,
                    items[i].is_in_place ? "in place," : "its image", items[i].key, problem);
        }
        note(request, store, items[i].origin, items[i].key, problem != NULL ? "bad" : "fine",
             items[i].is_in_place, items[i].huge_pages, NULL, problem);
        free(problem);
    }
    if (!request->json && !request->failed)
        print_fine(store, hl_count_images(items, n), n);
    hl_free_store_items(items, n);
}

static int list(struct request *request, const char *path) {
    (void)path;
    return visit_stores(request, list_store) && !request->failed ? HL_EXIT_DONE : HL_EXIT_NO;
}

static int check(struct request *request, const char *path) {
    (void)path;
    return visit_stores(request, check_store) && !request->failed ? HL_EXIT_DONE : HL_EXIT_NO;
}

/* --- remove --- */

/* Whether NAME is the key of ITEM, or its original's path, which may be gone. */
static bool is_named(const struct hl_store_item *item, const char *name) {
    return strcmp(item->key, name) == 0 || strcmp(item->origin, name) == 0;
}

/* The path that NAME leads to, without symbolic links.  NULL: NAME leads nowhere, or to a file system that may not answer.  The
   caller frees it. */
static char *find_path(const char *name) {
    char *named = hl_find_named_file(name), *path = hl_find_local_path(named);
    free(named);
    return path;
}

static void remove_image(struct request *request, const struct hl_store *store,
                         const struct hl_store_item *item) {
    if (item->processes > 0 && !item->is_in_place && !request->force) {
        char *why = hl_xasprintf(
            "%u process%s it, which would keep its memory until the last one ends; remove it all "
            "the same: --force",
            item->processes, item->processes == 1 ? " maps" : "es map");
        hl_warn("%s: its image stays: %s", item->origin, why);
        note(request, store, item->origin, item->key, "kept", item->is_in_place, item->huge_pages, NULL, why);
        request->failed = true;
        free(why);
        return;
    }
    int result = hl_remove_store_item(store, item->key);
    if (result != 0 && result != -ENOENT) {
        hl_warn("%s: %s cannot be removed: %s", item->origin, item->is_in_place ? "its record" : "its image",
                strerror(-result));
        note(request, store, item->origin, item->key, "failed", item->is_in_place, item->huge_pages, NULL,
             strerror(-result));
        request->failed = true;
        return;
    }
    note(request, store, item->origin, item->key, "removed", item->is_in_place, item->huge_pages, NULL, NULL);
    if (request->json)
        return;
    if (item->is_in_place)
        hl_print("%s: no longer kept in place", item->origin);
    else
        hl_print("%s: image removed%s", item->origin,
                 request->force ? "; its memory stays until no process maps it" : "");
}

/* Removes the items that NAME means.  False: it means none of the N ITEMS. */
static bool remove_named(struct request *request, const struct hl_store *store,
                         const struct hl_store_item *items, size_t n, const char *name) {
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_named(&items[i], name))
            continue;
        found = true;
        remove_image(request, store, &items[i]);
    }
    return found;
}

static void remove_images(struct request *request, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n;
    bool counts = !request->force || request->unused;
    request->failed |= !(counts ? hl_read_store : hl_list_store)(store, &items, &n);
    /* Reading a process's maps may take as long as that process likes. */
    if (counts)
        hl_count_processes(items, n);
    for (size_t i = 0; i < n; i++)
        if (request->all || (request->unused && items[i].processes == 0 && !items[i].is_in_place))
            remove_image(request, store, &items[i]);
    for (size_t j = 0; j < request->names.n; j++) {
        const char *name = request->names.word[j];
        if (remove_named(request, store, items, n, name))
            continue;
        char *path = find_path(name);
        if (path == NULL || !remove_named(request, store, items, n, path)) {
            hl_warn("%s: the store has no image of it; 'hugeld share list' shows its images", name);
            request->failed = true;
        }
        free(path);
    }
    hl_free_store_items(items, n);
}

static int remove_some(struct request *request, const char *path) {
    struct hl_store store;
    int result = hl_find_store(&store, path);
    if (path == NULL)
        hl_warn("XDG_RUNTIME_DIR is not set, so there is no store of your own; only root can remove images "
                "from " HL_SYSTEM_STORE);
    else if (result == -ENOENT && (request->all || request->unused)) {
        if (!request->force) /* with --force it is `hugeld reset`, or of no interest */
            say_no_store(request, path, NULL);
        return HL_EXIT_DONE;
    } else if (result == -ENOENT)
        hl_warn("%s: there is no store, so nothing can be removed from it", path);
    if (result != 0)
        return HL_EXIT_NO;
    result = hl_lock_store(&store, true);
    if (result == 0)
        remove_images(request, &store);
    else
        request->failed = true;
    hl_close_store(&store);
    return request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

/* --- refresh --- */

static void report_removed(struct request *request, const struct hl_store *store,
                           const struct hl_store_item *item) {
    note(request, store, item->origin, item->key, "removed", item->is_in_place, item->huge_pages, NULL, NULL);
    if (!request->json)
        hl_print("%s: removed, because the file is gone", item->origin);
}

static void refresh_image(struct request *request, const struct hl_store *store,
                          const struct hl_store_item *item) {
    struct hl_add_outcome outcome;
    switch (hl_refresh_store_item(&outcome, store, item, find_flags(request, false))) {
    case HL_REFRESH_FINE:
        request->present++;
        note(request, store, item->origin, item->key, "present", item->is_in_place, 0, NULL, NULL);
        break;
    case HL_REFRESH_REMOVED:
        report_removed(request, store, item);
        break;
    case HL_REFRESH_TRIED:
        report_outcome(request, store, item->origin, &outcome, false);
        hl_free_add_outcome(&outcome);
    }
}

/* Whether the service's switch forbids continuing. */
static bool is_stopped(const struct request *request) {
    return request->unattended && hl_is_service_stopped();
}

static void refresh_store(struct request *request, const struct hl_store *store) {
    struct hl_store_item *items;
    size_t n;
    request->failed |= !hl_read_store(store, &items, &n);
    for (size_t i = 0; i < n && !is_stopped(request); i++) {
        show_progress(request, items[i].origin);
        refresh_image(request, store, &items[i]);
    }
    hl_free_store_items(items, n);
}

/* Reads the enabled files of the configuration, which concerns the system's store alone. */
static void read_enabled(struct request *request, const char *path, struct hl_configuration *configuration) {
    *configuration = (struct hl_configuration){0};
    if (path != NULL && strcmp(path, HL_SYSTEM_STORE) == 0 &&
        hl_read_configuration(configuration, request->configuration) != 0)
        request->failed = true;
}

static void add_enabled(struct request *request, const struct hl_store *store, const char *entry) {
    struct hl_texts files;
    if (!hl_expand_enabled(&files, entry, request->configuration))
        request->failed = true;
    request->is_enabled = true;
    hl_read_store(store, &request->items, &request->n_items);
    for (size_t i = 0; i < files.n && !is_stopped(request); i++)
        add_path(request, store, files.text[i]);
    hl_free_store_items(request->items, request->n_items);
    hl_free_texts(&files);
}

static int refresh(struct request *request, const char *path) {
    struct hl_store store;
    struct hl_configuration configuration;
    if (is_stopped(request)) {
        hl_warn("share refresh: " HL_SERVICE_STOP " is there, so nothing is made; remove it");
        return HL_EXIT_NO;
    }
    hl_enter_slice();
    hl_pins_by = hl_open_local_path;
    if (request->unattended)
        hl_limit_readings();
    request->placer.count_ms_max = COUNT_MS;
    read_enabled(request, path, &configuration);
    size_t n = configuration.enabled.n;
    int result = n > 0 ? hl_make_store(&store, path, request->size, true) : hl_find_store(&store, path);
    if (result == 0 && n == 0)
        result = hl_lock_store(&store, true);
    if (result == 0) {
        store.placer = &request->placer;
        refresh_store(request, &store);
        request->any_disk |= configuration.any_disk;
        for (size_t i = 0; i < n && !is_stopped(request); i++)
            add_enabled(request, &store, configuration.enabled.text[i]);
        if (is_stopped(request)) {
            hl_warn("share refresh: " HL_SERVICE_STOP " is there, so the rest is not made; remove it");
            request->failed = true;
        }
        hl_hide_progress();
        print_sum(request);
        hl_close_store(&store);
    }
    hl_free_configuration(&configuration);
    return (result != 0 && result != -ENOENT) || request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

/* --- the command --- */

static const struct action {
    const char *name;
    int (*function)(struct request *request, const char *path);
    const char *answer; /* the array of --json */
} actions[] = {
    {"add", add, "files"},         {"list", list, "stores"},
    {"check", check, "files"},     {"remove", remove_some, "files"},
    {"refresh", refresh, "files"},
};

static const struct action *find_action(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(actions[i].name, name) == 0)
            return &actions[i];
    return NULL;
}

/* The action that resembles NAME, which may be NULL; or NULL. */
static const char *find_near(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof actions / sizeof actions[0]; i++)
        if (strlen(name) <= HL_WORD_MAX && hl_is_near(name, actions[i].name))
            return actions[i].name;
    return NULL;
}

/* The mistake in the arguments, or NULL. */
static const char *find_misuse(const struct request *request, const struct action *action) {
    bool adds = action->function == add, removes = action->function == remove_some;
    if (!adds && (request->running || request->way_flags != 0))
        return "--running and --way are for add";
    if (!adds && action->function != refresh && (request->any_disk || request->size != NULL))
        return "--any-disk and --size are for add and refresh";
    if (action->function != refresh && (request->configuration != NULL || request->unattended))
        return "--config and --unattended are for refresh";
    if (!removes && (request->all || request->unused || request->force))
        return "--all, --unused and --force are for remove";
    if (adds && request->names.n == 0)
        return "name a FILE or FOLDER, or --running and a process";
    if (removes && (request->names.n > 0) + request->all + request->unused != 1)
        return "name FILEs or KEYs, or --all, or --unused";
    if (!adds && !removes && request->names.n > 0)
        return "it takes no FILE";
    return NULL;
}

static int act(struct request *request) {
    const struct action *action = find_action(request->action);
    const char *near = action == NULL ? find_near(request->action) : NULL;
    if (near != NULL) {
        hl_warn("share: %s: no such action; did you mean '%s'?", request->action, near);
        return HL_EXIT_USAGE;
    }
    if (action == NULL) {
        hl_warn("share: give an action: add, list, check, remove, refresh or unit; 'hugeld share --help' "
                "says more");
        return HL_EXIT_USAGE;
    }
    const char *misuse = find_misuse(request, action);
    if (misuse != NULL) {
        hl_warn("share %s: %s", action->name, misuse);
        return HL_EXIT_USAGE;
    }
    char *path = request->store_path != NULL ? hl_xasprintf("%s", request->store_path) : hl_default_store();
    if (request->configuration == NULL)
        request->configuration = HL_CONFIGURATION;
    request->files = json_array();
    int code = action->function(request, path);
    if (request->json)
        hl_print_json(json_pack("{s:O}", action->answer, request->files));
    json_decref(request->files);
    hl_free_placer(&request->placer);
    free(path);
    return code;
}

int hl_share_files(int argc, char **argv) {
    static const struct hl_command command = {
        "share",
        "Keeps one copy of a program's text on huge pages for all processes.\v"
        "add puts programs and libraries on huge pages in place or makes images of them, list shows them, "
        "check compares them with the files, remove removes them, and refresh makes anew those of files that "
        "have changed, and those that " HL_CONFIGURATION
        " enables; unit prints a drop-in with which a service of systemd runs from its image.  Root's are "
        "for "
        "all users; each other user has a store of their own.",
        command_flags, false};
    struct request request = {0};
    int code = HL_EXIT_USAGE;
    if (argc > 1 && strcmp(argv[1], "unit") == 0) {
        argv[1] = argv[0];
        return hl_share_unit(argc - 1, argv + 1);
    }
    code = hl_read_flags(&command, argc, argv, &request);
    if (code == 0)
        code = act(&request);
    free(request.size);
    free(request.names.word);
    return code;
}
