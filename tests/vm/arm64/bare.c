/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that is linked with nothing, so that the kernel alone begins it, and gives its text PROT_BTI: it has landing pads
   everywhere.  It prints the checksum of the large text, and waits for the end of its input. */
#include <asm/unistd.h>
#include <stdint.h>

uint64_t big_sum(uint64_t x);

__asm__(".text\n"
        ".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    hint #34\n" /* bti c */
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    bl run\n"
        "    brk #0\n");

static long call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}

/* An instruction pair that another linker would bring along. */
__asm__(".text\n"
        ".balign 8\n"
        "    svc #0\n"
        "    ret\n");

void run(void) {
    char line[17], end;
    uint64_t sum = big_sum(1);
    for (int i = 0; i < 16; i++)
        line[i] = "0123456789abcdef"[sum >> (60 - 4 * i) & 15];
    line[16] = '\n';
    call(__NR_write, 1, (long)line, sizeof line);
    while (call(__NR_read, 0, (long)&end, 1) > 0)
        ;
    call(__NR_exit_group, 3, 0, 0);
}
