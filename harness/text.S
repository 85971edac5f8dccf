/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* TEXT_MIB MiB of text: one small function in every 4 KiB, so that calls at random need a TLB entry each.  Where in its
   4 KiB a function lies differs, so that they don't all compete for the same sets of the first-level caches. */
#define FUNCTIONS (TEXT_MIB * 256)

    .text
    .globl text_functions, text_start
    .type text_start, %function
    .balign 4096
text_start:
    .set i, 0
    .rept FUNCTIONS
    .skip (i * 7 % 61 + 1) * 64
#if defined __x86_64__
    endbr64
    lea i(%rdi,%rdi,2), %rax
    shr $1, %rax
    ret
#elif defined __aarch64__
    bti c
    add x0, x0, x0, lsl #1
    lsr x0, x0, #1
    ret
#endif
    .balign 4096, 0
    .set i, i + 1
    .endr
    .size text_start, . - text_start

    .section .rodata
    .balign 8
text_functions:
    .quad FUNCTIONS
    .section .note.GNU-stack, "", %progbits
