/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How far the command is, in a line of a terminal that the next one replaces. */
#ifndef HL_PROGRESS_H
#define HL_PROGRESS_H

/* Where stderr is a terminal, and the first call is AFTER_MS ago, so that nothing flickers where the command is done before that. */
void hl_show_progress(double after_ms, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Clears the line if there is one. */
void hl_hide_progress(void);

#endif
