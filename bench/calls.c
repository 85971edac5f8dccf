/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* calls COUNT [where]: calls functions of text.S at random, COUNT times, and prints the ns that one took.

   With 0 it only starts and ends.  With "where" it calls each once and prints what its memory is on then, in
   MiB (Private_Hugetlb and Shared_Hugetlb, AnonHugePages, FilePmdMapped of /proc/self/smaps_rollup), so that
   a measurement of huge pages is seen to have had some. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const uint64_t text_functions;
extern const char text_start[];

static uint64_t call(uint64_t function, uint64_t argument) {
    const char *at = text_start + function * 4096 + (function * 7 % 61 + 1) * 64;
    return ((uint64_t(*)(uint64_t))(uintptr_t)at)(argument);
}

static void print_where(void) {
    static const char *const fields[] = {
        "Private_Hugetlb:", "Shared_Hugetlb:", "AnonHugePages:", "FilePmdMapped:"};
    FILE *rollup = fopen("/proc/self/smaps_rollup", "re");
    char name[64];
    long kib;
    if (rollup == NULL)
        return;
    while (fscanf(rollup, "%63s", name) == 1)
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            if (strcmp(name, fields[i]) == 0 && fscanf(rollup, "%ld", &kib) == 1 && kib > 0)
                printf("%s %ld MiB ", name, kib / 1024);
    printf("of %lu MiB of text\n", (unsigned long)text_functions / 256);
    fclose(rollup);
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, result = 1, random = 0x9e3779b97f4a7c15;
    if (count == 0 && argc < 3)
        return 0;
    for (uint64_t i = 0; i < text_functions; i++)
        result = call(i, result);
    if (argc > 2) {
        print_where();
        return 0;
    }
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t i = 0; i < count; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        result = call((random >> 16) % text_functions, result);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    printf("%.3f ns a call, checksum %016lx\n", ns / (double)count, (unsigned long)result);
    return 0;
}
