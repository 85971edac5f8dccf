/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld attach: says on standard error when it yields its processor, on how many processors it may run from then on, and
   on how many the process may that it has begun. */
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

int clone(int (*function)(void *), void *stack, int flags, void *data, ...) {
    int (*real)(int (*)(void *), void *, int, void *) =
        (int (*)(int (*)(void *), void *, int, void *))dlsym(RTLD_NEXT, "clone");
    cpu_set_t set;
    int result = real(function, stack, flags, data);
    fprintf(stderr, "has begun on %d\n",
            sched_getaffinity(result, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1);
    return result;
}
