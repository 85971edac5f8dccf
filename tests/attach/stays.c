/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld attach: it cannot go to the processor of the thread that it stops. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>

int sched_setaffinity(pid_t tid, size_t bytes, const cpu_set_t *set) {
    (void)tid, (void)bytes, (void)set;
    errno = EINVAL;
    return -1;
}
