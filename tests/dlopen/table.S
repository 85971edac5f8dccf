/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A DSO to be opened: 4096 functions of 1 KiB, a table of them, 4 MiB of read-only data.  NUMBER makes it another, MISSING one that
   cannot be relocated. */
        .text
        .p2align 12
functions:
        .set i, 0
        .rept 4096
        .cfi_startproc
        testq   %rsi, %rsi
        jne     1f
        leaq    NUMBER + i * 7(%rdi, %rdi, 2), %rax
        ret
1:      subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    %rsi, %rax
        xorl    %esi, %esi
        call    *%rax           /* a second function of the table, with this one on the stack */
        leaq    NUMBER + i * 7(%rax, %rax, 2), %rax
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .p2align 10, 0xcc
        .set i, i + 1
        .endr

        .section .rodata, "a", @progbits
        .globl  constants
        .type   constants, @object
        .p2align 12
constants:
        .set i, 0
        .rept 16 * 1024
        .quad   i * 0x9e3779b97f4a7c15
        .fill   31, 8, i        /* the assembler is slow at many different ones */
        .set i, i + 1
        .endr
        .size   constants, . - constants

        .section .data.rel.ro, "aw", @progbits
        .globl  table
        .type   table, @object
        .p2align 3
table:
        .set i, 0
        .rept 4096
        .quad   functions + i * 1024
        .set i, i + 1
        .endr
        .size   table, . - table
#ifdef MISSING
        .quad   nobody_defines_this
#endif
        .section .note.GNU-stack, "", @progbits
