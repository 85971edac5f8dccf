/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Unwinding goes on through the frame pointer, so backtraces of profilers and debuggers see the caller.

   Signals are blocked from before the switch until after it: a handler is the program's code, and what it
   finds on the stack pointer matters to it.  Garbage collectors look for references from there to the end of
   the thread's stack, and coroutine libraries tell by it what runs. */
#include "stack.h"
#include "sys.h"

/* Calls FUNCTION(ARGUMENT) with the stack that ends at STACK_END. */
void hl_switch_stack(void (*function)(void *), void *argument, void *stack_end)
    __attribute__((visibility("hidden")));

#ifdef __x86_64__
__asm__(".pushsection .text\n"
        ".globl hl_switch_stack\n"
        ".hidden hl_switch_stack\n"
        ".type hl_switch_stack, @function\n"
        "hl_switch_stack:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "push %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "mov %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "mov %rdx, %rsp\n"
        "mov %rdi, %rax\n"
        "mov %rsi, %rdi\n"
        "call *%rax\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size hl_switch_stack, . - hl_switch_stack\n"
        ".popsection\n");
#elif defined __aarch64__
__asm__(".pushsection .text\n"
        ".p2align 2\n"
        ".globl hl_switch_stack\n"
        ".hidden hl_switch_stack\n"
        ".type hl_switch_stack, %function\n"
        "hl_switch_stack:\n"
        ".cfi_startproc\n"
        "hint #25\n" /* paciasp, which branches may reach as bti c */
        ".cfi_negate_ra_state\n"
        "stp x29, x30, [sp, #-16]!\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset x29, -16\n"
        ".cfi_offset x30, -8\n"
        "mov x29, sp\n"
        ".cfi_def_cfa_register x29\n"
        "mov sp, x2\n"
        "mov x9, x0\n"
        "mov x0, x1\n"
        "blr x9\n"
        "mov sp, x29\n"
        ".cfi_def_cfa_register sp\n"
        "ldp x29, x30, [sp], #16\n"
        ".cfi_def_cfa_offset 0\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        "hint #29\n" /* autiasp */
        ".cfi_negate_ra_state\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size hl_switch_stack, . - hl_switch_stack\n"
        ".popsection\n");
#endif

bool hl_call_on_stack(void (*function)(void *), void *argument, void *stack_end) {
    uint64_t signals;
    if (!hl_block_signals(&signals))
        return false;
    hl_switch_stack(function, argument, stack_end);
    hl_restore_signals(signals);
    return true;
}
