/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* target [LIBRARY [thread]]: uses the large text and data that are linked into it or into LIBRARY, which it
   opens and closes; with a second thread, if asked.  It forks, and calls MARK twice: when everything is in
   use, and after LIBRARY was closed.  What it prints depends on every page of the data and every function of
   the text.

   -DBIG is the large part, -DEARLY a library whose constructor starts a thread that runs the text all the
   time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK 4711
#define FUNCTIONS 1536
#define RODATA_WORDS (384 * 1024)

uint64_t big_sum(uint64_t x) __attribute__((weak));
uint64_t big_run(unsigned i) __attribute__((weak));

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
#elif defined EARLY
static void *run(void *unused) {
    for (unsigned i = 0;; i++)
        if (big_run(i % FUNCTIONS) != i % FUNCTIONS * 7)
            abort();
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) != 0)
        abort();
}
#else
static void *wait_forever(void *unused) {
    pause();
    return unused;
}

int main(int argc, char **argv) {
    uint64_t (*sum)(uint64_t) = big_sum, x;
    void *handle = NULL;
    pthread_t thread;
    int status;
    if (argc > 2 && pthread_create(&thread, NULL, wait_forever, NULL) != 0)
        return 1;
    if (argc > 1 && (handle = dlopen(argv[1], RTLD_NOW)) == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    if (handle != NULL)
        sum = (uint64_t(*)(uint64_t))dlsym(handle, "big_sum");
    x = sum(1);
    pid_t child = fork();
    if (child == 0)
        _exit((int)(sum(x) % 251));
    waitpid(child, &status, 0);
    printf("%016lx, child %d, %016lx\n", (unsigned long)x, WEXITSTATUS(status), (unsigned long)sum(x));
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
