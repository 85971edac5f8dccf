/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the image that is mounted over a program's file. */
#ifndef HL_MOUNTABLE_H
#define HL_MOUNTABLE_H

#include "command/lib/elf-file.h"
#include "elf/options.h"

/* Looks in the stores that OPTIONS allow for an image of FILE at PATH.  NULL,
   and *IMAGE is its path; or the reason why there is none, and *IMAGE is NULL.  The caller owns both. */
char *hl_look_for_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options,
                        char **image);

#endif
