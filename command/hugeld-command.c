/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The hugeld command, except hugeld.c's part: finds the sub-command and calls it.

   This is the user's interface; the work is done by libhugeld.so inside the program, and the plan comes from the same files of elf/
   that run there. */
#include "command/command.h"
#include "command/lib/common.h"
#include "command/run/ldso.h"
#include "command/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*function)(int argc, char **argv);
} commands[] = {
    {"run", hl_run_program},
    {"inspect", hl_inspect_files},
    {"status", hl_show_status},
    {"doctor", hl_examine_machine},
    {"perf-map", hl_map_functions},
    {"bench", hl_measure_program},
    {"image", hl_make_image},
    {"survey", hl_survey_programs},
    {"attach", hl_attach_processes},
    {"detach", hl_detach_processes},
    {"enable", hl_enable_programs},
    {"disable", hl_disable_programs},
    {"apply", hl_apply},
    {"list", hl_list_enabled},
    {"reset", hl_reset_machine},
};

/* Fewer may not be enough for a store, an image and the files that a process has mapped; most functions could not tell then whether
   a file could not be opened or does not exist. */
#define FILES_MIN 64

static const char help[] =
    "Usage: hugeld COMMAND [OPTION...] ...\n"
    "Moves the code and data of unmodified programs onto huge pages at startup.\n"
    "\n"
    "How do I use it?\n"
    "  enable PROGRAM|FILE|UNIT...   keep its text on huge pages, for all processes\n"
    "  run [OPTION...] PROGRAM ARGS  run a program on them\n"
    "  list                          show what is enabled, and who is on it\n"
    "  disable PROGRAM|FILE|UNIT...  undo enable\n"
    "  apply                         do what the lists of enabled files say\n"
    "  reset                         give back all huge pages of hugeld\n"
    "  image FILE OUT                write a copy of a file for huge pages\n"
    "  attach PID...                 move running processes, as an experiment\n"
    "  detach PID...                 move them back\n"
    "Is it worth it?\n"
    "  survey                        find running programs that could gain\n"
    "  bench PROGRAM ARGS            measure runs with and without huge pages\n"
    "Did it work?\n"
    "  status PID|--all              show which parts are on huge pages now\n"
    "  inspect FILE...               show the best way, and why the rest stays\n"
    "  doctor                        test this machine, with a fix for each problem\n"
    "  perf-map PID                  name moved functions for perf\n"
    "\n"
    "'hugeld help COMMAND' says more.  Exit status: 0 done, 1 the answer is no, 2\n"
    "wrong use, 3 something is pending; run: the program's, 126 it cannot be run, 127\n"
    "it was not found.";

static const struct command *find_command(const char *name) {
    const struct command *near = &commands[0];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (hl_count_edits(name, commands[i].name) < hl_count_edits(name, near->name))
            near = &commands[i];
    if (strcmp(near->name, name) == 0)
        return near;
    if (hl_is_near(name, near->name))
        hl_warn("%s: no such command; did you mean '%s'?", name, near->name);
    else
        hl_warn("%s: no such command; 'hugeld --help' lists them", name);
    return NULL;
}

/* Whether the command NAME may open as many files as it may need for WORDS. `run` starts the program with any limit. */
static bool has_files(const char *name, char **words) {
    struct rlimit files;
    bool asks_for_help = false;
    for (; *words != NULL && !asks_for_help; words++)
        asks_for_help = strcmp(*words, "--help") == 0 || strcmp(*words, "-h") == 0;
    if (asks_for_help || strcmp(name, "run") == 0 || getrlimit(RLIMIT_NOFILE, &files) != 0 ||
        files.rlim_cur >= FILES_MIN)
        return true;
    hl_warn("%s: only %ju files may be open; raise the limit to %d or more (ulimit -n)", name,
            (uintmax_t)files.rlim_cur, FILES_MIN);
    return false;
}

/* Prints the version, and the files that `run` would use. */
static void print_version(void) {
    char *library = hl_find_library(), *linker = hl_find_linker();
    struct hl_elf_file own;
    bool is_read = hl_open_elf(&own, AT_FDCWD, "/proc/self/exe") == HL_ELF_FINE;
    char *reason = hl_explain_no_linker(linker, is_read ? &own : NULL, "/proc/self/exe");
    char *interpreter = is_read ? hl_read_interpreter(&own) : NULL;
    if (is_read)
        hl_close_elf(&own);
    hl_print("hugeld " HL_VERSION);
    hl_print("preloader: %s", library != NULL ? library : "not found");
    if (reason == NULL)
        hl_print("patched dynamic linker: %s, for %s", linker, interpreter);
    else
        hl_print("patched dynamic linker: no, %s", reason);
    free(library);
    free(linker);
    free(interpreter);
    free(reason);
}

/* Runs at exit, also after the help of a command. */
static void check_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    hl_warn("cannot write the answer: %s; check where the output goes", strerror(errno));
    _exit(HL_EXIT_NO);
}

/* For a call that comes to no command: the exit code CODE, as JSON if any of WORDS asks for that. */
static int fail(int code, char **words) {
    for (; *words != NULL; words++)
        hl_output.is_json |= strcmp(*words, "--json") == 0 || strcmp(*words, "-j") == 0;
    hl_answer_failure(code);
    return code;
}

int main(int argc, char **argv) {
    static char *ask_help[] = {(char *)"hugeld", (char *)"--help", NULL};
    char *name = argc > 1 ? argv[1] : (char *)"help";
    bool is_help = strcmp(name, "help") == 0 && argc > 2;
    hl_keep_standard_numbers();
    atexit(check_output);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        print_version();
        return HL_EXIT_DONE;
    }
    if (!is_help && (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)) {
        puts(help);
        return HL_EXIT_DONE;
    }
    if (name[0] == '-') {
        hl_warn("%s: no such option; 'hugeld --help' lists commands, which have options of their own", name);
        return fail(HL_EXIT_USAGE, argv + 1);
    }
    char **words = argv + 1;
    if (strncmp(name, "unit-", 5) == 0) { /* for systemd, so it is in no help */
        words[0] = (char *)"hugeld";
        return hl_serve_unit(name, argc - 1, words);
    }
    const struct command *command = find_command(is_help ? argv[2] : name);
    if (command == NULL)
        return fail(HL_EXIT_USAGE, words);
    if (is_help)
        return command->function(2, ask_help);
    if (!has_files(name, words))
        return fail(HL_EXIT_NO, words);
    words[0] = (char *)"hugeld";
    int code = command->function(argc - 1, words);
    hl_answer_failure(code);
    return code;
}
