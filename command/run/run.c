/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run: sets LD_PRELOAD, LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS, then becomes the program.

   The program's file is checked first, because in some programs a preloaded library never runs, and one kind (AddressSanitizer)
   refuses to start with any.  These run as without hugeld, with one line that says so; with strict=on they don't run.

   A program with an image begins on it at the exec stop, without hugeld's code in it (exec-stop/exec-stop.c).  Then libhugeld.so is
   preloaded only if other objects are named.

   --via=ldso: instead of preloading, the patched dynamic linker is put over the one that the program names.  If there is none that
   fits the installed libc, libhugeld.so is preloaded after all, with one line. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/file/elf-file.h"
#include "command/exec-stop/exec-stop.h"
#include "elf/kernel.h"
#include "command/file/launcher.h"
#include "command/file/libraries.h"
#include "command/run/ldso.h"
#include "command/file/program.h"
#include "command/image/in-place.h"
#include "command/image/store.h"
#include "command/run/run.h"
#include "command/run/start.h"
#include "command/file/file-plan.h"
#include "elf/reason.h"
#include "command/verdict/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct request {
    struct hl_run run;
    bool copies;    /* --copy */
    char **program; /* or NULL */
};

static const struct hl_flag command_flags[] = {
    HL_RUN_FLAGS(struct request, run),
    {"copy", 0, NULL, "Make private copies of objects that are not shared",
     HL_SWITCH(struct request, copies)},
    {NULL, 0, "[--] PROGRAM [ARGUMENT...]", NULL, HL_PROGRAM(struct request, program)},
};

const struct hl_choice hl_via_names[] = {{"auto", HL_VIA_AUTO},
                                         {"preload", HL_VIA_PRELOAD},
                                         {"ldso", HL_VIA_LDSO},
                                         {NULL, 0}};

const char *hl_via_name(const struct hl_run *run) { return hl_via_names[run->via].name; }

int hl_refuse_loader(void *request, const char *name) {
    (void)request;
    hl_warn("--loader=%s: the option is called --via now", name);
    return EINVAL;
}

int hl_set_linker(void *run_, const char *path) {
    struct hl_run *run = run_;
    run->via = HL_VIA_LDSO;
    run->linker = path;
    return 0;
}

/* The interpreter of the program NAME, if it is missing, or NULL.  The caller frees it. */
static char *find_missing_interpreter(const char *name) {
    struct hl_program program;
    char *path = NULL;
    if (hl_open_program(&program, name))
        path = program.is_script           ? hl_find_interpreter(program.first_line)
               : hl_read_program(&program) ? hl_read_interpreter(&program.file)
                                           : NULL;
    hl_close_program(&program);
    if (path == NULL || access(path, F_OK) != 0)
        return path;
    free(path);
    return NULL;
}

int hl_refuse_program(const char *name) {
    struct stat status;
    int error = errno;
    char *interpreter = error == ENOENT ? find_missing_interpreter(name) : NULL;
    if (error == EACCES && strchr(name, '/') != NULL && stat(name, &status) == 0 && S_ISDIR(status.st_mode))
        error = EISDIR;
    if (interpreter != NULL) {
        hl_warn("%s: its interpreter %s is not there; install it", name, interpreter);
        free(interpreter);
        return HL_EXIT_NOT_FOUND;
    }
    const char *remedy = error == ENOENT    ? "check the name and PATH"
                         : error == EACCES  ? "make it an executable file (chmod +x)"
                         : error == EISDIR  ? "name a program"
                         : error == ENOEXEC ? "it is no program for this machine"
                                            : "check the file";
    hl_warn("%s: %s; %s", name[0] != '\0' ? name : "''", strerror(error), remedy);
    return error == ENOENT ? HL_EXIT_NOT_FOUND : HL_EXIT_CANNOT_RUN;
}

/* Tries the patched dynamic linker for PROGRAM, called NAME. */
static void choose_linker(struct hl_start_plan *plan, const struct hl_run *run, const char *name,
                          struct hl_program *program) {
    char *linker = run->linker != NULL ? realpath(run->linker, NULL) : hl_find_linker(), *interpreter;
    const struct hl_elf_file *file = hl_read_program(program) ? &program->file : NULL;
    char *reason = hl_explain_no_linker(linker, file, program->executable, &interpreter);
    int result = reason == NULL ? hl_mount_linker(linker, interpreter) : -1;
    if (reason == NULL && result != 0 && program->is_script)
        reason = hl_xasprintf("%s cannot be mounted here (%s)", linker, strerror(-result));
    if (reason == NULL && result != 0) {
        hl_warn(
            "%s: started as '%s %s': a mount namespace is not allowed here (%s), so /proc/self/exe is ld.so",
            name, linker, program->path, strerror(-result));
        plan->linker = linker;
        linker = NULL;
    }
    if (reason != NULL) {
        hl_choose_preload(plan, program);
        if (plan->reason == NULL)
            hl_warn("%s: %s; libhugeld.so is preloaded instead", name, reason);
    } else if (getenv("LD_HUGEPAGES") == NULL) {
        setenv("LD_HUGEPAGES", "main", 1); /* without this the linker moves nothing */
    }
    free(reason);
    free(linker);
    free(interpreter);
}

/* Why PROGRAM, which hl_read_program cannot read, has no image; the caller frees it. */
static char *explain_unread(struct hl_program *program) {
    const char *reason = hl_explain_plain_run(program);
    return hl_xasprintf("%s%s", reason != NULL ? "it is " : "",
                        reason != NULL ? reason : "the program that it runs cannot be found or read");
}

/* Prints one line about a program that does not run as it should; returns the exit code. */
static int tell(struct hl_start_plan *plan, const char *name, bool acts, bool strict) {
    bool is_refused = strict && plan->reason != NULL;
    if (plan->reason != NULL && acts)
        hl_warn("%s: %s; %s", name, plan->reason,
                is_refused ? "strict=on, so it does not run; run it without strict=on"
                           : "it runs on small pages");
    return is_refused ? HL_EXIT_NOT_FOUND : 0;
}

/* Prints the best way for PROGRAM, which was started as it is. */
static void tell_of_best(const char *name, struct hl_program *program, const struct hl_options *options) {
    struct hl_verdict verdict;
    if (!hl_read_program(program)) {
        char *reason = explain_unread(program);
        hl_warn("%s: started as it is: %s", name, reason);
        free(reason);
        return;
    }
    hl_judge_file(&verdict, program->executable, &program->file, true, options);
    char *best = hl_format_best(&verdict);
    if (verdict.best == HL_WAY_NOTHING)
        hl_warn("%s: started as it is: %s", name, hl_explain_nothing(&verdict));
    else if (verdict.is_made)
        hl_warn("%s: started as it is, because the image of %s is of use only where hugeld run itself starts "
                "that program, and can stop it at exec",
                name, program->executable);
    else
        hl_warn("%s: started as it is, because nothing of it is shared; best: %s", name, best);
    free(best);
    hl_free_verdict(&verdict);
}

/* Says that the program called NAME is on huge pages, and that nothing is preloaded for other objects that PATTERNS select. */
static void tell_of_no_library(const char *name, struct hl_string patterns) {
    hl_warn("%s: there is no image of a library that -p \"%.*s\" names; 'hugeld inspect FILE' names the best "
            "way for each",
            name, (int)patterns.bytes, patterns.at);
}

/* Prints the best way for PROGRAM with the argv ARGV, which may be a script. */
static void tell_of_start(struct hl_program *program, char *const *argv, struct hl_string patterns,
                          const struct hl_options *options) {
    const struct hl_target *target = hl_follow_launchers(program, argv);
    if (hl_selects_other_objects(patterns))
        hl_warn("%s: started as it is, because nothing that -p \"%.*s\" names is shared; 'hugeld inspect "
                "FILE' names the best way for each file",
                argv[0], (int)patterns.bytes, patterns.at);
    else if (target->program->executable == NULL || target->is_unknown)
        hl_warn("%s: started as it is, because the programs that it starts are not known; 'hugeld survey' "
                "finds them",
                argv[0]);
    else
        tell_of_best(argv[0], target->program, options);
}

/* With strict=on, for PROGRAM with the argv ARGV: why nothing of it can be on huge pages, at any load address; NULL: something may
   be, or it is a launcher.  A program that has a whole huge page only at some addresses is not refused, nor is a small one that a
   launcher starts: both would end a service by chance. */
static const char *explain_never(const struct hl_options *options, struct hl_program *program,
                                 char *const *argv) {
    struct hl_file_plan file_plan;
    struct hl_starts starts = {.pages_max = 1};
    const struct hl_target *target = hl_follow_launchers(program, argv);
    const struct hl_program *last = target->program;
    bool is_known = !target->followed && !target->is_unknown;
    if (hl_read_program(target->program) && is_known && hl_acts_in(options, last->executable)) {
        hl_plan_file(&file_plan, last->executable, &last->file, options, 0);
        hl_measure_starts(&starts, &file_plan, options);
    }
    return starts.pages_max == 0 ? hl_reason_sentence(HL_REASON_TOO_SMALL) : NULL;
}

/* For a program of which no part is shared. */
static void start_as_it_is(struct hl_start_plan *plan, const struct hl_options *options,
                           struct hl_string patterns, struct hl_program *program, char *const *argv) {
    if (plan->reason != NULL)
        return;
    const char *never =
        options->strict && !hl_selects_other_objects(patterns) ? explain_never(options, program, argv) : NULL;
    if (options->strict)
        plan->reason = never != NULL
                           ? never
                           : "nothing of it is shared (hugeld enable), and no copy was asked for (--copy)";
    else if (options->verbose >= 1)
        tell_of_start(program, argv, patterns, options);
}

/* Reads the inherited options and then RUN's; libhugeld.so warns about mistakes in the former.  Returns the joined text, which the
   caller frees when OPTIONS is no longer used. */
static char *read_options(struct hl_options *options, const struct hl_run *run) {
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), run->options);
    hl_default_options(options);
    hl_parse_options(options, text, NULL);
    return text;
}

/* Whether the kernel still has any of the text of PROGRAM, which was put in place, on huge pages. */
static bool is_still_in_place(struct hl_program *program) {
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    return hl_read_program(program) && hl_has_huge_text(&program->file, &geometry);
}

/* PROGRAM, called NAME, was put in place; checks whether it still is, for strict=on or for a line about it. */
static void check_place(struct hl_start_plan *plan, const struct hl_options *options,
                        struct hl_program *program, const char *name) {
    plan->is_in_place = is_still_in_place(program);
    if (!plan->is_in_place)
        plan->reason = "its file was put in place, and the kernel has dropped its huge pages since (hugeld "
                       "share refresh)";
    else if (options->verbose >= 1)
        hl_warn("%s: started as it is, because " HL_IN_PLACE_SENTENCE, name);
}

int hl_prepare_run(const struct hl_run *run, char *const *argv, struct hl_program *program,
                   struct hl_start_plan *plan) {
    const char *name = argv[0];
    struct hl_options options;
    char *text = read_options(&options, run);
    bool acts = hl_acts_in(&options, program->path), strict = acts && options.strict != 0;
    struct hl_string patterns = hl_find_patterns(run->patterns);
    bool names_others = hl_selects_other_objects(patterns);

    hl_choose_bare(plan, run, &options, program, name);
    if (plan->is_in_place && (strict || options.verbose >= 1))
        check_place(plan, &options, program, name);
    enum hl_start start = hl_choose_start(plan, run, &options, text, program);
    if (start == HL_START_BARE && options.verbose >= 1 && names_others)
        tell_of_no_library(name, patterns);
    else if (start == HL_START_AS_IT_IS)
        start_as_it_is(plan, &options, patterns, program, argv);
    else if (start == HL_START_IN_PROCESS && run->via == HL_VIA_LDSO && !hl_is_privileged(program))
        choose_linker(plan, run, name, program);
    else if (start == HL_START_IN_PROCESS)
        hl_choose_preload(plan, program);
    if (strict && !names_others && plan->reason == NULL && plan->stop == NULL && plan->library != NULL)
        plan->reason = explain_never(&options, program, argv);
    int code = tell(plan, name, acts, strict);
    free(text);
    return code;
}

/* Becomes ld.so with the program at PATH as its argument.  Returns only when that fails. */
static int become_linker(const char *linker, const char *path, char **program) {
    size_t n = 1; /* its own name */
    while (program[n] != NULL)
        n++;
    char **arguments = hl_xmalloc((n + 4) * sizeof *arguments);
    const char *first[] = {linker, "--argv0", program[0], path};
    memcpy(arguments, first, sizeof first);
    memcpy(arguments + 4, program + 1, n * sizeof *arguments);
    execv(linker, arguments);
    free(arguments);
    return hl_refuse_program(program[0]);
}

/* The last resort is execvp(3) with the plain environment, since it also takes a later match in PATH.  It gives a file that the
   kernel cannot execute to the shell: this serves a script without "#!", but another machine's program would end in syntax
   errors. */
int hl_become_program(struct hl_start_plan *plan, struct hl_program *program, char **argv,
                      char **plain_variables) {
    if (plan->linker != NULL)
        return become_linker(plan->linker, program->path, argv);
    execv(program->path, argv);
    if (plan->stop != NULL && plain_variables != NULL) { /* a security module may forbid tracing it */
        hl_cancel_exec_stop(plan->stop);
        plan->stop = NULL;
        execv(program->path, argv);
    }
    int error = errno;
    hl_read_program(program);
    bool is_text = program->is_script || program->problem == HL_ELF_EMPTY || program->problem == HL_ELF_OTHER;
    if (error != ENOEXEC && plain_variables != NULL)
        environ = plain_variables;
    if (error == ENOEXEC ? is_text : plain_variables != NULL)
        execvp(argv[0], argv);
    else
        errno = error;
    return hl_refuse_program(argv[0]);
}

static void free_plan(struct hl_start_plan *plan) {
    free(plan->library);
    free(plan->linker);
    if (plan->stop != NULL)
        hl_cancel_exec_stop(plan->stop);
}

/* Prints the best way for the library with most text, if that has more than PROGRAM, called NAME. */
static void tell_of_larger_library(const char *name, const struct hl_program *program,
                                   const struct hl_options *options) {
    struct hl_verdict verdict;
    if (!hl_judge_larger_library(&verdict, program->executable, &program->file, options))
        return;
    char *best = hl_format_best(&verdict);
    hl_warn("%s: more text is in %s than in the program; best for that: %s", name, hl_base_name(verdict.path),
            best);
    free(best);
    hl_free_verdict(&verdict);
}

/* If only main is selected, and verbose: PROGRAM with the argv ARGV may have most of its text in a library, which the default
   leaves out.  Files that are to come from the page cache (backend=file) are not read before. */
static void advise_library(const struct hl_run *run, struct hl_program *program, char *const *argv,
                           const struct hl_options *options) {
    const char *patterns = run->patterns != NULL ? run->patterns : getenv("LD_HUGEPAGES");
    if (options->verbose == 0 || options->backend == HL_BACKEND_FILE ||
        (patterns != NULL && strcmp(patterns, "main") != 0))
        return;
    const struct hl_target *target = hl_follow_launchers(program, argv);
    const struct hl_program *last = target->program;
    if (hl_read_program(target->program) && !target->is_unknown && hl_acts_in(options, last->executable) &&
        hl_explain_plain_file(HL_ELF_FINE, &last->file) == NULL)
        tell_of_larger_library(argv[0], last, options);
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
    struct hl_start_plan plan = {0};
    struct hl_program program = {0};
    struct hl_options options;
    char *text = NULL, **variables = hl_keep_environment();
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        goto out;
    if (request.program == NULL) {
        hl_warn("run: no program given; try 'hugeld run ls'");
        goto out;
    }
    char **command_line = request.program;
    request.run.makes_no_copy = !request.copies;
    text = read_options(&options, &request.run);
    if (!hl_open_program(&program, command_line[0])) {
        if (options.strict == 0)
            execvp(command_line[0], command_line); /* the kernel knows best which files may be executed */
        code = hl_refuse_program(command_line[0]);
        goto out;
    }
    advise_library(&request.run, &program, command_line, &options);
    code = hl_prepare_run(&request.run, command_line, &program, &plan);
    if (code == 0)
        code = hl_become_program(&plan, &program, command_line, options.strict ? NULL : variables);
out:
    free_plan(&plan);
    hl_close_program(&program);
    free(text);
    free(variables);
    free(request.run.options);
    return code;
}
