/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld attach, hugeld detach: move the text of running processes onto huge pages of an image, and back.

   Nothing of hugeld is loaded into them. attach/plan.c plans, attach/move.c moves, trace/tracee.c makes the calls in the
   process. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/file/remedy.h"
#include "command/base/flags.h"
#include "command/base/progress.h"
#include "elf/kernel.h"
#include "command/attach/attachment.h"
#include "elf/reason.h"
#include "command/verdict/verdict.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    struct hl_attach_request attachment;
    const char *name; /* of the command */
    const char *patterns;
    bool json, children, is_asked;
    struct hl_pids pids;
    /* results */
    json_t *processes;
    bool failed;
};

/* A process ID, or a name, of which there may be several processes. */
static int parse_process(void *request_, const char *text) {
    struct request *request = request_;
    int n = hl_add_processes(&request->pids, text, request->name);
    request->is_asked = true;
    request->failed |= n == 0;
    return n < 0 ? EINVAL : 0;
}

static int set_store(void *request_, const char *path) {
    struct request *request = request_;
    if (path[0] != '/' || strlen(path) >= HL_FOLDER_BYTES) {
        hl_warn("--store=%s: give the store's folder with a leading slash", path);
        return EINVAL;
    }
    request->attachment.options.store = (struct hl_string){path, strlen(path)};
    return 0;
}

#define FLAGS_OF_BOTH(objects)                                                                               \
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct request, json)},                                      \
        {"objects", 'p', "PATTERNS", "Which objects, as in LD_HUGEPAGES (" objects ")",                      \
         HL_STRING(struct request, patterns)},                                                               \
        {"children", 'c', NULL, "Their children, and theirs, too", HL_SWITCH(struct request, children)},     \
        {"dry-run", 0, NULL, "Only show what would be done", HL_SWITCH(struct request, attachment.dry_run)}, \
    {                                                                                                        \
        "running-threads", 0, NULL, "Interrupt threads that run, too",                                       \
            HL_SWITCH(struct request, attachment.takes_running)                                              \
    }

static const struct hl_flag attach_flags[] = {
    FLAGS_OF_BOTH("main"),
    {"store", 0, "FOLDER", "Look for images in this store", HL_CALL(set_store)},
    {NULL, 0, "PID|NAME...", NULL, HL_CALL(parse_process)},
};

static const struct hl_flag detach_flags[] = {
    FLAGS_OF_BOTH("*"),
    {NULL, 0, "PID|NAME...", NULL, HL_CALL(parse_process)},
};

/* --- results --- */

/* Translates RESULT, why a text of hl_attachment stays; HL_MOVED: it is an errno for which there is no reason. */
static enum hl_reason reason_of(int result) {
    switch (result) {
    case -EPERM:
    case -EACCES:
        return HL_REASON_ATTACH_DENIED;
    case -ESRCH:
    case -ENOENT:
    case -ENODATA:
        return HL_REASON_ATTACH_ENDED;
    case -EFAULT: /* it is not mapped any more */
        return HL_REASON_MAPPING_CHANGED;
    default:
        return result > 0 ? (enum hl_reason)result : HL_MOVED;
    }
}

/* The same as text, for the file at PATH (NULL: unknown) in the process PID.  Root is told what denies it access. */
static char *format_reason(int result, pid_t pid, const char *path) {
    enum hl_reason reason = reason_of(result);
    if (reason == HL_REASON_ATTACH_DENIED && geteuid() == 0)
        return hl_xasprintf("%s", hl_explain_denial(pid));
    if (reason == HL_MOVED)
        return hl_xasprintf("%s", strerror(-result));
    return hl_explain_reason(reason, path != NULL ? path : "FILE");
}

static bool is_there_already(const struct request *request, int reason) {
    return (reason == HL_REASON_HUGE_ALREADY || reason == HL_REASON_ATTACH_COPY) &&
           !request->attachment.is_detach;
}

/* Whether only a wildcard selects TEXT, and it cannot move. */
static bool is_beside_the_point(const struct request *request, const struct hl_attached_text *text) {
    return (text->reason == HL_REASON_TOO_SMALL || text->reason == HL_REASON_ATTACH_DETACHED ||
            is_there_already(request, text->reason)) &&
           hl_select_object(request->attachment.options.objects, &text->loaded->object) ==
               HL_SELECTED_BY_WILDCARD;
}

static void print_joined(const struct request *request, const struct hl_attachment *attachment,
                         const struct hl_attached_text *text) {
    hl_print("%d %s: %s: %son %" PRIu64 " huge page%s of its own file", attachment->process.pid,
             attachment->process.name, text->loaded->object.path,
             request->attachment.dry_run ? "would be " : "", text->joined_pages,
             hl_plural(text->joined_pages));
}

/* No whole huge page lies in the text of LOADED at its address.  The caller frees the result. */
static char *explain_too_small(const struct request *request, const struct hl_attachment *attachment,
                               const struct hl_loaded *loaded) {
    struct hl_verdict verdict;
    hl_judge_loaded(&verdict, &attachment->process, loaded, attachment->obstacle,
                    &request->attachment.options);
    char *commands = hl_format_commands(&verdict), *what;
    if (commands != NULL)
        what = hl_xasprintf("no whole huge page lies inside where it is loaded; best for its next start: %s",
                            commands);
    else
        what = hl_xasprintf("%s%s", hl_reason_sentence(HL_REASON_TOO_SMALL),
                            strcmp(request->patterns, "main") == 0 ? "; -p '*' looks at its libraries, too"
                                                                   : "");
    free(commands);
    hl_free_verdict(&verdict);
    return what;
}

static void print_text(const struct request *request, const struct hl_attachment *attachment,
                       const struct hl_attached_text *text) {
    const char *path = text->loaded->object.path, *would = request->attachment.dry_run ? "would be " : "";
    bool is_there = is_there_already(request, text->reason);
    char *what;
    if (text->joined_pages > 0)
        print_joined(request, attachment, text);
    if (text->reason != 0 && !is_there) {
        what = text->reason == HL_REASON_TOO_SMALL
                   ? explain_too_small(request, attachment, text->loaded)
                   : format_reason(text->reason, attachment->process.pid, path);
        hl_warn("%d %s: %s: %s stays: %s", attachment->process.pid, attachment->process.name, path,
                text->joined_pages > 0 ? "the rest of the text" : "text", what);
        free(what);
        return;
    }
    if (is_there && text->joined_pages > 0)
        return;
    if (is_there)
        what = hl_xasprintf("on huge pages already");
    else if (request->attachment.is_detach)
        what = hl_xasprintf("%sback on its own file", would);
    else
        what = hl_xasprintf("%son %" PRIu64 " huge page%s of %s%s", would, text->huge_pages,
                            hl_plural(text->huge_pages),
                            text->image != NULL ? "the image " : "a copy made for it",
                            text->image != NULL ? text->image : "");
    hl_print("%d %s: %s: %s", attachment->process.pid, attachment->process.name, path, what);
    free(what);
}

static void set_reason(json_t *json, int result, pid_t pid, const char *path) {
    enum hl_reason reason = result != 0 ? reason_of(result) : HL_MOVED;
    char *sentence = result != 0 ? format_reason(result, pid, path) : NULL;
    json_object_set_new(json, "reason", hl_json_text(reason != HL_MOVED ? hl_reason_name(reason) : NULL));
    json_object_set_new(json, "sentence", hl_json_text(sentence));
    free(sentence);
}

static json_t *make_json_text(const struct hl_attachment *attachment, const struct hl_attached_text *text) {
    json_t *json = json_pack("{s:o, s:b, s:b, s:I, s:I, s:o}", "path",
                             hl_json_text(text->loaded->object.path), "is_main", text->loaded->object.is_main,
                             "moves", attachment->reason == 0 && text->reason == 0, "joined_pages",
                             (json_int_t)text->joined_pages, "huge_pages", (json_int_t)text->huge_pages,
                             "image", hl_json_text(text->image));
    set_reason(json, text->reason, attachment->process.pid, text->loaded->object.path);
    return json;
}

static json_t *make_json(const struct request *request, const struct hl_attachment *attachment) {
    json_t *texts = json_array();
    for (size_t i = 0; i < attachment->n_texts; i++)
        json_array_append_new(texts, make_json_text(attachment, &attachment->text[i]));
    json_t *json = json_pack("{s:i, s:o, s:b, s:I, s:I, s:o}", "pid", (int)attachment->process.pid, "name",
                             hl_json_text(attachment->process.name), "dry_run", request->attachment.dry_run,
                             "stopped_us", (json_int_t)attachment->stopped_us, "stopped_threads",
                             (json_int_t)attachment->stopped_threads, "objects", texts);
    set_reason(json, attachment->reason, attachment->process.pid, attachment->process.executable);
    return json;
}

/* Reports why nothing more can be done with the process. */
static void say_refused(const struct request *request, const struct hl_attachment *attachment) {
    bool is_joined = false;
    bool was_there = attachment->reason == -ESRCH && attachment->maps >= 0;
    if (attachment->n_texts == 0 && attachment->reason < 0 && !was_there) {
        hl_say_unreadable(attachment->process.pid, attachment->reason);
        return;
    }
    for (size_t i = 0; i < attachment->n_texts; i++)
        if (attachment->text[i].joined_pages > 0) {
            is_joined = true;
            if (!request->json)
                print_joined(request, attachment, &attachment->text[i]);
        }
    char *reason = format_reason(attachment->reason, attachment->process.pid, attachment->process.executable);
    hl_warn("%d %s: %s stays: %s", attachment->process.pid,
            attachment->process.name != NULL ? attachment->process.name : "?",
            is_joined ? "the rest of the text" : "text", reason);
    free(reason);
}

static void report(struct request *request, const struct hl_attachment *attachment) {
    bool done = false;
    for (size_t i = 0; i < attachment->n_texts && attachment->reason == 0; i++) {
        const struct hl_attached_text *text = &attachment->text[i];
        bool is_there = is_there_already(request, text->reason);
        done |= text->reason == 0 || is_there;
        if (is_beside_the_point(request, text))
            continue;
        request->failed |= text->reason != 0 && !is_there;
        if (!request->json)
            print_text(request, attachment, text);
    }
    if (attachment->reason != 0)
        say_refused(request, attachment);
    else if (!done && !request->failed)
        hl_warn("%d %s: nothing to do: %s", attachment->process.pid, attachment->process.name,
                request->attachment.is_detach ? hl_reason_sentence(HL_REASON_ATTACH_DETACHED)
                                              : "no object matching -p contains a whole huge page of text");
    request->failed |= attachment->reason != 0 || !done;
    if (request->json)
        json_array_append_new(request->processes, make_json(request, attachment));
}

/* --- the commands --- */

static int run(struct request *request) {
    if (!request->is_asked) {
        hl_warn("%s: give a PID or NAME, or several", request->name);
        return HL_EXIT_USAGE;
    }
    hl_set_geometry(&request->attachment.geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    request->attachment.options.objects = (struct hl_string){request->patterns, strlen(request->patterns)};
    request->processes = json_array();
    hl_raise_file_limit(); /* a process may have mapped more than the soft one */
    if (request->children)
        hl_add_children(&request->pids);
    for (size_t i = 0; i < request->pids.n; i++) {
        struct hl_attachment attachment;
        hl_show_progress(1000, "%zu of %zu processes", i, request->pids.n);
        hl_plan_attachment(&attachment, &request->attachment, request->pids.pid[i]);
        if (!request->attachment.dry_run)
            hl_move_attachment(&attachment);
        hl_hide_progress();
        report(request, &attachment);
        hl_free_attachment(&attachment);
    }
    if (request->json)
        hl_print_json(json_pack("{s:O}", "processes", request->processes));
    json_decref(request->processes);
    hl_free_placer(&request->attachment.placer);
    free(request->pids.pid);
    return request->failed ? HL_EXIT_NO : HL_EXIT_DONE;
}

static int parse_and_run(const struct hl_command *command, struct request *request, int argc, char **argv) {
    hl_default_options(&request->attachment.options);
    request->attachment.suspends_filters = true;
    if (hl_read_flags(command, argc, argv, request) != 0)
        return HL_EXIT_USAGE;
    return run(request);
}

int hl_attach_processes(int argc, char **argv) {
    static const struct hl_command command = {
        "attach",
        "Puts the text of running processes onto huge pages.\v"
        "They are its own file's where the kernel joins pages of the page "
        "cache, else those of an image.  The image is that of a store (hugeld "
        "enable), else one is made for them.  Exit status: 0 when all of "
        "it is there, 1 when some is not.",
        attach_flags, false};
    struct request request = {
        .name = "attach", .patterns = "main", .attachment.joins = true, .attachment.placer.only_joins = true};
    return parse_and_run(&command, &request, argc, argv);
}

int hl_detach_processes(int argc, char **argv) {
    static const struct hl_command command = {
        "detach",
        "Moves the text of running processes back from an image to their own files.\v"
        "Exit status: 0 when all of it is back, 1 when some is not, or there was nothing.",
        detach_flags, false};
    struct request request = {.name = "detach", .patterns = "*", .attachment.is_detach = true};
    return parse_and_run(&command, &request, argc, argv);
}
