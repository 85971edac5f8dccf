/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld attach, hugeld detach: move the text of running processes onto huge pages of an image, and back.

   Nothing of hugeld is loaded into them. inject/attach-plan.c plans, inject/attach-move.c moves, inject/attach-tracee.c makes the calls in the
   process. */
#include "command/command.h"
#include "command/lib/common.h"
#include "command/lib/remedy.h"
#include "command/lib/flags.h"
#include "command/lib/progress.h"
#include "elf/kernel.h"
#include "command/inject/attachment.h"
#include "elf/line.h"
#include "elf/reason.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

struct request {
    struct hl_attach_request plan;
    const char *name; /* of the command */
    bool children;
    size_t memory_mib;
    struct hl_pids pids;
    struct hl_attachment *attachment; /* one for each */
};

static int parse_process(void *request_, const char *text) {
    struct request *request = request_;
    pid_t pid = hl_parse_pid(text);
    if (pid == 0) {
        hl_warn("%s: '%s' is not a process ID; give a number as ps prints it", request->name, text);
        return EINVAL;
    }
    hl_add_pid(&request->pids, pid);
    return 0;
}

#define FLAGS_OF_BOTH                                                                                        \
    {"children", 'c', NULL, "Their children, and theirs, too", HL_SWITCH(struct request, children)},         \
        {"dry-run", 0, NULL, "Only show what would be done", HL_SWITCH(struct request, plan.dry_run)}, {     \
        NULL, 0, "PID...", NULL, HL_CALL(parse_process)                                                      \
    }

static const struct hl_flag attach_flags[] = {
    {"memory", 0, "MIB", "Take up to so much for copies (an eighth of what is free)",
     HL_COUNT(struct request, memory_mib, 1, UINT32_MAX)},
    FLAGS_OF_BOTH,
};

static const struct hl_flag detach_flags[] = {FLAGS_OF_BOTH};

/* --- results --- */

/* Translates RESULT, why the text stays; HL_MOVED: it is an errno for which there is no reason. */
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

/* Why the text stays; the caller frees it.  Root is told what denies it access. */
static char *explain(const struct hl_attachment *attachment) {
    enum hl_reason reason = reason_of(attachment->reason);
    const char *path = attachment->loaded != NULL ? attachment->loaded->object.path : NULL;
    if (reason == HL_REASON_ATTACH_DENIED && geteuid() == 0)
        return hl_xasprintf("%s", hl_explain_denial(attachment->process.pid));
    if (reason == HL_MOVED)
        return hl_xasprintf("%s", strerror(-attachment->reason));
    return hl_explain_reason(reason, path != NULL ? path : "FILE");
}

static bool is_there_already(const struct hl_attachment *attachment) {
    return !attachment->request->is_detach &&
           (attachment->reason == HL_REASON_HUGE_ALREADY || attachment->reason == HL_REASON_ATTACH_COPY);
}

static char *describe_move(const struct hl_attachment *attachment) {
    const char *would = attachment->request->dry_run ? "would be " : "";
    if (is_there_already(attachment))
        return hl_xasprintf("on huge pages already");
    if (attachment->request->is_detach)
        return hl_xasprintf("%sback on its own file", would);
    return hl_xasprintf("%son %" PRIu64 " huge page%s of a copy made for it", would, attachment->huge_pages,
                        hl_plural(attachment->huge_pages));
}

static void print_attachment(const struct hl_attachment *attachment) {
    const struct hl_process *process = &attachment->process;
    bool was_opened = attachment->reason == -ESRCH && attachment->maps >= 0;
    if (attachment->loaded == NULL && attachment->reason < 0 && !was_opened) {
        hl_say_unreadable(process->pid, attachment->reason);
        return;
    }
    const char *path = attachment->loaded != NULL ? attachment->loaded->object.path : NULL;
    char *prefix = hl_xasprintf("%d %s%s%s", process->pid, process->name != NULL ? process->name : "?",
                                path != NULL ? ": " : "", path != NULL ? path : "");
    bool is_there = is_there_already(attachment);
    char *what = attachment->reason == 0 || is_there ? describe_move(attachment) : explain(attachment);
    if (attachment->reason != 0 && !is_there)
        hl_warn("%s: text stays: %s", prefix, what);
    else
        hl_print("%s: %s", prefix, what);
    free(what);
    free(prefix);
}

static void set_reason(json_t *json, const struct hl_attachment *attachment) {
    enum hl_reason reason = attachment->reason != 0 ? reason_of(attachment->reason) : HL_MOVED;
    char *sentence = attachment->reason != 0 ? explain(attachment) : NULL;
    json_object_set_new(json, "reason", hl_json_text(reason != HL_MOVED ? hl_reason_name(reason) : NULL));
    json_object_set_new(json, "sentence", hl_json_text(sentence));
    free(sentence);
}

static json_t *make_json(const struct hl_attachment *attachment) {
    json_t *texts = json_array();
    if (attachment->loaded != NULL) {
        json_t *text = json_pack("{s:o, s:b, s:b, s:I}", "path",
                                 hl_json_text(attachment->loaded->object.path), "is_main", 1, "moves",
                                 attachment->reason == 0, "huge_pages", (json_int_t)attachment->huge_pages);
        set_reason(text, attachment);
        json_array_append_new(texts, text);
    }
    json_t *json = json_pack("{s:i, s:o, s:b, s:I, s:o}", "pid", (int)attachment->process.pid, "name",
                             hl_json_text(attachment->process.name), "dry_run", attachment->request->dry_run,
                             "stopped_us", (json_int_t)attachment->stopped_us, "objects", texts);
    set_reason(json, attachment);
    return json;
}

/* --- the commands --- */

/* Says what the copies will take, before any is made.  If that is too much, or there turns out to be too little memory, nothing
   moves. */
static void prepare_memory(struct request *request) {
    struct hl_attach_request *all = &request->plan;
    uint64_t limit = 0, bytes = hl_sum_own_images(all);
    int result = hl_check_own_images(all, &limit);
    if (bytes > 0)
        hl_print("copies of text (%zu) %s %" PRIu64 " MiB of memory; up to %" PRIu64 " MiB may be taken",
                 all->n_own, all->dry_run ? "would take" : "take", bytes >> 20, limit >> 20);
    for (size_t i = 0; i < request->pids.n && result == 0 && !all->dry_run; i++) {
        hl_show_progress(1000, "%zu of %zu processes filled", i, request->pids.n);
        if (!hl_fill_own_image(&request->attachment[i]))
            result = request->attachment[i].reason;
    }
    for (size_t i = 0; i < request->pids.n && result != 0; i++)
        if (request->attachment[i].reason == 0)
            request->attachment[i].reason = result;
}

/* A line of syslog: who did what to which process.  The process may have chosen its name and path. */
static void write_log(const struct hl_attachment *attachment) {
    uint64_t user = 0;
    hl_read_number("/proc/self/loginuid", &user); /* who has logged in, and became root since */
    char *why = attachment->reason != 0 ? explain(attachment) : NULL;
    char *line =
        hl_xasprintf("%s by root (login %d): process %d (%s), %s: %s%s",
                     attachment->request->is_detach ? "detach" : "attach", (int)user, attachment->process.pid,
                     attachment->process.name != NULL ? attachment->process.name : "?",
                     attachment->loaded != NULL ? attachment->loaded->object.path : "?",
                     why != NULL ? "text stays: " : "done", why != NULL ? why : "");
    for (char *at = line; *at != '\0'; at++)
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    openlog("hugeld", LOG_PID, LOG_AUTHPRIV);
    syslog(LOG_NOTICE, "%s", line);
    closelog();
    free(line);
    free(why);
}

/* What cannot be undone again is said before. */
static void warn_one_way(const struct hl_attachment *attachment) {
    if (attachment->request->is_detach && attachment->reason == 0 &&
        hl_find_obstacle(&attachment->process) == HL_REASON_ATTACH_THP_DISABLED)
        hl_warn("%d %s: one way only: it has disabled transparent huge pages (PR_SET_THP_DISABLE), so it "
                "cannot be attached again before it is started anew",
                attachment->process.pid, attachment->process.name);
}

/* Prints the results.  Whether all of it is there. */
static bool report(const struct request *request) {
    json_t *processes = json_array();
    bool is_done = true;
    for (size_t i = 0; i < request->pids.n; i++) {
        const struct hl_attachment *attachment = &request->attachment[i];
        is_done = is_done && (attachment->reason == 0 || is_there_already(attachment));
        json_array_append_new(processes, make_json(attachment));
        print_attachment(attachment);
    }
    hl_print_answer(json_pack("{s:I, s:o}", "copied_bytes", (json_int_t)hl_sum_own_images(&request->plan),
                              "processes", processes),
                    !is_done);
    return is_done;
}

static int run(const struct hl_command *command, struct request *request, int argc, char **argv) {
    struct hl_attach_request *all = &request->plan;
    if (hl_read_flags(command, argc, argv, request) != 0)
        return HL_EXIT_USAGE;
    if (request->pids.n == 0) {
        hl_warn("%s: give a PID, or several", request->name);
        return HL_EXIT_USAGE;
    }
    all->geometry = hl_read_geometry();
    all->memory_bytes = (uint64_t)request->memory_mib << 20;
    hl_raise_file_limit(); /* a process may have mapped more than the soft one */
    if (request->children)
        hl_add_children(&request->pids);
    request->attachment = hl_xmalloc(request->pids.n * sizeof *request->attachment);
    for (size_t i = 0; i < request->pids.n; i++) {
        hl_show_progress(1000, "%zu of %zu processes planned", i, request->pids.n);
        hl_plan_attachment(&request->attachment[i], all, request->pids.pid[i]);
        warn_one_way(&request->attachment[i]);
    }
    prepare_memory(request);
    for (size_t i = 0; i < request->pids.n && !all->dry_run; i++) {
        hl_show_progress(1000, "%zu of %zu processes", i, request->pids.n);
        hl_move_attachment(&request->attachment[i]);
        if (geteuid() == 0)
            write_log(&request->attachment[i]);
    }
    hl_hide_progress();
    bool is_done = report(request);
    for (size_t i = 0; i < request->pids.n; i++)
        hl_free_attachment(&request->attachment[i]);
    free(request->attachment);
    hl_free_own_images(all);
    free(request->pids.pid);
    return is_done ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_attach_processes(int argc, char **argv) {
    static const struct hl_command command = {
        "attach",
        "Puts the text of running programs onto huge pages; an experiment.\v"
        "It is a copy, which processes of one call share if they can.  Exit status: 0 when all of it is "
        "there, 1 when some is not.",
        attach_flags, false};
    struct request request = {.name = "attach"};
    return run(&command, &request, argc, argv);
}

int hl_detach_processes(int argc, char **argv) {
    static const struct hl_command command = {
        "detach",
        "Moves the text of running programs back from an image to their own files.\v"
        "Exit status: 0 when all of it is back, 1 when some is not, or there was nothing.",
        detach_flags, false};
    struct request request = {.name = "detach", .plan.is_detach = true};
    return run(&command, &request, argc, argv);
}
