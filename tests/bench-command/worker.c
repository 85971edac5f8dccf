/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* worker WHAT [ARGUMENT...]: a program with 6 MiB of text that behaves otherwise when LD_HUGEPAGES names
   something.

     spin PLAIN HUGE    takes so many ms of processor time
     wait               waits until its input ends
     where FILE         adds a line to FILE: "plain" or "huge", and its processor
     read LINE          fails unless LINE is all of its input
     print PLAIN HUGE   prints a word
     complain P H       prints it to standard error */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__asm__(".section .text.big,\"ax\",@progbits\n.p2align 12\n.fill 6 << 20, 1, 0xc3\n.text\n");

static void spin(double ms) {
    while ((double)clock() * 1e3 / CLOCKS_PER_SEC < ms)
        ;
}

static int tell_where(const char *path, int is_huge) {
    FILE *file = fopen(path, "a");
    return file == NULL || fprintf(file, "%s %d\n", is_huge ? "huge" : "plain", sched_getcpu()) < 0 ||
           fclose(file) != 0;
}

static int read_line(const char *expected) {
    char line[64];
    size_t bytes = fread(line, 1, sizeof line, stdin);
    return bytes != strlen(expected) || memcmp(line, expected, bytes) != 0;
}

int main(int argc, char **argv) {
    const char *patterns = getenv("LD_HUGEPAGES"), *what = argc > 1 ? argv[1] : "";
    int is_huge = patterns != NULL && patterns[0] != '!';
    const char *word = argc > 2 + is_huge ? argv[2 + is_huge] : "";
    if (strcmp(what, "spin") == 0)
        spin(atof(word));
    else if (strcmp(what, "where") == 0)
        return tell_where(argv[2], is_huge);
    else if (strcmp(what, "wait") == 0)
        getchar();
    else if (strcmp(what, "read") == 0)
        return read_line(argv[2]);
    else if (strcmp(what, "print") == 0)
        puts(word);
    else if (strcmp(what, "complain") == 0)
        fprintf(stderr, "%s\n", word);
    return 0;
}
