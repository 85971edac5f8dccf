/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: which running programs would gain from huge pages.

   It samples processes for some seconds (measure/watch.c), and finds what can be enabled for each program (measure/advice.c).  It
   changes nothing in any process. */
#include "command/measure/survey.h"
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/html.h"
#include "command/lib/program.h"

#include <stdlib.h>

#define SECONDS_DEFAULT 10

struct request {
    bool all_users;
    double seconds;
    pid_t pid;
    const char *report;
    struct hl_list names; /* --program */
};

static const struct hl_flag command_flags[] = {
    {"seconds", 0, "S", "Watch for S seconds (10)", HL_SECONDS(struct request, seconds)},
    {"all-users", 0, NULL, "Processes of other users too", HL_SWITCH(struct request, all_users)},
    {"program", 0, "PATH", "Only processes of this executable (repeatable)", HL_LIST(struct request, names)},
    {"pid", 0, "PID", "Only this process, with ten times as many samples", HL_PID(struct request, pid)},
    {"report", 0, "FILE.html", "Write a report", HL_STRING(struct request, report)},
    HL_NO_ARGUMENTS,
};

/* --- the program --- */

/* 0, or the exit code. */
static int find_programs(struct hl_survey_filter *filter, const struct request *request) {
    filter->program = hl_xmalloc(request->names.n * sizeof *filter->program);
    for (size_t i = 0; i < request->names.n; i++) {
        struct hl_program program;
        const char *name = request->names.word[i];
        bool is_there = hl_open_program(&program, name), found = is_there && hl_read_program(&program);
        if (found)
            filter->program[i] = program.file.stat;
        else if (is_there && program.problem == HL_ELF_32_BIT)
            hl_warn("survey: --program %s: it is a 32-bit program, and hugeld is for 64-bit ones only", name);
        else
            hl_warn("survey: --program %s: there is no such program; give its path", name);
        hl_close_program(&program);
        if (!found)
            return HL_EXIT_USAGE;
        filter->n_programs++;
    }
    return 0;
}

/* --- the answer --- */

static int count_many(const struct hl_surveyed *program) {
    return hl_has_many_pages(program) + hl_has_many_frames(program);
}

/* By pages and frames first, then by the samples in text that would be on huge pages, which are equally far apart in all processes. */
static int compare_programs(const void *a, const void *b) {
    const struct hl_surveyed *x = a, *y = b;
    if (count_many(x) != count_many(y))
        return count_many(y) - count_many(x);
    double x_moved = x->advice.share * (double)(x->samples - x->huge_samples),
           y_moved = y->advice.share * (double)(y->samples - y->huge_samples);
    if (x_moved != y_moved)
        return x_moved < y_moved ? 1 : -1;
    return (x->likely_bytes < y->likely_bytes) - (x->likely_bytes > y->likely_bytes);
}

static int show_answer(const struct hl_survey *survey, const struct request *request) {
    json_t *answer = hl_json_survey(survey);
    int code = HL_EXIT_NO;
    for (size_t i = 0; i < survey->n_programs; i++)
        if (survey->program[i].advice.way != HL_WAY_NOTHING)
            code = HL_EXIT_DONE;
    if (!hl_write_report(request->report, answer))
        code = HL_EXIT_NO;
    hl_print_survey(survey, answer);
    hl_print_answer(answer, false);
    return code;
}

static int survey_processes(const struct request *request) {
    static const struct hl_sample_source kernel = {.now_ms = hl_now_ms,
                                                   .open = hl_open_sampler,
                                                   .read = hl_read_samples,
                                                   .count = hl_count_samples,
                                                   .close = hl_close_sampler,
                                                   .resolve = hl_resolve_sample};
    struct hl_survey survey = {0};
    struct hl_survey_filter filter = {.all_users = request->all_users, .pid = request->pid};
    int code = find_programs(&filter, request);
    if (code == 0) {
        hl_check_tlb(&survey.tlb);
        code = hl_watch_processes(&survey, &filter, request->seconds, &kernel);
    }
    for (size_t i = 0; code == 0 && i < survey.n_programs; i++)
        hl_advise(&survey.program[i], &survey);
    if (code == 0 && survey.n_programs > 0)
        qsort(survey.program, survey.n_programs, sizeof *survey.program, compare_programs);
    if (code == 0)
        code = show_answer(&survey, request);
    hl_free_survey(&survey);
    free(filter.program);
    return code;
}

int hl_survey_programs(int argc, char **argv) {
    static const struct hl_command command = {
        "survey",
        "Finds running programs that execute more than 2 MiB of text, and what to enable for each.\v"
        "Exit status: 0 when hugeld would do something for a program, else 1.",
        command_flags, false};
    struct request request = {.seconds = SECONDS_DEFAULT};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) == 0) {
        if (request.pid != 0 && (request.all_users || request.names.n > 0))
            hl_warn("survey: --pid watches one process; leave out --all-users and --program");
        else if ((code = hl_check_report(request.report)) == 0)
            code = survey_processes(&request);
    }
    free(request.names.word);
    return code;
}
