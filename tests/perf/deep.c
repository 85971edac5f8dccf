/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Computes for $1 milliseconds of processor time, always five calls deep in the middle of text that is large
   enough to move: the truth about every call chain is known. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FILLER(name)                                                                                         \
    __asm__(".text\n.p2align 12\n.type " name ", @function\n" name ": .fill 3 << 20, 1, 0xcc\n.size " name   \
            ", . - " name)

FILLER("filler_below");

static volatile unsigned long sum;

/* The sum keeps the callers' frames: no call is the last thing that its caller does. */
__attribute__((noipa)) unsigned long deep_leaf(unsigned long x) {
    for (int i = 0; i < 20000; i++)
        sum += x ^ i;
    return sum;
}

__attribute__((noipa)) unsigned long deep_three(unsigned long x) { return deep_leaf(x + 3) + x; }
__attribute__((noipa)) unsigned long deep_two(unsigned long x) { return deep_three(x + 2) + x; }
__attribute__((noipa)) unsigned long deep_one(unsigned long x) { return deep_two(x + 1) + x; }

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
    long end = now_ms() + atol(argv[argc - 1]);
    unsigned long x = 0;
    while (now_ms() < end)
        x += deep_one(x);
    printf("%d\n", getpid());
    return x == 0;
}

FILLER("filler_above");
