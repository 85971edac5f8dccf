/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that is about to be started: where it is, and whether libhugeld.so would act in it. */
#ifndef HL_PROGRAM_H
#define HL_PROGRAM_H

#include <stdbool.h>

/* Where execvp(3) finds NAME.  NULL if nowhere, and errno is EACCES if it was there but can't be run; else
   the caller owns the path. */
char *hl_find_program(const char *name);

/* The file that NAME means: NAME itself, or where it has no slash and is no file here, the program in PATH of that name.  The
   caller owns it. */
char *hl_find_named_file(const char *name);

/* Whether the kernel will start PATH in secure mode, in which the dynamic linker takes no library from
   LD_PRELOAD. */
bool hl_is_privileged(const char *path);

/* Why libhugeld.so would not work in the program at PATH; NULL if nothing speaks against it.  A script is
   fine: its interpreter inherits the variables. */
const char *hl_explain_plain_run(const char *path);

/* The same for the open FILE. */
struct hl_elf_file;
const char *hl_explain_plain_file(const struct hl_elf_file *file);

/* The ELF file that the kernel runs for PATH: PATH itself, or the interpreter of a script, the interpreter's
   interpreter, and so on.  NULL if there is none; else an absolute path without symbolic links, as
   /proc/PID/exe will name it, which the caller owns. */
char *hl_find_executable(const char *path);

#endif
