/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stops the program whose executable's base name is $T_PAUSE right after libhugeld.so has done its work, so
   that a test can look at its memory before its own code runs.  Preloaded after libhugeld.so, which is linked
   to run first. Wrappers and children go on: the name does not match, or the variable is gone. */
#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void stop_here(void) {
    char path[PATH_MAX];
    const char *wanted = getenv("T_PAUSE");
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    if (wanted == NULL || bytes <= 0)
        return;
    path[bytes] = '\0';
    if (strcmp(strrchr(path, '/') + 1, wanted) != 0)
        return;
    unsetenv("T_PAUSE");
    raise(SIGSTOP);
}
