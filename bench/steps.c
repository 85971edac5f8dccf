/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* steps WHAT COUNT: has the kernel do COUNT times a step that it does for every program, and prints the ns that one took: "spawn"
   (a process that ends at once), "fault" (the first touch of a page) or "map" (mmap and munmap of a page). */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define PAGE 4096
#define PAGES 512

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int spawn(void) {
    static char *const argv[] = {"true", NULL};
    pid_t child;
    int status = -1;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, argv, NULL) != 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

static char *map(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int map_once(void) {
    char *at = map(PAGE);
    return at == NULL ? -1 : munmap(at, PAGE);
}

/* The ns of COUNT faults; the time to make room for them is not counted. */
static double time_faults(long count) {
    double ns = 0;
    for (long done = 0; done < count; done += PAGES) {
        char *at = map((size_t)PAGES * PAGE);
        if (at == NULL || madvise(at, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE) != 0)
            return -1;
        double start = now_ns();
        for (size_t i = 0; i < PAGES; i++)
            ((volatile char *)at)[i * PAGE] = 1;
        ns += now_ns() - start;
        munmap(at, (size_t)PAGES * PAGE);
    }
    return ns;
}

static double time_calls(int (*call)(void), long count) {
    double start = now_ns();
    for (long i = 0; i < count; i++)
        if (call() != 0)
            return -1;
    return now_ns() - start;
}

int main(int argc, char **argv) {
    long count = argc == 3 ? strtol(argv[2], NULL, 10) / PAGES * PAGES : 0;
    double ns = -1;
    if (count > 0 && strcmp(argv[1], "fault") == 0)
        ns = time_faults(count);
    else if (count > 0)
        ns = time_calls(strcmp(argv[1], "spawn") == 0 ? spawn : map_once, count);
    printf("%.1f\n", ns / (double)count);
    return ns < 0;
}
