/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* guard: puts a guard page into its own data, or text (-DIN), before any constructor runs: in an IFUNC's resolver, as part of its
   relocation.  With -DPROTECT it makes the page writable and executable instead.  It ends with 0, or with 77 where the kernel has no guard pages (Linux 6.13). */
#include <sys/syscall.h>

char data[8 << 20] = {1};
__asm__(".text\ntext: .fill 8 << 20, 1, 0xc3\n.previous\n");
extern char text[];
static long result;

/* No function of libc can be called yet. */
static long install(char *at) {
    long value = SYS_madvise, page = ((long)at + (4 << 20)) & -4096L, bytes = 4096,
         advice = 102 /* MADV_GUARD_INSTALL */;
#ifdef PROTECT
    value = SYS_mprotect;
    advice = 7;
#endif
#ifdef __x86_64__
    __asm__ volatile("syscall" : "+a"(value) : "D"(page), "S"(bytes), "d"(advice) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = value, x0 __asm__("x0") = page, x1 __asm__("x1") = bytes,
                     x2 __asm__("x2") = advice;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    value = x0;
#endif
    return value;
}

static int find_status(void) { return result == 0 ? 0 : 77; }

static int (*resolve(void))(void) {
    for (long i = 0; i < (long)sizeof data; i += 4096)
        data[i]++;
    result = install(IN);
    return find_status;
}

int status(void) __attribute__((ifunc("resolve")));

int main(void) { return status(); }
