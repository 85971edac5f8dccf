/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The interface between exec-thread.c, attach-tracee.c and their part for each machine.  Results are as in tracee.h. */
#ifndef HL_TRACE_MACHINE_H
#define HL_TRACE_MACHINE_H

#include "command/inject/tracee.h"

#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <ucontext.h>

#if defined __x86_64__
#define HL_BACK_CODES 2
#define HL_SYSCALL_BYTES 2 /* bytes of the system call alone in hl_call_code */
#else
#define HL_BACK_CODES 1
#define HL_SYSCALL_BYTES 4
#endif

/* A mode that sigaltstack(2) refuses, so that sigreturn leaves the alternate stack alone. */
#define HL_NO_ALTERNATE_STACK 7

/* The kernel's internal results of calls that begin again (include/linux/errno.h). */
enum { HL_RESTART_SYS = 512, HL_RESTART_NOINTR = 513, HL_RESTART_NOHAND = 514, HL_RESTART_BLOCK = 516 };

/* Instructions. */
struct hl_code {
    size_t n; /* HL_CODE_BYTES at most */
    const char *at;
};
#define HL_CODE_BYTES 16

/* --- tracee.c's --- */

/* ptrace(2).  0, or a negated errno. */
int hl_trace(pid_t tid, int request, uintptr_t address, uintptr_t data);
/* The general registers; a 32-bit thread has others: HL_REASON_ATTACH_32_BIT. */
int hl_read_registers(pid_t tid, struct user_regs_struct *registers);
int hl_write_registers(pid_t tid, struct user_regs_struct *registers);
/* The result of reading or writing BYTES, of which DONE were transferred (or -1, and errno).  0, or a negated errno. */
int hl_check_transfer(ssize_t done, size_t bytes);

/* --- instructions.c's --- */

/* The first of the N codes at CODE, which have a system call in them, in the BYTES at TEXT, which begin where an instruction may.
   *FOUND: which it is.  NULL: there is none. */
const char *hl_find_code(const char *text, size_t bytes, const struct hl_code *code, size_t n,
                         const struct hl_code **found);
/* Finds both in TEXT: how sigreturn is called, BACK_CODE, and a call near that and before it rather than at the other end.  x86-64. */
bool hl_find_codes(const char *text, size_t bytes, const char **call, const char **back,
                   const struct hl_code **back_code);
/* Whether PROCESS, which has its mappings, has CODE at AT, in memory that it cannot write to. */
bool hl_has_code(const struct hl_process *process, uint64_t at, const struct hl_code *code);

/* --- the machine's --- */

/* syscall; ret, and the instructions that call sigreturn. */
extern const struct hl_code hl_call_code, hl_back_codes[HL_BACK_CODES];

/* Undoes the kernel's write of the remaining time of a sleep since TRACEE was asked to stop, if it has left the very call in which it
   slept then. */
void hl_put_rest_back(const struct hl_tracee *tracee);

bool hl_runs_32_bit(const struct user_regs_struct *registers);

/* Reads the registers of a signal frame beyond the general ones, and so its size.  0, or why no frame can be made. */
int hl_read_frame_state(struct hl_tracee *tracee);

/* Fills FRAME for the address AT: with AT as its stack pointer, a call of ours returns to the code that restores the thread. */
void hl_fill_frame(char *frame, const struct hl_tracee *tracee, uint64_t at);

/* Sets R to registers with which TRACEE makes the call NUMBER; on AArch64 it returns to the gadgets' back. */
void hl_set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                 const uint64_t argument[6]);
/* Whether INFO, of a thread that enters a call, shows the call that WANTED makes. */
bool hl_is_call(const struct __ptrace_syscall_info *info, const struct user_regs_struct *wanted);
long hl_get_result(const struct user_regs_struct *registers);

/* Gives TRACEE, which could make calls and is in none, its signal mask and its registers, so that its own call begins again when
   it is let go.  If that fails, it gets the frame's. */
int hl_put_back(struct hl_tracee *tracee);
/* The same for a tracee that has made no call for us. */
void hl_let_begin_again(const struct hl_tracee *tracee);

#if defined __x86_64__

/* struct rt_sigframe, as sigreturn reads it. */
struct hl_frame {
    uint64_t back;
    uint64_t flags, link;
    uint64_t stack_at, stack_flags, stack_bytes;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, cr2, xsave, reserved[8];
    uint64_t mask;
    char siginfo[128];
};

#elif defined __aarch64__

/* The same, up to the end of the records: ucontext_t begins as the kernel's does. */
struct hl_frame {
    char information[128];
    ucontext_t context;
};

#endif

/* Fills FRAME to restore REGISTERS and the signal MASK; all other registers, the vector registers among them, are then as execve(2)
   leaves them.  BACK: the address to which a call returns, if the frame has
   that. */
void hl_begin_frame(struct hl_frame *frame, uint64_t back, const struct user_regs_struct *registers,
                    uint64_t mask);

#endif
