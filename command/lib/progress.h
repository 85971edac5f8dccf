/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command's progress, in a line of a terminal that the next one replaces. */
#ifndef HL_PROGRESS_H
#define HL_PROGRESS_H

/* Shows the line if stderr is a terminal, the line before was shown a tenth of a second ago or more, and the first call was AFTER_MS
   ago, so that nothing flickers if the command ends before that. */
void hl_show_progress(double after_ms, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Clears the line if there is one. */
void hl_hide_progress(void);

#endif
