/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The executable named hugeld: starts programs, and becomes hugeld-command for everything else.

   `hugeld run PROGRAM` is worth it only if it costs less than the huge pages gain, and a short program takes a millisecond.  Most
   of an additional program's cost is its start: a dynamic linker, its libraries, and the CPUID instructions by which glibc finds
   the processor's features.  Under a hypervisor each of these is an exit to it, of 1 to 20 us, and there are about forty.  So this
   program is linked only with a libc, one that asks for no features (musl) if there is one, and decides with a few system calls. */
#include "command/run/start.h"
#include "elf/stack.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* *JOINED becomes FIRST and then SECOND, one of which it is. */
static void join(char **joined, const char *first, const char *second) {
    char *both = hl_join_options(first, second);
    free(*joined);
    *joined = both;
}

/* False: there is a mistake in TEXT. */
static bool add_options(char **joined, const char *text) {
    struct hl_options options;
    hl_default_options(&options);
    join(joined, *joined, text);
    return hl_parse_options(&options, text, NULL) == 0;
}

static bool choose_via(unsigned *via, const char *name) {
    for (const struct hl_choice *choice = hl_via_names; choice->name != NULL; choice++)
        if (strcmp(choice->name, name) == 0) {
            *via = choice->value;
            return true;
        }
    return false;
}

/* Whether the arguments are those of `run`, as they should be.  Anything else, --help and mistakes included, is for
   hugeld-command. */
static bool read_request(struct hl_request *request, int argc, char **argv) {
    static const struct option options[] = {
        {"objects", required_argument, NULL, 'p'}, {"options", required_argument, NULL, 'o'},
        {"via", required_argument, NULL, 'l'},     {"ld-so", required_argument, NULL, 'L'},
        {"copy", no_argument, NULL, 'c'},          {"children", no_argument, NULL, 'C'},
        {"gate", required_argument, NULL, 'g'},    {"json", no_argument, NULL, 'j'},
        {"quiet", no_argument, NULL, 'q'},         {"verbose", no_argument, NULL, 'v'},
        {"wide", no_argument, NULL, 'w'},          {NULL, 0, NULL, 0}};
    bool is_right = argc >= 2 && strcmp(argv[1], "run") == 0;
    opterr = 0;
    for (int c; is_right && (c = getopt_long(argc - 1, argv + 1, "+p:o:l:L:jqv", options, NULL)) != -1;) {
        if (c == 'p')
            request->run.patterns = optarg;
        else if (c == 'o')
            is_right = add_options(&request->run.options, optarg);
        else if (c == 'l')
            is_right = choose_via(&request->run.via, optarg);
        else if (c == 'L')
            hl_set_linker(&request->run, optarg);
        else if (c == 'c')
            request->run.copies = true;
        else if (c == 'C')
            request->run.children = true;
        else if (c == 'g')
            request->gate = (int)strtol(optarg, NULL, 10);
        else if (c == 'j')
            hl_output.is_json = true;
        else if (c == 'q')
            hl_output.is_quiet = true;
        else if (c == 'v')
            join(&request->run.options, "verbose=1", request->run.options); /* what -o says of it holds */
        else
            is_right = c == 'w'; /* for tables */
    }
    is_right = is_right && !hl_is_contradictory(&request->run);
    request->program = argv + (is_right ? 1 + optind : argc);
    return *request->program != NULL;
}

/* {"error": {"message": MESSAGE}} on standard output: the program, which has not begun, does not write there. */
static void print_error(const char *message) {
    printf("{\"error\": {\"message\": \"");
    for (; *message != '\0'; message++)
        printf("%s%c", *message == '"' || *message == '\\' ? "\\" : "",
               (unsigned char)*message < 0x80 ? *message : '?');
    puts("\"}}");
    fflush(stdout);
}

/* The environment as it is now; its strings stay as they are if the environment changes. */
static char **copy_environment(void) {
    size_t n = 0;
    while (environ[n] != NULL)
        n++;
    char **copy = hl_xmalloc((n + 1) * sizeof *copy);
    memcpy(copy, environ, n * sizeof *copy);
    return copy;
}

/* The arguments of main, and its result. */
struct start {
    int argc;
    char **argv;
    int code;
};

static void start(void *data) {
    struct start *start = data;
    struct hl_request request = {.words = start->argv, .variables = copy_environment(), .gate = -1};
    if (read_request(&request, start->argc, start->argv)) {
        hl_keep_standard_numbers();
        start->code = hl_start_program(&request);
        if (hl_output.is_json && hl_last_warning()[0] != '\0') /* else a child has said why, and printed it */
            print_error(hl_last_warning());
    } else {
        hl_become_command(start->argv, request.variables, false);
    }
}

/* Arguments and variables may leave the program a few KiB of its stack (RLIMIT_STACK), on which it runs; hugeld needs more, so it works on
   a stack of its own. */
int main(int argc, char **argv) {
    struct start all = {argc, argv, HL_EXIT_NO};
    char *stack = mmap(NULL, HL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack != MAP_FAILED)
        hl_switch_stack(start, &all, stack + HL_STACK_BYTES);
    else
        start(&all);
    return all.code;
}
