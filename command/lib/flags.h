/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the options of the sub-commands.  A command has one table: the name of each option, its text in --help, the kind of its
   value, and the field of the command's request for it.  The options that all commands have are in flags.c. */
#ifndef HL_FLAGS_H
#define HL_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum hl_flag_kind {
    HL_FLAG_NONE,
    HL_FLAG_SWITCH,
    HL_FLAG_STRING,
    HL_FLAG_LIST,
    HL_FLAG_OPTIONS,
    HL_FLAG_PID,
    HL_FLAG_COUNT,
    HL_FLAG_NUMBER,
    HL_FLAG_CHOICE,
    HL_FLAG_PROGRAM,
    HL_FLAG_CALL
};

/* The values of a repeatable option or argument.  The words are argv's; the caller frees the array. */
struct hl_list {
    size_t n;
    const char **word;
};
void hl_add_to_list(struct hl_list *list, const char *word);

struct hl_choice {
    const char *name;
    unsigned value;
};

/* The last row of a table has no name: it is for the arguments beside the options, which --help shows as ARGUMENT.  If its HELP is
   not NULL, there may be at most MOST of them, and the error for more asks for HELP ("one action"). */
struct hl_flag {
    const char *name;
    int letter;           /* 0: none */
    const char *argument; /* the value's name in --help; NULL: no value */
    const char *help;     /* NULL: --help leaves it out */
    enum hl_flag_kind kind;
    size_t offset; /* of the field */
    double least, most;
    const struct hl_choice *choices; /* the last one has no name */
    int (*call)(void *at, const char *text);
};

/* The end of a row: the kind, and the field of the request, which is a TYPE.  A field of another type than the kind's does not
   compile. */
#define HL_FIELD(type, field, of) .offset = _Generic(&((type *)NULL)->field, of * : offsetof(type, field))
#define HL_SWITCH(type, field) .kind = HL_FLAG_SWITCH, HL_FIELD(type, field, bool)
#define HL_STRING(type, field) .kind = HL_FLAG_STRING, HL_FIELD(type, field, const char *)
#define HL_LIST(type, field) .kind = HL_FLAG_LIST, HL_FIELD(type, field, struct hl_list)
#define HL_PID(type, field) .kind = HL_FLAG_PID, HL_FIELD(type, field, pid_t)
/* NAME=VALUE,... of elf/option.def.  Each is added to the earlier ones; the caller frees them. */
#define HL_OPTIONS(type, field) .kind = HL_FLAG_OPTIONS, HL_FIELD(type, field, char *)
/* A whole number; a number that may have decimals. */
#define HL_COUNT(type, field, from, to)                                                                      \
    .kind = HL_FLAG_COUNT, HL_FIELD(type, field, size_t), .least = (from), .most = (to)
#define HL_NUMBER(type, field, from, to)                                                                     \
    .kind = HL_FLAG_NUMBER, HL_FIELD(type, field, double), .least = (from), .most = (to)
#define HL_SECONDS(type, field) HL_NUMBER(type, field, 0.1, 86400)
#define HL_CHOICE(type, field, of) .kind = HL_FLAG_CHOICE, HL_FIELD(type, field, unsigned), .choices = (of)
/* For the last row: the first argument and all behind it, including options.  NULL if there is none. */
#define HL_PROGRAM(type, field) .kind = HL_FLAG_PROGRAM, HL_FIELD(type, field, char **)
/* FUNCTION gets the request, or its FIELD, and the value.  0, or EINVAL after one line on stderr. */
#define HL_CALL(function) .kind = HL_FLAG_CALL, .call = (function)
#define HL_CALL_ON(function, type, field) HL_CALL(function), .offset = offsetof(type, field)
/* The last row of a command that takes options alone. */
#define HL_NO_ARGUMENTS                                                                                      \
    { NULL, 0, "", "none", .kind = HL_FLAG_NONE }

struct hl_command {
    const char *name; /* "apply" */
    const char *doc;  /* the text of --help before the options, and after a '\v' the text behind them */
    const struct hl_flag *flags;
    bool takes_options; /* --help ends with the rows of option.def */
};

/* Fills REQUEST in from ARGV, and hl_output from the options that all commands have.  0, or HL_EXIT_USAGE after one line on stderr.
   --help ends the process. */
int hl_read_flags(const struct hl_command *command, int argc, char **argv, void *request);

#endif
