/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Huge pages that a program takes for itself: shared buffers of databases. */
#ifndef HL_OWN_PAGES_H
#define HL_OWN_PAGES_H

#include "elf/hugeld.h"

struct hl_own_pages {
    uint64_t pages; /* of geometry->huge_page_bytes, at most */
    char *source;   /* the origin of the number, in words */
    char *problem;  /* why the number is unknown (PAGES is 0 then); else NULL */
};

/* Asks the program itself, whose ELF file is EXECUTABLE, how many pages it would take when started as PROGRAM, a NULL-terminated
   argv; it is run for that, but opens nothing for others and takes no huge page.  Only for programs that are known by their base
   name: postgres, mariadbd, mysqld.  hl_free_own_pages frees OWN. */
void hl_find_own_pages(struct hl_own_pages *own, const char *executable, char *const *program,
                       const struct hl_geometry *geometry);
void hl_free_own_pages(struct hl_own_pages *own);

#endif
