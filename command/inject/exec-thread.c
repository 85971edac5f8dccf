/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process between execve(2) and its first instruction, which makes system calls for its tracer.

   It has one thread, no signal handlers, and registers and a stack as the kernel has just set them.  So it needs no other stack and
   no saved state beside these registers.  Before its first call a signal frame is written below its stack pointer, and each call
   begins at a system call instruction that is followed by a return, with that frame as its stack and sigreturn(2) as its return
   address (see inject/attach-tracee.c, which does the same to threads that run).  If its tracer dies, even by SIGKILL, the call under way
   ends and the frame begins the program.

   Calls whose results do not matter need no stop: when the thread is let go, each returns to a frame that makes the next one.

   On AArch64 the return address is in x30, and the vdso calls sigreturn, since glibc has no such code.  While a thread is stopped
   at a call, x7 is the kernel's: 0 or 1 is read there, and a value written there is lost. execve(2) leaves zeros in x0 to x30 and
   in the vector registers.  So a frame with zeros in the plain record of these restores them, whatever else the processor has (SVE,
   SME): registers without a record stay as execve left them.  When a signal comes at the end of a call, the kernel looks whether
   x0, by then the first argument of the next one, is one of -ERESTARTSYS and its like: no argument of ours is.  A return needs no
   landing pad (BTI), nor a signature where the instruction before does not ask for one, and execve switches a guarded control stack
   (GCS) off.

   Signals are not blocked: a signal either ends or stops the process, as it would have without a tracer, or is ignored.  There
   is no single-stepping, since its SIGTRAP would reset an ignored one (ptrace(2) with PTRACE_SYSCALL stops without a signal). */
#include "command/inject/machine.h"
#include "command/inject/exec-stop.h"
#include "command/lib/basics.h"
#include "elf/sys.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS (PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD)
#define RED_ZONE_BYTES 128
#define CHILD_SIGNAL (UINT64_C(1) << (SIGCHLD - 1))

/* The traced process runs meanwhile, and may share errno with this one. */
int hl_seize_exec_thread(pid_t pid) { return (int)HL_CALL(__NR_ptrace, PTRACE_SEIZE, pid, 0, OPTIONS, 0, 0); }

/* Waits for the stop WANTED.  At any other stop PID is resumed by REQUEST, with the signals that it got meanwhile. */
static int await_stop(pid_t pid, int request, int wanted) {
    int status, result = 0;
    while (result == 0) {
        if (waitpid(pid, &status, __WALL) != pid) {
            if (errno != EINTR)
                return -errno;
            continue;
        }
        if (!WIFSTOPPED(status))
            return -ESRCH;
        if (status >> 8 == wanted)
            return 0;
        /* A stop for the whole process takes effect when it is let go. */
        bool is_signal = status >> 16 == 0 && WSTOPSIG(status) != (SIGTRAP | 0x80);
        result = hl_trace(pid, request, 0, is_signal ? (uintptr_t)WSTOPSIG(status) : 0);
    }
    return result;
}

/* Runs the process until it enters or leaves a system call. */
static int run_to_call(pid_t pid) {
    int result = hl_trace(pid, PTRACE_SYSCALL, 0, 0);
    return result == 0 ? await_stop(pid, PTRACE_SYSCALL, SIGTRAP | 0x80) : result;
}

/* The process is running, so the first stop is waited for without a resumption. */
int hl_await_exec_stop(struct hl_tracee *thread) {
    return await_stop(thread->pid, PTRACE_CONT, SIGTRAP | PTRACE_EVENT_EXEC << 8);
}

int hl_write_exec_thread(struct hl_tracee *thread, uint64_t at, const void *from, size_t bytes) {
    struct iovec local = {(void *)(uintptr_t)from, bytes}, remote = {(void *)(uintptr_t)at, bytes};
    return hl_check_transfer(process_vm_writev(thread->pid, &local, 1, &remote, 1, 0), bytes);
}

/* --- differences between machines --- */

#if defined __x86_64__

static uint64_t get_start(const struct user_regs_struct *registers) { return registers->rip; }
static uint64_t get_stack(const struct user_regs_struct *registers) { return registers->rsp; }

int hl_set_exec_return(struct hl_tracee *thread, uint64_t back) {
    return hl_write_exec_thread(thread, thread->stack + offsetof(struct hl_frame, back), &back, sizeof back);
}

#define START_OFFSET offsetof(struct hl_frame, rip)

#elif defined __aarch64__

static uint64_t get_start(const struct user_regs_struct *registers) { return registers->pc; }
static uint64_t get_stack(const struct user_regs_struct *registers) { return registers->sp; }

/* The return address is in x30 for every call. */
int hl_set_exec_return(struct hl_tracee *thread, uint64_t back) {
    (void)thread, (void)back;
    return 0;
}

#define START_OFFSET offsetof(struct hl_frame, context.uc_mcontext.pc)

#endif

/* --- calls --- */

int hl_set_exec_start(struct hl_tracee *thread, uint64_t start) {
    return hl_write_exec_thread(thread, thread->stack + START_OFFSET, &start, sizeof start);
}

int hl_bind_exec_thread(struct hl_tracee *thread, bool is_bound) {
    return hl_trace(thread->pid, PTRACE_SETOPTIONS, 0, OPTIONS | (is_bound ? PTRACE_O_EXITKILL : 0));
}

/* Makes this call the next action of the thread; it runs none of its own instructions before. */
static int set_call(struct hl_tracee *thread, long number, const uint64_t argument[6]) {
    struct user_regs_struct registers;
    hl_set_call(thread, &registers, number, argument);
    return hl_write_registers(thread->pid, &registers);
}

static int call_at_exec_stop(struct hl_tracee *thread, long *result, long number,
                             const uint64_t argument[6]) {
    struct user_regs_struct registers;
    int error = set_call(thread, number, argument);
    for (int i = 0; i < 2 && error == 0; i++) /* the entry, and the exit */
        error = run_to_call(thread->pid);
    if (error == 0)
        error = hl_read_registers(thread->pid, &registers);
    *result = error == 0 ? hl_get_result(&registers) : -1;
    return error;
}

int hl_arm_exec_thread(struct hl_tracee *thread) {
    struct hl_frame frame;
    int result = run_to_call(thread->pid); /* the end of execve(2) */
    if (result == 0)
        result = hl_read_registers(thread->pid, &thread->registers);
    if (result == 0)
        result = hl_trace(thread->pid, PTRACE_GETSIGMASK, sizeof thread->mask, (uintptr_t)&thread->mask);
    if (result == 0 && hl_runs_32_bit(&thread->registers))
        result = HL_REASON_ATTACH_32_BIT;
    if (result != 0)
        return result;
    thread->start = get_start(&thread->registers);
    thread->arguments = get_stack(&thread->registers);
    hl_begin_frame(&frame, thread->gadgets.back, &thread->registers, thread->mask);
    thread->stack = hl_round_down(thread->arguments - RED_ZONE_BYTES - sizeof frame, 64);
    thread->data = thread->stack - HL_TRACEE_DATA_BYTES;
    result = hl_write_exec_thread(thread, thread->stack, &frame, sizeof frame);
    if (result == 0) {
        thread->call = call_at_exec_stop;
        thread->stage = HL_TRACEE_ARMED;
    }
    return result;
}

void hl_end_exec_thread(struct hl_tracee *thread, int code) {
    long result;
    if (thread->stage != HL_TRACEE_ARMED ||
        hl_call(thread, &result, SYS_exit_group, (uint64_t)code, 0, 0, 0, 0, 0) != -ESRCH)
        kill(thread->pid, SIGKILL);
}

/* A child that was made before execve(2) sends SIGCHLD after it, whatever clone(2) was told.  Where it is blocked it would stay
   pending; so it is unblocked until the frame restores the mask.  Returns the mask until then. */
static uint64_t unblock_child_signal(const struct hl_tracee *thread) {
    const uint64_t mask = thread->mask & ~CHILD_SIGNAL;
    struct hl_task_status status;
    if (mask == thread->mask)
        return mask;
    hl_read_thread_status(&status, thread->pid, thread->pid);
    if ((status.pending | status.shared_pending) & CHILD_SIGNAL)
        return thread->mask;
    hl_trace(thread->pid, PTRACE_SETSIGMASK, sizeof mask, (uintptr_t)&mask);
    return mask;
}

void hl_call_later(struct hl_tracee *thread, long number, uint64_t a, uint64_t b) {
    long result;
    if (thread->n_later < HL_LATER_MAX - 1)
        thread->later[thread->n_later++] = (struct hl_call){number, {a, b}};
    else
        hl_call(thread, &result, number, a, b, 0, 0, 0, 0);
}

/* Makes the later calls, with the signal MASK, the next actions of the thread: each returns to sigreturn with a frame that makes the
   next one, and the last with the frame that begins the program.  These frames lie below the data, the last one highest. */
static int set_later_calls(struct hl_tracee *thread, uint64_t mask) {
    const uint64_t begins = thread->stack;
    struct user_regs_struct registers;
    struct hl_frame frame;
    uint64_t lowest = thread->data;
    int result = 0;
    for (unsigned i = thread->n_later; i-- > 0 && result == 0;) {
        hl_set_call(thread, &registers, thread->later[i].number, thread->later[i].argument);
        if (i == 0)
            break;
        hl_begin_frame(&frame, thread->gadgets.back, &registers, mask);
        thread->stack = lowest = hl_round_down(lowest - sizeof frame, 64);
        result = hl_write_exec_thread(thread, thread->stack, &frame, sizeof frame);
    }
    thread->stack = begins;
    return result == 0 ? hl_write_registers(thread->pid, &registers) : result;
}

/* The same, but for the last one now: there is no stack for the frames (RLIMIT_STACK). */
static void make_later_calls(struct hl_tracee *thread) {
    const struct hl_call *last = &thread->later[thread->n_later - 1];
    long result;
    for (const struct hl_call *call = thread->later; call < last; call++)
        thread->call(thread, &result, call->number, call->argument);
    set_call(thread, last->number, last->argument);
}

void hl_detach_exec_thread(struct hl_tracee *thread, pid_t child) {
    char zeros[HL_TRACEE_DATA_BYTES] = {0};
    if (thread->stage == HL_TRACEE_ARMED) {
        hl_write_exec_thread(thread, thread->data, zeros, sizeof zeros);
        uint64_t mask = unblock_child_signal(thread);
        thread->later[thread->n_later++] = (struct hl_call){SYS_wait4, {(uint64_t)child, 0, __WALL}};
        if (set_later_calls(thread, mask) != 0)
            make_later_calls(thread);
    }
    hl_trace(thread->pid, PTRACE_DETACH, 0, 0);
}
