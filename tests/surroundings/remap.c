/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Puts its own text on other pages at start, as programs with their own support for huge pages do: whole 2
   MiB pages of text are copied away, replaced by anonymous memory, and copied back; or ("mremap") moved there
   by one call. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((uintptr_t)2 << 20)

uint64_t big_sum(uint64_t x);
const void *big_address(void);

int main(int argc, char **argv) {
    (void)argv;
    printf("sum %016lx\n", (unsigned long)big_sum(1));
    /* From the large text's second half; this function and libc lie elsewhere. */
    char *start = (char *)(((uintptr_t)big_address() + HUGE - 1) & -HUGE);
    char *copy = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *aligned = (char *)(((uintptr_t)copy + HUGE - 1) & -HUGE);
    memcpy(aligned, start, HUGE);
    if (argc > 1) {
        mprotect(aligned, HUGE, PROT_READ | PROT_EXEC);
        if (mremap(aligned, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, start) == MAP_FAILED)
            return 1;
    } else {
        if (mmap(start, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            return 1;
        memcpy(start, aligned, HUGE);
        if (mprotect(start, HUGE, PROT_READ | PROT_EXEC) != 0)
            return 1;
    }
    printf("sum %016lx\n", (unsigned long)big_sum(2));
    return 4;
}
