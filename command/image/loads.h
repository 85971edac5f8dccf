/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program headers with which an executable's image is executed. */
#ifndef HL_LOADS_H
#define HL_LOADS_H

#include "command/lib/elf-file.h"

/* One or four trap instructions of MACHINE (e_machine), as four bytes in its byte order; 0: unknown. */
uint32_t hl_find_trap(unsigned machine);

/* Copies the program headers of FILE, and changes the PT_LOADs: each huge page that holds text and nothing writable then lies in one
   of them, and is mapped executable as a whole, as with edges=merge.  The order stays, a PT_LOAD that would be empty becomes PT_NULL,
   and none is empty.  The caller sets p_offset, which is no longer right, and frees the copy.  Nothing changes in a library, which is
   never executed, if a read-only segment has zeros that are not in the file, and if the traps for the gaps between segments are
   unknown. */
Elf64_Phdr *hl_merge_loads(const struct hl_elf_file *file, const struct hl_geometry *geometry);

#endif
