/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with large static arrays, as numerical ones have: 1 GiB of .bss and 64 MiB of .data.

   usage: arrays WHAT
     walk     ns for one read at a random place of .bss; the next place depends on the last read
     data     the same in .data */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WALK_STEPS 3000000

/* The words of .data and of .bss. */
#define DATA_BITS 23
#define BSS_BITS 27
__asm__(".data\n.p2align 12\n.globl data\n.type data, @object\ndata: .fill 1 << 23, 8, 3\n.size data, 8 << "
        "23\n.text\n");
extern uint64_t data[];
static uint64_t bss[(size_t)1 << BSS_BITS];

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double measure_walk(uint64_t *at, unsigned bits) {
    uint64_t x = 1;
    for (size_t i = 0; i < (size_t)1 << bits; i += 512)
        at[i]++;
    double start = now_ns();
    for (int i = 0; i < WALK_STEPS; i++)
        x = x * 6364136223846793005 + 1442695040888963407 + at[x >> (64 - bits)];
    double elapsed = now_ns() - start;
    return x == 0 ? -1 : elapsed / WALK_STEPS;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "walk") == 0)
        printf("%f\n", measure_walk(bss, BSS_BITS));
    else if (strcmp(what, "data") == 0)
        printf("%f\n", measure_walk(data, DATA_BITS));
    else
        return 2;
    return 0;
}
