/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld attach: no memory can be populated for the second file that it makes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int n_files;

int ftruncate(int file, off_t bytes) {
    int (*real)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
    n_files++;
    return real(file, bytes);
}

int madvise(void *at, size_t bytes, int advice) {
    int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
    if (advice == MADV_POPULATE_WRITE && n_files > 1) {
        errno = ENOMEM;
        return -1;
    }
    return real(at, bytes, advice);
}
