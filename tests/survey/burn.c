/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each comparison of a path takes this process 5 ms. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fnmatch.h>
#include <time.h>

int fnmatch(const char *pattern, const char *path, int flags) {
    int (*next)(const char *, const char *, int) = 0;
    struct timespec began, now;
    *(void **)&next = dlsym(RTLD_NEXT, "fnmatch");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
    do
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    while ((now.tv_sec - began.tv_sec) * 1000000000L + now.tv_nsec - began.tv_nsec < 5000000);
    return next(pattern, path, flags);
}
