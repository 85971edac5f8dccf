/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The resolver of an IFUNC, which runs before any constructor, makes the text writable, and main changes a function; with MAPS it maps
   the beginning of the program's file over a page of the text, which main reads. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define FUNCTIONS 4096
#define FUNCTION_BYTES 2048

/* FUNCTIONS times "mov $0, %eax; ret". */
__asm__(".pushsection .text.big, \"ax\", @progbits\n"
        ".p2align 12\n"
        "text_start:\n"
        ".rept 4096\n"
        "movl $0, %eax\n"
        "ret\n"
        ".p2align 11\n"
        ".endr\n"
        ".popsection\n");

extern char text_start[];

static int nothing(void) { return 0; }

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}

static int (*resolve(void))(void) {
    long at = (long)text_start, bytes = (long)FUNCTIONS * FUNCTION_BYTES;
#ifdef MAPS
    long file = call(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0, 0, 0, 0);
    call(SYS_mmap, at + bytes / 2, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0);
#else
    call(SYS_mprotect, at, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0);
#endif
    return nothing;
}

int first(void) __attribute__((ifunc("resolve")));

int main(void) {
    char *function = text_start + 4000 * FUNCTION_BYTES, *half = text_start + FUNCTIONS / 2 * FUNCTION_BYTES;
    int seven = 7, result = first();
#ifdef MAPS
    printf("%d, %.3s there\n", result, half + 1);
    return memcmp(half, "\177ELF", 4) != 0;
#else
    memcpy(function + 1, &seven, sizeof seven);
    printf("%d, %d, %d\n", result, ((int (*)(void))function)(), ((int (*)(void))half)());
    return 0;
#endif
    (void)function, (void)seven;
}
