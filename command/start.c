/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file that is called hugeld: starts programs, and becomes hugeld-command for everything else.

   `hugeld run PROGRAM` is worth it only if it costs less than the huge pages bring, and a short program takes a millisecond.
   Most of what another program costs is its start: a dynamic linker, its libraries, and the CPUID instructions by which
   glibc finds out what the processor can.  Under a hypervisor each of these is an exit to it, of 1 to 20 us, and there are
   about forty.  So this program is linked with nothing, by a libc that asks for nothing (musl) where there is one, and
   decides by what can be known from a few system calls.  Whatever takes more, or has to be said, is left to
   hugeld-command, which does the same and all the rest. */
#include "basics.h"
#include "run-bare.h"
#include "program.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

struct request {
    const char *patterns;
    char *options; /* what every -o says, joined; NULL: none was there */
    char **program;
};

/* Whether the arguments are those of `run`, with no option but -p, -o and "--".  Anything else, mistakes included, is for
   hugeld-command. */
static bool read_request(struct request *request, int argc, char **argv) {
    int i = 2;
    if (argc < 3 || strcmp(argv[1], "run") != 0)
        return false;
    for (; i + 1 < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i += 2) {
        if (strcmp(argv[i], "-p") == 0) {
            request->patterns = argv[i + 1];
        } else if (strcmp(argv[i], "-o") == 0) {
            char *both = hl_join_options(request->options, argv[i + 1]);
            free(request->options);
            request->options = both;
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

/* Reads the options.  False: there is a mistake in them, or they ask for what has to be looked at more closely. */
static bool read_options(struct hl_options *options, const struct request *request) {
    bool is_wrong = false;
    const struct hl_complaints complaints = {note_mistake, &is_wrong};
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->options);
    hl_default_options(options);
    hl_parse_options(options, text, &complaints);
    return !is_wrong && options->verbose == 0 && options->strict == 0 && options->bss == HL_BSS_OFF &&
           (options->backend == HL_BACKEND_AUTO || options->backend == HL_BACKEND_SHARED);
}

/* Becomes the program, if that can be done here.  Returns otherwise, and nothing has changed. */
static void start_program(const struct request *request) {
    struct hl_options options;
    struct hl_exec_stop *stop;
    struct hl_string patterns = hl_find_patterns(request->patterns);
    if (!read_options(&options, request) || hl_selects_other_objects(patterns))
        return;
    char *path = hl_find_program(request->program[0]);
    if (path != NULL && hl_match_only(&options, path) &&
        hl_choose_bare(&stop, &options, patterns, path, request->program[0])) {
        execve(path, request->program, environ);
        if (stop != NULL)
            hl_cancel_exec_stop(stop);
    }
    free(path);
}

/* Becomes hugeld-command: beside this file, in ../lib/hugeld, or where it was installed. */
static int become_command(char **argv) {
    char self[PATH_MAX] = "";
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = bytes > 0 ? strrchr(self, '/') : NULL;
    if (slash != NULL)
        *slash = '\0';
    char *places[] = {hl_format("%s/hugeld-command", self),
                      hl_format("%s/../lib/hugeld/hugeld-command", self),
                      hl_format("%s/hugeld-command", HL_LIBDIR)};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        execve(places[i], argv, environ);
    hl_say("hugeld-command is neither beside this command nor in " HL_LIBDIR "; install hugeld again");
    return HL_EXIT_NO;
}

int main(int argc, char **argv) {
    struct request request = {0};
    if (read_request(&request, argc, argv))
        start_program(&request);
    free(request.options);
    return become_command(argv);
}
