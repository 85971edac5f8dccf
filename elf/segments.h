/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Objects: program headers become checked segments. */
#ifndef HL_SEGMENTS_H
#define HL_SEGMENTS_H

#include "hugeld.h"

#define HL_HEADERS_MAX (2 * HL_SEGMENTS_MAX)

/* The beginning of an ELF file, in which its program headers mostly are. */
struct hl_headers {
    Elf64_Ehdr file;
    Elf64_Phdr header[HL_HEADERS_MAX];
};

/* This process's memory, without a descriptor, which a child that another thread forks would have, too. */
#define HL_OWN_MEMORY (-4096)

/* Reads the ELF header at offset AT of the open FILE, and the program headers that it names.  FILE may be /proc/self/mem, or
   HL_OWN_MEMORY if no filter can kill for process_vm_readv(2); AT is an address then.  0, HL_REASON_NO_PROC or HL_REASON_MALFORMED. */
int hl_read_headers(struct hl_headers *headers, int file, uint64_t at);

/* Read.  Fills OBJECT (its strings and is_main are the caller's) from PHNUM program headers in this machine's byte order
   and the load bias; fields that these do not determine are false, and file is -1.  0, or HL_REASON_MALFORMED when the numbers
   contradict each other or overflow, HL_REASON_MANY_SEGMENTS.  PHDR may be hostile; nothing outside it is read. */
int hl_read_segments(struct hl_object *object, const Elf64_Phdr *phdr, size_t phnum, uint64_t load_bias,
                     const struct hl_geometry *geometry);

/* Read.  Whether the first N entries of an object's dynamic section tell of text relocations.  The offset of DT_SONAME in the
   string table goes to SONAME_OFFSET (0 if absent, or not below DT_STRSZ), DT_STRTAB's value to STRTAB (0 if absent). */
bool hl_read_dynamic(const Elf64_Dyn *dyn, size_t n, uint64_t *strtab, uint64_t *soname_offset);

#endif
