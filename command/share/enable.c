/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld enable, hugeld disable: programs that are to be on huge pages from now on, after every boot and upgrade.

   They change the configuration (configuration.h), and have `hugeld share` do at once what `hugeld service` does later. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/share/configuration.h"
#include "command/file/program.h"
#include "command/share/unit.h"
#include "command/base/subprocess.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    bool disables, failed;
    size_t n;
    const char **name;
};

static const struct argp_option argp_options[] = {
    HL_HELP_OPTION,
    {NULL, 0, NULL, 0, NULL, 0},
};

static const char *name_of(const struct request *request) { return request->disables ? "disable" : "enable"; }

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct request *request = state->input;
    if (key != ARGP_KEY_ARG)
        return hl_parse_common(key, state, request->disables ? "hugeld disable" : "hugeld enable", false);
    request->name = hl_resize(request->name, (request->n + 1) * sizeof *request->name);
    request->name[request->n++] = argument;
    return 0;
}

static bool is_unit(const char *name) {
    size_t length = strlen(name), suffix = strlen(".service");
    return strchr(name, '/') == NULL && length > suffix && strcmp(name + length - suffix, ".service") == 0;
}

/* The file that NAME means: a path, a program in PATH, or a unit's program.  NULL: it was said why there is none.  The caller
   frees it. */
static char *find_file(const struct request *request, const char *name) {
    char path[PATH_MAX];
    if (is_unit(name))
        return hl_find_unit_program(name, name_of(request));
    char *program = strchr(name, '/') != NULL ? hl_format("%s", name) : hl_find_program(name);
    if (program == NULL) {
        hl_say(
            "%s: there is no such program in PATH; name a file, or a unit with its suffix, as in %s.service",
            name, name);
        return NULL;
    }
    bool found = realpath(program, path) != NULL;
    if (!found && request->disables && program[0] == '/')
        return program; /* it may be gone */
    if (!found)
        hl_say("%s: %s", name, strerror(errno));
    free(program);
    return found ? hl_format("%s", path) : NULL;
}

/* PATH as a value of the configuration, where some characters have a meaning.  NULL: none can say it. */
static char *make_entry(const char *path) {
    size_t length = strlen(path), bytes = 0;
    if (strpbrk(path, "\n\r\t") != NULL || path[length - 1] == ' ')
        return NULL;
    char *entry = hl_allocate(2 * length + 1);
    for (const char *at = path; *at != '\0'; at++) {
        if (strchr("*?[\\", *at) != NULL)
            entry[bytes++] = '\\';
        entry[bytes++] = *at;
    }
    entry[bytes] = '\0';
    return entry;
}

/* Runs hugeld share ACTION OPTION PATH. */
static void share(struct hl_answer *answer, const char *action, const char *option, const char *path) {
    const char *const argv[] = {"hugeld", "share", action, option, "--", path, NULL};
    hl_ask_itself(answer, argv);
}

/* What `share add` says in JSON of its one file.  The caller drops it. */
static json_t *take_answer(const struct hl_answer *answer) {
    json_t *whole = json_loads(answer->output, 0, NULL);
    json_t *file = json_incref(json_array_get(json_object_get(whole, "files"), 0));
    json_decref(whole);
    return file;
}

/* Whether PATH is shared now; says so if not. */
static bool add_image(const char *path) {
    struct hl_answer answer;
    share(&answer, "add", "--json", path);
    fputs(answer.errors, stderr);
    json_t *file = take_answer(&answer);
    const char *result = json_string_value(json_object_get(file, "result"));
    const char *sentence = json_string_value(json_object_get(file, "sentence"));
    bool fine = result != NULL && (strcmp(result, "made") == 0 || strcmp(result, "present") == 0);
    if (!fine && answer.errors[0] == '\0')
        hl_say("%s: %s", path, sentence != NULL ? sentence : "nothing of it can be shared");
    json_decref(file);
    hl_free_answer(&answer);
    return fine;
}

/* False: it was said why not. */
static bool change_configuration(const struct request *request, const char *path, bool *changed) {
    char *entry = make_entry(path);
    int result = entry == NULL ? -EINVAL
                               : (request->disables ? hl_disable_entry(entry, changed)
                                                    : hl_enable_entry(entry, changed));
    free(entry);
    if (request->disables && result == -ENOENT) { /* there is no file yet */
        *changed = false;
        result = 0;
    }
    if (result == -EINVAL)
        hl_say("%s: " HL_CONFIGURATION " cannot name a path with such characters; rename the file", path);
    else if (result != 0)
        hl_say(HL_CONFIGURATION ": it cannot be changed: %s; make it and its folder writable",
               strerror(-result));
    return result == 0;
}

static bool enable(const struct request *request, const char *path) {
    bool changed;
    if (!add_image(path) || !change_configuration(request, path, &changed))
        return false;
    hl_print("%s: enabled%s", path, changed ? "" : " already");
    return true;
}

static bool disable(const struct request *request, const char *path) {
    struct hl_answer answer;
    bool changed;
    if (!change_configuration(request, path, &changed))
        return false;
    if (!changed) {
        hl_say("%s: it was not enabled; " HL_CONFIGURATION
               " has no line for this path, but a glob there may mean it",
               path);
        return false;
    }
    share(&answer, "remove", "--force", path);
    fputs(answer.output, stdout); /* how long its memory stays */
    hl_free_answer(&answer);
    hl_print("%s: disabled", path);
    return true;
}

static int act(struct request *request) {
    if (request->n == 0) {
        hl_say("%s: name programs or units, as in hugeld %s postgresql@15-main.service", name_of(request),
               name_of(request));
        return HL_EXIT_USAGE;
    }
    if (geteuid() != 0) {
        hl_say("%s: the configuration is the administrator's; run it as root", name_of(request));
        return HL_EXIT_NO;
    }
    for (size_t i = 0; i < request->n; i++) {
        char *path = find_file(request, request->name[i]);
        if (path == NULL || !(request->disables ? disable(request, path) : enable(request, path)))
            request->failed = true;
        free(path);
    }
    return request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

static int change(int argc, char **argv, bool disables) {
    static const struct argp argps[] = {
        {argp_options, parse_argument, "PROGRAM|UNIT...",
         "Shares the text of these programs from now on.\v"
         "It writes them to " HL_CONFIGURATION
         ", and makes their images at once.  hugeld.service keeps them, "
         "after upgrades and at boot, once you enable it.",
         NULL, NULL, NULL},
        {argp_options, parse_argument, "PROGRAM|UNIT...",
         "Takes back what enable did.\v"
         "Programs that run keep their pages until they end.",
         NULL, NULL, NULL},
    };
    struct request request = {.disables = disables};
    int code = HL_EXIT_USAGE;
    if (argp_parse(&argps[disables], argc, argv, ARGP_NO_HELP, NULL, &request) == 0)
        code = act(&request);
    free(request.name);
    return code;
}

int hl_enable_programs(int argc, char **argv) { return change(argc, argv, false); }

int hl_disable_programs(int argc, char **argv) { return change(argc, argv, true); }
