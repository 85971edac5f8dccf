/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patched dynamic linker, and whether it can run a program that names another one. */
#ifndef HL_LDSO_H
#define HL_LDSO_H

#include "command/lib/elf-file.h"

/* The build ID of the dynamic linker that FILE may stand in for: glibc-patches/build writes it into a section of its own, after the
   two were compared and no difference was found.  NULL if there is none, as in any file that is no patched linker; else the caller
   owns it. */
char *hl_read_origin(const struct hl_elf_file *file);

/* ld.so: in ldso/ beside the running command, in ../lib/hugeld, or where it was installed.  NULL if it is in
   none of them; else the caller owns the path. */
char *hl_find_linker(void);

/* Why LINKER cannot run the program at PATH; FILE is its open file, or NULL if it is no ELF file.  LINKER must be made for the
   dynamic linker that FILE names, since that one and libc are halves of one library.  NULL if it can; else the caller owns the
   sentence. */
char *hl_explain_no_linker(const char *linker, const struct hl_elf_file *file, const char *path);

#endif
