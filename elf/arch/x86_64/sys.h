/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* x86-64: the system call instruction, the trap that fills gaps, and a cache that needs no flushing. */
#ifndef HL_ARCH_X86_64_SYS_H
#define HL_ARCH_X86_64_SYS_H

/* The analyser cannot see the kernel's writes, and would warn of uninitialised buffers. */
#ifdef __clang_analyzer__
long hl_syscall6(long number, long a, long b, long c, long d, long e, long f);
#else
static inline long hl_syscall6(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#endif

static inline void hl_copy_bytes(void *to, const void *from, size_t bytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/* int3 */
static inline void hl_fill_with_traps(void *to, size_t bytes) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0xcc) : "memory");
}

/* There is no protection of indirect branches by page. */
#define HL_PROT_BTI 0

static inline void hl_flush_icache(uint64_t start, uint64_t end) {
    (void)start;
    (void)end;
}

#endif
