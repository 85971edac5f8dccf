/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the options of the sub-commands with argp, by a table of each command. */
#include "command/lib/flags.h"
#include "command/lib/common.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* argp's key of the first row, if that has no letter; each next row's key is one more. */
#define FIRST_KEY 0x100

struct reading {
    const struct hl_command *command;
    void *request;
    const struct hl_flag *flag; /* that is being read */
};

/* --- values --- */

void hl_add_to_list(struct hl_list *list, const char *word) {
    list->word = hl_xrealloc(list->word, (list->n + 1) * sizeof *list->word);
    list->word[list->n++] = word;
}

/* Asks for WANTED, which it frees, instead of TEXT.  EINVAL. */
static int refuse(const struct reading *reading, const char *text, char *wanted) {
    hl_warn("%s: --%s %s: give %s", reading->command->name, reading->flag->name, text, wanted);
    free(wanted);
    return EINVAL;
}

static void tell_mistake(void *data, struct hl_string option, const char *what) {
    const struct reading *reading = data;
    const char *command = reading->command->name;
    hl_warn("%s: --%s %.*s: %s; 'hugeld %s --help' lists names and values", command, reading->flag->name,
            (int)(option.bytes < 200 ? option.bytes : 200), option.at, what, command);
}

/* Each mistake is reported in a line of its own. */
static int add_options(struct reading *reading, char **joined, const char *text) {
    struct hl_options options;
    const struct hl_complaints complaints = {tell_mistake, reading};
    hl_default_options(&options);
    if (hl_parse_options(&options, text, &complaints) != 0)
        return EINVAL;
    char *both = hl_join_options(*joined, text);
    free(*joined);
    *joined = both;
    return 0;
}

static int read_number(const struct reading *reading, void *at, const char *text) {
    const struct hl_flag *flag = reading->flag;
    bool is_count = flag->kind == HL_FLAG_COUNT;
    char *end;
    double number = strtod(text, &end);
    if (is_count)
        end = (char *)text + strspn(text, "0123456789");
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || number < flag->least || number > flag->most)
        return refuse(reading, text, hl_xasprintf("a number from %.9g to %.9g", flag->least, flag->most));
    if (is_count)
        *(size_t *)at = (size_t)number;
    else
        *(double *)at = number;
    return 0;
}

/* "preload, ldso or image"; the caller frees it. */
static char *list_choices(const struct hl_choice *choice) {
    char *text = hl_xasprintf("%s", choice->name);
    while ((++choice)->name != NULL) {
        char *longer = hl_xasprintf("%s%s%s", text, choice[1].name != NULL ? ", " : " or ", choice->name);
        free(text);
        text = longer;
    }
    return text;
}

static int choose(const struct reading *reading, unsigned *value, const char *text) {
    const struct hl_choice *choice = reading->flag->choices;
    while (choice->name != NULL && strcmp(choice->name, text) != 0)
        choice++;
    if (choice->name == NULL)
        return refuse(reading, text, list_choices(reading->flag->choices));
    *value = choice->value;
    return 0;
}

/* Stores TEXT, the value of the flag, in the request.  0, or EINVAL after one line. */
static error_t store(struct reading *reading, struct argp_state *state, char *text) {
    const struct hl_flag *flag = reading->flag;
    void *at = (char *)reading->request + flag->offset;
    switch (flag->kind) {
    case HL_FLAG_SWITCH:
        *(bool *)at = true;
        return 0;
    case HL_FLAG_STRING:
        *(const char **)at = text;
        return 0;
    case HL_FLAG_LIST:
        hl_add_to_list(at, text);
        return 0;
    case HL_FLAG_OPTIONS:
        return add_options(reading, at, text);
    case HL_FLAG_PID:
        *(pid_t *)at = hl_parse_pid(text);
        return *(pid_t *)at != 0 ? 0 : refuse(reading, text, hl_xasprintf("the ID of a process"));
    case HL_FLAG_COUNT:
    case HL_FLAG_NUMBER:
        return read_number(reading, at, text);
    case HL_FLAG_CHOICE:
        return choose(reading, at, text);
    case HL_FLAG_PROGRAM:
        *(char ***)at = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case HL_FLAG_CALL:
        return flag->call(at, text);
    default: /* HL_FLAG_NONE: it takes no argument */
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- the command line --- */

/* The rows of option.def. */
static void describe_options(void) {
    puts("\nNAME=VALUE, the default first:");
    for (size_t i = 0; i < hl_option_row_count; i++) {
        const struct hl_option_row *row = &hl_option_rows[i];
        printf("  %s=%s", row->name,
               row->type == HL_NUMBER   ? "0|N"
               : row->type == HL_GLOB   ? "*|GLOB"
               : row->type == HL_FOLDER ? "FOLDER"
                                        : "");
        for (size_t j = 0; row->values != NULL && row->values[j] != NULL; j++)
            printf("%s%s", j > 0 ? "|" : "", row->values[j]);
        printf("\n      %s\n", row->help);
    }
}

_Noreturn static void print_help(struct argp_state *state, const struct hl_command *command) {
    state->name = hl_xasprintf("hugeld %s", command->name);
    argp_state_help(state, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK);
    if (command->takes_options)
        describe_options();
    exit(HL_EXIT_DONE);
}

static int key_of(const struct hl_flag *flags, size_t i) {
    return flags[i].letter != 0 ? flags[i].letter : FIRST_KEY + (int)i;
}

/* The row of KEY, or the last one. */
static const struct hl_flag *find_flag(const struct hl_flag *flags, int key) {
    size_t i = 0;
    while (flags[i].name != NULL && key_of(flags, i) != key)
        i++;
    return &flags[i];
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct reading *reading = state->input;
    const struct hl_flag *flag = reading->flag = find_flag(reading->command->flags, key);
    if (key == ARGP_KEY_ARG && flag->help != NULL && state->arg_num >= (unsigned)flag->most) {
        hl_warn("%s: %s is one too many; give %s", reading->command->name, argument, flag->help);
        return EINVAL;
    }
    if (flag->name != NULL || key == ARGP_KEY_ARG)
        return store(reading, state, argument);
    if (key == 'h')
        print_help(state, reading->command);
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->err_stream = NULL; /* getopt reports the error; argp would add "Try ..." */
    return 0;
}

/* Whether the long options of ARGV are the command's; if not, one line says which was meant, as getopt's would not.  What follows the
   first word that is no option may be a program's. */
static bool has_known_options(const struct hl_command *command, char **argv, bool has_program) {
    for (char **word = argv + 1; *word != NULL && strcmp(*word, "--") != 0; word++) {
        size_t bytes = strcspn(*word, "=");
        char *name = hl_xasprintf("%.*s", (int)bytes, *word);
        bool is_known = strncmp(name, "--", 2) != 0 || strncmp("--help", name, bytes) == 0;
        const char *near = NULL;
        for (const struct hl_flag *flag = command->flags; flag->name != NULL && !is_known; flag++) {
            is_known = strncmp(flag->name, name + 2, bytes - 2) == 0;
            near = flag->help != NULL && hl_is_near(name + 2, flag->name) ? flag->name : near;
        }
        if (!is_known && near != NULL)
            hl_warn("%s: %s: no such option; did you mean '--%s'?", command->name, name, near);
        else if (!is_known)
            hl_warn("%s: %s: no such option; 'hugeld %s --help' lists them", command->name, name,
                    command->name);
        free(name);
        if (!is_known)
            return false;
        if (has_program && word[0][0] != '-')
            return true;
    }
    return true;
}

/* Whether ARGV has --json, and the command knows it. */
static bool asks_for_json(const struct hl_command *command, char **argv) {
    const struct hl_flag *flag = command->flags;
    while (flag->name != NULL && strcmp(flag->name, "json") != 0)
        flag++;
    while (flag->name != NULL && *argv != NULL && strcmp(*argv, "--json") != 0 && strcmp(*argv, "-j") != 0)
        argv++;
    return flag->name != NULL && *argv != NULL;
}

int hl_read_flags(const struct hl_command *command, int argc, char **argv, void *request) {
    const struct hl_flag *flags = command->flags, *last = find_flag(flags, ARGP_KEY_ARG);
    size_t n = (size_t)(last - flags);
    struct argp_option *options = hl_xmalloc((n + 2) * sizeof *options);
    for (size_t i = 0; i < n; i++)
        options[i] = (struct argp_option){.name = flags[i].name,
                                          .key = key_of(flags, i),
                                          .arg = flags[i].argument,
                                          .flags = flags[i].help == NULL ? OPTION_HIDDEN : 0,
                                          .doc = flags[i].help};
    options[n] = (struct argp_option){.name = "help", .key = 'h', .doc = "Print this help", .group = -1};
    const struct argp argp = {
        .options = options, .parser = parse_argument, .args_doc = last->argument, .doc = command->doc};
    struct reading reading = {command, request, NULL};
    bool has_program = last->kind == HL_FLAG_PROGRAM;
    unsigned order = has_program ? ARGP_IN_ORDER : 0; /* the rest is the program's */
    char *own_name = argv[0], *name = hl_xasprintf("hugeld: see 'hugeld %s --help'", command->name);
    argv[0] = name; /* getopt's messages begin with it */
    if (asks_for_json(command, argv + 1))
        hl_expect_json();
    error_t result = has_known_options(command, argv, has_program)
                         ? argp_parse(&argp, argc, argv, ARGP_NO_HELP | order, NULL, &reading)
                         : EINVAL;
    argv[0] = own_name;
    free(name);
    free(options);
    return result == 0 ? 0 : HL_EXIT_USAGE;
}
