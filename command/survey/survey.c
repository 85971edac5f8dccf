/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: which running programs would gain from huge pages.

   It samples processes for some seconds (survey/watch.c), and finds what can be enabled for each program (survey/advice.c).  It
   changes nothing in any process. */
#include "command/survey/survey.h"
#include "command/command.h"
#include "command/base/flags.h"
#include "command/base/html.h"
#include "command/file/program.h"
#include "command/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS_DEFAULT 10
/* How long a program that the survey has started may take to end. */
#define END_SECONDS 5

struct request {
    bool json, all_users;
    double seconds;
    pid_t pid;
    const char *report;
    struct hl_list names; /* --program */
    char **program;       /* the words behind "--", or NULL */
};

static const struct hl_flag command_flags[] = {
    {"seconds", 0, "S", "Watch for S seconds (10)", HL_SECONDS(struct request, seconds)},
    {"all-users", 0, NULL, "Processes of other users too", HL_SWITCH(struct request, all_users)},
    {"program", 0, "PATH", "Only processes of this executable; may be repeated",
     HL_LIST(struct request, names)},
    {"pid", 0, "PID", "Only this process, with ten times as many samples", HL_PID(struct request, pid)},
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct request, json)},
    {"report", 0, "FILE.html", "Write a report", HL_STRING(struct request, report)},
    {NULL, 0, "[-- PROGRAM [ARGUMENT...]]", NULL, HL_PROGRAM(struct request, program)},
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

/* Runs PROGRAM in a process group of its own, as soon as *GO is closed; its output goes to standard error, since the answer goes
   to standard output. */
static pid_t start_program(char *const *program, const char *path, int *go) {
    int ends[2];
    char byte;
    pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGCHLD, SIG_DFL);
    pid_t child = fork();
    if (child != 0) {
        close(ends[0]);
        *go = ends[1];
        return child;
    }
    close(ends[1]);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    int input = open("/dev/null", O_RDONLY);
    if (input >= 0)
        dup2(input, STDIN_FILENO);
    while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
        ;
    if (getppid() != parent) /* GO was closed because its parent has ended */
        _exit(HL_EXIT_NO);
    execv(path, program);
    _exit(HL_EXIT_CANNOT_RUN);
}

/* Ends CHILD with its group, and reaps the processes that it has left to this one. */
static void end_program(pid_t child) {
    int status;
    kill(-child, SIGTERM);
    for (unsigned i = 0; i < END_SECONDS * 100 && waitpid(child, &status, WNOHANG) == 0; i++)
        usleep(10000);
    kill(-child, SIGKILL);
    while (waitpid(-child, &status, 0) > 0)
        ;
}

/* --- the answer --- */

/* The samples in text that would be on huge pages, first; the samples of all processes are equally far apart. */
static int compare_programs(const void *a, const void *b) {
    const struct hl_surveyed *x = a, *y = b;
    double x_moved = x->advice.share * (double)(x->samples - x->huge_samples),
           y_moved = y->advice.share * (double)(y->samples - y->huge_samples);
    if (x_moved != y_moved)
        return x_moved < y_moved ? 1 : -1;
    return (x->likely_bytes < y->likely_bytes) - (x->likely_bytes > y->likely_bytes);
}

static int tell(const struct hl_survey *survey, const struct request *request) {
    json_t *answer = hl_json_survey(survey);
    int code = HL_EXIT_NO;
    for (size_t i = 0; i < survey->n_programs; i++)
        if (survey->program[i].advice.way != HL_WAY_NOTHING)
            code = HL_EXIT_DONE;
    if (!hl_write_report(request->report, answer))
        code = HL_EXIT_NO;
    if (request->json)
        hl_print_json(json_incref(answer));
    else
        hl_print_survey(survey);
    json_decref(answer);
    return code;
}

/* Watches processes, and judges each program.  PROGRAM is started, with the file PATH, if that is not NULL.  0, or the exit
   code. */
static int watch(struct hl_survey *survey, struct hl_survey_filter *filter, double seconds,
                 char *const *program, const char *path) {
    if (path != NULL)
        filter->child = start_program(program, path, &filter->go);
    if (filter->child < 0) {
        hl_warn("%s: cannot be started: %s; free memory or processes", path, strerror(errno));
        return HL_EXIT_NO;
    }
    int code = hl_watch_processes(survey, filter, seconds);
    for (size_t i = 0; code == 0 && i < survey->n_programs; i++)
        hl_advise(&survey->program[i], survey); /* while its processes are still there */
    if (path != NULL)
        end_program(filter->child);
    if (code == 0 && path != NULL && survey->n_programs == 0) {
        hl_warn("%s: it ended before it could be looked at; give it longer work", path);
        return HL_EXIT_NO;
    }
    if (survey->n_programs > 0)
        qsort(survey->program, survey->n_programs, sizeof *survey->program, compare_programs);
    return code;
}

static int survey_processes(const struct request *request) {
    struct hl_survey survey = {0};
    struct hl_survey_filter filter = {.all_users = request->all_users, .pid = request->pid};
    char *const *program = request->program;
    char *path = NULL;
    int code = find_programs(&filter, request);
    if (code == 0 && program != NULL) {
        path = hl_find_program(program[0]);
        code = path == NULL ? hl_refuse_program(program[0]) : 0;
    }
    if (code == 0) {
        hl_check_tlb(&survey.tlb);
        code = watch(&survey, &filter, request->seconds, program, path);
    }
    if (code == 0)
        code = tell(&survey, request);
    hl_free_survey(&survey);
    free(filter.program);
    free(path);
    return code;
}

int hl_survey_programs(int argc, char **argv) {
    static const struct hl_command command = {
        "survey",
        "Finds running programs that execute more than 2 MiB of text, and what to enable for each.\v"
        "With PROGRAM: it is started, and only it and its children are looked at; its output goes to "
        "standard error, and it is ended afterwards.  Exit status: 0 when hugeld would do something for a "
        "program, else 1.",
        command_flags, false};
    struct request request = {.seconds = SECONDS_DEFAULT};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) == 0) {
        bool selects = request.program != NULL || request.all_users || request.names.n > 0;
        if (request.pid != 0 && selects)
            hl_warn("survey: --pid looks at one process; leave --all-users, --program and PROGRAM away");
        else if ((code = hl_check_report(request.report)) == 0)
            code = survey_processes(&request);
    }
    free(request.names.word);
    return code;
}
