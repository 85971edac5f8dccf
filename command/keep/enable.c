/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld enable, hugeld disable: edit local.list, then apply that entry.

   What a package or the administrator's tools list in files of their own stays there: disable masks it by a line with '!', and says
   which file lists it.  An enable that fails takes back its line and its images. */
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/lock.h"
#include "command/lib/program.h"
#include "command/lib/remedy.h"
#include "command/keep/keep.h"
#include "command/image/driver.h"
#include "command/image/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    bool disables;
    unsigned way;
    struct hl_list names;
    /* while it works */
    char *configuration;
    int folder;       /* enabled.d */
    bool made_folder; /* and nobody else has */
    int code;         /* of the command */
    bool changed;
    bool is_started; /* the program is one that the named one starts, as g++ does cc1plus */
    json_t *entries;
};

static int set_way(void *request_, const char *text) {
    struct request *request = request_;
    bool is_image = strcmp(text, "image") == 0;
    request->way = is_image ? HL_ADD_IMAGE : HL_ADD_IN_PLACE;
    if (is_image || strcmp(text, "in-place") == 0)
        return 0;
    hl_warn("enable: --way %s: give image or in-place; hugeld run --copy makes private copies", text);
    return EINVAL;
}

static const struct hl_flag enable_flags[] = {
    {"way", 0, "image|in-place", "This way, whatever this kernel and file system prefer", HL_CALL(set_way)},
    {NULL, 0, "FILE|GLOB|FOLDER|PROGRAM...\nUNIT.service [FILE...]", NULL, HL_LIST(struct request, names)},
};

static const struct hl_flag disable_flags[] = {
    {NULL, 0, "FILE|GLOB|FOLDER|PROGRAM|UNIT.service...", NULL, HL_LIST(struct request, names)},
};

/* --- what a name means --- */

/* An entry as a line of a list; the caller frees it. */
static char *format_line(const char *text, const struct hl_texts *files, unsigned way) {
    char *line = hl_xasprintf("%s", text);
    for (size_t i = 0; files != NULL && i < files->n; i++)
        hl_append(&line, " %s", files->text[i]);
    if (way != 0)
        hl_append(&line, " way=%s", way == HL_ADD_IMAGE ? "image" : "in-place");
    return line;
}

/* The entry of LISTS, or ONLY_LOCAL of local.list, for TEXT, as apply chooses; NULL: there is none. */
static const struct hl_entry *find_entry(const struct hl_lists *lists, const char *text, bool only_local) {
    const struct hl_entry *found = NULL;
    for (size_t i = 0; i < lists->n; i++) {
        const struct hl_entry *entry = &lists->entry[i];
        if (strcmp(entry->text, text) == 0 && (!only_local || hl_is_local(entry->source)) &&
            (found == NULL || hl_rank_entry(entry) > hl_rank_entry(found)))
            found = entry;
    }
    return found;
}

/* The line that a list, or ONLY_LOCAL local.list, has for TEXT, and the path of that list, if SOURCE is not NULL.  NULL: none has it.
   The caller frees both. */
static char *find_line(const struct request *request, const char *text, bool only_local, char **source) {
    struct hl_lists lists;
    char *line = NULL;
    hl_read_lists(&lists, request->configuration, NULL);
    const struct hl_entry *entry = find_entry(&lists, text, only_local);
    if (entry != NULL)
        line = format_line(text, entry->is_unit ? &entry->files : NULL, entry->way);
    if (entry != NULL && source != NULL)
        *source = hl_xasprintf("%s", entry->source);
    hl_free_lists(&lists);
    return line;
}

/* Where the program at *PATH, which NAME means, only starts another one, *PATH becomes that one's: cc1plus's for g++; where its text is
   in a library that is in place already, the library's.  False, after a message that says what to name: that is not known, or is
   another library. */
static bool follow_driver(struct request *request, const char *name, char **path) {
    struct hl_program program;
    struct hl_verdict verdict = {0};
    struct hl_options options;
    char *worker = NULL, *const argv[] = {(char *)name, NULL};
    enum hl_reason reason = HL_MOVED;
    hl_default_options(&options);
    if (hl_open_program(&program, *path) && hl_read_program(&program))
        reason = hl_find_worker(&worker, &program, argv);
    enum hl_reason judged = reason == HL_MOVED && program.is_read
                                ? hl_judge_program(&verdict, &program, argv, &options)
                                : HL_MOVED;
    if (judged == HL_REASON_TEXT_IN_LIBRARY || judged == HL_REASON_LIBRARY_UNNAMED)
        reason = judged;
    request->is_started = worker != NULL && !program.is_script;
    hl_close_program(&program);
    if (reason == HL_MOVED && verdict.path != NULL && !verdict.is_main && !request->disables) {
        hl_note("%s: its text is in %s", name, verdict.path);
        hl_replace_text(path, verdict.path);
    } else if (worker != NULL) {
        hl_note("%s: %s does its work", name, worker);
        free(*path);
        *path = worker;
    } else if (reason != HL_MOVED && !request->disables) {
        char *why = hl_explain_reason(reason, verdict.path != NULL ? verdict.path : *path);
        hl_warn("%s: %s", name, why);
        free(why);
    }
    hl_free_verdict(&verdict);
    return worker != NULL || reason == HL_MOVED || request->disables;
}

/* The word of a list for NAME: a path, also of a file that is gone; a program in PATH; a glob.  NULL, after a message. */
static char *find_word(struct request *request, const char *name) {
    char path[PATH_MAX];
    char *program = strchr(name, '/') != NULL ? hl_xasprintf("%s", name) : hl_find_program(name),
         *word = NULL, *line = NULL;
    if (program == NULL) {
        hl_warn("%s: there is no such program in PATH; name a file, as in ./%s, or a unit, as in %s.service",
                name, name, name);
        return NULL;
    }
    if (!follow_driver(request, name, &program)) {
        free(program);
        return NULL;
    }
    bool is_glob = name[0] == '/' && strpbrk(name, "*?[\\") != NULL;
    bool found = realpath(program, path) != NULL, is_gone = !found && request->disables && program[0] == '/';
    int error = errno;
    if (found || is_gone)
        word = hl_quote_path(found ? path : program, true);
    if (is_gone && is_glob && word != NULL)
        line = find_line(request, word, false, NULL);
    if (!found && is_glob && line == NULL) {
        free(word);
        word = hl_quote_path(program, false);
    }
    if (!found && !is_gone && !is_glob)
        hl_warn("%s: %s; check the name", name, strerror(error));
    else if (word == NULL)
        hl_warn("%s: a list cannot name a path with such characters; rename the file", name);
    free(line);
    free(program);
    return word;
}

/* --- results --- */

static void note_entry(struct request *request, const char *entry, bool changed, int code, json_t *files) {
    json_array_append_new(request->entries,
                          json_pack("{s:o, s:b, s:I, s:o}", "entry", hl_json_text(entry), "changed", changed,
                                    "exit", (json_int_t)code, "files", files));
    request->changed |= changed;
    if (code == HL_EXIT_NO || (code == HL_EXIT_PENDING && request->code == HL_EXIT_DONE))
        request->code = code;
}

static bool change_list(struct request *request, const char *added, const char *removed, bool *changed) {
    *changed = false;
    if (request->folder < 0) /* there is no list to disable anything in */
        return true;
    int result = hl_change_list(request->folder, added, removed, changed);
    if (result != 0) {
        hl_warn("%s/enabled.d/" HL_LOCAL_LIST ": it cannot be changed: %s", request->configuration,
                strerror(-result));
        request->code = HL_EXIT_NO;
    }
    return result == 0;
}

/* --- enable --- */

/* What goes with an entry, for hl_remove_unlisted. */
struct release {
    const struct hl_wanted_files *files;
    const struct hl_texts *patterns;
};

/* Applies the entry with the word TEXT alone; or if GONE is not NULL, removes that at once.  The exit code of that. */
static int apply_entry(struct request *request, const char *text, const struct release *gone,
                       json_t **files) {
    char *store = hl_default_store();
    struct hl_apply apply = {.retries = true,
                             .is_quiet = gone != NULL && !request->disables,
                             .configuration = request->configuration,
                             .store_path = store};
    bool is_begun = hl_begin_apply(&apply);
    apply.only = find_entry(&apply.lists, text, false);
    if (is_begun && gone != NULL) {
        apply.failed = false; /* which the caller says */
        hl_find_wanted(&apply.wanted, &apply.lists, NULL, apply.store.for_all);
        hl_remove_unlisted(&apply, gone->files, gone->patterns,
                           request->disables ? "since it was disabled" : "since enabling it failed");
    } else if (is_begun) {
        apply.failed = apply.only == NULL; /* what other lists say wrong is no fault of this entry */
        if (apply.only != NULL)
            hl_apply_lists(&apply);
        const char *mask = apply.only != NULL ? apply.wanted.mask : text;
        bool is_none =
            apply.only == NULL
                ? apply.lists.is_whole
                : !apply.failed && apply.made + apply.in_place + apply.present + apply.pending == 0;
        if (is_none && mask != NULL)
            hl_warn("%s: a list in %s/enabled.d has the line !%s, which takes it out; remove that line", text,
                    request->configuration, mask);
        else if (is_none && (apply.wanted.n == 0 || !apply.wanted.file[0].is_named)) /* else each says why */
            hl_warn("%s: it has no file with text for huge pages; name a program or a library", text);
        apply.failed |= is_none;
    }
    int code = hl_end_apply(&apply);
    *files = apply.files;
    json_decref(apply.problems);
    free(store);
    return code;
}

/* Whether any of FILES is on an image, which a program uses only if it is started on it. */
static bool has_image(const json_t *files) {
    bool has = false;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *way = json_string_value(json_object_get(json_array_get(files, i), "way"));
        has |= way != NULL && strcmp(way, "image") == 0;
    }
    return has;
}

/* Gives local.list the line OWN for TEXT again, or none if that is NULL, since enabling it failed, and removes what FILES, which ascend
   by their paths, say was made.  APPLIES: another line for it counts again, whose files the failed one may have changed. */
static void take_back(struct request *request, const char *text, const char *own, bool applies,
                      const json_t *files) {
    struct hl_wanted_files made = {.file = hl_xmalloc((json_array_size(files) + 1) * sizeof *made.file)};
    json_t *removed = NULL, *again = NULL;
    bool changed;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        if (strcmp(json_string_value(json_object_get(file, "result")), "made") == 0)
            made.file[made.n++] = (struct hl_wanted){
                .path = hl_xasprintf("%s", json_string_value(json_object_get(file, "path")))};
    }
    bool back = change_list(request, own, own == NULL ? text : NULL, &changed);
    if (back && made.n > 0)
        apply_entry(request, text, &(struct release){&made, &(struct hl_texts){0}}, &removed);
    if (back && applies)
        apply_entry(request, text, NULL, &again);
    json_decref(removed);
    json_decref(again);
    hl_free_wanted(&made);
}

/* Enables the entry that LINE would be, whose first word is TEXT. */
static void enable_line(struct request *request, const char *text, const char *line) {
    bool unmasked = false, added = false, back;
    char *mask = hl_xasprintf("!%s", text), *source = NULL, *before = NULL,
         *own = find_line(request, text, true, NULL);
    json_t *files = NULL;
    int code = HL_EXIT_NO;
    if (change_list(request, NULL, mask, &unmasked)) {
        before = find_line(request, text, false, &source);
        /* A list of a package may have it already. */
        bool is_there = before != NULL &&
                        (strcmp(before, line) == 0 || (!hl_is_local(source) && strcmp(text, line) == 0));
        if (is_there || change_list(request, line, NULL, &added))
            code = apply_entry(request, text, NULL, &files);
    }
    if (code == HL_EXIT_NO && unmasked)
        change_list(request, mask, NULL, &back);
    if (code == HL_EXIT_NO && (added || unmasked))
        take_back(request, text, own, before != NULL && !unmasked, files);
    bool changed = (added || unmasked) && code != HL_EXIT_NO;
    const char *next = !changed || !has_image(files) ? ""
                       : hl_is_unit(text)            ? "restart it"
                       : hl_is_library_name(text)    ? hl_reason_remedy(HL_REASON_LIBRARY_UNNAMED)
                       : request->is_started         ? "start it by hugeld run --children"
                                                     : "start it by hugeld run";
    if (code != HL_EXIT_NO)
        hl_print("%s: %s%s%s", text, changed ? "enabled" : "unchanged, it is enabled already",
                 next[0] != '\0' ? "; " : "", next);
    note_entry(request, text, changed, code, files != NULL ? files : json_array());
    free(source);
    free(before);
    free(own);
    free(mask);
}

static void enable_unit(struct request *request, const char *unit, const struct hl_texts *named) {
    struct hl_texts files = {0}, instances = {0};
    if (named->n == 0)
        hl_list_instances(unit, &instances);
    for (size_t i = 0; i < instances.n; i++)
        enable_unit(request, instances.text[i], named);
    if (instances.n == 0 && hl_find_unit_files(unit, named, &files)) {
        char *line = format_line(unit, &files, request->way);
        enable_line(request, unit, line);
        free(line);
    } else if (instances.n == 0) {
        note_entry(request, unit, false, HL_EXIT_NO, json_array());
    }
    hl_free_texts(&files);
    hl_free_texts(&instances);
}

/* --- disable --- */

/* Disables the entry TEXT, or a file of an entry that is a glob or a folder. */
static void disable_word(struct request *request, const char *text) {
    struct hl_lists lists;
    struct hl_wanted_files gone; /* what the entry means now; all files, if there is none */
    bool removed = false, masked = false;
    char *mask = hl_xasprintf("!%s", text), *source = NULL, *line = NULL;
    json_t *files = NULL;
    int code = HL_EXIT_NO;
    hl_read_lists(&lists, request->configuration, NULL);
    const struct hl_entry *entry = find_entry(&lists, text, false);
    hl_find_wanted(&gone, &lists, entry, geteuid() == 0);
    struct hl_wanted *inside = NULL;
    for (size_t i = 0; i < gone.n && entry == NULL && inside == NULL; i++) {
        char *word = hl_quote_path(gone.file[i].path, true);
        inside = word != NULL && strcmp(word, text) == 0 ? &gone.file[i] : NULL;
        free(word);
    }
    if (change_list(request, NULL, text, &removed)) {
        line = find_line(request, text, false, &source); /* of another list */
        const struct hl_wanted_files one = {.n = 1, .file = inside};
        const struct hl_texts itself = {1, (char **)&text};
        const struct release goes = {entry != NULL ? &gone : &one, entry != NULL ? &entry->files : &itself};
        if ((line == NULL && inside == NULL) || change_list(request, mask, NULL, &masked))
            code = entry != NULL || inside != NULL ? apply_entry(request, text, &goes, &files) : HL_EXIT_DONE;
    }
    for (size_t i = 0; i < lists.problems.n && files == NULL; i++) /* else apply_entry has said them */
        hl_warn("%s", lists.problems.text[i]);
    code = lists.is_whole ? code : HL_EXIT_NO;
    if (code != HL_EXIT_NO)
        hl_print("%s: %s%s", text,
                 masked           ? "disabled by a line that masks it, since it is listed in "
                 : removed        ? "disabled"
                 : geteuid() != 0 ? "unchanged, it is not in your own lists; root's are the machine's"
                                  : "unchanged, it is not enabled",
                 !masked          ? ""
                 : inside != NULL ? inside->entry->source
                                  : source);
    note_entry(request, text, removed || masked, code, files != NULL ? files : json_array());
    hl_free_wanted(&gone);
    hl_free_lists(&lists);
    free(source);
    free(line);
    free(mask);
}

/* Disables UNIT, or if no list has it, the listed instances that enable found for it. */
static void disable_unit(struct request *request, const char *unit) {
    struct hl_lists lists;
    struct hl_texts instances = {0};
    hl_read_lists(&lists, request->configuration, NULL);
    bool is_there = find_entry(&lists, unit, false) != NULL;
    for (size_t i = 0; i < lists.n && !is_there; i++)
        if (lists.entry[i].is_unit && hl_is_instance(lists.entry[i].text, unit))
            hl_add_to_texts(&instances, lists.entry[i].text);
    for (size_t i = 0; i < instances.n; i++)
        disable_word(request, instances.text[i]);
    if (instances.n == 0)
        disable_word(request, unit);
    hl_free_texts(&instances);
    hl_free_lists(&lists);
}

/* --- the commands --- */

/* Makes and opens enabled.d, unless it is only to be read, and locks it.  A descriptor of the lock, or a negated errno, after a
   message. */
static int lock_lists(struct request *request) {
    char *folder = hl_xasprintf("%s/enabled.d", request->configuration), *at = folder;
    while (!request->disables && at != NULL) {
        at = strchr(at + 1, '/');
        if (at != NULL)
            *at = '\0';
        request->made_folder = mkdir(folder, 0700) == 0;
        if (request->made_folder && (geteuid() == 0 || at == NULL))
            chmod(folder, 0755); /* umask(2) */
        if (at != NULL)
            *at = '/';
    }
    request->folder = hl_open_trusted(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, geteuid());
    int lock = request->folder < 0 ? request->folder : hl_lock_path(request->folder, ".lock", &hl_lock_clock);
    if (lock == -EWOULDBLOCK)
        hl_warn("%s: another process has been changing it for ten seconds; try again later", folder);
    else if (lock < 0 && !(request->disables && lock == -ENOENT))
        hl_warn("%s: it cannot be changed: %s", folder,
                lock == -EPERM ? "other users can write it; chmod go-w" : strerror(-lock));
    free(folder);
    return lock;
}

static void act_on_names(struct request *request) {
    for (size_t i = 0; i < request->names.n; i++) {
        const char *name = request->names.word[i];
        struct hl_texts files = {0};
        if (hl_is_unit(name) && request->disables) {
            disable_unit(request, name);
            continue;
        }
        if (hl_is_unit(name)) {
            while (i + 1 < request->names.n && request->names.word[i + 1][0] == '/')
                hl_add_to_texts(&files, request->names.word[++i]);
            enable_unit(request, name, &files);
            hl_free_texts(&files);
            continue;
        }
        char *word = find_word(request, name);
        if (word == NULL) {
            note_entry(request, name, false, HL_EXIT_NO, json_array());
        } else if (request->disables) {
            disable_word(request, word);
        } else {
            char *line = format_line(word, NULL, request->way);
            enable_line(request, word, line);
            free(line);
        }
        free(word);
    }
}

static int lock_and_act(struct request *request, const char *name) {
    request->configuration = hl_find_configuration(geteuid() == 0);
    if (request->configuration == NULL) {
        hl_warn("%s: there is no folder for your lists; set HOME", name);
        return HL_EXIT_NO;
    }
    bool has_units = false;
    for (size_t i = 0; i < request->names.n; i++)
        has_units |= hl_is_unit(request->names.word[i]);
    if (has_units && geteuid() != 0) {
        hl_warn("%s: units are the machine's; run it as root", name);
        return HL_EXIT_NO;
    }
    if (!request->disables && geteuid() != 0 && !hl_is_kernel(6, 12)) {
        hl_warn("enable: before Linux 6.12 only root's store has huge pages; run it as root");
        return HL_EXIT_NO;
    }
    int lock = lock_lists(request);
    if (lock >= 0 || (request->disables && lock == -ENOENT)) {
        act_on_names(request);
        struct hl_lists lists;
        hl_read_lists(&lists, request->configuration, NULL);
        hl_switch_timer(&lists);
        hl_free_lists(&lists);
        if (has_units && request->changed) /* its generators print the drop-ins */
            hl_ask_manager("daemon-reload", NULL, NULL);
    } else {
        request->code = HL_EXIT_NO;
    }
    if (lock >= 0) {
        unlinkat(request->folder, ".lock", 0); /* whoever waits for it makes it anew */
        close(lock);
    }
    if (request->folder >= 0)
        close(request->folder);
    if (request->made_folder && !request->changed) {
        char *folder = hl_xasprintf("%s/enabled.d", request->configuration);
        if (rmdir(folder) == 0)
            rmdir(request->configuration); /* fails if it has settings */
        free(folder);
    }
    return request->code;
}

static int change(int argc, char **argv, bool disables) {
    static const struct hl_command commands[] = {
        {"enable",
         "Keeps these files on huge pages from now on, after upgrades, too.\v"
         "It writes them to enabled.d/local.list and applies them at once.  FILEs behind a unit are those "
         "that it executes; without any, they are looked for.  Exit status: 0 done or unchanged, 1 failed, 3 "
         "pending.",
         enable_flags, false},
        {"disable",
         "Undoes enable.\v"
         "Programs that run keep their pages until they end.",
         disable_flags, false},
    };
    struct request request = {.disables = disables, .folder = -ENOENT, .entries = json_array()};
    int code = hl_read_flags(&commands[disables], argc, argv, &request);
    if (code == 0 && request.names.n == 0) {
        hl_warn("%s: name files or units, as in hugeld %s postgresql@15-main.service",
                commands[disables].name, commands[disables].name);
        code = HL_EXIT_USAGE;
    }
    if (code == 0) {
        hl_enter_slice(argc, argv, commands[disables].name);
        code = lock_and_act(&request, commands[disables].name);
        hl_print_answer(json_pack("{s:b, s:O}", "changed", request.changed, "entries", request.entries),
                        code == HL_EXIT_NO);
    }
    json_decref(request.entries);
    free(request.configuration);
    free(request.names.word);
    return code;
}

int hl_enable_programs(int argc, char **argv) { return change(argc, argv, false); }

int hl_disable_programs(int argc, char **argv) { return change(argc, argv, true); }
