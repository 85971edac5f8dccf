/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prints the values that depend on where a program lies, relative to that.  "work MS": computes five calls deep; "crash":
   ends there by SIGABRT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

unsigned long big_sum(unsigned long x);
extern const char __ehdr_start __attribute__((visibility("hidden")));
extern char **environ;
extern void _start(void);
static const char *name = "relocated";
static volatile unsigned long sum;
static int is_to_crash;

__attribute__((noipa)) unsigned long deep_leaf(unsigned long x) {
    for (int i = 0; i < 20000; i++)
        sum += x ^ i;
    if (is_to_crash)
        abort();
    return sum;
}

__attribute__((noipa)) unsigned long deep_three(unsigned long x) { return deep_leaf(x + 3) + x; }
__attribute__((noipa)) unsigned long deep_two(unsigned long x) { return deep_three(x + 2) + x; }
__attribute__((noipa)) unsigned long deep_one(unsigned long x) { return deep_two(x + 1) + x; }

static void work(long ms) {
    clock_t end = clock() + ms * (CLOCKS_PER_SEC / 1000);
    while (clock() < end)
        sum += deep_one(sum);
}

/* The auxiliary vector in three places. */
static void print_vectors(void) {
    unsigned long kept[512] = {0};
    char **at = environ;
    while (*at++ != NULL)
        ;
    int file = open("/proc/self/auxv", O_RDONLY);
    ssize_t bytes = read(file, kept, sizeof kept);
    close(file);
    printf("vectors %d\n", bytes > 0 && memcmp(kept, at, bytes) == 0);
    printf("entry %d headers %lx\n", getauxval(AT_ENTRY) == (uintptr_t)&_start,
           getauxval(AT_PHDR) - (uintptr_t)&__ehdr_start);
}

/* /proc/self/stat: the fields of code and data. */
static void print_kept(void) {
    char text[2048] = "";
    uintptr_t field[64] = {0};
    int file = open("/proc/self/stat", O_RDONLY), n = 3;
    if (read(file, text, sizeof text - 1) < 0)
        return;
    close(file);
    for (char *word = strtok(strrchr(text, ')') + 4, " "); word != NULL && n < 63; word = strtok(NULL, " "))
        field[++n] = strtoull(word, NULL, 10);
    uintptr_t base = (uintptr_t)&__ehdr_start, code = (uintptr_t)print_kept, data = (uintptr_t)&name;
    printf("code %lx %lx %d\n", field[26] - base, field[27] - base, code >= field[26] && code < field[27]);
    printf("data %lx %lx %d\n", field[45] - base, field[46] - base, data >= field[45] && data < field[46]);
    printf("arguments %d %d\n", field[48] == (uintptr_t)program_invocation_name, field[50] > field[48]);
}

static void print_heap(void) {
    char *before = sbrk(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    char *block = malloc(300 << 20);
    memset(block, 1, 300 << 20);
    printf("heap %d %d\n", block >= before, (char *)sbrk(0) - before >= 300 << 20);
    free(block);
}

static void print_libraries(void) {
    void *library = dlopen("libm.so.6", RTLD_NOW);
    double (*cosine)(double) = library != NULL ? (double (*)(double))dlsym(library, "cos") : NULL;
    void *itself = dlopen(NULL, RTLD_NOW);
    Dl_info info = {0};
    printf("cos %f\n", cosine != NULL ? cosine(0) : -1);
    printf("dlsym %d\n", itself != NULL && dlsym(itself, "deep_one") == (void *)deep_one);
    printf("dladdr %d %s %d\n", dladdr((void *)deep_one, &info), info.dli_sname != NULL ? info.dli_sname : "",
           info.dli_fbase == (void *)&__ehdr_start);
}

static void print_callers(void) {
    void *frame[16];
    int n = backtrace(frame, 16);
    char **symbol = backtrace_symbols(frame, n);
    for (int i = 0; i < n && strstr(symbol[i], "libc") == NULL; i++)
        printf("caller %lx\n", (uintptr_t)frame[i] - (uintptr_t)&__ehdr_start);
}

static void print_again(void) {
    fflush(stdout);
    if (fork() == 0) {
        execl("/proc/self/exe", program_invocation_name, "again", NULL);
        _exit(9);
    }
    int status = 0;
    wait(&status);
    printf("again %x\n", status);
}

int main(int argc, char **argv) {
    is_to_crash = argc > 1 && strcmp(argv[1], "crash") == 0;
    if (argc > 1 && strcmp(argv[1], "work") == 0) {
        work(atol(argv[2]));
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "wait") == 0)
        return getchar() != EOF;
    if (is_to_crash || (argc > 1 && strcmp(argv[1], "again") == 0))
        return (int)(deep_one(1) & 0);
    printf("at %lx\n", (unsigned long)(uintptr_t)&__ehdr_start);
    printf("name %s\n", name);
    print_vectors();
    print_kept();
    print_heap();
    print_libraries();
    print_callers();
    print_again();
    printf("sum %lx\n", big_sum(argc > 0));
    return 0;
}
