/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program headers with which an executable's image is executed. */
#ifndef HL_ROWS_H
#define HL_ROWS_H

#include "command/file/elf-file.h"

/* One or four trap instructions of MACHINE (e_machine), as four bytes in its byte order; 0: they are not known. */
uint32_t hl_find_trap(unsigned machine);

/* Changes the PT_LOADs of PHDR, a copy of the program headers of FILE: each huge page that holds text and nothing writable lies in
   one of them then, and is mapped executable as a whole, as edges=merge has it.  The order stays, a PT_LOAD of which nothing is left
   becomes PT_NULL, and none is empty.  The caller sets p_offset, which is not right any more.  Nothing changes in a library, which
   is never executed, where a segment that is only read has zeros that are not in the file, and where the traps for the room
   between segments are not known. */
void hl_join_rows(Elf64_Phdr *phdr, const struct hl_elf_file *file, const struct hl_geometry *geometry);

#endif
