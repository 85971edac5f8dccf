/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The beginning of the generated programs on arm64.  The start files of a cross compiler may have no landing
   pads, so that a program that refuses wrong branches (PROT_BTI) could not even start; _start is here
   instead.

   Before main it branches to the second instruction of functions in the large text, which is no landing pad,
   and says how many of these branches were refused: all of them where the text's pages have PROT_BTI, else
   none.  Then it calls a function there that returns by an address with a wrong signature. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

extern const char text_a[] __attribute__((visibility("hidden")));
extern const char text_c[] __attribute__((visibility("hidden")));
extern const char forge[] __attribute__((visibility("hidden")));

__asm__(".text\n"
        ".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    hint #34\n" /* bti c */
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n"
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    adrp x0, main\n"
        "    add x0, x0, :lo12:main\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    bl __libc_start_main\n"
        "    brk #0\n");

static sigjmp_buf before;

static void refuse(int signal) { siglongjmp(before, signal); }

static int is_refused(const char *at) {
    if (sigsetjmp(before, 1) != 0)
        return 1;
    ((uint64_t(*)(uint64_t))at)(1);
    return 0;
}

__attribute__((constructor)) static void branch(void) {
    int refused = 0;
    signal(SIGILL, refuse);
    for (int i = 0; i < 4096; i += 256)
        refused += is_refused(text_a + 1024 * i + 4) + is_refused(text_c + 1024 * i + 4);
    printf("branches refused: %d\n", refused);
    signal(SIGSEGV, refuse); /* SIGILL from FEAT_FPAC on */
    printf("returns refused: %d\n", is_refused(forge));
    signal(SIGSEGV, SIG_DFL);
    signal(SIGILL, SIG_DFL);
}
