/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld attach: says on standard error when it yields its processor, and on how many processors it, or the process that it
   has begun, may run from then on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>

int sched_yield(void) {
    int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, "sched_yield");
    fprintf(stderr, "yields\n");
    return real();
}

int sched_setaffinity(pid_t tid, size_t bytes, const cpu_set_t *set) {
    int (*real)(pid_t, size_t, const cpu_set_t *) =
        (int (*)(pid_t, size_t, const cpu_set_t *))dlsym(RTLD_NEXT, "sched_setaffinity");
    fprintf(stderr, "may run on %d\n", CPU_COUNT(set));
    return real(tid, bytes, set);
}
