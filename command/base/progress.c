/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shows the command's progress. */
#include "command/base/progress.h"
#include "command/base/basics.h"

#include <stdarg.h>
#include <unistd.h>

static bool is_shown;

void hl_show_progress(double after_ms, const char *format, ...) {
    static double began_ms;
    va_list arguments;
    if (began_ms == 0)
        began_ms = hl_now_ms();
    if (!isatty(STDERR_FILENO) || hl_now_ms() - began_ms < after_ms)
        return;
    is_shown = true;
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
