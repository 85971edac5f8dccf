/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A clock that was set by as many seconds as the file $CLOCK says now, and one that only runs forward, by $FORWARD; and each byte
   that is drawn is $CHANCE. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long find_offset(const char *name) {
    char text[32] = "";
    if (getenv(name) == NULL)
        return 0;
    int file = open(getenv(name), O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, text, sizeof text - 1) < 0)
        abort();
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += find_offset("CLOCK");
    if (result == 0 && clock == CLOCK_MONOTONIC)
        at->tv_sec += find_offset("FORWARD");
    return result;
}

ssize_t getrandom(void *bytes, size_t n, unsigned flags) {
    const char *chance = getenv("CHANCE");
    if (chance == NULL)
        return syscall(SYS_getrandom, bytes, n, flags);
    memset(bytes, atoi(chance), n);
    return (ssize_t)n;
}
