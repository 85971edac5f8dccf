/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* later                  starts and ends
   later calls COUNT      calls a function of another DSO COUNT times through the PLT; prints the ns that one
   took later opens COUNT DSO  opens and closes DSO COUNT times; prints the ns that one pair took

   The cost of watching for later objects to programs that have nothing to gain.  As DSO it is compiled with -DDSO=NAME. */
#ifdef DSO
int DSO(int x) { return x + 1; }
#else
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int f0(int x);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int call(long count) {
    int x = 0;
    for (long i = 0; i < count; i++)
        x = f0(x);
    return x == (int)count ? 0 : 1;
}

static int open_and_close(long count, const char *path) {
    for (long i = 0; i < count; i++) {
        void *handle = dlopen(path, RTLD_NOW);
        if (handle == NULL || dlclose(handle) != 0)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 0;
    long count = atol(argv[2]);
    double start = now();
    int status = strcmp(argv[1], "calls") == 0 ? call(count) : open_and_close(count, argv[argc - 1]);
    printf("%.3f ns\n", (now() - start) / (double)count);
    return status;
}
#endif
