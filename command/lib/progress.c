/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shows the command's progress. */
#include "command/lib/progress.h"
#include "command/lib/basics.h"

#include <stdarg.h>
#include <unistd.h>

/* The time between two lines. */
#define LINE_MS 100

static bool is_shown;

void hl_show_progress(double after_ms, const char *format, ...) {
    static double began_ms, shown_ms;
    double now_ms = hl_now_ms();
    va_list arguments;
    if (began_ms == 0)
        began_ms = now_ms;
    if (now_ms - began_ms < after_ms || now_ms - shown_ms < LINE_MS || hl_output.is_quiet ||
        !isatty(STDERR_FILENO))
        return;
    is_shown = true;
    shown_ms = now_ms;
    fputs("\r\033[K", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

void hl_hide_progress(void) {
    if (is_shown)
        fputs("\r\033[K", stderr);
    is_shown = false;
}
