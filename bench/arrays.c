/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with large static arrays, as numerical ones have: 1 GiB of .bss and 64 MiB of .data.

   usage: arrays WHAT
     triad    a = b + s*c over three arrays that fill .bss (STREAM's): ms for one pass, the best of five
     walk     ns for one read at a random place of .bss; the next place depends on the last read
     data     the same in .data
     start    nothing: for timing the start
     where    how many KiB of .data and .bss are on huge pages once everything was touched */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WALK_STEPS 3000000

/* The words of .data, and of .bss: as three arrays, or as one. */
#define DATA_BITS 23
#define BSS_BITS 27
#define THIRD (((size_t)1 << BSS_BITS) / 3)
__asm__(".data\n.p2align 12\n.globl data\n.type data, @object\ndata: .fill 1 << 23, 8, 3\n.size data, 8 << "
        "23\n.text\n");
extern uint64_t data[];
static union {
    uint64_t word[(size_t)1 << BSS_BITS];
    double part[3][THIRD];
} bss;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double measure_triad(void) {
    double best = 0;
    for (size_t i = 0; i < THIRD; i++) {
        bss.part[0][i] = 0;
        bss.part[1][i] = 2;
        bss.part[2][i] = 1;
    }
    for (int pass = 0; pass < 5; pass++) {
        double start = now_ns();
        for (size_t i = 0; i < THIRD; i++)
            bss.part[0][i] = bss.part[1][i] + 3 * bss.part[2][i];
        double elapsed = now_ns() - start;
        best = pass == 0 || elapsed < best ? elapsed : best;
    }
    return bss.part[0][THIRD / 2] == 5 ? best / 1e6 : -1;
}

static double measure_walk(const uint64_t *at, unsigned bits) {
    uint64_t x = 1;
    double start = now_ns();
    for (int i = 0; i < WALK_STEPS; i++)
        x = x * 6364136223846793005 + 1442695040888963407 + at[x >> (64 - bits)];
    double elapsed = now_ns() - start;
    return x == 0 ? -1 : elapsed / WALK_STEPS;
}

static void say_where(void) {
    char line[512];
    unsigned long start = 0, end = 0, a, b, kb, hugetlb = 0, thp = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
            start = a;
            end = b;
        }
        if (end <= (uintptr_t)data || start >= (uintptr_t)&bss + sizeof bss)
            continue;
        if (sscanf(line, "AnonHugePages: %lu", &kb) == 1)
            thp += kb;
        if (sscanf(line, "Private_Hugetlb: %lu", &kb) == 1)
            hugetlb += kb;
    }
    printf("%7lu kB hugetlb, %7lu kB thp\n", hugetlb, thp);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "start") == 0)
        return 0;
    if (strcmp(what, "triad") != 0 && strcmp(what, "data") != 0)
        for (size_t i = 0; i < sizeof bss.word / sizeof bss.word[0]; i += 512)
            bss.word[i] = 1;
    if (strcmp(what, "triad") == 0)
        printf("%f\n", measure_triad());
    else if (strcmp(what, "walk") == 0)
        printf("%f\n", measure_walk(bss.word, BSS_BITS));
    else if (strcmp(what, "data") == 0) {
        for (size_t i = 0; i < (size_t)1 << DATA_BITS; i += 512)
            data[i]++;
        printf("%f\n", measure_walk(data, DATA_BITS));
    } else if (strcmp(what, "where") == 0)
        say_where();
    else
        return 2;
    return 0;
}
