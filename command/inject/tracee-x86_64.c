/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* inject/attach-tracee.c's machine: x86-64.

   A thread that is stopped in a system call has been thrown out of it.  The kernel lets most calls begin again, if it finds
   registers as it left them at a stop of its own making (never after a call of ours); so they are restored at such a stop.
   Calls in inject/calls.c that end with EINTR get the result of calls that begin again unless a handler runs: the kernel does the
   rest, whenever a signal comes. */
#include "command/inject/machine.h"
#include "command/lib/basics.h"

#if defined __x86_64__

#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <linux/audit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define XSAVE_MAX 65536
#define USER_CS 0x33 /* arch/x86/include/asm/segment.h */
/* Offsets in XSAVE's area, and features of it (Intel SDM 1, 13.4). */
#define XSAVE_SOFTWARE_AT 464
#define XSAVE_HEADER_AT 512
#define XSAVE_LEGACY_BYTES 576
#define AMX_FEATURES ((uint64_t)3 << 17)
/* arch/x86/include/uapi/asm/sigcontext.h, ucontext.h */
#define FRAME_MAGIC1 0x46505853u
#define FRAME_MAGIC2 0x46505845u
#define FRAME_HAS_XSTATE 1
#define FRAME_HAS_SS 6 /* UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS */

/* syscall; ret */
const struct hl_code hl_call_code = {3, "\x0f\x05\xc3"};
/* mov $__NR_rt_sigreturn, %rax (glibc, musl, Go) or %eax; syscall */
const struct hl_code hl_back_codes[HL_BACK_CODES] = {{9, "\x48\xc7\xc0\x0f\0\0\0\x0f\x05"},
                                                     {7, "\xb8\x0f\0\0\0\x0f\x05"}};

/* --- stopping --- */

static struct hl_call call_of(const struct user_regs_struct *r) {
    return (struct hl_call){(long)r->orig_rax, {r->rdi, r->rsi, r->rdx, r->r10, r->r8, r->r9}};
}

void hl_put_rest_back(const struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (tracee->rest == 0 || hl_read_registers(tracee->pid, &registers) != 0)
        return;
    struct hl_call now = call_of(&registers);
    if ((int64_t)registers.rax == -HL_RESTART_BLOCK &&
        memcmp(now.argument, tracee->interrupted.argument, sizeof now.argument) == 0)
        hl_write_tracee(tracee, tracee->rest, tracee->rest_bytes, HL_REST_BYTES);
}

/* A call with a timeout that was interrupted once goes on as restart_syscall, and if we die the kernel does not know the call
   any more: sigreturn makes it forget.  The number stands before the syscall instruction, in most programs: mov $NUMBER, %eax;
   syscall. */
long hl_find_restarted(pid_t tid, uint64_t pc) {
    unsigned char code[7];
    uint32_t number;
    if (hl_read_thread(tid, pc - sizeof code, code, sizeof code) != 0 || code[0] != 0xb8 || code[5] != 0x0f ||
        code[6] != 0x05)
        return SYS_restart_syscall;
    memcpy(&number, code + 1, sizeof number);
    return (long)number;
}

/* --- the frame --- */

/* The features in XCR0 that a signal frame has: all that need no permission, up to the end of the last one. */
static size_t frame_xsave_bytes(uint64_t features) {
    unsigned bytes, at, c, d;
    size_t end = XSAVE_LEGACY_BYTES;
    for (unsigned i = 2; i < 63; i++) {
        if (!(features >> i & 1) || !__get_cpuid_count(0xd, i, &bytes, &at, &c, &d))
            continue;
        if (at + bytes > end)
            end = at + bytes;
    }
    return end;
}

/* The vector registers lie behind the rest. */
#define HEAD_BYTES hl_round_up(sizeof(struct hl_frame), 64)

/* Converts the registers that ptrace shows to those of a signal frame. */
static int read_xsave(struct hl_tracee *tracee) {
    uint64_t features, used;
    tracee->vectors = hl_xmalloc(XSAVE_MAX + 64);
    struct iovec data = {tracee->vectors, XSAVE_MAX};
    int result = hl_trace(tracee->pid, PTRACE_GETREGSET, NT_X86_XSTATE, (uintptr_t)&data);
    if (result != 0)
        return result;
    memcpy(&features, tracee->vectors + XSAVE_SOFTWARE_AT, sizeof features);
    memcpy(&used, tracee->vectors + XSAVE_HEADER_AT, sizeof used);
    if (used & AMX_FEATURES)
        return HL_REASON_ATTACH_AMX;
    features &= ~AMX_FEATURES;
    size_t bytes = frame_xsave_bytes(features);
    if (bytes > data.iov_len)
        return -EINVAL;
    struct {
        uint32_t magic, extended_bytes;
        uint64_t features;
        uint32_t bytes, padding[7];
    } software = {FRAME_MAGIC1, (uint32_t)(bytes + sizeof(uint32_t)), features, (uint32_t)bytes, {0}};
    const uint32_t end = FRAME_MAGIC2;
    memcpy(tracee->vectors + XSAVE_SOFTWARE_AT, &software, sizeof software);
    memcpy(tracee->vectors + bytes, &end, sizeof end);
    tracee->frame_bytes = HEAD_BYTES + hl_round_up(bytes + sizeof end, 64);
    return 0;
}

static bool is_in_system_call(const struct user_regs_struct *registers) {
    return (int64_t)registers->orig_rax >= 0;
}

/* Sets REGISTERS so that the thread makes its interrupted call again, if any: for sigreturn, after which the kernel does not
   know of it. */
static void rewind_call(struct user_regs_struct *registers) {
    int64_t result = (int64_t)registers->rax;
    struct hl_call call = call_of(registers);
    if (!is_in_system_call(registers))
        return;
    if (result == -HL_RESTART_SYS || result == -HL_RESTART_NOINTR || result == -HL_RESTART_NOHAND ||
        result == -HL_RESTART_BLOCK || (result == -EINTR && hl_find_again(&call, NULL) != HL_AGAIN_UNKNOWN)) {
        registers->rax = registers->orig_rax;
        registers->rip -= 2;
        registers->orig_rax = (uint64_t)-1;
    }
}

/* Lets the kernel do that, unless a handler is to run: then the call ends with EINTR, as it would have without us.  If the rest
   of a timeout counts, the kernel knows it already. */
static bool let_begin_again(struct user_regs_struct *registers) {
    struct hl_call call = call_of(registers);
    int64_t result = (int64_t)registers->rax;
    if (!is_in_system_call(registers) || (result != -EINTR && result != -HL_RESTART_BLOCK))
        return false;
    enum hl_again again = hl_find_again(&call, NULL);
    if (again == HL_AGAIN_UNKNOWN || (result == -HL_RESTART_BLOCK && again != HL_AGAIN_WHOLE))
        return false;
    registers->rax = (uint64_t)-HL_RESTART_NOHAND;
    return true;
}

bool hl_runs_32_bit(const struct user_regs_struct *registers) { return registers->cs != USER_CS; }

/* A thread that has just been woken may be in a critical section of rseq(2), which would not survive that it runs elsewhere meanwhile. */
int hl_read_frame_state(struct hl_tracee *tracee) {
    return is_in_system_call(&tracee->registers) ? read_xsave(tracee) : HL_REASON_ATTACH_UNFIT;
}

void hl_begin_frame(struct hl_frame *frame, uint64_t back, const struct user_regs_struct *registers,
                    uint64_t mask) {
    *frame = (struct hl_frame){
        .back = back,
        .flags = FRAME_HAS_SS,
        .stack_flags = HL_NO_ALTERNATE_STACK,
        .r8 = registers->r8,
        .r9 = registers->r9,
        .r10 = registers->r10,
        .r11 = registers->r11,
        .r12 = registers->r12,
        .r13 = registers->r13,
        .r14 = registers->r14,
        .r15 = registers->r15,
        .rdi = registers->rdi,
        .rsi = registers->rsi,
        .rbp = registers->rbp,
        .rbx = registers->rbx,
        .rdx = registers->rdx,
        .rax = registers->rax,
        .rcx = registers->rcx,
        .rsp = registers->rsp,
        .rip = registers->rip,
        .eflags = registers->eflags,
        .cs = (uint16_t)registers->cs,
        .ss = (uint16_t)registers->ss,
        .mask = mask,
    };
}

void hl_fill_frame(char *frame, const struct hl_tracee *tracee, uint64_t at) {
    struct user_regs_struct r = tracee->registers;
    if (r.orig_rax == SYS_restart_syscall)
        r.orig_rax = (uint64_t)hl_find_restarted(tracee->pid, r.rip);
    if (r.orig_rax == SYS_restart_syscall && (int64_t)r.rax == -HL_RESTART_BLOCK)
        r.rax = (uint64_t)-EINTR; /* the number of that call is unknown */
    else
        rewind_call(&r);
    struct hl_frame head;
    hl_begin_frame(&head, tracee->gadgets.back, &r, tracee->mask);
    head.flags |= FRAME_HAS_XSTATE;
    head.xsave = at + HEAD_BYTES;
    memcpy(frame, &head, sizeof head);
    memcpy(frame + HEAD_BYTES, tracee->vectors, tracee->frame_bytes - HEAD_BYTES);
}

/* --- calls --- */

void hl_set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                 const uint64_t argument[6]) {
    *r = tracee->registers;
    r->rip = tracee->gadgets.call;
    r->rsp = tracee->stack;
    r->rax = (uint64_t)number;
    r->orig_rax = (uint64_t)-1;
    r->rdi = argument[0];
    r->rsi = argument[1];
    r->rdx = argument[2];
    r->r10 = argument[3];
    r->r8 = argument[4];
    r->r9 = argument[5];
    r->eflags &= ~UINT64_C(0x500); /* neither single steps nor a direction backwards */
}

bool hl_is_call(const struct __ptrace_syscall_info *info, const struct user_regs_struct *wanted) {
    const uint64_t argument[6] = {wanted->rdi, wanted->rsi, wanted->rdx, wanted->r10, wanted->r8, wanted->r9};
    return info->arch == AUDIT_ARCH_X86_64 && info->instruction_pointer == wanted->rip + 2 &&
           info->stack_pointer == wanted->rsp && info->entry.nr == wanted->rax &&
           memcmp(info->entry.args, argument, sizeof argument) == 0;
}

long hl_get_result(const struct user_regs_struct *registers) { return (long)registers->rax; }

/* --- the end --- */

/* The mask goes first: without us the frame still restores the rest. */
int hl_put_back(struct hl_tracee *tracee) {
    hl_trace(tracee->pid, PTRACE_SETSIGMASK, sizeof tracee->mask, (uintptr_t)&tracee->mask);
    let_begin_again(&tracee->registers);
    return hl_write_registers(tracee->pid, &tracee->registers);
}

void hl_let_begin_again(const struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (hl_read_registers(tracee->pid, &registers) == 0 && let_begin_again(&registers))
        hl_write_registers(tracee->pid, &registers);
}

#endif
