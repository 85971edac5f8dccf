/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Borrows a thread of another process.

   The thread must come to no harm whatever happens to us, SIGKILL included, and the kernel lets a thread whose
   tracer dies simply run on from where it is.  So before it makes its first call for us, a signal frame is
   written for it, as the kernel writes one for a handler, and its stack pointer is set so that a call returns
   into what returns from handlers:

       low    data       arguments of calls
              &back      <- stack pointer while it is ours: the ret behind the syscall goes to sigreturn,
              ucontext      which takes registers, signal mask and
              siginfo       (unused)
              XSAVE         vector registers from here
       high   red zone, 128 bytes below the stack pointer that the thread had

   Each call sets the registers anew and begins at a syscall; ret that the process has somewhere.  Without us the
   call in progress ends, ret and sigreturn follow, and the thread goes on with what it was doing.

   Where the frame lies has to be memory that is not used, and no memory that could be used looks different from what
   is not: a coroutine's stack is as small as it could be made, a handler's may be an array on the stack that it
   interrupts, and both may be zeros.  So the process gets new memory for it: a write through /proc/PID/mem below the
   kernel's own stack, [stack], lets that grow.  There is a gap between, for what the first thread may need of it meanwhile.
   When the thread is let go, a pattern is left there, by which the next attach knows that it was not used since.

   A thread that is stopped in a system call has been thrown out of it.  The kernel lets most calls begin again,
   if it finds registers as it left them at a stop of its own making (never after a call of ours); so that is
   where they are restored.  Of what trace/calls.c has, those that end with EINTR are given the result of those that begin
   again unless a handler runs: the kernel does the rest, whenever a signal comes.

   Other threads of the process can write to its instructions, and a filter of its system calls (seccomp) may be suspended for
   ours.  So when a call is entered, its number, its arguments and the instruction are compared with what was meant.  If
   it is another one, its number becomes -1, a call that does nothing.  But a filter would judge that too; so where it is not
   suspended, and no more can be gained than without us, the call is left alone. */
#include "command/trace/tracee.h"
#include "command/trace/registers.h"
#include "command/base/basics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if defined __x86_64__

#include <cpuid.h>
#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Linux 6.4 */
#ifndef PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
#define PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG 0x4211
#endif

#define STOP_US INT64_C(500000)
/* A stop that comes sooner is waited for on the processor: falling asleep takes as long.  Longer than that the
   thread may be waiting for this processor. */
#define SPIN_US 20
/* Between two looks where no signal says that it has stopped. */
#define PAUSE_NS 1000000L
/* What is waited for longer than that, or twice that, ends. */
#define TICK_US 500000
/* How long a call may take, and what a thread may take for getting there, which in a frozen group is for ever. */
#define CALL_US INT64_C(60000000)
#define ENTER_US INT64_C(5000000)
/* What else is on the stack when a signal comes that cannot be blocked. */
#define SPARE_BYTES 8192
#define XSAVE_MAX 65536
/* What the first thread may take of [stack] while a frame lies at its end. */
#define GAP_BYTES 65536
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
/* A mode that sigaltstack(2) refuses, so that sigreturn leaves the alternate stack alone. */
#define NO_ALTERNATE_STACK 7
/* What the kernel returns inside of itself for calls that begin again (include/linux/errno.h). */
enum { RESTART_SYS = 512, RESTART_NOINTR = 513, RESTART_NOHAND = 514, RESTART_BLOCK = 516 };

/* struct rt_sigframe: what sigreturn reads. */
struct frame {
    uint64_t back;
    uint64_t flags, link;
    uint64_t stack_at, stack_flags, stack_bytes;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, cr2, xsave, reserved[8];
    uint64_t mask;
    char siginfo[128];
};

struct hl_tracee_state {
    struct user_regs_struct registers; /* as they were when it stopped */
    uint64_t mask;                     /* of signals */
    uint64_t stack;                    /* the stack pointer for calls; 0: it makes none */
    uint64_t low, high;                /* what was taken for it */
    bool suspends;                     /* no filter sees what it calls */
    siginfo_t held;                    /* a signal to be sent again; si_signo is 0: none */
    size_t xsave_bytes;
    char *xsave;
};

int hl_check_attach_machine(void) { return 0; }

/* --- memory --- */

static int result_of(ssize_t done, size_t bytes) {
    if (done < 0)
        return -errno;
    return (size_t)done == bytes ? 0 : -EFAULT;
}

int hl_read_tracee(const struct hl_tracee *tracee, uint64_t at, void *to, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)at, bytes};
    return result_of(process_vm_readv(tracee->tid, &local, 1, &remote, 1, 0), bytes);
}

/* When another thread executes a program, that gets the first thread's number.  So what is written goes to the memory
   that the thread had when it was stopped, and to none if that has ended. */
int hl_write_tracee(const struct hl_tracee *tracee, uint64_t at, const void *from, size_t bytes) {
    return result_of(pwrite(tracee->memory, from, bytes, (off_t)at), bytes);
}

static int open_memory(struct hl_tracee *tracee) {
    char *path = hl_xasprintf("/proc/%d/mem", tracee->tid);
    tracee->memory = open(path, O_RDWR | O_CLOEXEC);
    free(path);
    return tracee->memory >= 0 ? 0 : -errno;
}

static void close_memory(struct hl_tracee *tracee) {
    if (tracee->memory >= 0)
        close(tracee->memory);
    tracee->memory = -1;
}

/* --- instructions --- */

static const char call_code[] = "\x0f\x05\xc3";
static const char *const back_codes[] = {"\x48\xc7\xc0\x0f\0\0\0\x0f\x05", "\xb8\x0f\0\0\0\x0f\x05"};
static const size_t back_bytes[] = {9, 7};

static bool has_code(const struct hl_tracee *tracee, const struct hl_process *process, uint64_t at,
                     const char *code, size_t bytes) {
    char found[16];
    const struct hl_region *region = hl_find_region(process, at);
    return region != NULL && (region->flags & PF_X) && hl_read_tracee(tracee, at, found, bytes) == 0 &&
           memcmp(found, code, bytes) == 0;
}

/* They were found while the process ran. */
static bool are_there(const struct hl_gadgets *gadgets, const struct hl_tracee *tracee,
                      const struct hl_process *process) {
    bool can_return = false;
    for (size_t i = 0; i < 2; i++)
        can_return |= has_code(tracee, process, gadgets->back, back_codes[i], back_bytes[i]);
    return can_return && has_code(tracee, process, gadgets->call, call_code, sizeof call_code - 1);
}

/* 0, or what became of reading it. */
static int search_region(struct hl_gadgets *found, const struct hl_process *process,
                         const struct hl_region *region) {
    static const size_t chunk = 1 << 17, overlap = 16;
    const struct hl_tracee reader = {.tid = process->pid};
    char *bytes = hl_xmalloc(chunk);
    int result = 0;
    for (uint64_t at = region->start; at < region->end && (found->call == 0 || found->back == 0);) {
        size_t n = region->end - at < chunk ? region->end - at : chunk;
        result = hl_read_tracee(&reader, at, bytes, n);
        if (result != 0)
            break;
        const char *hit = found->call == 0 ? memmem(bytes, n, call_code, sizeof call_code - 1) : NULL;
        if (hit != NULL)
            found->call = at + (uint64_t)(hit - bytes);
        for (size_t i = 0; i < 2 && found->back == 0; i++) {
            hit = memmem(bytes, n, back_codes[i], back_bytes[i]);
            found->back = hit != NULL ? at + (uint64_t)(hit - bytes) : 0;
        }
        at += n > overlap ? n - overlap : n;
        if (n < chunk)
            break;
    }
    free(bytes);
    return result;
}

/* Both come from one object if that is possible: the libc, which is never unloaded. */
int hl_find_gadgets(struct hl_gadgets *gadgets, const struct hl_process *process,
                    bool (*avoid)(const void *data, const struct hl_region *region), const void *data) {
    struct hl_gadgets any = {0, 0};
    for (int avoided = 0; avoided < 2; avoided++) {
        for (size_t i = 0; i < process->n_regions; i++) {
            const struct hl_region *region = &process->region[i];
            bool is_vdso = strcmp(region->name, "[vdso]") == 0;
            if (region->flags != (PF_R | PF_X) || region->shared || (region->inode == 0 && !is_vdso) ||
                avoid(data, region) != (avoided == 1) || !hl_answers(process, region))
                continue;
            struct hl_gadgets here = {0, 0};
            if (search_region(&here, process, region) == -ESRCH)
                return -ESRCH; /* it ends */
            *gadgets = here;
            if (here.call != 0 && here.back != 0)
                return 0;
            any.call = any.call != 0 ? any.call : here.call;
            any.back = any.back != 0 ? any.back : here.back;
        }
        *gadgets = any;
        if (any.call != 0 && any.back != 0)
            return 0;
    }
    return HL_SKIP_ATTACH_INSTRUCTIONS;
}

/* --- stopping --- */

static long trace(const struct hl_tracee *tracee, int request, uintptr_t address, uintptr_t data) {
    return ptrace(request, tracee->tid, address, data) >= 0 ? 0 : -errno;
}

/* Until a child or a tracee changes its state, or a pause is over.  The signal is blocked. */
static void await_change(void) {
    sigset_t change;
    sigemptyset(&change);
    sigaddset(&change, SIGCHLD);
    sigtimedwait(&change, NULL, &(struct timespec){0, PAUSE_NS});
}

/* Waits for its next stop.  0: *STATUS is waitpid's; HL_SKIP_ATTACH_BUSY; or -ESRCH. */
static int await_stop(struct hl_tracee *tracee, int *status, int64_t patience_us) {
    for (double begun = hl_now_ms();;) {
        double waited_us = (hl_now_ms() - begun) * 1e3; /* before the look, which may be the last */
        pid_t tid = waitpid(tracee->tid, status, __WALL | __WNOTHREAD | WNOHANG);
        if (tid == tracee->tid && WIFSTOPPED(*status))
            return 0;
        if (tid != 0 && !(tid < 0 && errno == EINTR))
            break;
        if (waited_us >= (double)patience_us)
            return HL_SKIP_ATTACH_BUSY;
        if (waited_us < SPIN_US)
            sched_yield();
        else
            await_change();
    }
    tracee->stage = HL_TRACEE_GONE;
    return -ESRCH;
}

/* Whether STATUS is a stop of ptrace's own, which PTRACE_INTERRUPT asks for; a group stop names another
   signal. */
static bool is_event(int status) { return status >> 16 == PTRACE_EVENT_STOP; }

static bool is_our_stop(int status) { return is_event(status) && WSTOPSIG(status) == SIGTRAP; }

/* Lets the thread run until the stop that PTRACE_INTERRUPT asks for, with what signals it gets meanwhile. */
static int await_interrupt(struct hl_tracee *tracee, int64_t patience_us) {
    for (int status;;) {
        int result = await_stop(tracee, &status, patience_us);
        if (result != 0 || is_our_stop(status))
            return result;
        if (is_event(status))
            return HL_SKIP_ATTACH_STOPPED;
        result = (int)trace(tracee, PTRACE_CONT, 0, (uintptr_t)WSTOPSIG(status));
        if (result != 0)
            return result;
    }
}

static FILE *open_status(const struct hl_tracee *tracee) {
    char *path = hl_xasprintf("/proc/%d/task/%d/status", tracee->pid, tracee->tid);
    FILE *status = fopen(path, "re");
    free(path);
    return status;
}

/* Why the thread cannot be traced: it may have ended just now, or have a tracer. */
static int find_denial(const struct hl_tracee *tracee) {
    char line[256], state = 'X';
    int tracer = 0;
    FILE *status = open_status(tracee);
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "TracerPid: %d", &tracer);
    }
    if (status != NULL)
        fclose(status);
    return state == 'Z' || state == 'X' ? -ESRCH : tracer != 0 ? HL_SKIP_ATTACH_TRACED : -EPERM;
}

/* PTRACE_SEIZE waits until no thread of the process executes a program, which may wait for a file system that never answers;
   and after a signal the kernel begins again.  So ticks end it, the second one that comes meanwhile. */
static _Thread_local sigjmp_buf before_seizing;
static _Thread_local volatile sig_atomic_t ticks;

static void tick(int number) {
    (void)number;
    if (++ticks > 1)
        siglongjmp(before_seizing, 1);
}

static void set_clock(long us) {
    const struct timeval time = {us / 1000000, us % 1000000};
    setitimer(ITIMER_REAL, &(struct itimerval){time, time}, NULL);
}

void hl_begin_tracing(struct hl_tracing *before) {
    const struct sigaction usual = {.sa_handler = SIG_DFL}, ticking = {.sa_handler = tick};
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before->blocked);
    sigaction(SIGCHLD, &usual, &before->change);
    sigaction(SIGALRM, &ticking, &before->tick);
    set_clock(TICK_US);
}

void hl_end_tracing(const struct hl_tracing *before) {
    set_clock(0);
    signal(SIGALRM, SIG_IGN); /* the last one */
    sigaction(SIGCHLD, &before->change, NULL);
    sigaction(SIGALRM, &before->tick, NULL);
    pthread_sigmask(SIG_SETMASK, &before->blocked, NULL);
}

static int seize(const struct hl_tracee *tracee) {
    sigset_t clock;
    volatile int result = HL_SKIP_ATTACH_BUSY;
    sigemptyset(&clock);
    sigaddset(&clock, SIGALRM);
    ticks = 0;
    if (sigsetjmp(before_seizing, 0) == 0) {
        pthread_sigmask(SIG_UNBLOCK, &clock, NULL);
        result = (int)trace(tracee, PTRACE_SEIZE, 0, PTRACE_O_TRACESYSGOOD);
    }
    pthread_sigmask(SIG_BLOCK, &clock, NULL);
    return result;
}

int hl_interrupt_tracee(struct hl_tracee *tracee, pid_t pid, pid_t tid, const struct hl_call *call) {
    *tracee = (struct hl_tracee){.pid = pid, .tid = tid, .memory = -1, .call = {.number = -1}};
    if (call != NULL) {
        tracee->call = *call;
        tracee->rest = hl_find_rest(call);
    }
    if (tracee->rest != 0 && hl_read_tracee(tracee, tracee->rest, tracee->rest_bytes, HL_REST_BYTES) != 0)
        tracee->rest = 0;
    int result = seize(tracee);
    if (result == -EPERM)
        return find_denial(tracee);
    if (result == 0)
        result = (int)trace(tracee, PTRACE_INTERRUPT, 0, 0);
    if (result == 0)
        tracee->stage = HL_TRACEE_ASKED;
    return result;
}

static int read_registers(const struct hl_tracee *tracee, struct user_regs_struct *registers) {
    struct iovec data = {registers, sizeof *registers};
    return (int)trace(tracee, PTRACE_GETREGSET, NT_PRSTATUS, (uintptr_t)&data);
}

static int write_registers(const struct hl_tracee *tracee, struct user_regs_struct *registers) {
    struct iovec data = {registers, sizeof *registers};
    return (int)trace(tracee, PTRACE_SETREGSET, NT_PRSTATUS, (uintptr_t)&data);
}

static struct hl_call call_of(const struct user_regs_struct *r) {
    return (struct hl_call){(long)r->orig_rax, {r->rdi, r->rsi, r->rdx, r->r10, r->r8, r->r9}};
}

/* Undoes what the kernel has written since the thread was asked to stop, if it was thrown out of the very call in which
   it slept then.  Its memory is opened before that is found out: afterwards its number may be that of a program that another
   thread has executed, with more privileges. */
static void put_rest_back(struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (tracee->rest == 0 || open_memory(tracee) != 0)
        return;
    if (read_registers(tracee, &registers) == 0) {
        struct hl_call now = call_of(&registers);
        if ((int64_t)registers.rax == -RESTART_BLOCK &&
            memcmp(now.argument, tracee->call.argument, sizeof now.argument) == 0)
            hl_write_tracee(tracee, tracee->rest, tracee->rest_bytes, HL_REST_BYTES);
    }
    close_memory(tracee);
}

static int await_tracee(struct hl_tracee *tracee, int64_t patience_us) {
    int result = await_interrupt(tracee, patience_us);
    if (result == 0) {
        tracee->stage = HL_TRACEE_STOPPED;
        tracee->stopped_ms = hl_now_ms();
        put_rest_back(tracee);
    } else if (result == HL_SKIP_ATTACH_STOPPED) { /* it stays stopped */
        trace(tracee, PTRACE_DETACH, 0, 0);
        tracee->stage = HL_TRACEE_GONE;
    }
    return result;
}

int hl_await_tracee(struct hl_tracee *tracee) { return await_tracee(tracee, STOP_US); }

/* --- the frame --- */

/* Of the features in XCR0, what a signal frame has: all that do not have to be asked for, up to the end of the
   last one. */
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

/* Makes of the registers that ptrace shows those of a signal frame. */
static int read_xsave(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    uint64_t features, used;
    state->xsave = hl_xmalloc(XSAVE_MAX + sizeof(uint32_t));
    struct iovec data = {state->xsave, XSAVE_MAX};
    int result = (int)trace(tracee, PTRACE_GETREGSET, NT_X86_XSTATE, (uintptr_t)&data);
    if (result != 0)
        return result;
    memcpy(&features, state->xsave + XSAVE_SOFTWARE_AT, sizeof features);
    memcpy(&used, state->xsave + XSAVE_HEADER_AT, sizeof used);
    if (used & AMX_FEATURES)
        return HL_SKIP_ATTACH_AMX;
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
    memcpy(state->xsave + XSAVE_SOFTWARE_AT, &software, sizeof software);
    memcpy(state->xsave + bytes, &end, sizeof end);
    state->xsave_bytes = bytes + sizeof end;
    return 0;
}

static bool is_in_system_call(const struct user_regs_struct *registers) {
    return (int64_t)registers->orig_rax >= 0;
}

/* Makes REGISTERS those of a thread that is about to make the call of which it was thrown out, if any: for sigreturn,
   after which the kernel does not know of it. */
static void rewind_call(struct user_regs_struct *registers) {
    int64_t result = (int64_t)registers->rax;
    struct hl_call call = call_of(registers);
    if (!is_in_system_call(registers))
        return;
    if (result == -RESTART_SYS || result == -RESTART_NOINTR || result == -RESTART_NOHAND ||
        result == -RESTART_BLOCK || (result == -EINTR && hl_find_again(&call) != HL_AGAIN_UNKNOWN)) {
        registers->rax = registers->orig_rax;
        registers->rip -= 2;
        registers->orig_rax = (uint64_t)-1;
    }
}

/* Lets the kernel do that, unless a handler is to run: then the call ends with EINTR, as it would have without us.  Where
   the rest of a timeout counts, the kernel knows it already. */
static bool let_begin_again(struct user_regs_struct *registers) {
    struct hl_call call = call_of(registers);
    int64_t result = (int64_t)registers->rax;
    if (!is_in_system_call(registers) || (result != -EINTR && result != -RESTART_BLOCK))
        return false;
    enum hl_again again = hl_find_again(&call);
    if (again == HL_AGAIN_UNKNOWN || (result == -RESTART_BLOCK && again != HL_AGAIN_WHOLE))
        return false;
    registers->rax = (uint64_t)-RESTART_NOHAND;
    return true;
}

/* A call with a timeout that was interrupted once goes on as restart_syscall, and if we die the kernel does not know
   what that was: sigreturn makes it forget.  The number stands before the syscall instruction, in most programs:
   mov $NUMBER, %eax; syscall. */
long hl_find_restarted(pid_t tid, uint64_t pc) {
    const struct hl_tracee reader = {.tid = tid};
    unsigned char code[7];
    uint32_t number;
    if (hl_read_tracee(&reader, pc - sizeof code, code, sizeof code) != 0 || code[0] != 0xb8 ||
        code[5] != 0x0f || code[6] != 0x05)
        return SYS_restart_syscall;
    memcpy(&number, code + 1, sizeof number);
    return (long)number;
}

/* A critical section of rseq(2) does not survive that the thread runs elsewhere meanwhile: it is aborted, as a
   signal aborts it. */
static int abort_critical_section(const struct hl_tracee *tracee, struct user_regs_struct *registers) {
    struct __ptrace_rseq_configuration rseq = {0};
    struct {
        uint32_t version, flags;
        uint64_t start, bytes, abort;
    } section;
    uint64_t at = 0;
    long result = ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tracee->tid, sizeof rseq, &rseq);
    if (is_in_system_call(registers))
        return 0; /* there is none then */
    if (result < 0)
        return HL_SKIP_ATTACH_RSEQ;
    if (rseq.rseq_abi_pointer == 0 ||
        hl_read_tracee(tracee, rseq.rseq_abi_pointer + 8, &at, sizeof at) != 0 || at == 0)
        return 0;
    if (hl_read_tracee(tracee, at, &section, sizeof section) == 0 &&
        registers->rip - section.start < section.bytes)
        registers->rip = section.abort;
    return 0;
}

/* Whether system calls of the thread may end in a SIGSYS of its own (Linux 5.11).  A kernel that has that but
   cannot tell shows it at the first call. */
static bool dispatches_calls(const struct hl_tracee *tracee) {
    struct {
        uint64_t mode, selector, offset, bytes;
    } dispatch = {0, 0, 0, 0};
    return ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tracee->tid, sizeof dispatch, &dispatch) >= 0 &&
           dispatch.mode != 0;
}

/* --- where the frame lies --- */

/* What is left where a frame was: no program writes that. */
static void fill_pattern(uint64_t *words, uint64_t at, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = (at + i * sizeof *words) * UINT64_C(0x9e3779b97f4a7c15);
}

static bool has_pattern(const struct hl_tracee *tracee, uint64_t at, size_t bytes) {
    char *found = hl_xmalloc(bytes), *wanted = hl_xmalloc(bytes);
    fill_pattern((uint64_t *)wanted, at, bytes);
    bool has = hl_read_tracee(tracee, at, found, bytes) == 0 && memcmp(found, wanted, bytes) == 0;
    free(found);
    free(wanted);
    return has;
}

/* Whether no page of [start, end) has ever been there, as pagemap shows it: neither present nor swapped. */
static bool is_untouched(const struct hl_process *process, uint64_t start, uint64_t end) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), entry[GAP_BYTES / 4096];
    size_t bytes = (size_t)((end - start) / page_bytes) * sizeof entry[0];
    int pagemap = hl_open_process_file(process, "pagemap");
    bool untouched =
        pagemap >= 0 && bytes <= sizeof entry &&
        pread(pagemap, entry, bytes, (off_t)(start / page_bytes * sizeof entry[0])) == (ssize_t)bytes;
    for (size_t i = 0; untouched && i < bytes / sizeof entry[0]; i++)
        untouched = entry[i] >> 62 == 0;
    if (pagemap >= 0)
        close(pagemap);
    return untouched;
}

static size_t find_stack(const struct hl_process *process) {
    size_t i = 0;
    while (i < process->n_regions && strcmp(process->region[i].name, "[stack]") != 0)
        i++;
    return i;
}

/* Lets [stack], the region I, grow until there are BYTES at its low end that were never used, with a gap above them.
   Where they begin; 0: it does not grow. */
static uint64_t grow_stack(const struct hl_tracee *tracee, const struct hl_process *process, size_t i,
                           uint64_t bytes) {
    static const uint64_t zero;
    const struct hl_region *stack = &process->region[i];
    uint64_t low = stack->start - GAP_BYTES - bytes;
    struct hl_address_range range = {low, stack->end};
    struct hl_process near = {.folder = -1};
    bool is_free = hl_read_some_mappings(&near, process, &range, 1) == 0 && near.n_regions == 1 &&
                   near.region[0].start == stack->start;
    hl_close_process(&near);
    return is_free && stack->end - low <= hl_read_limit(process, "Max stack size") &&
                   hl_write_tracee(tracee, low, &zero, sizeof zero) == 0
               ? low
               : 0;
}

/* The low end of BYTES, which are whole pages, for the frame; 0: there are none. */
static uint64_t find_room(const struct hl_tracee *tracee, const struct hl_process *process, uint64_t bytes) {
    size_t i = find_stack(process);
    const struct hl_region *stack = &process->region[i];
    if (i == process->n_regions || stack->shared || (stack->flags & (PF_R | PF_W)) != (PF_R | PF_W))
        return 0;
    if (stack->end - stack->start > bytes + GAP_BYTES && has_pattern(tracee, stack->start, bytes) &&
        is_untouched(process, stack->start + bytes, stack->start + bytes + GAP_BYTES))
        return stack->start;
    return grow_stack(tracee, process, i, bytes);
}

static void fill_frame(struct frame *frame, const struct hl_tracee *tracee, uint64_t xsave) {
    struct user_regs_struct r = tracee->state->registers;
    if (r.orig_rax == SYS_restart_syscall)
        r.orig_rax = (uint64_t)hl_find_restarted(tracee->tid, r.rip);
    if (r.orig_rax == SYS_restart_syscall && (int64_t)r.rax == -RESTART_BLOCK)
        r.rax = (uint64_t)-EINTR; /* it is not known what it was */
    else
        rewind_call(&r);
    *frame = (struct frame){
        .back = tracee->gadgets.back,
        .flags = FRAME_HAS_XSTATE | FRAME_HAS_SS,
        .stack_flags = NO_ALTERNATE_STACK,
        .r8 = r.r8,
        .r9 = r.r9,
        .r10 = r.r10,
        .r11 = r.r11,
        .r12 = r.r12,
        .r13 = r.r13,
        .r14 = r.r14,
        .r15 = r.r15,
        .rdi = r.rdi,
        .rsi = r.rsi,
        .rbp = r.rbp,
        .rbx = r.rbx,
        .rdx = r.rdx,
        .rax = r.rax,
        .rcx = r.rcx,
        .rsp = r.rsp,
        .rip = r.rip,
        .eflags = r.eflags,
        .cs = (uint16_t)r.cs,
        .ss = (uint16_t)r.ss,
        .xsave = xsave,
        .mask = tracee->state->mask,
    };
}

/* Signals that come of what a thread does itself: the kernel ends a process that gets one and has it
   blocked. */
static uint64_t blockable(uint64_t mask) {
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    uint64_t all = ~UINT64_C(0);
    for (size_t i = 0; i < sizeof synchronous / sizeof synchronous[0]; i++)
        all &= ~(UINT64_C(1) << (synchronous[i] - 1));
    return all | mask;
}

static void set_call(const struct hl_tracee *tracee, struct user_regs_struct *r, long number,
                     const uint64_t argument[6]) {
    *r = tracee->state->registers;
    hl_set_call_registers(r, &tracee->gadgets, tracee->state->stack, number, argument);
    r->eflags &= ~UINT64_C(0x500); /* neither single steps nor a direction backwards */
}

/* Writes the frame and makes the thread one that returns through it. */
static int take_over(struct hl_tracee *tracee, const struct hl_process *process) {
    struct hl_tracee_state *state = tracee->state;
    struct frame frame;
    struct user_regs_struct r;
    const uint64_t none[6] = {0};
    size_t head = hl_round_up(sizeof frame, 64);
    size_t bytes = HL_TRACEE_DATA_BYTES + head + hl_round_up(state->xsave_bytes, 64);
    size_t taken = hl_round_up(bytes + SPARE_BYTES, (uint64_t)sysconf(_SC_PAGESIZE));
    state->low = find_room(tracee, process, taken);
    if (state->low == 0)
        return HL_SKIP_ATTACH_STACK;
    state->high = state->low + taken;
    uint64_t xsave = state->high - hl_round_up(state->xsave_bytes, 64);
    fill_frame(&frame, tracee, xsave);
    tracee->data = state->high - bytes;
    int result = hl_write_tracee(tracee, xsave, state->xsave, state->xsave_bytes);
    if (result == 0)
        result = hl_write_tracee(tracee, xsave - head, &frame, sizeof frame);
    if (result != 0)
        return result;
    state->stack = xsave - head;
    set_call(tracee, &r, SYS_getpid, none);
    uint64_t mask = blockable(state->mask);
    result = write_registers(tracee, &r);
    if (result == 0)
        result = (int)trace(tracee, PTRACE_SETSIGMASK, sizeof mask, (uintptr_t)&mask);
    return result;
}

/* --- filters --- */

/* Whether system calls of the thread are filtered; where that cannot be found out, they are. */
static bool has_filter(const struct hl_tracee *tracee) {
    FILE *status = open_status(tracee);
    char line[256];
    int mode = 1;
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        sscanf(line, "Seccomp: %d", &mode);
    if (status != NULL)
        fclose(status);
    return mode != 0;
}

/* Why we cannot suspend filters: ERROR is the kernel's. */
static int explain_filter(int error) {
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    int own = 0;
    uint64_t capabilities = 0;
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "Seccomp: %d", &own);
        sscanf(line, "CapEff: %" SCNx64, &capabilities);
    }
    if (status != NULL)
        fclose(status);
    if (error == -EINVAL)
        return HL_SKIP_ATTACH_FILTER_KERNEL;
    if (!(capabilities >> CAP_SYS_ADMIN & 1))
        return HL_SKIP_ATTACH_FILTER;
    return own != 0 ? HL_SKIP_ATTACH_FILTER_OWN : HL_SKIP_ATTACH_FILTER_NAMESPACE;
}

/* Suspends what there is, and what another thread may set meanwhile (SECCOMP_FILTER_FLAG_TSYNC).  Not before the thread has
   stopped: until then it would make calls of its own without the filter. */
static int pass_filter(struct hl_tracee *tracee, bool suspends) {
    int error =
        suspends ? (int)trace(tracee, PTRACE_SETOPTIONS, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP)
                 : -EPERM;
    tracee->state->suspends = error == 0;
    return error == 0 || !has_filter(tracee) ? 0 : suspends ? explain_filter(error) : HL_SKIP_ATTACH_FILTER;
}

/* Whether the kernel tells which call a thread is about to make (Linux 5.3). */
static bool tells_calls(const struct hl_tracee *tracee) {
    struct __ptrace_syscall_info info;
    return ptrace(PTRACE_GET_SYSCALL_INFO, tracee->tid, sizeof info, &info) > 0;
}

int hl_arm_tracee(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                  const struct hl_process *process, bool suspends) {
    struct hl_tracee_state *state = tracee->state = hl_xmalloc(sizeof *state);
    tracee->gadgets = *gadgets;
    int result = open_memory(tracee);
    if (result == 0)
        result = read_registers(tracee, &state->registers); /* so it was this thread's memory */
    if (result == 0)
        result = (int)trace(tracee, PTRACE_GETSIGMASK, sizeof state->mask, (uintptr_t)&state->mask);
    if (result == 0 && state->registers.cs != USER_CS)
        result = HL_SKIP_ATTACH_32_BIT;
    if (result == 0 && !tells_calls(tracee))
        result = HL_SKIP_ATTACH_KERNEL;
    if (result == 0 && dispatches_calls(tracee))
        result = HL_SKIP_ATTACH_DISPATCH;
    if (result == 0 && !are_there(gadgets, tracee, process))
        result = HL_SKIP_MAPPING_CHANGED;
    if (result == 0)
        result = pass_filter(tracee, suspends);
    if (result == 0)
        result = abort_critical_section(tracee, &state->registers);
    if (result == 0)
        result = read_xsave(tracee);
    if (result == 0)
        result = take_over(tracee, process);
    if (result == 0)
        tracee->stage = HL_TRACEE_ARMED;
    return result;
}

/* --- calls --- */

/* A signal that a process sent is sent again when the thread is let go; one that the thread's own instruction is to
   blame for is of ours. */
static void hold_signal(struct hl_tracee *tracee) {
    siginfo_t info = {0};
    if (trace(tracee, PTRACE_GETSIGINFO, 0, (uintptr_t)&info) == 0 && info.si_code <= 0)
        tracee->state->held = info;
}

/* Of kill(2) and tgkill(2) the kernel lets no other process say who sent them. */
static void send_again(const struct hl_tracee *tracee, siginfo_t *held) {
    if (held->si_signo != 0 &&
        syscall(SYS_rt_tgsigqueueinfo, tracee->pid, tracee->tid, held->si_signo, held) != 0)
        syscall(SYS_tgkill, tracee->pid, tracee->tid, held->si_signo);
}

/* Runs the thread to where it enters or leaves a system call. */
static int run_to_call(struct hl_tracee *tracee, int64_t patience_us) {
    int status = 0, result = 0;
    for (int signal = 0; result == 0;) {
        result = (int)trace(tracee, PTRACE_SYSCALL, 0, (uintptr_t)signal);
        if (result == 0)
            result = await_stop(tracee, &status, patience_us);
        if (result != 0)
            break;
        bool in_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        tracee->stage = in_call ? HL_TRACEE_IN_CALL : HL_TRACEE_ARMED;
        if (in_call)
            return 0;
        /* A stop for all threads of the process takes effect when this one is let go. */
        signal = is_event(status) ? 0 : WSTOPSIG(status);
        if (signal != 0 && signal != SIGSTOP) {
            hold_signal(tracee);
            result = signal == SIGSYS ? HL_SKIP_ATTACH_DISPATCH : HL_SKIP_ATTACH_SIGNAL;
        }
    }
    if (result == -ESRCH)
        tracee->stage = HL_TRACEE_GONE;
    return result;
}

/* Whether the thread is about to make the call that WANTED makes. */
static bool makes_call(const struct hl_tracee *tracee, const struct user_regs_struct *wanted) {
    const uint64_t argument[6] = {wanted->rdi, wanted->rsi, wanted->rdx, wanted->r10, wanted->r8, wanted->r9};
    struct __ptrace_syscall_info info;
    return ptrace(PTRACE_GET_SYSCALL_INFO, tracee->tid, sizeof info, &info) >= (long)sizeof info.entry &&
           info.op == PTRACE_SYSCALL_INFO_ENTRY && info.arch == AUDIT_ARCH_X86_64 &&
           info.instruction_pointer == wanted->rip + 2 && info.stack_pointer == wanted->rsp &&
           info.entry.nr == wanted->rax && memcmp(info.entry.args, argument, sizeof argument) == 0;
}

/* The thread has entered a call that is not ours.  Where a filter would have seen it, it is not made. */
static int refuse_call(struct hl_tracee *tracee) {
    struct user_regs_struct r;
    if (tracee->state->suspends && read_registers(tracee, &r) == 0) {
        r.orig_rax = (uint64_t)-1;
        write_registers(tracee, &r);
    }
    hl_release_tracee(tracee);
    return HL_SKIP_ATTACH_TAMPERED;
}

int hl_call_in_tracee(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]) {
    struct user_regs_struct r;
    if (tracee->stage < HL_TRACEE_ARMED)
        return -ESRCH;
    if (!tracee->state->suspends && has_filter(tracee))
        return HL_SKIP_ATTACH_FILTER; /* another thread has just set it for all */
    set_call(tracee, &r, number, argument);
    int error = write_registers(tracee, &r);
    if (error == 0)
        error = run_to_call(tracee, ENTER_US);
    if (error == 0 && !makes_call(tracee, &r))
        return refuse_call(tracee);
    if (error == 0)
        error = run_to_call(tracee, CALL_US);
    if (error == 0)
        error = read_registers(tracee, &r);
    if (error == -ESRCH)
        tracee->stage = HL_TRACEE_GONE;
    *result = (long)r.rax;
    return error;
}

/* --- the end --- */

/* After a call of ours: to a stop of ptrace's own, where the kernel looks at what was interrupted.  A signal that
   cannot be blocked and comes just now is sent again later, since its handler's frame would be lost. */
static int leave_call(struct hl_tracee *tracee) {
    int status = 0, result = (int)trace(tracee, PTRACE_INTERRUPT, 0, 0), signal = 0;
    while (result == 0) {
        result = (int)trace(tracee, PTRACE_CONT, 0, (uintptr_t)signal);
        if (result == 0)
            result = await_stop(tracee, &status, CALL_US);
        if (result != 0 || is_event(status))
            break;
        signal = WSTOPSIG(status) == SIGSTOP ? SIGSTOP : 0;
        if (signal == 0 && WSTOPSIG(status) != (SIGTRAP | 0x80))
            hold_signal(tracee);
    }
    return result;
}

/* The mask goes first: without us the frame still restores the rest. */
static void restore(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    if (tracee->stage == HL_TRACEE_IN_CALL && leave_call(tracee) != 0)
        return;
    trace(tracee, PTRACE_SETSIGMASK, sizeof state->mask, (uintptr_t)&state->mask);
    let_begin_again(&state->registers);
    if (write_registers(tracee, &state->registers) != 0)
        return;
    size_t bytes = (size_t)(state->high - state->low);
    uint64_t *pattern = hl_xmalloc(bytes);
    fill_pattern(pattern, state->low, bytes);
    hl_write_tracee(tracee, state->low, pattern, bytes);
    free(pattern);
}

/* One that has made no call. */
static void restore_call(const struct hl_tracee *tracee) {
    struct user_regs_struct registers;
    if (read_registers(tracee, &registers) == 0 && let_begin_again(&registers))
        write_registers(tracee, &registers);
}

static void let_go(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    if (tracee->stage == HL_TRACEE_STOPPED)
        restore_call(tracee);
    else
        restore(tracee);
    trace(tracee, PTRACE_DETACH, 0, 0);
    if (state != NULL)
        send_again(tracee, &state->held);
    tracee->stage = HL_TRACEE_GONE;
}

void hl_release_tracee(struct hl_tracee *tracee) {
    struct hl_tracee_state *state = tracee->state;
    if (tracee->stage == HL_TRACEE_ASKED)
        await_tracee(tracee, 0);
    if (tracee->stage >= HL_TRACEE_STOPPED)
        let_go(tracee);
    if (state != NULL)
        free(state->xsave);
    free(state);
    close_memory(tracee);
    tracee->state = NULL;
}

#else /* another machine */

int hl_check_attach_machine(void) { return HL_SKIP_ATTACH_MACHINE; }

int hl_find_gadgets(struct hl_gadgets *gadgets, const struct hl_process *process,
                    bool (*avoid)(const void *data, const struct hl_region *region), const void *data) {
    (void)gadgets, (void)process, (void)avoid, (void)data;
    return HL_SKIP_ATTACH_MACHINE;
}

void hl_begin_tracing(struct hl_tracing *before) { (void)before; }

void hl_end_tracing(const struct hl_tracing *before) { (void)before; }

int hl_interrupt_tracee(struct hl_tracee *tracee, pid_t pid, pid_t tid, const struct hl_call *call) {
    (void)tracee, (void)pid, (void)tid, (void)call;
    return HL_SKIP_ATTACH_MACHINE;
}

int hl_await_tracee(struct hl_tracee *tracee) {
    (void)tracee;
    return HL_SKIP_ATTACH_MACHINE;
}

int hl_arm_tracee(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                  const struct hl_process *process, bool suspends) {
    (void)tracee, (void)gadgets, (void)process, (void)suspends;
    return HL_SKIP_ATTACH_MACHINE;
}

long hl_find_restarted(pid_t tid, uint64_t pc) {
    (void)tid, (void)pc;
    return -1;
}

int hl_call_in_tracee(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]) {
    (void)tracee, (void)result, (void)number, (void)argument;
    return HL_SKIP_ATTACH_MACHINE;
}

int hl_read_tracee(const struct hl_tracee *tracee, uint64_t at, void *to, size_t bytes) {
    (void)tracee, (void)at, (void)to, (void)bytes;
    return HL_SKIP_ATTACH_MACHINE;
}

int hl_write_tracee(const struct hl_tracee *tracee, uint64_t at, const void *from, size_t bytes) {
    (void)tracee, (void)at, (void)from, (void)bytes;
    return HL_SKIP_ATTACH_MACHINE;
}

void hl_release_tracee(struct hl_tracee *tracee) { (void)tracee; }

#endif
