/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the pages of --report have in common. */
#ifndef HL_PAGE_H
#define HL_PAGE_H

#include <jansson.h>
#include <stdio.h>

/* Whether a page can be written to PATH, found out before hours of measuring; NULL: none is wanted.  0, or the exit code
   after one line. */
int hl_check_page(const char *path);

/* Begins the page at PATH, up to its body; NULL: errno says why it can't be written. */
FILE *hl_begin_page(const char *path, const char *title);

/* Ends it.  0, or a negated errno. */
int hl_end_page(FILE *page);

/* TEXT as it has to stand in XML. */
void hl_put_text(FILE *page, const char *text);

/* A member of what --json prints: "" and 0 where there is none. */
const char *hl_text_of(const json_t *object, const char *key);
double hl_number_of(const json_t *object, const char *key);

#endif
