/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* worker WHAT [ARGUMENT...]: a program with 6 MiB of text that behaves otherwise when LD_HUGEPAGES names
   something.

     spin PLAIN HUGE    takes so many ms of processor time
     pass PLAIN HUGE    takes so many ms by the clock of clock.c
     turns FILE         takes 4 ms, 16 ms, 4 ms, 16 ms ... by that clock, counting its runs in FILE
     where FILE         adds a line to FILE: "plain" or "huge", and its processor
     print PLAIN HUGE   prints a word
     complain P H       prints it to standard error
     exit PLAIN HUGE    ends with a status
     die                ends by SIGSEGV if it is on huge pages */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__asm__(".section .text.big,\"ax\",@progbits\n.p2align 12\n.fill 6 << 20, 1, 0xc3\n.text\n");

static void spin(double ms) {
    while ((double)clock() * 1e3 / CLOCKS_PER_SEC < ms)
        ;
}

/* Appends a byte to the file PATH, which holds as many bytes then. */
static long append_to(const char *path) {
    FILE *file = fopen(path, "a");
    if (file == NULL || fputc('x', file) == EOF || fseek(file, 0, SEEK_END) != 0)
        exit(1);
    long bytes = ftell(file);
    fclose(file);
    return bytes;
}

static int tell_where(const char *path, int is_huge) {
    FILE *file = fopen(path, "a");
    return file == NULL || fprintf(file, "%s %d\n", is_huge ? "huge" : "plain", sched_getcpu()) < 0 ||
           fclose(file) != 0;
}

static void pass(long ms) {
    for (long i = 0; i < ms; i++)
        append_to(getenv("CLOCK"));
}

static int take_turns(const char *path) {
    pass(append_to(path) % 2 == 1 ? 4 : 16);
    return 0;
}

int main(int argc, char **argv) {
    const char *patterns = getenv("LD_HUGEPAGES"), *what = argc > 1 ? argv[1] : "";
    int is_huge = patterns != NULL && patterns[0] != '\0';
    const char *word = argc > 2 + is_huge ? argv[2 + is_huge] : "";
    if (strcmp(what, "spin") == 0)
        spin(atof(word));
    else if (strcmp(what, "pass") == 0)
        pass(atol(word));
    else if (strcmp(what, "turns") == 0)
        return take_turns(argv[2]);
    else if (strcmp(what, "where") == 0)
        return tell_where(argv[2], is_huge);
    else if (strcmp(what, "print") == 0)
        puts(word);
    else if (strcmp(what, "complain") == 0)
        fprintf(stderr, "%s\n", word);
    else if (strcmp(what, "exit") == 0)
        return atoi(word);
    else if (strcmp(what, "die") == 0 && is_huge)
        raise(SIGSEGV);
    return 0;
}
