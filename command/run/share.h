/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run --share: images of what is about to run. */
#ifndef HL_RUN_SHARE_H
#define HL_RUN_SHARE_H

#include "command/file/program.h"
#include "elf/options.h"

/* Which images a program can use: those of all objects; those of its executable and of what lies on a boundary of huge pages;
   or of the latter alone. */
enum hl_use_of_images { HL_USE_ANYWHERE, HL_USE_MAIN_ANYWHERE, HL_USE_ON_BOUNDARY };

/* Adds what is missing of the executable of PROGRAM (hl_read_program) and of the libraries that it is linked with, as far
   as PATTERNS select them and as the program will USE images, to the store that OPTIONS name, else to the one that this user fills.
   What cannot be added is told in one line; what would gain nothing is not.  False: this kernel makes no huge pages in the store,
   so it need not be tried again soon. */
bool hl_share_program(const struct hl_program *program, struct hl_string patterns,
                      const struct hl_options *options, enum hl_use_of_images use);

/* Says it if a store has an image of the executable of PROGRAM that is not used because only attributes of the file have
   changed. */
void hl_tell_of_attributes(struct hl_program *program, const struct hl_options *options);

#endif
