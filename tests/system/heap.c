/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* heap MIB: fills so much heap, then runs all of the large text, says so, and ends with its standard input.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t big_sum(uint64_t x);

int main(int argc, char **argv) {
    size_t bytes = (size_t)atol(argv[argc - 1]) << 20;
    volatile char *heap = malloc(bytes);
    char byte;
    if (heap == NULL)
        return 1;
    for (size_t i = 0; i < bytes; i += 4096)
        heap[i] = 1;
    printf("sum %lx\n", (unsigned long)big_sum(1));
    fflush(stdout);
    return read(0, &byte, 1) == 0 ? 5 : 2;
}
