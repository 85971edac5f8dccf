/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* target [LIBRARY [threads]]: uses the large text and data that are linked into it or into LIBRARY, which it
   opens and closes; if asked, beside threads that fork and send signals (churn.h), whose children run the
   text.  It forks, and calls MARK twice: when everything is in use, and after LIBRARY was closed.  Its
   output depends on every page of the data and every function of the text.

   -DBIG is the large part, -DEARLY a library whose constructor starts a thread that runs the text all the
   time, and those of churn.h.  None of them maps anything: where things come to lie must be the same in each
   run, and inject.c's account says more of whose memory is unmapped than a mapping that is hit. */
#define _GNU_SOURCE
#if !defined BIG
#include "../churn.h"
#endif

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MARK 4711
#define FUNCTIONS 1536
#define RODATA_WORDS (384 * 1024)

uint64_t big_sum(uint64_t x) __attribute__((weak));
uint64_t big_run(unsigned i) __attribute__((weak));
void early_stop(void) __attribute__((weak));

#if defined BIG
#define HIDDEN __attribute__((visibility("hidden")))
extern const char text_a[] HIDDEN, text_c[] HIDDEN;
extern const uint64_t rodata_big[] HIDDEN;
extern uint64_t data_big[] HIDDEN;
static uint64_t bss_big[5 << 17];

static uint64_t call(const char *text, unsigned i, uint64_t x) {
    return ((uint64_t(*)(uint64_t))(text + 1024 * i))(x);
}

uint64_t big_run(unsigned i) { return call(text_c, i % FUNCTIONS, i) - 3 * (uint64_t)i - 12345; }

/* Eight words of each page. */
static uint64_t add(const uint64_t *word, unsigned n) {
    uint64_t x = 0;
    for (unsigned i = 0; i < n; i += 64)
        x = x * 31 + word[i];
    return x;
}

uint64_t big_sum(uint64_t x) {
    for (unsigned i = 0; i < FUNCTIONS; i++)
        x = call(text_a, i, call(text_c, i, x));
    x += add(rodata_big, RODATA_WORDS);
    for (unsigned i = 0; i < DATA_WORDS; i += 8192)
        data_big[i] += x;
    x += add(data_big, DATA_WORDS);
    for (unsigned i = 0; i < sizeof bss_big / sizeof bss_big[0]; i += 65536)
        x += bss_big[i]++;
    return x;
}
#else
static uint64_t (*run_one)(unsigned i) = big_run;

static bool run_some(void) {
    for (unsigned i = 0; i < FUNCTIONS; i += 101)
        if (run_one(i) != i * 7)
            return false;
    return true;
}

static void start_churn(void) {
    churn_start(CHURN_MAPS_NOTHING);
    churn_watch_me();
}
#if defined EARLY

static void *run(void *unused) {
    while (run_some())
        ;
    abort();
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) != 0)
        abort();
    churn_lend(run_some);
    start_churn();
}

void early_stop(void) { churn_stop(); }
#else

/* Says why LIBRARY could not be opened, and how many KiB of it are mapped all the same. */
static int fail(const char *library) {
    unsigned long start, end, left = 0;
    char line[4096];
    fprintf(stderr, "%s\n", dlerror());
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, library) != NULL && sscanf(line, "%lx-%lx", &start, &end) == 2)
            left += end - start;
    fprintf(stderr, "left %lu\n", left >> 10);
    return 1;
}

int main(int argc, char **argv) {
    uint64_t (*sum)(uint64_t) = big_sum, x;
    void *handle = NULL;
    int status;
    if (argc > 2)
        start_churn();
    if (argc > 1 && (handle = dlopen(argv[1], RTLD_NOW)) == NULL)
        return fail(argv[1]);
    if (handle != NULL) {
        sum = (uint64_t(*)(uint64_t))dlsym(handle, "big_sum");
        run_one = (uint64_t(*)(unsigned))dlsym(handle, "big_run");
        churn_lend(run_some);
    }
    x = sum(1);
    pid_t child = fork();
    if (child == 0)
        _exit((int)(sum(x) % 251));
    waitpid(child, &status, 0);
    printf("%016lx, child %d, %016lx\n", (unsigned long)x, WEXITSTATUS(status), (unsigned long)sum(x));
    if (argc > 2)
        churn_stop();
    if (early_stop != NULL)
        early_stop();
    syscall(MARK);
    if (handle != NULL)
        printf("closed %d\n", dlclose(handle));
    free(malloc(1 << 20));
    void *end = sbrk(0);
    printf("break %d %d\n", sbrk(3 << 20) == end, sbrk(-(3 << 20)) != (void *)-1);
    fflush(stdout);
    syscall(MARK);
    return 3;
}
#endif
#endif
