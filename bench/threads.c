/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* threads WHAT COUNT: two threads call functions of text.S at random while four others map memory, touch it and unmap it,
   again and again.  Each unmapping takes entries out of the TLBs of all processors that run the process, and each fault
   takes a lock that all threads share.

   "calls" ends when the first two have made COUNT calls each, and prints the ns that one took.  "unmaps" ends when the
   others have mapped, touched and unmapped COUNT times each, and prints the us that one time took. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CALLERS 2
#define UNMAPPERS 4
#define MAPPED (256 << 10)

extern const uint64_t text_functions;
extern const char text_start[];

static atomic_bool ends;
static uint64_t calls = UINT64_MAX, unmaps = UINT64_MAX;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *call(void *seed) {
    uint64_t random = 0x9e3779b97f4a7c15 + (uintptr_t)seed, result = 1;
    for (uint64_t i = 0; i < calls && !atomic_load_explicit(&ends, memory_order_relaxed); i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t function = (random >> 16) % text_functions;
        const char *at = text_start + function * 4096 + (function * 7 % 61 + 1) * 64;
        result = ((uint64_t(*)(uint64_t))(uintptr_t)at)(result);
    }
    return (void *)(uintptr_t)result;
}

static void *unmap(void *unused) {
    (void)unused;
    for (uint64_t i = 0; i < unmaps && !atomic_load_explicit(&ends, memory_order_relaxed); i++) {
        char *memory = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        for (size_t at = 0; at < MAPPED; at += 4096)
            ((volatile char *)memory)[at] = 1;
        munmap(memory, MAPPED);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[CALLERS + UNMAPPERS];
    if (argc != 3)
        return 2;
    int of_calls = strcmp(argv[1], "calls") == 0;
    uint64_t count = strtoull(argv[2], NULL, 10);
    *(of_calls ? &calls : &unmaps) = count;
    double start = now_ns();
    for (uintptr_t i = 0; i < CALLERS + UNMAPPERS; i++)
        if (pthread_create(&threads[i], NULL, i < CALLERS ? call : unmap, (void *)i) != 0)
            return 1;
    int first = of_calls ? 0 : CALLERS, end = of_calls ? CALLERS : CALLERS + UNMAPPERS;
    for (int i = first; i < end; i++)
        pthread_join(threads[i], NULL);
    double ns = now_ns() - start;
    atomic_store(&ends, 1);
    for (int i = 0; i < CALLERS + UNMAPPERS; i++)
        if (i < first || i >= end)
            pthread_join(threads[i], NULL);
    printf("%.3f\n", ns / (double)count / (of_calls ? 1 : 1e3));
    return 0;
}
