/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a program is started, without the parts that take a library: shared by `run`, `bench` and hugeld.c. */
#ifndef HL_RUN_START_H
#define HL_RUN_START_H

#include "command/base/basics.h"
#include "command/file/program.h"
#include "command/image/store.h"

struct hl_exec_stop;

/* The value of --via. */
enum hl_via { HL_VIA_AUTO, HL_VIA_PRELOAD, HL_VIA_LDSO };

/* The user's choice of how to run the program. */
struct hl_run {
    const char *patterns; /* -p, or NULL */
    char *options;        /* every -o, joined; or NULL */
    unsigned via;         /* enum hl_via */
    bool makes_no_copy;   /* if no backend is named, only shared pages are used */
    const char *linker;   /* --ld-so, or NULL */
};

/* How the program is started, and why not otherwise. */
struct hl_start_plan {
    const char *reason;        /* why it runs on small pages; or NULL */
    char *library;             /* to be preloaded, or NULL */
    char *linker;              /* to be called with the program as its argument, or NULL */
    struct hl_exec_stop *stop; /* the program executed next begins on its image; or NULL */
    bool is_in_place;          /* the program's file is kept on huge pages */
    bool is_unknown;           /* hl_choose_bare has seen that no store knows the program's file */
};

/* libhugeld.so: beside the running command, in ../lib/hugeld, or where it was installed.  NULL if it is in
   none of them; else the caller owns the path. */
char *hl_find_library(void);

/* The requested objects: GIVEN (-p), else LD_HUGEPAGES, else the executable alone.  The result lives as long as its source. */
struct hl_string hl_find_patterns(const char *given);

/* Whether PATTERNS select the executable at PATH. */
bool hl_selects_main(struct hl_string patterns, const char *path);

/* Whether only shared pages may be used: no option asks for a private copy.  OPTIONS were read from TEXT. */
bool hl_shares_only(const struct hl_run *run, const struct hl_options *options, const char *text);

/* Puts the executable of PROGRAM, called NAME, on huge pages without hugeld's code in it, if possible: its file is kept in place
   (plan->is_in_place), or it begins on its image (plan->stop).  Otherwise nothing is changed.  At verbose=1 one line says why its
   image is not used. */
void hl_choose_bare(struct hl_start_plan *plan, const struct hl_run *run, const struct hl_options *options,
                    struct hl_program *program, const char *name);

enum hl_start {
    HL_START_BARE,       /* no code of hugeld's is in the process */
    HL_START_BARE_MAIN,  /* no code of hugeld's moves the executable, and libhugeld.so moves other objects */
    HL_START_AS_IT_IS,   /* no part of it is shared, and nothing else may be used */
    HL_START_IN_PROCESS, /* the variables are set, and the caller chooses their reader (hl_choose_preload) */
};

/* After hl_choose_bare: the remaining steps for PROGRAM, whose OPTIONS were read from TEXT.  Sets the variables if libhugeld.so or
   the patched linker is to read them.  After HL_START_BARE_MAIN plan->reason says why libhugeld.so cannot be preloaded, unless the
   executable begins on its image all the same. */
enum hl_start hl_choose_start(struct hl_start_plan *plan, const struct hl_run *run,
                              const struct hl_options *options, const char *text, struct hl_program *program);

/* Puts libhugeld.so into LD_PRELOAD, unless plan->reason says why not. */
void hl_choose_preload(struct hl_start_plan *plan, struct hl_program *program);

/* Takes the executable out of the objects: libhugeld.so would not recognise it. */
void hl_exclude_main(struct hl_string patterns);

#endif
