/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What `run` and `bench` are asked for.  The program itself is started by hugeld.c alone (run/start.h). */
#ifndef HL_RUN_H
#define HL_RUN_H

#include "command/lib/basics.h"
#include "command/lib/flags.h"
#include "elf/options.h"

/* The value of --via. */
enum hl_via { HL_VIA_AUTO, HL_VIA_PRELOAD, HL_VIA_LDSO };

/* The user's choice of how to run the program. */
struct hl_run {
    const char *patterns; /* -p, or NULL */
    char *options;        /* every -o, joined; or NULL */
    unsigned via;         /* enum hl_via */
    bool copies;          /* --copy */
    bool children;        /* --children */
    const char *linker;   /* --ld-so, or NULL */
};

/* The options of both.  RUN is the field, a struct hl_run, of their request, a TYPE. */
#define HL_RUN_FLAGS(type, run)                                                                              \
    {"objects", 'p', "PATTERNS", "Which objects, as in LD_HUGEPAGES: 'main:libLLVM*:!libc.so*'",             \
     HL_STRING(type, run.patterns)},                                                                         \
        {"options", 'o', "NAME=VALUE,...",                                                                   \
         "How, as in LD_HUGEPAGES_OPTIONS; may be repeated; the last one wins",                              \
         HL_OPTIONS(type, run.options)},                                                                     \
        {"via", 'l', "auto|preload|ldso", "auto: at the exec stop if it has an image, else preload",         \
         HL_CHOICE(type, run.via, hl_via_names)},                                                            \
        {"copy", 0, NULL, "Make private copies of what is not shared", HL_SWITCH(type, run.copies)},         \
        {"children", 0, NULL,                                                                                \
         "Also serve what PROGRAM starts, from images: executables that are no PIE, and libraries that -p "  \
         "names",                                                                                            \
         HL_SWITCH(type, run.children)},                                                                     \
    {                                                                                                        \
        "ld-so", 'L', "FILE", "The patched dynamic linker, if not the one beside this command",              \
            HL_CALL_ON(hl_set_linker, type, run)                                                             \
    }
extern const struct hl_choice hl_via_names[];

/* Whether --children stands beside what it excludes. */
static inline bool hl_is_contradictory(const struct hl_run *run) {
    return run->children && (run->copies || run->via != HL_VIA_AUTO);
}
int hl_set_linker(void *run, const char *path);

/* "auto", "preload" or "ldso"; static. */
const char *hl_via_name(const struct hl_run *run);

/* The requested objects: GIVEN (-p), else LD_HUGEPAGES, else the executable alone.  The result lives as long as its source. */
struct hl_string hl_find_patterns(const char *given);

/* Whether only shared pages may be used: no option asks for a private copy.  OPTIONS were read from TEXT. */
bool hl_shares_only(const struct hl_run *run, const struct hl_options *options, const char *text);

/* libhugeld.so: beside the running command, in ../lib/hugeld, or where it was installed.  NULL if it is in
   none of them; else the caller owns the path. */
char *hl_find_library(void);

/* The end of the line about a program that strict=on forbids to run. */
#define HL_STRICT_SENTENCE "strict=on, so it does not run; run it without strict=on"

/* Why the program NAME can't be run (errno), in the words and with the exit codes of env(1). */
int hl_refuse_program(const char *name);

/* Writes a byte to GATE, waits until it can read one there, or its end, and closes it; -1: nothing. */
void hl_wait_at_gate(int gate);

/* Replaces closed standard descriptors by ones that cannot be read or written: else the next opened file would get a standard
   number, and receive messages.  An executed program finds them closed. */
void hl_keep_standard_numbers(void);

#endif
