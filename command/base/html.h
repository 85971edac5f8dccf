/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --report: one HTML file that needs nothing else.  data/report.html draws what --json prints. */
#ifndef HL_HTML_H
#define HL_HTML_H

#include <jansson.h>
#include <stdbool.h>

/* Whether a report can be written to PATH, found out before hours of measuring; NULL: none is wanted.  0, or the exit code
   after one line. */
int hl_check_report(const char *path);

/* Writes the report of ANSWER, which --json prints, to PATH, in the place of what is there; NULL: none is wanted.  False
   after one line. */
bool hl_write_report(const char *path, const json_t *answer);

#endif
