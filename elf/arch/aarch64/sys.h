/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* AArch64: the system call instruction, the trap that fills gaps, branch targets and the instruction
   cache. */
#ifndef HL_ARCH_AARCH64_SYS_H
#define HL_ARCH_AARCH64_SYS_H

static inline long hl_syscall6(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

static inline void hl_copy_bytes(void *to, const void *from, size_t bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    for (; bytes >= 8; bytes -= 8, t += 8, f += 8) {
        uint64_t word;
        __asm__ volatile("ldr %0, [%1]" : "=r"(word) : "r"(f) : "memory");
        __asm__ volatile("str %0, [%1]" : : "r"(word), "r"(t) : "memory");
    }
    for (; bytes > 0; bytes--)
        *t++ = *f++;
}

/* brk #0; TO is aligned to 4 bytes. */
static inline void hl_fill_with_traps(void *to, size_t bytes) {
    for (uint32_t *p = to; bytes >= 4; bytes -= 4)
        *(volatile uint32_t *)p++ = 0xd4200000u;
}

/* PROT_BTI of <asm/mman.h>, where not every libc's headers have it. */
#define HL_PROT_BTI 0x10

/* Makes instructions that were written to [start, end) the ones that every processor fetches: cleans the
   data cache to the point of unification, then invalidates the instruction cache (Arm ARM B2.4, D7.5).
   The range must be readable.  CTR_EL0 has the sizes of the lines, and the steps that the hardware does by
   itself: IDC, bit 28, the first; DIC, bit 29, the second. */
static inline void hl_flush_icache(uint64_t start, uint64_t end) {
    uint64_t ctr;
    __asm__("mrs %0, ctr_el0" : "=r"(ctr));
    uint64_t data_line = (uint64_t)4 << ((ctr >> 16) & 15), text_line = (uint64_t)4 << (ctr & 15);
    for (uint64_t at = start; !(ctr >> 28 & 1) && at < end; at += data_line)
        __asm__ volatile("dc cvau, %0" : : "r"(at) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
    for (uint64_t at = start; !(ctr >> 29 & 1) && at < end; at += text_line)
        __asm__ volatile("ic ivau, %0" : : "r"(at) : "memory");
    __asm__ volatile("dsb ish\n\tisb" : : : "memory");
}

#endif
