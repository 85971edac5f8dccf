/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rearrange HOW: changes huge pages in the middle of its writable data as programs do, forks, and prints
   the contents that parent and child see.  Exit status 3.

     guard      a part can't be accessed any more (a guard between stacks)
     read       a part can only be read
     shared     a part is memory that parent and child share
     replaced   a part is new anonymous memory
     clone      another process that shares the memory (CLONE_VM) writes to it while this one forks */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
#define BYTES (8 * HUGE)

static char data[BYTES] __attribute__((aligned(2 << 20))) = {1};
static char bss[BYTES] __attribute__((aligned(2 << 20)));
static char stack[65536] __attribute__((aligned(16)));
static pid_t beside;
static volatile int stop_beside;

static void map(char *at, int sharing) {
    if (mmap(at, 2 * HUGE, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
        abort();
}

static void protect(char *at, int prot) {
    if (mprotect(at, 2 * HUGE, prot) != 0)
        abort();
}

/* Writes until it is stopped; 1 if a write was lost. */
static int write_beside(void *at) {
    volatile unsigned long *word = at;
    for (unsigned long i = 0; !stop_beside; i++) {
        if (*word != i)
            return 1;
        *word = i + 1;
    }
    return 0;
}

static void rearrange(const char *how, char *at) {
    char *middle = at + 2 * HUGE;
    if (strcmp(how, "guard") == 0)
        protect(middle, PROT_NONE);
    else if (strcmp(how, "read") == 0)
        protect(middle, PROT_READ);
    else if (strcmp(how, "shared") == 0)
        map(middle, MAP_SHARED);
    else if (strcmp(how, "replaced") == 0)
        map(middle, MAP_PRIVATE);
    else
        beside = clone(write_beside, stack + sizeof stack, CLONE_VM | SIGCHLD, middle + 128);
}

static void end_beside(void) {
    int status;
    stop_beside = 1;
    if (waitpid(beside, &status, 0) != beside)
        abort();
    printf("status beside %d\n", status);
    fflush(stdout);
    beside = stop_beside = 0;
}

/* The first byte of each huge page that can be read. */
static void print_pages(const char *who, const char *how, const char *at) {
    printf("%s:", who);
    for (size_t i = 0; i < BYTES / HUGE; i++)
        if (strcmp(how, "guard") != 0 || i < 2 || i >= 4)
            printf(" %d", at[i * HUGE]);
    printf("\n");
    fflush(stdout);
}

static void write_pages(const char *how, char *at, char what) {
    int fixed = strcmp(how, "guard") == 0 || strcmp(how, "read") == 0;
    for (size_t i = 0; i < BYTES / HUGE; i++)
        if (!fixed || i < 2 || i >= 4)
            at[i * HUGE] = what;
}

static void check(const char *how, char *at) {
    int status;
    rearrange(how, at);
    write_pages(how, at, 'p');
    pid_t child = fork();
    if (child == 0) {
        print_pages("child", how, at);
        write_pages(how, at, 'x');
        print_pages("child", how, at);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child)
        abort();
    printf("status %d\n", status);
    print_pages("parent", how, at);
    if (beside != 0)
        end_beside();
}

int main(int argc, char **argv) {
    check(argc > 1 ? argv[1] : "", data);
    check(argc > 1 ? argv[1] : "", bss);
    return 3;
}
