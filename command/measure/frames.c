/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/measure/frames.h"
#include "command/lib/basics.h"
#include "command/lib/process.h"
#include "elf/maps.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define PAGES (HUGE_PAGE / PAGE)
void hl_add_frames(struct hl_frames *frames, int file, uint64_t file_bytes, uint64_t offset) {
    unsigned char cached[PAGES];
    uint64_t entry[PAGES], bytes = hl_subtract(file_bytes, offset);
    size_t n = (size_t)(bytes < HUGE_PAGE ? (bytes + PAGE - 1) / PAGE : PAGES);
    if (n == 0 || geteuid() != 0 || sysconf(_SC_PAGESIZE) != (long)PAGE)
        return;
    char *at = mmap(NULL, n * PAGE, PROT_READ, MAP_SHARED, file, (off_t)offset);
    if (at == MAP_FAILED)
        return;
    if (mincore(at, n * PAGE, cached) == 0)
        hl_map_cached(at, n, PAGE, cached);
    int pagemap = (int)hl_open_pagemap();
    ssize_t got = pread(pagemap, entry, n * sizeof entry[0], (off_t)((uintptr_t)at / PAGE * sizeof entry[0]));
    frames->frame = hl_xrealloc(frames->frame, (frames->n + n) * sizeof *frames->frame);
    for (size_t i = 0; got > 0 && i < (size_t)got / sizeof entry[0]; i++)
        if (hl_page_frame(entry[i]) != 0)
            frames->frame[frames->n++] = hl_page_frame(entry[i]) / PAGES;
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
