/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sections of an ELF file. */
#ifndef HL_SECTION_H
#define HL_SECTION_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>

/* The header of the first section called NAME of the open FILE.  False: there is none. */
bool hl_find_section(int file, const char *name, Elf64_Shdr *section);

/* The BYTES of the first section called NAME of the open FILE, as they are in the file; NULL if there is none, or it has none.  The
   caller frees it. */
void *hl_read_section(int file, const char *name, size_t *bytes);

/* The build ID of the open FILE, in hexadecimal; NULL if it has none.  The caller frees it. */
char *hl_read_build_id(int file);

#endif
