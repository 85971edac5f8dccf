/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld: MADV_COLLAPSE succeeds for a small page, as on a kernel that joins pages while processes map them.  For a
   whole huge page it fails with EAGAIN after 2 ms, and the time goes to the file $JOINS, in ms. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int madvise(void *at, size_t bytes, int advice) {
    struct timespec now;
    if (advice != 25 /* MADV_COLLAPSE */)
        return (int)syscall(SYS_madvise, at, bytes, advice);
    if (bytes < 1 << 20)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    FILE *file = fopen(getenv("JOINS"), "a");
    fprintf(file, "%.3f\n", (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6);
    fclose(file);
    usleep(2000);
    errno = EAGAIN;
    return -1;
}
