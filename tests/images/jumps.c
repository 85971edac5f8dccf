/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld: the clock that anyone with the right can set is $JUMP seconds ahead; the others are as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += atol(getenv("JUMP"));
    return (int)result;
}
