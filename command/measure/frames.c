/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/measure/frames.h"
#include "command/lib/common.h"
#include "elf/maps.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define PAGES (HUGE_PAGE / PAGE)
/* In an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define PRESENT ((uint64_t)1 << 63)
#define FRAME_NUMBER (((uint64_t)1 << 55) - 1)

/* Makes this process map the N pages at AT as far as they are cached, so that nothing is read from a disk. */
static void map_cached(char *at, size_t n) {
    unsigned char cached[PAGES];
    if (mincore(at, n * PAGE, cached) != 0)
        return;
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && (cached[end] & 1); end++)
            ;
        if (end > i)
            madvise(at + i * PAGE, (end - i) * PAGE, MADV_POPULATE_READ);
    }
}

void hl_add_frames(struct hl_frames *frames, int file, uint64_t file_bytes, uint64_t offset) {
    uint64_t entry[PAGES], bytes = hl_subtract(file_bytes, offset);
    size_t n = (size_t)(bytes < HUGE_PAGE ? (bytes + PAGE - 1) / PAGE : PAGES);
    if (n == 0 || geteuid() != 0 || sysconf(_SC_PAGESIZE) != (long)PAGE)
        return;
    char *at = mmap(NULL, n * PAGE, PROT_READ, MAP_SHARED, file, (off_t)offset);
    if (at == MAP_FAILED)
        return;
    map_cached(at, n);
    int pagemap = (int)hl_open_pagemap();
    ssize_t got = pread(pagemap, entry, n * sizeof entry[0], (off_t)((uintptr_t)at / PAGE * sizeof entry[0]));
    frames->frame = hl_xrealloc(frames->frame, (frames->n + n) * sizeof *frames->frame);
    for (size_t i = 0; got > 0 && i < (size_t)got / sizeof entry[0]; i++)
        if (entry[i] & PRESENT && (entry[i] & FRAME_NUMBER) != 0)
            frames->frame[frames->n++] = (entry[i] & FRAME_NUMBER) / PAGES;
    if (pagemap >= 0)
        close(pagemap);
    munmap(at, n * PAGE);
}

static int compare_numbers(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

uint64_t hl_count_frames(struct hl_frames *frames) {
    uint64_t n = 0;
    if (frames->n > 0)
        qsort(frames->frame, frames->n, sizeof *frames->frame, compare_numbers);
    for (size_t i = 0; i < frames->n; i++)
        n += i == 0 || frames->frame[i] != frames->frame[i - 1];
    free(frames->frame);
    *frames = (struct hl_frames){0};
    return n;
}
