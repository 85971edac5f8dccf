/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The dynamic linker's data about a loaded object, for the core. */
#ifndef HL_DL_OBJECT_H
#define HL_DL_OBJECT_H

#include "elf/context.h"

#include <link.h>

/* Gives the object that INFO describes to the core; ld.so, the vdso and this object never.  PATH is its
   name in the program, and lives until hl_end. */
void hl_add_linked(struct hl_context *context, const struct dl_phdr_info *info, bool is_main,
                   const char *path);

#endif
