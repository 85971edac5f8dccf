/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A thread's registers for a system call that it makes for us. */
#ifndef HL_TRACE_REGISTERS_H
#define HL_TRACE_REGISTERS_H

#include "command/trace/tracee.h"

#include <sys/user.h>

#if defined __x86_64__

/* Changes REGISTERS, the thread's own, so that it makes the system call NUMBER with ARGUMENT at CODE's call, on STACK. */
static inline void hl_set_call_registers(struct user_regs_struct *registers, const struct hl_gadgets *code,
                                         uint64_t stack, long number, const uint64_t argument[6]) {
    registers->rip = code->call;
    registers->rsp = stack;
    registers->rax = (uint64_t)number;
    registers->orig_rax = (uint64_t)-1;
    registers->rdi = argument[0];
    registers->rsi = argument[1];
    registers->rdx = argument[2];
    registers->r10 = argument[3];
    registers->r8 = argument[4];
    registers->r9 = argument[5];
}

#elif defined __aarch64__

/* The same; the call returns to CODE's back. */
static inline void hl_set_call_registers(struct user_regs_struct *registers, const struct hl_gadgets *code,
                                         uint64_t stack, long number, const uint64_t argument[6]) {
    registers->pc = code->call;
    registers->sp = stack;
    for (unsigned i = 0; i < 6; i++)
        registers->regs[i] = argument[i];
    registers->regs[8] = (uint64_t)number;
    registers->regs[30] = code->back;
}

#endif
#endif
