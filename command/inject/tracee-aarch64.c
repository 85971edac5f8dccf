/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The exec stop's machine: AArch64.  Running processes are not changed there: when a thread is stopped in a system call, the kernel
   has decided already whether that begins again, and ptrace(2) shows no more of the call. */
#include "command/inject/machine.h"
#include "command/lib/basics.h"

#if defined __aarch64__

#include <string.h>
#include <ucontext.h>

/* arch/arm64/include/uapi/asm/sigcontext.h: the record of vector registers, without which a frame is refused. */
#define VECTORS_MAGIC 0x46508001

/* svc #0; ret */
const struct hl_code hl_call_code = {8, "\x01\0\0\xd4\xc0\x03\x5f\xd6"};
/* mov x8, #139; svc #0: the vdso's */
const struct hl_code hl_back_codes[HL_BACK_CODES] = {{8, "\x68\x11\x80\xd2\x01\0\0\xd4"}};

_Static_assert(sizeof(siginfo_t) == 128 && offsetof(struct hl_frame, context) == 128 &&
                   offsetof(ucontext_t, uc_sigmask) == 40 && offsetof(ucontext_t, uc_mcontext) == 176,
               "the kernel's struct rt_sigframe");

/* The contents of its reserved space: struct fpsimd_context. */
struct vectors {
    uint32_t magic, bytes, fpsr, fpcr;
    __uint128_t v[32];
};

bool hl_runs_32_bit(const struct user_regs_struct *registers) {
    return (registers->pstate & 0x10) != 0; /* PSR_MODE32_BIT */
}

void hl_begin_frame(struct hl_frame *frame, uint64_t back, const struct user_regs_struct *registers,
                    uint64_t mask) {
    (void)back;
    const struct vectors head = {.magic = VECTORS_MAGIC, .bytes = sizeof head};
    memset(frame, 0, sizeof *frame);
    frame->context.uc_stack.ss_flags = HL_NO_ALTERNATE_STACK;
    memcpy(frame->context.uc_mcontext.regs, registers->regs, sizeof registers->regs);
    frame->context.uc_mcontext.regs[7] = 0; /* the kernel's, at a stop */
    frame->context.uc_mcontext.sp = registers->sp;
    frame->context.uc_mcontext.pc = registers->pc;
    frame->context.uc_mcontext.pstate = registers->pstate;
    memcpy(frame->context.uc_mcontext.__reserved, &head, sizeof head);
    memcpy(&frame->context.uc_sigmask, &mask, sizeof mask);
}

void hl_set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                 const uint64_t argument[6]) {
    *r = tracee->registers;
    r->pc = tracee->gadgets.call;
    r->sp = tracee->stack;
    for (unsigned i = 0; i < 6; i++)
        r->regs[i] = argument[i];
    r->regs[8] = (uint64_t)number;
    r->regs[30] = tracee->gadgets.back;
}

long hl_get_result(const struct user_regs_struct *registers) { return (long)registers->regs[0]; }

#endif
