/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run --share: makes the images of a program that is about to run. */
#ifndef HL_RUN_SHARE_H
#define HL_RUN_SHARE_H

#include "command/file/program.h"
#include "elf/options.h"

/* The images that a program can use: those of all objects; those of its executable and of objects that lie on a boundary of huge
   pages; or only of the latter. */
enum hl_use_of_images { HL_USE_ANYWHERE, HL_USE_MAIN_ANYWHERE, HL_USE_ON_BOUNDARY };

/* Adds the missing images of PROGRAM's executable (hl_read_program) and of the libraries that it is linked with, if PATTERNS select
   them and the program can USE them, to the store that OPTIONS name, else to the one that this user fills.  Each failure is
   reported in one line; files that would gain nothing are not.  False: this kernel makes no huge pages in the store, so it need not
   be tried again soon. */
bool hl_share_program(const struct hl_program *program, struct hl_string patterns,
                      const struct hl_options *options, enum hl_use_of_images use);

/* Prints a line if a store has an image of PROGRAM's executable that is not used because only attributes of the file have
   changed. */
void hl_tell_of_attributes(struct hl_program *program, const struct hl_options *options);

#endif
