/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Executes a program's image in the program's place. */
#ifndef HL_RUN_IMAGE_H
#define HL_RUN_IMAGE_H

#include "command/file/elf-file.h"
#include "elf/options.h"

/* Looks in the stores that OPTIONS allow for an image of FILE at PATH.  NULL,
   and *IMAGE is its path; or the reason why there is none, and *IMAGE is NULL.  The caller owns both. */
char *hl_look_for_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options,
                        char **image);

/* Puts the image of FILE at PATH over it for this process and its children, if there is one (hl_look_for_image) and it can be
   mounted (hl_mount_over), in a place where later mounts are still seen.  NULL, and *IMAGE is the image's path; or the reason why
   not, and nothing changed.  The caller owns both. */
char *hl_mount_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options,
                     char **image);

#endif
