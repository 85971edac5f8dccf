/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the options of the sub-commands with getopt_long(3), by a table of each command; argp_help(3) prints their help. */
#include "command/lib/flags.h"
#include "command/lib/common.h"

#include <argp.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the place of the letter of the first row, if that has none; each next row's number is one more. */
#define FIRST_KEY 0x100

/* The options that every command has. */
static const struct hl_flag common_flags[] = {
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct hl_output, is_json)},
    {"quiet", 'q', NULL, "Print errors only", HL_SWITCH(struct hl_output, is_quiet)},
    {"verbose", 'v', NULL, "Print more", HL_SWITCH(struct hl_output, is_verbose)},
    {"wide", 0, NULL, "Cut no row of a table at the terminal's width", HL_SWITCH(struct hl_output, is_wide)},
    {"help", 'h', NULL, "Print this help", HL_SWITCH(struct hl_output, is_help)},
};
#define N_COMMON (sizeof common_flags / sizeof common_flags[0])

struct reading {
    const struct hl_command *command;
    const struct hl_flag *flag; /* that is being read */
    void *at;                   /* the struct whose field it is */
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
    while ((++choice)->name != NULL)
        hl_append(&text, "%s%s", choice[1].name != NULL ? ", " : " or ", choice->name);
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

/* Stores TEXT, the value of the flag, in its field.  0, or EINVAL after one line. */
static int store(struct reading *reading, char *text) {
    const struct hl_flag *flag = reading->flag;
    void *at = (char *)reading->at + flag->offset;
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
    case HL_FLAG_CALL:
        return flag->call(at, text);
    default: /* of arguments alone */
        return EINVAL;
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

/* A command line that is being read. */
struct line {
    const struct hl_command *command;
    size_t n;                   /* the command's rows, without the last one */
    const struct hl_flag *last; /* the row of the arguments */
    struct hl_flag *flags; /* N rows of the command, and the common ones, each with a letter or a number */
};

/* The row with the letter or number KEY, or NULL. */
static const struct hl_flag *find_flag(const struct line *line, int key) {
    for (size_t i = 0; i < line->n + N_COMMON; i++)
        if (line->flags[i].letter == key)
            return &line->flags[i];
    return NULL;
}

_Noreturn static void print_help(const struct line *line) {
    const struct hl_command *command = line->command;
    struct argp_option *options = hl_xmalloc((line->n + N_COMMON + 1) * sizeof *options);
    for (size_t i = 0; i < line->n + N_COMMON; i++)
        options[i] = (struct argp_option){.name = line->flags[i].name,
                                          .key = line->flags[i].letter,
                                          .arg = line->flags[i].argument,
                                          .flags = line->flags[i].help == NULL ? OPTION_HIDDEN : 0,
                                          .doc = line->flags[i].help,
                                          .group = i < line->n ? 0 : -1};
    const struct argp argp = {.options = options, .args_doc = line->last->argument, .doc = command->doc};
    char *name = hl_xasprintf("hugeld %s", command->name);
    argp_help(&argp, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
    if (command->takes_options)
        describe_options();
    free(name);
    free(options);
    exit(HL_EXIT_DONE);
}

/* Reports the option for which getopt_long returned KEY, ':' or '?'; WORD is the last one that it has read. */
static void report_mistake(const struct line *line, int key, const char *word) {
    const char *command = line->command->name, *near = NULL;
    const struct hl_flag *flag = optopt != 0 ? find_flag(line, optopt) : NULL;
    if (flag != NULL && key == ':') {
        hl_warn("%s: --%s: give %s", command, flag->name, flag->argument);
        return;
    }
    if (flag != NULL) {
        hl_warn("%s: --%s takes no value", command, flag->name);
        return;
    }
    char *name =
        optopt != 0 ? hl_xasprintf("-%c", optopt) : hl_xasprintf("%.*s", (int)strcspn(word, "="), word);
    for (size_t i = 0; i < line->n + N_COMMON && optopt == 0; i++)
        if (line->flags[i].help != NULL && hl_is_near(name + 2, line->flags[i].name))
            near = line->flags[i].name;
    if (near != NULL)
        hl_warn("%s: %s: no such option; did you mean '--%s'?", command, name, near);
    else
        hl_warn("%s: %s: no such option; 'hugeld %s --help' lists them", command, name, command);
    free(name);
}

/* Reads the options of ARGV, and leaves optind at the first argument.  0, or EINVAL after one line. */
static int read_options(const struct line *line, int argc, char **argv, void *request) {
    size_t n = line->n + N_COMMON, bytes = 0;
    struct option *options = hl_xmalloc((n + 1) * sizeof *options);
    char *letters = hl_xmalloc(2 * n + 3);
    if (line->last->kind == HL_FLAG_PROGRAM)
        letters[bytes++] = '+'; /* what follows the first argument is the program's */
    letters[bytes++] = ':';     /* for two kinds of mistakes */
    for (size_t i = 0; i < n; i++) {
        bool takes_value = line->flags[i].argument != NULL;
        options[i] = (struct option){line->flags[i].name, takes_value ? required_argument : no_argument, NULL,
                                     line->flags[i].letter};
        if (line->flags[i].letter < FIRST_KEY)
            letters[bytes++] = (char)line->flags[i].letter;
        if (line->flags[i].letter < FIRST_KEY && takes_value)
            letters[bytes++] = ':';
    }
    int result = 0;
    opterr = optind = 0; /* 0 makes glibc begin anew */
    for (int key; result == 0 && (key = getopt_long(argc, argv, letters, options, NULL)) != -1;) {
        struct reading reading = {.command = line->command, .at = request};
        reading.flag = key != ':' && key != '?' ? find_flag(line, key) : NULL;
        if (reading.flag >= line->flags + line->n)
            reading.at = &hl_output;
        if (reading.flag == NULL)
            report_mistake(line, key, argv[optind - 1]);
        result = reading.flag != NULL ? store(&reading, optarg) : EINVAL;
    }
    free(letters);
    free(options);
    return result;
}

/* Reads the arguments behind the options.  0, or EINVAL after one line. */
static int read_arguments(const struct line *line, char **argv, void *request) {
    struct reading reading = {.command = line->command, .flag = line->last, .at = request};
    int result = 0;
    if (line->last->kind == HL_FLAG_PROGRAM) {
        *(char ***)((char *)request + line->last->offset) = argv[0] != NULL ? argv : NULL;
        return 0;
    }
    for (size_t i = 0; result == 0 && argv[i] != NULL; i++) {
        bool is_surplus = line->last->help != NULL && (double)i >= line->last->most;
        if (is_surplus)
            hl_warn("%s: %s is one too many; give %s", line->command->name, argv[i], line->last->help);
        result = is_surplus ? EINVAL : store(&reading, argv[i]);
    }
    return result;
}

int hl_read_flags(const struct hl_command *command, int argc, char **argv, void *request) {
    struct line line = {.command = command, .last = command->flags};
    for (; line.last->name != NULL; line.n++)
        line.last++;
    line.flags = hl_xmalloc((line.n + N_COMMON) * sizeof *line.flags);
    memcpy(line.flags, command->flags, line.n * sizeof *line.flags);
    memcpy(line.flags + line.n, common_flags, sizeof common_flags);
    for (size_t i = 0; i < line.n + N_COMMON; i++)
        if (line.flags[i].letter == 0)
            line.flags[i].letter = FIRST_KEY + (int)i;
    bool has_program = line.last->kind == HL_FLAG_PROGRAM;
    /* A mistake before --json is reported as JSON, too. */
    for (char **word = argv + 1; *word != NULL && strcmp(*word, "--") != 0; word++) {
        if (has_program && word[0][0] != '-')
            break;
        hl_output.is_json |= strcmp(*word, "--json") == 0 || strcmp(*word, "-j") == 0;
    }
    int result = read_options(&line, argc, argv, request);
    if (result == 0 && hl_output.is_help)
        print_help(&line);
    if (result == 0)
        result = read_arguments(&line, argv + optind, request);
    free(line.flags);
    return result == 0 ? 0 : HL_EXIT_USAGE;
}
