/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with 8 MiB of initialised data that begin and end at 2 MiB: of zeros, or with RELOCATED of pointers, to which the
   dynamic linker writes.  It prints how much memory it has of its own (smaps_rollup), and whether its data is right.

   With EARLY a library whose constructor runs before libhugeld's (-z initfirst) and reads all of these data, then writes to
   T_WRITTEN of their small pages, first to every other one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (8 << 20)
#define PAGE 4096
#define PAGES (BYTES / PAGE)

extern char data[] __attribute__((weak));

/* The small page of DATA that is written as the Ith. */
static char *find_page(unsigned i) {
    return data + (i < PAGES / 2 ? 2 * i : 2 * (i - PAGES / 2) + 1) * (size_t)PAGE;
}

/* T_WRITTEN.  An early constructor has no getenv(3). */
static unsigned count_written(char **environment) {
    for (; *environment != NULL; environment++)
        if (strncmp(*environment, "T_WRITTEN=", 10) == 0)
            return (unsigned)atoi(*environment + 10);
    return 0;
}

#ifdef EARLY

__attribute__((constructor)) static void write_to_data(int argc, char **argv, char **environment) {
    volatile char sum = 0;
    if (data == NULL || argc < 1 || argv == NULL)
        return;
    for (unsigned i = 0; i < PAGES; i++)
        sum = (char)(sum + *find_page(i));
    for (unsigned i = 0; i < count_written(environment); i++)
        find_page(i)[8] = 1;
}

#else

#ifdef RELOCATED
#define CONTENTS ".rept 1048576\n.quad data\n.endr\n"
#else
#define CONTENTS ".zero 8388608\n"
#endif
__asm__(".section much, \"aw\", @progbits\n.globl data\n.p2align 21\ndata:\n" CONTENTS ".text\n");

static void print_memory(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Anonymous:", 10) == 0 || strncmp(line, "AnonHugePages:", 14) == 0)
            fputs(line, stdout);
    if (file != NULL)
        fclose(file);
}

int main(int argc, char **argv, char **environment) {
    unsigned wrong = argc < 1 || argv == NULL, written = count_written(environment);
    print_memory();
    for (unsigned i = 0; i < PAGES; i++) {
#ifdef RELOCATED
        wrong += *(char **)(void *)find_page(i) != data || written != 0;
#else
        wrong += find_page(i)[0] != 0 || find_page(i)[8] != (i < written);
#endif
    }
    return wrong != 0;
}

#endif
