/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run, as far as it is not the start of a program, which is hugeld.c's alone: that becomes this command for --help and for
   mistakes, and calls it in a child for the line about a program that it starts as it is. */
#include "command/run/run.h"
#include "command/lib/common.h"
#include "command/command.h"
#include "command/lib/program.h"
#include "command/lib/remedy.h"
#include "command/image/driver.h"
#include "command/image/verdict.h"
#include "elf/reason.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct request {
    struct hl_run run;
    const char *gate;
    char **program; /* or NULL */
};

static const struct hl_flag command_flags[] = {
    HL_RUN_FLAGS(struct request, run),
    {"gate", 0, "FD", NULL, HL_STRING(struct request, gate)},
    {NULL, 0, "[--] PROGRAM [ARGUMENT...]", NULL, HL_PROGRAM(struct request, program)},
};

/* For a PROGRAM that only starts another one: the reason, and VERDICT is of the other.  Else HL_MOVED, and VERDICT is untouched. */
static enum hl_reason find_reason_of_driver(struct hl_verdict *verdict, const struct request *request,
                                            struct hl_program *program, const struct hl_options *options) {
    char *worker;
    struct hl_elf_file file;
    enum hl_reason reason = hl_find_worker(&worker, program, request->program);
    bool is_other = worker != NULL && (verdict->path == NULL || strcmp(worker, verdict->path) != 0) &&
                    hl_open_elf(&file, AT_FDCWD, worker) == HL_ELF_FINE;
    if (is_other) {
        hl_free_verdict(verdict);
        hl_judge_file(verdict, worker, &file, true, options);
        hl_close_elf(&file);
        bool is_in_place = verdict->is_made && verdict->best == HL_WAY_IN_PLACE && options->strict == 0;
        reason = is_in_place          ? verdict->reason
                 : verdict->has_image ? HL_REASON_DRIVER_CHILD
                                      : HL_REASON_DRIVER;
    }
    free(worker);
    return is_other || reason == HL_REASON_SHIM ? reason : HL_MOVED;
}

/* Why nothing of PROGRAM is on huge pages when REQUEST starts it as it is; or that its file is in place.  VERDICT is to be freed. */
static enum hl_reason find_reason(struct hl_verdict *verdict, const struct request *request,
                                  struct hl_program *program, const struct hl_options *options) {
    enum hl_reason reason = hl_judge_program(verdict, program, request->program, options);
    enum hl_reason of_driver =
        verdict->is_library ? HL_MOVED : find_reason_of_driver(verdict, request, program, options);
    if (of_driver != HL_MOVED)
        return of_driver;
    struct hl_string patterns = hl_find_patterns(request->run.patterns);
    if (reason != HL_REASON_IN_PLACE && hl_selects_other_objects(patterns))
        reason = hl_find_fits(patterns, options, HL_FIT_IN_PLACE, NULL) != 0 ? HL_REASON_IN_PLACE
                                                                             : HL_REASON_NO_LIBRARY_IMAGE;
    return reason;
}

/* Prints that reason, and what to do.  The exit code, which says whether the program is on huge pages. */
static int explain_start(const struct request *request, struct hl_program *program) {
    struct hl_verdict verdict = {0};
    struct hl_options options;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->run.options);
    hl_default_options(&options);
    hl_parse_options(&options, text, NULL);
    enum hl_reason reason = find_reason(&verdict, request, program, &options);
    char *why = hl_explain_reason(reason, verdict.path != NULL ? verdict.path : program->path);
    bool is_in_place = reason == HL_REASON_IN_PLACE, is_refused = options.strict != 0 && !is_in_place;
    bool is_small =
        reason == HL_REASON_TOO_SMALL || reason == HL_REASON_SPARSE_TEXT || reason == HL_REASON_LAUNCHER;
    if (is_refused)
        hl_warn("%s: %s; " HL_STRICT_SENTENCE, request->program[0], why);
    else if (!is_in_place || options.verbose >= 1 || hl_output.is_verbose)
        hl_note("%s: started as it is: %s%s", request->program[0], why,
                is_small ? "; for what it starts, use hugeld run --children" : "");
    hl_output.is_json &= is_refused; /* else the program's output is the only one */
    free(why);
    free(text);
    hl_free_verdict(&verdict);
    return is_in_place ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_run_program(int argc, char **argv) {
    static const struct hl_command command = {
        "run",
        "Runs PROGRAM with its text and data on huge pages.\v"
        "PATTERNS are shell globs, separated by colons, against an object's base name, its soname, or its "
        "path where "
        "the pattern has a slash; 'main' is the executable; a leading '!' excludes.",
        command_flags, true};
    struct request request = {0};
    struct hl_program program = {0};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        goto out;
    if (hl_is_contradictory(&request.run)) {
        hl_warn("run: --children takes images alone; leave out --copy, --via and --ld-so");
        goto out;
    }
    if (request.program == NULL) {
        hl_warn("run: no program given; try 'hugeld run -- PROGRAM'");
        goto out;
    }
    code =
        hl_open_program(&program, request.program[0]) ? HL_EXIT_DONE : hl_refuse_program(request.program[0]);
    if (code == HL_EXIT_DONE)
        code = explain_start(&request, &program);
out:
    hl_close_program(&program);
    free(request.run.options);
    return code;
}
