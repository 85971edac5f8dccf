/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The executable named hugeld: starts programs, and becomes hugeld-command for everything else.

   `hugeld run PROGRAM` is worth it only if it costs less than the huge pages gain, and a short program takes a millisecond.  Most
   of an additional program's cost is its start: a dynamic linker, its libraries, and the CPUID instructions by which glibc finds
   the processor's features.  Under a hypervisor each of these is an exit to it, of 1 to 20 us, and there are about forty.  So this
   program is linked only with a libc, one that asks for no features (musl) if there is one, and decides with a few system calls.
   Everything that takes more, or needs a message, is left to hugeld-command, which does the same and all the rest. */
#include "command/base/basics.h"
#include "command/exec-stop/exec-stop.h"
#include "command/run/start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

struct request {
    struct hl_run run;
    char **program;
    char **variables; /* the original environment */
};

/* Whether the arguments are those of `run`, with no option but -p, -o and "--".  Anything else, mistakes included, is for
   hugeld-command. */
static bool read_request(struct request *request, int argc, char **argv) {
    int i = 2;
    if (argc < 3 || strcmp(argv[1], "run") != 0)
        return false;
    for (; i + 1 < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i += 2) {
        if (strcmp(argv[i], "-p") == 0) {
            request->run.patterns = argv[i + 1];
        } else if (strcmp(argv[i], "-o") == 0) {
            char *both = hl_join_options(request->run.options, argv[i + 1]);
            free(request->run.options);
            request->run.options = both;
        } else {
            return false;
        }
    }
    if (i < argc && strcmp(argv[i], "--") == 0)
        i++;
    request->program = argv + i;
    return i < argc && (argv[i][0] != '-' || strcmp(argv[i - 1], "--") == 0);
}

static void note_mistake(void *data, struct hl_string option, const char *what) {
    (void)option, (void)what;
    *(bool *)data = true;
}

/* Reads the options from TEXT.  False: there is a mistake in them. */
static bool parse_options(struct hl_options *options, const char *text) {
    bool is_wrong = false;
    const struct hl_complaints complaints = {note_mistake, &is_wrong};
    hl_default_options(options);
    hl_parse_options(options, text, &complaints);
    return !is_wrong;
}

/* Reads them.  False: there is a mistake in them, or they need hugeld-command. */
static bool read_options(struct hl_options *options, const char *text) {
    return parse_options(options, text) && options->verbose == 0 && options->strict == 0;
}

/* Prepares this process for PROGRAM.  False: a message would be needed. */
static bool prepare(struct hl_start_plan *plan, const struct request *request,
                    const struct hl_options *options, const char *text, struct hl_program *program) {
    hl_choose_bare(plan, &request->run, options, program, request->program[0]);
    if (hl_choose_start(plan, &request->run, options, text, program) == HL_START_IN_PROCESS)
        hl_choose_preload(plan, program);
    return plan->reason == NULL;
}

/* Becomes the program, if that can be done here.  Returns otherwise. */
static void start_program(const struct request *request) {
    struct hl_start_plan plan = {0};
    struct hl_options options;
    struct hl_program program;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->run.options);
    if (read_options(&options, text) && hl_open_program(&program, request->program[0])) {
        if (hl_acts_in(&options, program.path) && prepare(&plan, request, &options, text, &program))
            execve(program.path, request->program, environ);
        hl_close_program(&program);
    }
    if (plan.stop != NULL)
        hl_cancel_exec_stop(plan.stop);
    free(plan.library);
    free(text);
}

/* Becomes hugeld-command.  Returns after a line with the reason if it cannot. */
static void become_command(char **argv, char **variables) {
    char *command = hl_find_part("hugeld-command", NULL, X_OK);
    if (command == NULL) {
        hl_warn("hugeld-command is neither beside this command nor in " HL_LIBDIR "; install hugeld again");
        return;
    }
    execve(command, argv, variables);
    hl_warn("%s: %s; there is too much in its arguments and variables, or it cannot be executed", command,
            strerror(errno));
}

/* Becomes the program as it is, unless it must run on huge pages or not at all.  Returns the exit code if it does not. */
static int start_as_it_is(const struct request *request) {
    struct hl_options options;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->run.options);
    int code = HL_EXIT_NO;
    bool is_right = parse_options(&options, request->run.options != NULL ? request->run.options : "");
    parse_options(&options, text); /* mistakes in the environment never count */
    if (is_right && options.strict == 0) {
        environ = request->variables;
        execvp(request->program[0], request->program);
        code = errno == ENOENT ? HL_EXIT_NOT_FOUND : HL_EXIT_CANNOT_RUN;
        hl_warn("%s: %s", request->program[0], strerror(errno));
    }
    free(text);
    return code;
}

int main(int argc, char **argv) {
    struct request request = {.run.makes_no_copy = true, .variables = hl_keep_environment()};
    bool is_read = read_request(&request, argc, argv);
    if (is_read)
        start_program(&request);
    become_command(argv, request.variables);
    int code = is_read ? start_as_it_is(&request) : HL_EXIT_NO;
    free(request.run.options);
    return code;
}
