/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld enable, hugeld disable: keep programs on huge pages from now on, after every boot and upgrade.

   They change the configuration (configuration.h), and run `hugeld share` at once for the same work that `hugeld service` does
   later. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/share/configuration.h"
#include "command/file/program.h"
#include "command/image/store.h"
#include "command/share/unit.h"
#include "command/base/subprocess.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct request {
    bool disables, failed;
    bool any_disk; /* as in the configuration */
    struct hl_list names;
};

static const struct hl_flag command_flags[] = {
    {NULL, 0, "PROGRAM|UNIT...", NULL, HL_LIST(struct request, names)},
};

static const char *name_of(const struct request *request) { return request->disables ? "disable" : "enable"; }

/* The file that NAME means: a path, a program in PATH, or a unit's program.  NULL, after a message: there is none.  The caller
   frees it. */
static char *find_file(const struct request *request, const char *name) {
    char path[PATH_MAX];
    if (hl_is_unit(name))
        return hl_find_unit_program(name, name_of(request));
    char *program = strchr(name, '/') != NULL ? hl_xasprintf("%s", name) : hl_find_program(name);
    if (program == NULL) {
        hl_warn(
            "%s: there is no such program in PATH; name a file, or a unit with its suffix, as in %s.service",
            name, name);
        return NULL;
    }
    bool found = realpath(program, path) != NULL;
    if (!found && request->disables && program[0] == '/')
        return program; /* it may be gone */
    if (!found)
        hl_warn("%s: %s", name, strerror(errno));
    free(program);
    return found ? hl_xasprintf("%s", path) : NULL;
}

/* PATH as a value of the configuration, where some characters have a meaning.  NULL: no value can express it. */
static char *make_entry(const char *path) {
    size_t length = strlen(path), bytes = 0;
    if (strpbrk(path, "\n\r\t") != NULL || path[length - 1] == ' ')
        return NULL;
    char *entry = hl_xmalloc(2 * length + 1);
    for (const char *at = path; *at != '\0'; at++) {
        if (strchr("*?[\\", *at) != NULL)
            entry[bytes++] = '\\';
        entry[bytes++] = *at;
    }
    entry[bytes] = '\0';
    return entry;
}

/* The JSON object of the one file in the answer of `share add`.  The caller drops it. */
static json_t *parse_answer(const struct hl_answer *answer) {
    json_t *whole = json_loads(answer->output, 0, NULL);
    json_t *file = json_incref(json_array_get(json_object_get(whole, "files"), 0));
    json_decref(whole);
    return file;
}

/* Shares PATH.  False, after a message: it could not be shared. */
static bool add_image(const struct request *request, const char *path) {
    const char *const steady[] = {"hugeld", "share", "add", "--json", "--", path, NULL};
    const char *const any[] = {"hugeld", "share", "add", "--json", "--any-disk", "--", path, NULL};
    struct hl_answer answer;
    struct stat status;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode) && !hl_only_writable_by(&status, 0)) {
        hl_warn("%s: users other than root can write in this folder, so nothing in it is shared; name files, "
                "or folders in which only root can write",
                path);
        return false;
    }
    hl_ask_itself(&answer, request->any_disk ? any : steady);
    fputs(answer.errors, stderr);
    json_t *file = parse_answer(&answer);
    const char *result = json_string_value(json_object_get(file, "result"));
    const char *sentence = json_string_value(json_object_get(file, "sentence"));
    bool fine = result != NULL && (strcmp(result, "made") == 0 || strcmp(result, "present") == 0);
    if (!fine && answer.errors[0] == '\0')
        hl_warn("%s: %s", path, sentence != NULL ? sentence : "none of its text can be shared");
    json_decref(file);
    hl_free_answer(&answer);
    return fine;
}

/* Whether the system's store has an item of PATH. */
static bool is_shared(const char *path) {
    struct hl_store store;
    struct hl_store_item *items;
    size_t n;
    bool found = false;
    if (hl_find_store(&store, HL_SYSTEM_STORE) != 0)
        return false;
    hl_list_store(&store, &items, &n);
    for (size_t i = 0; i < n && !found; i++)
        found = strcmp(items[i].origin, path) == 0;
    hl_free_store_items(items, n);
    hl_close_store(&store);
    return found;
}

/* False, after a message: it was not removed. */
static bool remove_image(const char *path) {
    const char *const argv[] = {"hugeld", "share", "remove", "--force", "--", path, NULL};
    return hl_run_itself(argv);
}

static bool enable(const struct request *request, const char *path, const char *entry) {
    bool changed;
    if (!add_image(request, path) || hl_enable_entry(entry, &changed) != 0)
        return false;
    hl_print("%s: enabled%s", path, changed ? "" : " already");
    return true;
}

static bool disable(const char *path, const char *entry) {
    bool changed;
    if (hl_disable_entry(entry, &changed) != 0)
        return false;
    if (!changed) {
        hl_warn("%s: it was not enabled; " HL_CONFIGURATION
                " has no line for this path, but a glob there may mean it",
                path);
        return false;
    }
    if (is_shared(path) && !remove_image(path))
        return false;
    hl_print("%s: disabled", path);
    return true;
}

static void act_on(struct request *request, const char *name) {
    char *path = find_file(request, name), *entry = path != NULL ? make_entry(path) : NULL;
    bool fine = entry != NULL && (request->disables ? disable(path, entry) : enable(request, path, entry));
    if (path != NULL && entry == NULL)
        hl_warn("%s: " HL_CONFIGURATION " cannot name a path with such characters; rename the file", path);
    request->failed |= !fine;
    free(entry);
    free(path);
}

/* With the configuration's lock.  The exit code. */
static int act(struct request *request) {
    struct hl_configuration configuration;
    if (hl_read_configuration(&configuration, HL_CONFIGURATION) != 0)
        return HL_EXIT_NO;
    request->any_disk = configuration.any_disk;
    hl_free_configuration(&configuration);
    for (size_t i = 0; i < request->names.n; i++)
        act_on(request, request->names.word[i]);
    return request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

static int lock_and_act(struct request *request) {
    if (request->names.n == 0) {
        hl_warn("%s: name programs or units, as in hugeld %s postgresql@15-main.service", name_of(request),
                name_of(request));
        return HL_EXIT_USAGE;
    }
    if (geteuid() != 0) {
        hl_warn("%s: the configuration is the administrator's; run it as root", name_of(request));
        return HL_EXIT_NO;
    }
    int lock = hl_lock_configuration();
    if (lock < 0)
        return HL_EXIT_NO;
    int code = act(request);
    hl_unlock_configuration(lock);
    return code;
}

static int change(int argc, char **argv, bool disables) {
    static const struct hl_command commands[] = {
        {"enable",
         "Shares the text of these programs from now on.\v"
         "It writes them to " HL_CONFIGURATION
         ", and makes their images at once.  hugeld.service keeps them, "
         "after upgrades and at boot, once you enable it.",
         command_flags, false},
        {"disable",
         "Undoes enable.\v"
         "Programs that run keep their pages until they end.",
         command_flags, false},
    };
    struct request request = {.disables = disables};
    int code = hl_read_flags(&commands[disables], argc, argv, &request);
    if (code == 0)
        code = lock_and_act(&request);
    free(request.names.word);
    return code;
}

int hl_enable_programs(int argc, char **argv) { return change(argc, argv, false); }

int hl_disable_programs(int argc, char **argv) { return change(argc, argv, true); }
