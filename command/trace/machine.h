/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The interface between tracee.c and its part for each machine.  Results are as in tracee.h. */
#ifndef HL_TRACE_MACHINE_H
#define HL_TRACE_MACHINE_H

#include "command/trace/tracee.h"

#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <ucontext.h>

#if defined __x86_64__
#define HL_BACK_CODES 2
#define HL_CODE_UNIT 1     /* where instructions may begin */
#define HL_SYSCALL_BYTES 2 /* bytes of the system call alone in hl_call_code */
#define HL_STOPS_RUNNING 1 /* a running thread can be stopped, and go on from there */
#else
#define HL_BACK_CODES 1
#define HL_CODE_UNIT 4
#define HL_SYSCALL_BYTES 4
#define HL_STOPS_RUNNING 0
#endif

/* How long a thread may take for a stop of ptrace's own. */
#define HL_STOP_US INT64_C(500000)

/* A mode that sigaltstack(2) refuses, so that sigreturn leaves the alternate stack alone. */
#define HL_NO_ALTERNATE_STACK 7

/* The number of signals that a thread raises itself, and that are not blocked. */
#define HL_SYNCHRONOUS 6

/* The kernel's internal results of calls that begin again (include/linux/errno.h). */
enum { HL_RESTART_SYS = 512, HL_RESTART_NOINTR = 513, HL_RESTART_NOHAND = 514, HL_RESTART_BLOCK = 516 };

/* Instructions. */
struct hl_code {
    size_t n; /* HL_CODE_BYTES at most */
    const char *at;
};
#define HL_CODE_BYTES 16

struct hl_tracee_state {
    struct user_regs_struct registers; /* as they were at the stop */
    uint64_t mask;                     /* the signal mask */
    uint64_t stack;                    /* the stack pointer for calls; 0: it makes none */
    uint64_t low, high;                /* the part of the stack that was taken for it */
    bool suspends;                     /* no filter sees its calls */
    siginfo_t held[HL_SYNCHRONOUS];    /* signals to be sent again, in the order in which they came */
    unsigned n_held;
    size_t vector_bytes; /* of its vector registers, as a signal frame has them */
    char *vectors;
};

/* --- tracee.c's --- */

/* ptrace(2).  0, or a negated errno. */
int hl_trace(pid_t tid, int request, uintptr_t address, uintptr_t data);
/* The general registers; a 32-bit thread has others: HL_REASON_ATTACH_32_BIT. */
int hl_read_registers(pid_t tid, struct user_regs_struct *registers);
int hl_write_registers(pid_t tid, struct user_regs_struct *registers);
/* The result of reading or writing BYTES, of which DONE were transferred (or -1, and errno).  0, or a negated errno. */
int hl_check_transfer(ssize_t done, size_t bytes);

/* Opens TRACEE's present memory for hl_write_tracee; and closes it, if it is open. */
int hl_open_memory(struct hl_tracee *tracee);
void hl_close_memory(struct hl_tracee *tracee);

/* Waits for its next stop.  0: *STATUS is waitpid's; HL_REASON_ATTACH_BUSY; or -ESRCH. */
int hl_await_stop(struct hl_tracee *tracee, int *status, int64_t patience_us);
/* The same for a thread that was asked to stop, and so has left its call: if it only waits for a processor, it gets until five
   seconds after it was asked. */
int hl_await_late_stop(struct hl_tracee *tracee, int *status, int64_t patience_us);
/* Whether STATUS is a stop of ptrace's own, which PTRACE_INTERRUPT asks for; a group stop names another signal. */
bool hl_is_event(int status);
/* Whether a handler of the thread's process would run for the signal NUMBER. */
bool hl_catches(const struct hl_tracee *tracee, int number);

/* Makes a call as hl_call_in_tracee does, but does not let go if it would be another one. */
int hl_make_call(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]);

/* --- the machine's --- */

/* syscall; ret, and the instructions that call sigreturn. */
extern const struct hl_code hl_call_code, hl_back_codes[HL_BACK_CODES];

/* TRACEE is ours, runs or sleeps, and is about to be asked to stop. */
void hl_look_before_stop(struct hl_tracee *tracee);

/* TRACEE has stopped as it was asked to.  After 0 its call can begin again, and it is still stopped; after any other result it
   was let go, if it still exists. */
int hl_settle_stop(struct hl_tracee *tracee);

bool hl_runs_32_bit(const struct user_regs_struct *registers);

/* Reads the registers of a signal frame beyond the general ones, and aborts a critical section.  0, or why no frame can be made. */
int hl_read_frame_state(struct hl_tracee *tracee);

/* The frame's size, and its contents for the address AT: with AT as its stack pointer, a call of ours returns to the code that
   restores the thread. */
size_t hl_get_frame_bytes(const struct hl_tracee *tracee);
void hl_fill_frame(char *frame, const struct hl_tracee *tracee, uint64_t at);

/* Sets R to registers with which TRACEE makes the call NUMBER. */
void hl_set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                 const uint64_t argument[6]);
/* Whether INFO, of a thread that enters a call, shows the call that WANTED makes. */
bool hl_is_call(const struct __ptrace_syscall_info *info, const struct user_regs_struct *wanted);
/* Cancels the call that TRACEE has entered. */
void hl_cancel_call(const struct hl_tracee *tracee);
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

/* Fills FRAME to restore REGISTERS, on AArch64 only their sp, pc and pstate, and the signal MASK; all other registers, the
   vector registers among them, are then as execve(2) leaves them.  BACK: the address to which a call returns, if the frame has
   that. */
void hl_begin_frame(struct hl_frame *frame, uint64_t back, const struct user_regs_struct *registers,
                    uint64_t mask);

#endif
