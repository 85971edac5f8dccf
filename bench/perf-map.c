/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* perf-map FILE ROUNDS MAP: does the work of perf_map=on inside a process whose whole FILE moved, ROUNDS
   times: reads its symbols, chooses, writes MAP's folder's perf-1.map and takes it away again, except for
   the last time, when it is called MAP.  Prints the median in milliseconds and the number of lines.

   As in such a process, the whole huge pages of FILE's read-only segments are in memory, at a random address.
   With -f, none are. */
#include "perf-maps/write.h"

#include <elf.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* FILE as the move leaves it. */
struct moved_file {
    uint64_t load_bias;
    struct hl_text_range moved;
};

static void load_file(const char *file, struct moved_file *loaded) {
    Elf64_Ehdr header;
    Elf64_Phdr segment[64];
    uint64_t first = UINT64_MAX, end = 0;
    uint16_t place = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (pread(fd, &header, sizeof header, 0) != sizeof header || header.e_phnum > 64 ||
        pread(fd, segment, sizeof *segment * header.e_phnum, (off_t)header.e_phoff) < 0 ||
        getrandom(&place, sizeof place, 0) != sizeof place) {
        perror(file);
        exit(1);
    }
    for (int i = 0; i < header.e_phnum; i++) {
        if (segment[i].p_type != PT_LOAD || segment[i].p_flags & PF_W)
            continue;
        first = segment[i].p_vaddr < first ? segment[i].p_vaddr : first;
        end = segment[i].p_vaddr + segment[i].p_filesz;
    }
    first &= ~(uint64_t)4095;
    uint64_t at = (uint64_t)hl_map_huge_pages((end - first + 2 * HL_SCRATCH_HUGE) & -HL_SCRATCH_HUGE);
    at += place % 512 * 4096;
    loaded->load_bias = at - first;
    loaded->moved.start = (at + HL_SCRATCH_HUGE - 1) & -HL_SCRATCH_HUGE;
    loaded->moved.end = (loaded->load_bias + end) & -HL_SCRATCH_HUGE;
    for (int i = 0; i < header.e_phnum; i++)
        if (segment[i].p_type == PT_LOAD && !(segment[i].p_flags & PF_W) &&
            pread(fd, (char *)loaded->load_bias + segment[i].p_vaddr, segment[i].p_filesz,
                  (off_t)segment[i].p_offset) != (ssize_t)segment[i].p_filesz) {
            perror(file);
            exit(1);
        }
    close(fd);
}

static uint64_t write_once(const char *file, const struct moved_file *loaded, int folder) {
    const struct hl_text_range everything = {0, UINT64_MAX};
    struct hl_symbols symbols;
    struct hl_map_text text;
    struct hl_new_map map;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    hl_begin_symbols(&symbols, loaded->load_bias);
    symbols.moved = &loaded->moved;
    symbols.n_moved = loaded->moved.end > loaded->moved.start;
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
    struct moved_file loaded = {0, {0, 0}};
    bool from_file = argc > 1 && strcmp(argv[1], "-f") == 0;
    argc -= from_file;
    argv += from_file;
    int rounds = argc == 4 ? atoi(argv[2]) : 0;
    uint64_t lines = 0;
    if (rounds <= 0) {
        fprintf(stderr, "usage: perf-map [-f] FILE ROUNDS MAP\n");
        return 2;
    }
    if (!from_file)
        load_file(argv[1], &loaded);
    int folder = open(dirname(strdup(argv[3])), O_PATH | O_DIRECTORY | O_CLOEXEC);
    double *ms = calloc((size_t)rounds, sizeof *ms);
    for (int i = 0; i < rounds; i++) {
        double start = now_ms();
        lines = write_once(argv[1], &loaded, folder);
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
