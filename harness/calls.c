/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* calls COUNT [WHAT]: calls functions of text.S at random, COUNT times, and prints the ns that one took. With
   0 it only starts and ends.

   With a WHAT it calls each function once instead, in order or, with "scatter", in none, as programs do.
   "touch" and "scatter" end then.  "wait" prints a line and waits until
   its input ends.  "where" prints the kinds of its huge pages, in MiB (Private_Hugetlb and Shared_Hugetlb,
   AnonHugePages, FilePmdMapped, ShmemPmdMapped of /proc/self/smaps_rollup), so that a measurement of huge pages is seen to
   have had some.  "later" prints a line, waits until its input ends, and then measures.

   "requests" makes COUNT times, with a pause of 1 ms between, 10 random calls.  It prints the longest, the
   99.9th and the 50th percentile of their times in us, and the major page faults.  "beside" makes them without a pause, ten
   times as long, while another thread sleeps. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

extern const uint64_t text_functions;
extern const char text_start[];

static uint64_t call(uint64_t function, uint64_t argument) {
    const char *at = text_start + function * 4096 + (function * 7 % 61 + 1) * 64;
    return ((uint64_t(*)(uint64_t))(uintptr_t)at)(argument);
}

static void print_where(void) {
    static const char *const fields[] = {
        "Private_Hugetlb:", "Shared_Hugetlb:", "AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:"};
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

static uint64_t draw(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random >> 16;
}

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static int serve_requests(uint64_t count, uint64_t random, bool pauses) {
    double *ns = calloc(count, sizeof *ns);
    struct rusage before, after;
    uint64_t result = 1;
    if (ns == NULL || count == 0)
        return 1;
    getrusage(RUSAGE_SELF, &before);
    for (uint64_t i = 0; i < count; i++) {
        if (pauses)
            usleep(1000);
        double start = now_ns();
        for (int j = 0; j < (pauses ? 10 : 100); j++)
            result = call(draw(&random) % text_functions, result);
        ns[i] = now_ns() - start;
    }
    getrusage(RUSAGE_SELF, &after);
    qsort(ns, count, sizeof *ns, compare);
    printf("%.1f %.1f %.1f %ld\n", ns[count - 1] / 1e3, ns[(count * 999 + 999) / 1000 - 1] / 1e3,
           ns[count / 2] / 1e3, after.ru_majflt - before.ru_majflt);
    free(ns);
    return result == 0;
}

static void *sleep_on(void *data) {
    for (;;)
        pause();
    return data;
}

static void await_input(void) {
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

/* The functions have been called once each. */
static int do_instead(const char *what, uint64_t count, uint64_t random) {
    if (strcmp(what, "where") == 0)
        print_where();
    if (strcmp(what, "wait") == 0)
        await_input();
    pthread_t thread;
    bool beside = strcmp(what, "beside") == 0;
    if (beside && pthread_create(&thread, NULL, sleep_on, NULL) != 0)
        return 1;
    return beside || strcmp(what, "requests") == 0 ? serve_requests(count, random, !beside) : 0;
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, result = 1, random = 0x9e3779b97f4a7c15;
    if (count == 0 && argc < 3)
        return 0;
    /* An odd factor visits each of a power of two functions once. */
    uint64_t factor = argc > 2 && strcmp(argv[2], "scatter") == 0 ? 40503 : 1;
    for (uint64_t i = 0; i < text_functions; i++)
        result = call(i * factor % text_functions, result);
    if (argc > 2 && strcmp(argv[2], "later") != 0)
        return do_instead(argv[2], count, random);
    if (argc > 2)
        await_input();
    double start = now_ns();
    for (uint64_t i = 0; i < count; i++)
        result = call(draw(&random) % text_functions, result);
    double ns = now_ns() - start;
    printf("%.3f ns a call, checksum %016lx\n", ns / (double)count, (unsigned long)result);
    return 0;
}
