/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The clock that hugeld bench reads is at as many milliseconds as the file $CLOCK has bytes: `worker pass` makes it go on, and a busy
   machine does not. */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    struct stat file;
    if (clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, at);
    if (stat(getenv("CLOCK"), &file) != 0)
        abort();
    *at = (struct timespec){1 + file.st_size / 1000, file.st_size % 1000 * 1000000};
    return 0;
}
