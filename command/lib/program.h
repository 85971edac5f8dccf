/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that is about to be started: its file, which is opened once, and whether libhugeld.so would act in it. */
#ifndef HL_PROGRAM_H
#define HL_PROGRAM_H

#include "command/lib/elf-file.h"
#include "elf/reason.h"

struct hl_program {
    char *path; /* as execvp(3) finds it */
    int fd; /* the file that the kernel runs for it, open for reading: that at PATH, or the interpreter of a
               script, the interpreter's interpreter, and so on; -1: there is none, or it cannot be read */
    bool is_script;
    char first_line[256]; /* of the file at PATH, if it is a script: as many bytes as the kernel reads
                             (BINPRM_BUF_SIZE) */
    /* After hl_read_program: */
    bool is_read;
    enum hl_elf_problem problem;
    struct hl_elf_file file; /* FD's, if PROBLEM is HL_ELF_FINE */
    char *
        executable; /* if it is an ELF file, its path without symbolic links, as /proc/PID/exe will name it; else NULL */
    struct hl_target *target; /* hl_follow_launchers' */
};

/* Finds NAME as execvp(3) does, and opens it.  False: there is no such program, and errno is EACCES if it exists but can't be run.
   PROGRAM is to be closed with hl_close_program in both cases, and may be if it is all zeros. */
bool hl_open_program(struct hl_program *program, const char *name);
void hl_close_program(struct hl_program *program);

/* The first call reads the file that hl_open_program has opened.  Whether that is a 64-bit ELF file. */
bool hl_read_program(struct hl_program *program);

/* The path at which execvp(3) finds NAME.  NULL if there is none, and errno is EACCES if it exists but can't be run; else the
   caller owns the path. */
char *hl_find_program(const char *name);

/* The file that NAME means: NAME itself, or if it has no slash and is no file here, the program in PATH of that name.  The caller
   owns it. */
char *hl_find_named_file(const char *name);

/* The path of the interpreter in LINE, as in "#!/bin/sh"; NULL: there is none.  The caller frees it. */
char *hl_find_interpreter(const char *line);

/* Whether the kernel will start PROGRAM in secure mode, in which the dynamic linker takes no library from
   LD_PRELOAD. */
bool hl_is_privileged(const struct hl_program *program);

/* Why libhugeld.so would not work in PROGRAM; HL_MOVED if there is no reason.  A script is fine unless its interpreter would
   abort: the programs that it starts inherit the variables. */
enum hl_reason hl_check_preload(struct hl_program *program);

/* The same for an open FILE. */
enum hl_reason hl_check_file(const struct hl_elf_file *file);

/* Whether PROGRAM is a dynamic linker, which starts the program that its arguments name ("ld.so PROGRAM"). */
bool hl_is_linker_called(struct hl_program *program);

#endif
