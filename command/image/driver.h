/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds what does the work of a program that only starts others: cc1plus for g++, node for npm. */
#ifndef HL_DRIVER_H
#define HL_DRIVER_H

#include "command/lib/program.h"

/* Finds what does the work of the open PROGRAM with the argv ARGV, which has at least its name.  HL_MOVED: it does that by itself, as
   far as is known, and *WORKER is NULL.  HL_REASON_DRIVER: *WORKER is the other program's path, which the caller frees.
   HL_REASON_SHIM, HL_REASON_LAUNCHER: it is some other program, and *WORKER is NULL.

   A driver of gcc's is asked (-print-prog-name), but only if root alone can write to it; root asks it with the rights of nobody. */
enum hl_reason hl_find_worker(char **worker, struct hl_program *program, char *const *argv);

#endif
