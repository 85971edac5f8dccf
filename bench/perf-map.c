/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* perf-map FILE ROUNDS MAP: what perf_map=on does inside a process whose whole FILE moved, ROUNDS times:
   reads its symbols, chooses, writes MAP's folder's perf-1.map and takes it away again, except for the last
   time, when it is called MAP.  Prints the median in milliseconds and the number of lines. */
#include "perf-maps/write.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static uint64_t write_once(const char *file, int folder) {
    const struct hl_text_range everything = {0, UINT64_MAX};
    struct hl_symbols symbols;
    struct hl_map_text text;
    struct hl_new_map map;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    hl_begin_symbols(&symbols, 0);
    if (fd < 0 || hl_create_map(&map, folder, 1) != 0) {
        perror(file);
        exit(1);
    }
    hl_begin_map(&text, map.fd);
    int result = hl_read_symbols(&symbols, fd);
    if (result == 0)
        result = hl_choose_symbols(&symbols);
    hl_write_symbols(&text, &symbols, &everything, 1);
    if (hl_finish_map(&text) != 0 || result != 0 || hl_place_map(&map) != 0) {
        fprintf(stderr, "%s: no map: %s\n", file, strerror(-result));
        exit(1);
    }
    uint64_t lines = text.lines;
    hl_free_map(&text);
    hl_free_symbols(&symbols);
    close(fd);
    return lines;
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv) {
    int rounds = argc == 4 ? atoi(argv[2]) : 0;
    uint64_t lines = 0;
    if (rounds <= 0) {
        fprintf(stderr, "usage: perf-map FILE ROUNDS MAP\n");
        return 2;
    }
    int folder = open(dirname(strdup(argv[3])), O_PATH | O_DIRECTORY | O_CLOEXEC);
    double *ms = calloc((size_t)rounds, sizeof *ms);
    for (int i = 0; i < rounds; i++) {
        double start = now_ms();
        lines = write_once(argv[1], folder);
        ms[i] = now_ms() - start;
        if (i < rounds - 1)
            unlinkat(folder, "perf-1.map", 0);
    }
    if (renameat(folder, "perf-1.map", AT_FDCWD, argv[3]) != 0) {
        perror(argv[3]);
        return 1;
    }
    qsort(ms, (size_t)rounds, sizeof *ms, compare);
    printf("%.2f %lu\n", ms[rounds / 2], lines);
    free(ms);
    return 0;
}
