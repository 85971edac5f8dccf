/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* thief N hold: takes N huge pages, says so, and holds them until standard input ends.
   thief N loop: takes up to N pages and gives them back, until standard input ends.
   thief N random: the same with at most N pages at a time, for up to 20 ms.

   Without a reservation and by MADV_POPULATE_WRITE, so that it never gets SIGBUS itself. */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define HUGE_BYTES ((size_t)2 << 20)

/* The number of the N pages at AT that it got. */
static size_t take(char *at, size_t n) {
    size_t taken = 0;
    while (taken < n && madvise(at + taken * HUGE_BYTES, HUGE_BYTES, MADV_POPULATE_WRITE) == 0)
        taken++;
    return taken;
}

static char *map(size_t n) {
    char *at = mmap(NULL, n * HUGE_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

int main(int argc, char **argv) {
    size_t n = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (n == 0)
        return 2;
    if (strcmp(argv[2], "hold") == 0) {
        printf("%zu\n", take(map(n), n));
        fflush(stdout);
        return poll(&input, 1, -1) == 1 ? 0 : 1;
    }
    bool random_ones = strcmp(argv[2], "random") == 0;
    srandom((unsigned)getpid());
    while (poll(&input, 1, 0) == 0) {
        char *at = map(n);
        take(at, random_ones ? (size_t)random() % (n + 1) : n);
        usleep(random_ones ? (unsigned)random() % 20000 : 500);
        munmap(at, n * HUGE_BYTES);
        usleep(random_ones ? (unsigned)random() % 20000 : 500);
    }
    return 0;
}
