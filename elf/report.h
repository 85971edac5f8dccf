/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Report: the lines, and where they are written. */
#ifndef HL_REPORT_H
#define HL_REPORT_H

#include "context.h"

/* The pool check: NEEDED pages of one KIND, and how many are AVAILABLE; from verbose=3. */
void hl_report_pool(const struct hl_context *context, const struct hl_work *work, enum hl_kind kind,
                    uint64_t needed, uint64_t available);

/* Report: the lines that verbose= asks for. */
void hl_report_object(const struct hl_context *context, const struct hl_work *work);

/* Whether lines that belong to verbose=VERBOSE are printed. */
bool hl_is_wanted(const struct hl_context *context, unsigned verbose);

/* Whether no file can be opened at all: RLIMIT_NOFILE, fs.file-max. */
bool hl_has_no_descriptor(void);

/* Gets the lines of verbose=3 without a newline if CONTEXT is traced.  Code that sets that defines this
   function; a pointer to one would be writable as long as the process lives. */
void hl_trace_line(const char *line);

/* Says why the object at PATH cannot even be planned; from verbose=1. */
void hl_report_dropped(const struct hl_context *context, const char *path, enum hl_reason reason);

/* Notes which file standard error is; lines are written there as long as it is that. */
void hl_note_stderr(struct hl_context *context);

/* Ends LINE and writes it, by one write(2), unless something else is open at descriptor 2 by now.  All
   lines of hugeld in a program's process are written by this. */
void hl_write_line(const struct hl_context *context, struct hl_line *line);

/* Complains about a variable; shown at every verbosity. */
void hl_report_mistake(const struct hl_context *context, const char *variable, struct hl_string option,
                       const char *what);

/* Prints at verbose=2 how many of these there are. */
void hl_report_small(const struct hl_context *context);

/* Prints that no object that is loaded at startup has this NAME. */
void hl_report_name(const struct hl_context *context, const struct hl_pattern *name);

/* Prints that rolling back did not restore the mappings: a bug, or a kernel's.  Shown at every verbosity. */
void hl_report_broken(struct hl_context *context, const struct hl_work *work);

/* Prints that the program ends because text of WORK is gone (HL_REASON_LOST).  Shown at every verbosity. */
void hl_report_lost(struct hl_context *context, const struct hl_work *work);

/* Prints that only the first CHECKED of the names were looked for. */
void hl_report_unchecked(const struct hl_context *context, unsigned checked);

/* Prints why objects that come later will stay. */
void hl_report_unwatched(const struct hl_context *context, enum hl_reason reason);

/* Prints that strict=on ends the program because of WORK. */
void hl_report_strict(const struct hl_context *context, const struct hl_work *work);

#endif
