/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld attach: the thread LATE_THREAD seems to stop only 3 s after it was asked to.  How long each thread stood still
   is written to standard error. */
#define _GNU_SOURCE
#include "hook-ptrace.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#define LATE_MS 3000
#define PIDS (1 << 22)

static _Atomic long taken_ms[PIDS];

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void before_ptrace(enum __ptrace_request request, pid_t pid) {
    if (request == PTRACE_SEIZE)
        taken_ms[pid] = now_ms();
}

static void after_ptrace(enum __ptrace_request request, pid_t pid) {
    if (request == PTRACE_DETACH)
        fprintf(stderr, "%d stood still for %ld ms\n", pid, now_ms() - taken_ms[pid]);
}

pid_t waitpid(pid_t pid, int *status, int options) {
    pid_t (*real)(pid_t, int *, int) = (pid_t(*)(pid_t, int *, int))dlsym(RTLD_NEXT, "waitpid");
    if (pid == atoi(getenv("LATE_THREAD")) && now_ms() - taken_ms[pid] < LATE_MS)
        return 0;
    return real(pid, status, options);
}
