/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* trace/tracee.c's machine: AArch64.

   When a thread is stopped in a system call, the kernel has decided already whether that begins again: pc is at the svc again, or
   x0 is -EINTR; ptrace(2) shows no more of the call, and after a call of ours the kernel does not know of it either.  So the
   thread enters its own call once more, with another stop asked for.  At the entry the kernel says which call it is, and with
   which arguments; one that is not the call in which the thread was seen asleep goes on from there.  At the end, where the call has
   not slept because of the stop, it says in x0 how the call would begin again.  That is where a thread makes calls for us.

   To put it back, it calls getpid(2), which ignores its arguments, with the first argument of its own call: the kernel keeps that.
   At the end of getpid it gets its registers as they were at the end of its own call, and when it is let go the kernel decides
   again, as if it came from there: with a handler to be run, or none.

   A call that ends with EINTR has to be entered again from behind the svc.  No handler may have run since the thread was seen
   asleep in it, since EINTR would tell the program of that.  Signals come to a tracer first, so the thread is looked at once
   more after it is ours.  Its first argument is lost: newer kernels show x0 as it is now in /proc/TID/syscall, too.  So of the
   calls that end so, trace/calls.c lists only those whose first argument can be no other. */
#include "command/trace/machine.h"
#include "command/trace/registers.h"
#include "command/base/basics.h"

#if defined __aarch64__

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

/* How long a traced thread may take to be in its call again. */
#define LOOK_MS 20.0
#define LOOK_US INT64_C(500)
/* include/uapi/linux/elf.h, and the words of these register sets that are read (arch/arm64/include/uapi/asm/ptrace.h) */
#define SYSTEM_CALL_SET 0x404
#define STREAMING_VECTORS_SET 0x40b
#define MATRIX_SET 0x40c
#define CONTROL_STACK_SET 0x410
#define VECTORS_ARE_SCALABLE 1
/* arch/arm64/include/uapi/asm/hwcap.h: HWCAP2_POE */
#define HAS_OVERLAYS (UINT64_C(1) << 63)
/* arch/arm64/include/uapi/asm/sigcontext.h: the record of vector registers, without which a frame is refused. */
#define VECTORS_MAGIC 0x46508001
/* PSTATE: where a branch came from (BTI), and a single step. */
#define BRANCH_AND_STEP ((uint64_t)3 << 10 | (uint64_t)1 << 21)
#define SVC UINT32_C(0xd4000001)
#define INSTRUCTION_BYTES UINT64_C(4)

/* svc #0; ret */
const struct hl_code hl_call_code = {8, "\x01\0\0\xd4\xc0\x03\x5f\xd6"};
/* mov x8, #139; svc #0: the vdso's */
const struct hl_code hl_back_codes[HL_BACK_CODES] = {{8, "\x68\x11\x80\xd2\x01\0\0\xd4"}};

/* Whether sigreturn writes POR_EL0 even if the frame has no record of it, as some kernels do (Linux 6.12 and later). */
static bool has_overlays(void) { return (getauxval(AT_HWCAP2) & HAS_OVERLAYS) != 0; }

int hl_check_attach_machine(void) { return has_overlays() ? HL_REASON_ATTACH_STATE : 0; }

int hl_check_exec_stop_machine(void) { return has_overlays() ? HL_REASON_EXEC_OVERLAYS : 0; }

/* --- the thread's call --- */

static bool read_instruction(pid_t tid, uint64_t at, uint32_t *instruction) {
    return hl_read_thread(tid, at, instruction, sizeof *instruction) == 0;
}

/* The call of TRACEE, which does not run, from /proc: its number, its arguments, its stack and the address behind the svc. */
static bool read_call(const struct hl_tracee *tracee, struct hl_call *call, uint64_t *stack, uint64_t *pc) {
    char text[256], *path = hl_xasprintf("/proc/%d/task/%d/syscall", tracee->pid, tracee->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    uint64_t *a = call->argument;
    free(path);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%ld %lx %lx %lx %lx %lx %lx %lx %lx", &call->number, &a[0], &a[1], &a[2], &a[3],
                  &a[4], &a[5], stack, pc) == 9;
}

/* Whether the call NUMBER with ARGUMENT is the one in which TRACEE was to be stopped: the same, or the rest of it. */
static bool is_its_call(const struct hl_tracee *tracee, long number, const uint64_t *argument) {
    return (number == tracee->call.number || number == SYS_restart_syscall) &&
           memcmp(argument, tracee->call.argument, sizeof tracee->call.argument) == 0;
}

/* The thread may have left the call since, and mostly is there again soon.  It is looked at once even if we are late, as it
   would be interrupted for nothing otherwise. */
void hl_look_before_stop(struct hl_tracee *tracee) {
    struct hl_call now;
    double begun = hl_now_ms();
    if (tracee->call.number < 0)
        return;
    do {
        if (read_call(tracee, &now, &tracee->seen.stack, &tracee->seen.pc) &&
            is_its_call(tracee, now.number, now.argument)) {
            tracee->seen.is_asleep = true;
            return;
        }
        int status, result = hl_await_stop(tracee, &status, LOOK_US);
        if (result == 0 && hl_is_event(status)) { /* its process is stopped */
            hl_trace(tracee->tid, PTRACE_LISTEN, 0, 0);
            return;
        }
        if (result == 0)
            hl_trace(tracee->tid, PTRACE_CONT, 0, (uintptr_t)WSTOPSIG(status));
        else if (result == -ESRCH)
            return;
    } while (hl_now_ms() - begun < LOOK_MS);
}

/* MOV X8, #NUMBER; SVC #0 */
long hl_find_restarted(pid_t tid, uint64_t pc) {
    uint32_t instruction;
    if (!read_instruction(tid, pc - 2 * INSTRUCTION_BYTES, &instruction) ||
        (instruction & UINT32_C(0x7fe0001f)) != UINT32_C(0x52800008))
        return SYS_restart_syscall;
    return (long)(instruction >> 5 & 0xffff);
}

/* --- stopping --- */

/* Whether REGISTERS are TRACEE's at the svc of the call in which it was seen, or behind it, as pc says. */
static bool is_where_seen(const struct hl_tracee *tracee, const struct user_regs_struct *registers) {
    uint32_t instruction;
    return tracee->seen.is_asleep && registers->sp == tracee->seen.stack &&
           ((long)registers->regs[8] == tracee->call.number || registers->regs[8] == SYS_restart_syscall) &&
           memcmp(registers->regs + 1, tracee->call.argument + 1, 5 * sizeof registers->regs[0]) == 0 &&
           read_instruction(tracee->tid, tracee->seen.pc - INSTRUCTION_BYTES, &instruction) &&
           instruction == SVC;
}

/* Whether that call would begin again if it went on. */
static bool begins_again(const struct hl_tracee *tracee, const struct user_regs_struct *registers) {
    return registers->pc == tracee->seen.pc - INSTRUCTION_BYTES &&
           registers->regs[0] == tracee->call.argument[0];
}

/* Whether that call has ended because of the stop, and for no other reason. */
static bool has_ended(const struct hl_tracee *tracee, const struct user_regs_struct *registers) {
    return registers->pc == tracee->seen.pc && (int64_t)registers->regs[0] == -EINTR &&
           (long)registers->regs[8] == tracee->call.number && !tracee->ran_handler;
}

static int let_go_on(struct hl_tracee *tracee, uintptr_t signal, int why) {
    hl_trace(tracee->tid, PTRACE_DETACH, 0, signal);
    tracee->stage = HL_TRACEE_GONE;
    return why;
}

/* The thread was about to enter its call, but another stop comes first.  If a handler is to run then, a call that had ended has
   still ended. */
static int give_way(struct hl_tracee *tracee, int status, struct user_regs_struct *ended) {
    int signal = hl_is_event(status) ? 0 : WSTOPSIG(status);
    if (ended != NULL && signal != 0 && hl_catches(tracee, signal))
        hl_write_registers(tracee->tid, ended);
    return let_go_on(tracee, (uintptr_t)signal,
                     hl_is_event(status) ? HL_REASON_ATTACH_STOPPED : HL_REASON_ATTACH_UNFIT);
}

/* Whether the thread is at the stop OP of a call, and at an entry, whether the call is its own: *NUMBER. */
static bool is_at(const struct hl_tracee *tracee, int op, long *number) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tracee->tid, sizeof info, &info) <= 0 || info.op != op)
        return false;
    if (op != PTRACE_SYSCALL_INFO_ENTRY)
        return true;
    *number = (long)info.entry.nr;
    return info.arch == AUDIT_ARCH_AARCH64 && info.instruction_pointer == tracee->seen.pc &&
           is_its_call(tracee, *number, info.entry.args);
}

/* Undoes the kernel's write of the remaining time of a sleep, since the sleep goes on. */
static void put_rest_back(struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (tracee->rest == 0 || hl_open_memory(tracee) != 0)
        return;
    if (hl_read_registers(tracee->tid, &registers) == 0) /* so it was this thread's memory */
        hl_write_tracee(tracee, tracee->rest, tracee->rest_bytes, HL_REST_BYTES);
    hl_close_memory(tracee);
}

/* 0: its own call has just ended because of the stop, as REGISTERS say. */
static int enter_again(struct hl_tracee *tracee, struct user_regs_struct *registers,
                       struct user_regs_struct *ended) {
    int status, result = hl_trace(tracee->tid, PTRACE_SYSCALL, 0, 0);
    long number = -1;
    if (result == 0)
        result = hl_await_late_stop(tracee, &status, HL_STOP_US);
    if (result == 0 && status >> 8 != (SIGTRAP | 0x80))
        return give_way(tracee, status, ended);
    if (result == 0 && !is_at(tracee, PTRACE_SYSCALL_INFO_ENTRY, &number))
        return let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
    if (number == SYS_restart_syscall)
        put_rest_back(tracee);
    if (result == 0)
        result = hl_trace(tracee->tid, PTRACE_INTERRUPT, 0, 0);
    if (result == 0)
        result = hl_trace(tracee->tid, PTRACE_SYSCALL, 0, 0);
    if (result == 0)
        result = hl_await_late_stop(tracee, &status, HL_STOP_US);
    if (result == 0 && (status >> 8 != (SIGTRAP | 0x80) || !is_at(tracee, PTRACE_SYSCALL_INFO_EXIT, NULL)))
        return give_way(tracee, status, NULL);
    if (result == 0)
        result = hl_read_registers(tracee->tid, registers);
    if (result != 0) {
        tracee->stage = HL_TRACEE_GONE; /* it has ended, or goes on when the calling thread ends */
        return result;
    }
    int64_t error = -(int64_t)registers->regs[0];
    bool can_begin = error == HL_RESTART_SYS || error == HL_RESTART_NOINTR || error == HL_RESTART_NOHAND ||
                     error == HL_RESTART_BLOCK || (error == EINTR && number == tracee->call.number);
    return can_begin ? 0 : let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
}

int hl_settle_stop(struct hl_tracee *tracee) {
    struct user_regs_struct registers, again;
    if (hl_read_registers(tracee->tid, &registers) != 0)
        return let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
    if (!is_where_seen(tracee, &registers)) {
        if (registers.regs[8] == SYS_restart_syscall && /* in the same sleep, or the next one */
            memcmp(registers.regs, tracee->call.argument, sizeof tracee->call.argument) == 0)
            put_rest_back(tracee);
        return let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
    }
    bool ended = has_ended(tracee, &registers);
    if (!ended && !begins_again(tracee, &registers))
        return let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
    again = registers;
    if (ended) {
        again.pc -= INSTRUCTION_BYTES;
        again.regs[0] = tracee->call.argument[0];
    }
    if (ended && hl_write_registers(tracee->tid, &again) != 0)
        return let_go_on(tracee, 0, HL_REASON_ATTACH_UNFIT);
    tracee->seen.seventh = registers.regs[7];
    int result = enter_again(tracee, &again, ended ? &registers : NULL);
    if (result == 0 && (int64_t)again.regs[0] == -HL_RESTART_BLOCK)
        put_rest_back(tracee);
    return result;
}

/* --- the frame --- */

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

/* The first words of the register set SET; zeros if the machine or the kernel does not have it. */
static void read_head(const struct hl_tracee *tracee, unsigned set, void *head, size_t bytes) {
    struct iovec data = {head, bytes};
    memset(head, 0, bytes);
    if (hl_trace(tracee->tid, PTRACE_GETREGSET, set, (uintptr_t)&data) != 0)
        memset(head, 0, bytes);
}

/* A call keeps no more of SVE's registers than the frame has, and it ends streaming mode, but not the use of SME's matrix. */
int hl_read_frame_state(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    struct user_fpsimd_struct vectors;
    struct iovec data = {&vectors, sizeof vectors};
    uint64_t control_stack[3];
    struct {
        uint32_t bytes, max_bytes;
        uint16_t vector_bytes, max_vector_bytes, flags, reserved;
    } streaming, matrix;
    read_head(tracee, CONTROL_STACK_SET, control_stack, sizeof control_stack);
    read_head(tracee, STREAMING_VECTORS_SET, &streaming, sizeof streaming);
    read_head(tracee, MATRIX_SET, &matrix, sizeof matrix);
    if (control_stack[0] != 0)
        return HL_REASON_ATTACH_SHADOW_STACK;
    if ((streaming.flags & VECTORS_ARE_SCALABLE) || matrix.bytes > sizeof matrix)
        return HL_REASON_ATTACH_STATE;
    int result = hl_trace(tracee->tid, PTRACE_GETREGSET, NT_PRFPREG, (uintptr_t)&data);
    if (result != 0)
        return result;
    struct vectors *record = hl_xmalloc(sizeof *record);
    *record = (struct vectors){VECTORS_MAGIC, sizeof *record, vectors.fpsr, vectors.fpcr, {0}};
    memcpy(record->v, vectors.vregs, sizeof record->v);
    state->vectors = (char *)record;
    state->vector_bytes = sizeof *record;
    state->registers.regs[7] = tracee->seen.seventh; /* at this stop x7 is the kernel's */
    return 0;
}

size_t hl_get_frame_bytes(const struct hl_tracee *tracee) {
    (void)tracee;
    return hl_round_up(sizeof(struct hl_frame), 64);
}

void hl_begin_frame(struct hl_frame *frame, uint64_t back, const struct user_regs_struct *registers,
                    uint64_t mask) {
    (void)back;
    const struct vectors head = {.magic = VECTORS_MAGIC, .bytes = sizeof head};
    memset(frame, 0, sizeof *frame);
    frame->context.uc_stack.ss_flags = HL_NO_ALTERNATE_STACK;
    frame->context.uc_mcontext.sp = registers->sp;
    frame->context.uc_mcontext.pc = registers->pc;
    frame->context.uc_mcontext.pstate = registers->pstate;
    memcpy(frame->context.uc_mcontext.__reserved, &head, sizeof head);
    memcpy(&frame->context.uc_sigmask, &mask, sizeof mask);
}

/* The thread's own call begins anew. */
void hl_fill_frame(char *frame, const struct hl_tracee *tracee, uint64_t at) {
    const struct hl_tracee_state *state = tracee->state;
    struct hl_frame *to = (struct hl_frame *)(void *)frame;
    mcontext_t *context = &to->context.uc_mcontext;
    (void)at;
    hl_begin_frame(to, tracee->gadgets.back, &state->registers, state->mask);
    memcpy(context->regs, state->registers.regs, sizeof context->regs);
    context->regs[0] = tracee->call.argument[0];
    context->regs[8] = (uint64_t)tracee->call.number;
    context->pc -= INSTRUCTION_BYTES;
    memcpy(context->__reserved, state->vectors, state->vector_bytes);
}

/* --- calls --- */

void hl_set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                 const uint64_t argument[6]) {
    *r = tracee->state->registers;
    hl_set_call_registers(r, &tracee->gadgets, tracee->state->stack, number, argument);
    r->pstate &= ~BRANCH_AND_STEP;
}

bool hl_is_call(const struct __ptrace_syscall_info *info, const struct user_regs_struct *wanted) {
    return info->arch == AUDIT_ARCH_AARCH64 && info->instruction_pointer == wanted->pc + INSTRUCTION_BYTES &&
           info->stack_pointer == wanted->sp && info->entry.nr == wanted->regs[8] &&
           memcmp(info->entry.args, wanted->regs, sizeof info->entry.args) == 0;
}

void hl_cancel_call(const struct hl_tracee *tracee) {
    int none = -1;
    struct iovec data = {&none, sizeof none};
    hl_trace(tracee->tid, PTRACE_SETREGSET, SYSTEM_CALL_SET, (uintptr_t)&data);
}

long hl_get_result(const struct user_regs_struct *registers) { return (long)registers->regs[0]; }

/* --- the end --- */

/* Sets REGISTERS, at the end of the thread's call, so that the call begins again unless a handler runs.  A call with an absolute
   timeout begins as it was; one with another timeout goes on with the rest of it as restart_syscall, which the kernel puts into
   x8. */
static void let_begin(const struct hl_tracee *tracee, struct user_regs_struct *registers) {
    int64_t error = -(int64_t)registers->regs[0];
    if (error != EINTR && error != HL_RESTART_BLOCK)
        return;
    if (error == HL_RESTART_BLOCK && hl_find_again(&tracee->call) != HL_AGAIN_WHOLE)
        return;
    registers->regs[0] = (uint64_t)-HL_RESTART_NOHAND;
    registers->regs[8] = (uint64_t)tracee->call.number;
}

/* The order matters: without us the frame restores the thread until its registers are set, and then the stop that was asked for
   lets the kernel look at them. */
int hl_put_back(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    struct user_regs_struct registers = state->registers;
    const uint64_t argument[6] = {tracee->call.argument[0]};
    long pid;
    int result = hl_make_call(tracee, &pid, SYS_getpid, argument);
    if (result == 0)
        result = hl_trace(tracee->tid, PTRACE_SETSIGMASK, sizeof state->mask, (uintptr_t)&state->mask);
    if (result == 0)
        result = hl_trace(tracee->tid, PTRACE_INTERRUPT, 0, 0);
    let_begin(tracee, &registers);
    return result == 0 ? hl_write_registers(tracee->tid, &registers) : result;
}

void hl_let_begin_again(const struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (hl_read_registers(tracee->tid, &registers) != 0)
        return;
    registers.regs[7] = tracee->seen.seventh; /* at this stop x7 is the kernel's */
    let_begin(tracee, &registers);
    hl_write_registers(tracee->tid, &registers);
}

#endif
