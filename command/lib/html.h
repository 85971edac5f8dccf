/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --report: one HTML file that needs no other file.  data/report.html draws the output of --json. */
#ifndef HL_HTML_H
#define HL_HTML_H

#include <jansson.h>
#include <stdbool.h>

/* Checks whether a report can be written to PATH, before hours of measuring; NULL: no report is wanted.  0, or the exit code after
   one line. */
int hl_check_report(const char *path);

/* Writes the report of ANSWER, which --json prints, to PATH, and replaces an older file; NULL: no report is wanted.  False after
   one line. */
bool hl_write_report(const char *path, const json_t *answer);

#endif
