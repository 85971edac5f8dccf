/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Borrows a thread of another process.

   The thread must come to no harm whatever happens to us, SIGKILL included, and if its tracer dies, the kernel lets it simply run
   on from where it is.  So before it makes its first call for us, a signal frame is written for it, as the kernel writes one for a
   handler, and its stack pointer is set so that a call returns into the code that returns from handlers:

       low    data       arguments of calls
              &back      <- stack pointer while it is ours: the ret behind the syscall goes to sigreturn,
              ucontext      which takes registers, signal mask and
              siginfo       (unused)
              XSAVE         vector registers from here
       high   red zone, 128 bytes below the stack pointer that the thread had

   Each call sets the registers anew and begins at a syscall; ret that the process has somewhere.  Without us the call in progress
   ends, ret and sigreturn follow, and the thread goes on with its own work.

   The frame needs unused memory, and memory in use cannot be told from unused memory by its looks: a coroutine's stack is as small
   as it could be made, a handler's may be an array on the stack that it interrupts, and both may be zeros.  So the process gets new
   memory for it: a write through /proc/PID/mem below the kernel's own stack, [stack], lets that grow.  The gap between leaves room
   for the first thread's own use meanwhile.  When the thread is let go, a pattern is left in the frame's place, by which the next
   attach knows that it was not used since.  After we were killed it knows that by the frame, and closes what a journal beside it names.

   The differences between machines are in tracee-*.c: the frame, and how a thread goes on with the call in which it was stopped.

   Other threads of the process can write to its instructions, and a filter of its system calls (seccomp) may be suspended for
   ours.  So when a call is entered, its number, its arguments and the instruction are compared with the intended ones.  If the
   call is another one, its number becomes -1, a call that does nothing.  But a filter would judge that too; so if the filter is
   not suspended, the call is left alone: the process gains no more by it than it could without us. */
#include "command/inject/machine.h"
#include "command/lib/basics.h"
#include "elf/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Linux 6.4 */
#ifndef PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
#define PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG 0x4211
#endif

/* The pause between two looks if no signal says that the thread has stopped. */
#define PAUSE_NS 1000000L
/* How long a thread may take for a stop of ptrace's own. */
#define STOP_US INT64_C(500000)
/* How long it may take to trace a thread. */
#define SEIZE_US 500000
/* How long a call may take, and how long a thread may take to enter it, which in a frozen group is for ever. */
#define CALL_US INT64_C(60000000)
#define ENTER_US INT64_C(5000000)
/* The time between two looks at a thread that has not stopped in time. */
#define LATE_US INT64_C(10000)
/* Room on the stack for a signal that comes and cannot be blocked. */
#define SPARE_BYTES 8192
/* The first thread's share of [stack] while a frame lies at its end. */
#define GAP_BYTES 65536

/* The end and the beginning of larger text are searched for instructions: a libc comes last in a static program, Go's runtime first. */
#define SEARCHED_BYTES ((size_t)16 << 20)

/* --- the mark of a frame --- */

/* The pattern that is left in a frame's place: no program writes it. */
static void fill_pattern(uint64_t *words, uint64_t at, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = (at + i * sizeof *words) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t mark_of(uint64_t at) {
    uint64_t word;
    fill_pattern(&word, at, sizeof word);
    return ~word;
}

static size_t find_stack(const struct hl_process *process) {
    size_t i = 0;
    while (i < process->n_regions && strcmp(process->region[i].name, "[stack]") != 0)
        i++;
    return i;
}

bool hl_has_journal(const struct hl_process *process) {
    size_t i = find_stack(process);
    uint64_t at = i < process->n_regions ? process->region[i].start : 0, mark;
    return at != 0 && hl_read_thread(process->pid, at, &mark, sizeof mark) == 0 && mark == mark_of(at);
}

#if defined __x86_64__

/* --- memory --- */

/* A thread that executes a program gets the first thread's number.  So bytes are written to the memory that the thread had when
   it was stopped, and to none if that has ended. */
int hl_write_tracee(const struct hl_tracee *tracee, uint64_t at, const void *from, size_t bytes) {
    return hl_check_transfer(pwrite(tracee->memory, from, bytes, (off_t)at), bytes);
}

static int open_memory(struct hl_tracee *tracee) {
    char *path = hl_xasprintf("/proc/%d/mem", tracee->pid);
    tracee->memory = open(path, O_RDWR | O_CLOEXEC);
    free(path);
    return tracee->memory >= 0 ? 0 : -errno;
}

/* --- instructions --- */

/* Looks again, since the instructions were found while the process ran. */
static bool are_there(const struct hl_gadgets *gadgets, const struct hl_process *process) {
    bool can_return = false;
    for (size_t i = 0; i < HL_BACK_CODES; i++)
        can_return |= hl_has_code(process, gadgets->back, &hl_back_codes[i]);
    return can_return && hl_has_code(process, gadgets->call, &hl_call_code);
}

/* Whether the BYTES at START have both; then *FOUND has their addresses. */
static bool search(struct hl_gadgets *found, const struct hl_process *process, uint64_t start, size_t bytes) {
    char *text = hl_xmalloc(bytes);
    const char *call, *back;
    const struct hl_code *code;
    bool are_found = hl_read_thread(process->pid, start, text, bytes) == 0 &&
                     hl_find_codes(text, bytes, &call, &back, &code);
    if (are_found)
        *found = (struct hl_gadgets){start + (uint64_t)(call - text), start + (uint64_t)(back - text)};
    free(text);
    return are_found;
}

/* Both come from one object.  Objects that the kernel and the dynamic linker loaded at startup, the linker
   and the libc among them, are never unloaded and lie above later ones and above the text that moves; so the highest come first. */
int hl_find_gadgets(struct hl_gadgets *gadgets, const struct hl_process *process) {
    for (size_t i = process->n_regions; i-- > 0;) {
        const struct hl_region *region = &process->region[i];
        size_t all = region->end - region->start, bytes = all < SEARCHED_BYTES ? all : SEARCHED_BYTES;
        if (region->flags != (PF_R | PF_X) || region->shared || region->inode == 0 ||
            !hl_answers(process, region))
            continue;
        if (search(gadgets, process, region->end - bytes, bytes) ||
            (bytes < all && search(gadgets, process, region->start, bytes)))
            return 0;
    }
    return HL_REASON_ATTACH_INSTRUCTIONS;
}

/* --- stopping --- */

/* Waits until a child or a tracee changes its state, or a pause is over.  The signal is blocked. */
static void await_change(void) {
    sigset_t change;
    sigemptyset(&change);
    sigaddset(&change, SIGCHLD);
    sigtimedwait(&change, NULL, &(struct timespec){0, PAUSE_NS});
}

static int await_stop(struct hl_tracee *tracee, int *status, int64_t patience_us) {
    for (double begun = hl_now_ms();;) {
        double waited_us = (hl_now_ms() - begun) * 1e3; /* before the look, which may be the last */
        pid_t tid = waitpid(tracee->pid, status, __WALL | __WNOTHREAD | WNOHANG);
        if (tid == tracee->pid && WIFSTOPPED(*status))
            return 0;
        if (tid != 0 && !(tid < 0 && errno == EINTR))
            break;
        if (waited_us >= (double)patience_us)
            return HL_REASON_ATTACH_BUSY;
        await_change();
    }
    tracee->stage = HL_TRACEE_GONE;
    return -ESRCH;
}

static bool is_event(int status) { return status >> 16 == PTRACE_EVENT_STOP; }

/* Whether TRACEE, which was asked to stop, has stopped or needs only a processor to do so. */
static bool is_coming(const struct hl_tracee *tracee) {
    struct hl_task_status status;
    hl_read_thread_status(&status, tracee->pid, tracee->pid);
    return status.state == 'R' || status.state == 't';
}

/* Waits for the stop of a thread that was asked to, and so has left its call: if it only waits for a processor, it gets until five
   seconds after it was asked. */
static int await_late_stop(struct hl_tracee *tracee, int *status) {
    int result = await_stop(tracee, status, STOP_US);
    while (result == HL_REASON_ATTACH_BUSY && (hl_now_ms() - tracee->asked_ms) * 1e3 < (double)ENTER_US &&
           is_coming(tracee))
        result = await_stop(tracee, status, LATE_US);
    return result;
}

/* Why the thread cannot be traced: it may have ended just now, or have a tracer. */
static int find_denial(const struct hl_tracee *tracee) {
    pid_t tracer = hl_find_tracer(tracee->pid, tracee->pid);
    return tracer < 0 ? -ESRCH : tracer > 0 ? HL_REASON_ATTACH_TRACED : -EPERM;
}

/* PTRACE_SEIZE waits until no thread of the process executes a program, which may wait for a file system that never answers; and
   after a signal the kernel begins the wait again.  So a timer's handler leaves it. */
static _Thread_local sigjmp_buf before_seizing;

static void leave_seizing(int number) {
    (void)number;
    siglongjmp(before_seizing, 1);
}

static int seize(const struct hl_tracee *tracee) {
    const struct sigaction leaving = {.sa_handler = leave_seizing}, ignored = {.sa_handler = SIG_IGN};
    const struct itimerval timer = {.it_value = {0, SEIZE_US}}, none = {0};
    struct sigaction before;
    sigset_t clock;
    volatile int result = HL_REASON_ATTACH_BUSY;
    sigemptyset(&clock);
    sigaddset(&clock, SIGALRM);
    sigaction(SIGALRM, &leaving, &before);
    setitimer(ITIMER_REAL, &timer, NULL);
    if (sigsetjmp(before_seizing, 0) == 0) {
        pthread_sigmask(SIG_UNBLOCK, &clock, NULL);
        result = hl_trace(tracee->pid, PTRACE_SEIZE, 0, PTRACE_O_TRACESYSGOOD);
    }
    pthread_sigmask(SIG_BLOCK, &clock, NULL);
    setitimer(ITIMER_REAL, &none, NULL);
    sigaction(SIGALRM, &ignored, NULL); /* one that has come since */
    sigaction(SIGALRM, &before, NULL);
    return result;
}

int hl_interrupt_tracee(struct hl_tracee *tracee, const struct hl_call *call) {
    tracee->interrupted = *call;
    tracee->rest = hl_find_rest(call);
    int result = seize(tracee);
    if (result == -EPERM)
        return find_denial(tracee);
    /* read as late as possible: the thread may wake, and write something else there before it sleeps again */
    if (tracee->rest != 0 &&
        hl_read_thread(tracee->pid, tracee->rest, tracee->rest_bytes, HL_REST_BYTES) != 0)
        tracee->rest = 0;
    if (result == 0)
        result = hl_trace(tracee->pid, PTRACE_INTERRUPT, 0, 0);
    tracee->asked_ms = hl_now_ms();
    if (result == 0)
        tracee->stage = HL_TRACEE_ASKED;
    return result;
}

/* Until the stop that PTRACE_INTERRUPT asks for, the thread gets its signals.  If the whole process is stopped, it stays so. */
int hl_await_tracee(struct hl_tracee *tracee) {
    int status, result = await_late_stop(tracee, &status);
    while (result == 0 && !is_event(status)) {
        result = hl_trace(tracee->pid, PTRACE_CONT, 0, (uintptr_t)WSTOPSIG(status));
        if (result == 0)
            result = await_late_stop(tracee, &status);
    }
    if (result != 0)
        return result;
    if (WSTOPSIG(status) != SIGTRAP) {
        hl_trace(tracee->pid, PTRACE_DETACH, 0, 0);
        tracee->stage = HL_TRACEE_GONE;
        return HL_REASON_ATTACH_STOPPED;
    }
    tracee->stage = HL_TRACEE_STOPPED;
    tracee->stopped_ms = hl_now_ms();
    result = open_memory(tracee);
    if (result == 0)
        hl_put_rest_back(tracee);
    return result;
}

/* Whether system calls of the thread may end in a SIGSYS of its own (Linux 5.11).  A kernel that has that feature but cannot
   tell shows it at the first call. */
static bool dispatches_calls(const struct hl_tracee *tracee) {
    struct {
        uint64_t mode, selector, offset, bytes;
    } dispatch = {0, 0, 0, 0};
    return ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tracee->pid, sizeof dispatch, &dispatch) >= 0 &&
           dispatch.mode != 0;
}

/* --- the place of the frame --- */

static uint64_t hash(const char *bytes, size_t n) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Whether the BYTES at AT are as we have left them: the pattern, or with a frame in use, which a killed tracer leaves.  *LEFT is its
   journal, or has no sockets. */
static bool is_as_left(const struct hl_tracee *tracee, uint64_t at, size_t bytes, struct hl_journal *left) {
    char *found = hl_xmalloc(bytes), *wanted = hl_xmalloc(bytes);
    size_t compared = bytes;
    fill_pattern((uint64_t *)wanted, at, bytes);
    bool is_left = hl_read_thread(tracee->pid, at, found, bytes) == 0;
    memcpy(left, found, sizeof *left);
    bool in_use = is_left && left->mark == mark_of(at);
    if (in_use) {
        size_t frame_bytes = left->frame_bytes;
        is_left = frame_bytes < bytes - HL_TRACEE_DATA_BYTES - sizeof *left &&
                  hash(found + bytes - frame_bytes, frame_bytes) == left->frame_hash;
        compared = is_left ? bytes - frame_bytes - HL_TRACEE_DATA_BYTES : 0;
        memcpy(wanted, left, sizeof *left);
    }
    is_left = is_left && memcmp(found, wanted, compared) == 0;
    if (!in_use || !is_left)
        left->pair[0] = left->pair[1] = -1;
    free(found);
    free(wanted);
    return is_left;
}

/* Whether no page of [start, end) has ever existed, as pagemap shows: neither present nor swapped. */
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

/* Where [stack], the region I, begins when it has grown by BYTES that were never used, with a gap above them; 0: it may not grow. */
static uint64_t find_space_below(const struct hl_process *process, size_t i, uint64_t bytes) {
    const struct hl_region *stack = &process->region[i];
    uint64_t low = stack->start - GAP_BYTES - bytes;
    struct hl_address_range range = {low, stack->end};
    struct hl_process near = {.folder = -1};
    bool is_free = hl_read_some_mappings(&near, process, &range, 1) == 0 && near.n_regions == 1 &&
                   near.region[0].start == stack->start;
    hl_close_process(&near);
    return is_free && stack->end - low <= hl_read_limit(process, "Max stack size") ? low : 0;
}

/* The low end of BYTES, which are whole pages, for the frame; 0: there are none.  *LEFT as of is_as_left. */
static uint64_t find_space(const struct hl_tracee *tracee, const struct hl_process *process, uint64_t bytes,
                           struct hl_journal *left) {
    size_t i = find_stack(process);
    const struct hl_region *stack = &process->region[i];
    *left = (struct hl_journal){.pair = {-1, -1}};
    if (i == process->n_regions || stack->shared || (stack->flags & (PF_R | PF_W)) != (PF_R | PF_W))
        return 0;
    if (stack->end - stack->start > bytes + GAP_BYTES &&
        is_untouched(process, stack->start + bytes, stack->start + bytes + GAP_BYTES) &&
        is_as_left(tracee, stack->start, bytes, left))
        return stack->start;
    return find_space_below(process, i, bytes);
}

/* MASK without the signals that a thread raises itself: the kernel ends a process that gets one and has it blocked. */
static uint64_t blockable(uint64_t mask) {
    static const int synchronous[HL_SYNCHRONOUS] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    uint64_t all = ~UINT64_C(0);
    for (size_t i = 0; i < HL_SYNCHRONOUS; i++)
        all &= ~(UINT64_C(1) << (synchronous[i] - 1));
    return all | mask;
}

/* Writes the frame, and sets the thread to return through it. */
static int take_over(struct hl_tracee *tracee, const struct hl_process *process) {
    struct user_regs_struct r;
    const uint64_t none[6] = {0};
    size_t frame_bytes = tracee->frame_bytes, bytes = HL_TRACEE_DATA_BYTES + frame_bytes;
    size_t taken = hl_round_up(bytes + SPARE_BYTES, (uint64_t)sysconf(_SC_PAGESIZE));
    struct hl_journal journal;
    tracee->low = find_space(tracee, process, taken, &journal);
    if (tracee->low == 0)
        return HL_REASON_ATTACH_STACK;
    tracee->high = tracee->low + taken;
    tracee->stack = tracee->high - frame_bytes;
    tracee->data = tracee->high - bytes;
    tracee->pair_at = tracee->low + offsetof(struct hl_journal, pair);
    tracee->left = journal;
    char *place = hl_xmalloc(taken), *frame = place + (tracee->stack - tracee->low);
    fill_pattern((uint64_t *)place, tracee->low, taken);
    memset(place + (tracee->data - tracee->low), 0, bytes);
    hl_fill_frame(frame, tracee, tracee->stack);
    journal.mark = mark_of(tracee->low);
    journal.frame_hash = hash(frame, frame_bytes);
    journal.frame_bytes = (uint32_t)frame_bytes;
    journal.pid = journal.pair[0] >= 0 ? journal.pid : tracee->pid;
    memcpy(place, &journal, sizeof journal);
    /* The stack grows by this write; a kill leaves either nothing or all of it. */
    int result = hl_write_tracee(tracee, tracee->low, place, taken);
    free(place);
    if (result != 0)
        return result == -ESRCH ? result : HL_REASON_ATTACH_STACK;
    hl_set_call(tracee, &r, SYS_getpid, none);
    uint64_t mask = blockable(tracee->mask);
    result = hl_write_registers(tracee->pid, &r);
    if (result == 0)
        result = hl_trace(tracee->pid, PTRACE_SETSIGMASK, sizeof mask, (uintptr_t)&mask);
    return result;
}

/* --- filters --- */

/* Whether system calls of the first thread of PID are filtered; if that cannot be found out, true. */
static bool has_filter(pid_t pid) {
    struct hl_task_status status;
    hl_read_thread_status(&status, pid, pid);
    return status.filter_mode != 0;
}

/* Why we cannot suspend filters; ERROR is the kernel's. */
static int explain_filter(int error) {
    if (error == -EINVAL)
        return HL_REASON_ATTACH_FILTER_KERNEL;
    if (!hl_has_capability(CAP_SYS_ADMIN))
        return HL_REASON_ATTACH_FILTER;
    return has_filter(getpid()) ? HL_REASON_ATTACH_FILTER_OWN : HL_REASON_ATTACH_FILTER_NAMESPACE;
}

/* Suspends the present filters, and those that another thread may set meanwhile (SECCOMP_FILTER_FLAG_TSYNC).  Not before the
   thread has stopped: until then it would make calls of its own without the filter. */
static int pass_filter(struct hl_tracee *tracee) {
    int error = hl_trace(tracee->pid, PTRACE_SETOPTIONS, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP);
    tracee->suspends = error == 0;
    return error == 0 || !has_filter(tracee->pid) ? 0 : explain_filter(error);
}

/* --- calls --- */

/* A signal that a process sent is sent again when the thread is let go; a signal that the thread's own instruction raised comes
   from our calls.  More signals may come while the changes are undone; of several with one number the first counts, as in the
   kernel. */
static void hold_signal(struct hl_tracee *tracee) {
    siginfo_t info = {0};
    bool is_new = hl_trace(tracee->pid, PTRACE_GETSIGINFO, 0, (uintptr_t)&info) == 0 && info.si_code <= 0;
    for (unsigned i = 0; i < tracee->n_held; i++)
        is_new = is_new && tracee->held[i].si_signo != info.si_signo;
    if (is_new && tracee->n_held < HL_SYNCHRONOUS)
        tracee->held[tracee->n_held++] = info;
}

/* The kernel does not let another process name the sender of kill(2) and tgkill(2). */
static void send_again(const struct hl_tracee *tracee, siginfo_t *held) {
    if (syscall(SYS_rt_tgsigqueueinfo, tracee->pid, tracee->pid, held->si_signo, held) != 0)
        syscall(SYS_tgkill, tracee->pid, tracee->pid, held->si_signo);
}

/* Runs the thread until it enters or leaves a system call. */
static int run_to_call(struct hl_tracee *tracee, int64_t patience_us) {
    int status = 0, result = 0;
    for (int signal = 0; result == 0;) {
        result = hl_trace(tracee->pid, PTRACE_SYSCALL, 0, (uintptr_t)signal);
        if (result == 0)
            result = await_stop(tracee, &status, patience_us);
        bool is_late = result == HL_REASON_ATTACH_BUSY;
        if (is_late) /* it stops where it can without running anything */
            result = hl_trace(tracee->pid, PTRACE_INTERRUPT, 0, 0);
        if (is_late && result == 0)
            result = await_stop(tracee, &status, STOP_US);
        if (result != 0)
            break;
        bool in_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        tracee->stage = in_call ? HL_TRACEE_IN_CALL : HL_TRACEE_ARMED;
        if (in_call)
            return 0;
        if (is_late && is_event(status))
            return HL_REASON_ATTACH_FROZEN;
        /* A stop for all threads of the process takes effect when this one is let go. */
        signal = is_event(status) ? 0 : WSTOPSIG(status);
        if (signal != 0 && signal != SIGSTOP) {
            hold_signal(tracee);
            result = signal == SIGSYS ? HL_REASON_ATTACH_DISPATCH : HL_REASON_ATTACH_SIGNAL;
        }
    }
    if (result == -ESRCH)
        tracee->stage = HL_TRACEE_GONE;
    return result;
}

/* Whether the thread is about to make the call that WANTED makes. */
static bool makes_call(const struct hl_tracee *tracee, const struct user_regs_struct *wanted) {
    struct __ptrace_syscall_info info;
    return ptrace(PTRACE_GET_SYSCALL_INFO, tracee->pid, sizeof info, &info) >= (long)sizeof info.entry &&
           info.op == PTRACE_SYSCALL_INFO_ENTRY && hl_is_call(&info, wanted);
}

static int make_call(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]) {
    struct user_regs_struct r;
    hl_set_call(tracee, &r, number, argument);
    int error = hl_write_registers(tracee->pid, &r);
    if (error == 0)
        error = run_to_call(tracee, ENTER_US);
    if (error == 0 && !makes_call(tracee, &r)) {
        if (tracee->suspends && hl_read_registers(tracee->pid, &r) == 0) {
            r.orig_rax = (uint64_t)-1; /* a filter would have seen this call, so it is not made */
            hl_write_registers(tracee->pid, &r);
        }
        return HL_REASON_ATTACH_TAMPERED;
    }
    if (error == 0)
        error = run_to_call(tracee, CALL_US);
    if (error == 0)
        error = hl_read_registers(tracee->pid, &r);
    if (error == -ESRCH)
        tracee->stage = HL_TRACEE_GONE;
    *result = hl_get_result(&r);
    return error;
}

static int call_in_tracee(struct hl_tracee *tracee, long *result, long number, const uint64_t argument[6]) {
    if (tracee->stage < HL_TRACEE_ARMED)
        return -ESRCH;
    if (!tracee->suspends && has_filter(tracee->pid))
        return HL_REASON_ATTACH_FILTER; /* another thread has just set it for all */
    int error = make_call(tracee, result, number, argument);
    if (error == HL_REASON_ATTACH_TAMPERED || error == HL_REASON_ATTACH_FROZEN) {
        tracee->let_go = error;
        hl_release_tracee(tracee);
    }
    return error;
}

int hl_arm_tracee(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                  const struct hl_process *process) {
    tracee->gadgets = *gadgets;
    tracee->call = call_in_tracee;
    int result = hl_read_registers(tracee->pid, &tracee->registers); /* so it was this thread's memory */
    if (result == 0)
        result = hl_trace(tracee->pid, PTRACE_GETSIGMASK, sizeof tracee->mask, (uintptr_t)&tracee->mask);
    if (result == 0 && hl_runs_32_bit(&tracee->registers))
        result = HL_REASON_ATTACH_32_BIT;
    if (result == 0 && dispatches_calls(tracee))
        result = HL_REASON_ATTACH_DISPATCH;
    if (result == 0 && !are_there(gadgets, process))
        result = HL_REASON_MAPPING_CHANGED;
    if (result == 0)
        result = pass_filter(tracee);
    if (result == 0)
        result = hl_read_frame_state(tracee);
    if (result == 0)
        result = take_over(tracee, process);
    if (result == 0)
        tracee->stage = HL_TRACEE_ARMED;
    return result;
}

/* --- the end --- */

/* After a call of ours, brings the thread to a stop of ptrace's own, where the kernel looks at the interrupted call.  A signal
   that cannot be blocked and comes just now is sent again later, since its handler's frame would be lost. */
static int interrupt_call(struct hl_tracee *tracee) {
    int status = 0, result = hl_trace(tracee->pid, PTRACE_INTERRUPT, 0, 0), signal = 0;
    while (result == 0) {
        result = hl_trace(tracee->pid, PTRACE_CONT, 0, (uintptr_t)signal);
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

static void restore(struct hl_tracee *tracee) {
    if ((tracee->stage == HL_TRACEE_IN_CALL && interrupt_call(tracee) != 0) || hl_put_back(tracee) != 0)
        return;
    if (tracee->keeps_journal) /* the frame stays beside it, as after a kill */
        return;
    size_t bytes = (size_t)(tracee->high - tracee->low);
    uint64_t *pattern = hl_xmalloc(bytes);
    fill_pattern(pattern, tracee->low, bytes);
    hl_write_tracee(tracee, tracee->low, pattern, bytes);
    free(pattern);
}

static void let_go(struct hl_tracee *tracee) {
    if (tracee->stage == HL_TRACEE_STOPPED)
        hl_let_begin_again(tracee);
    else
        restore(tracee);
    hl_trace(tracee->pid, PTRACE_DETACH, 0, 0);
    for (unsigned i = 0; i < tracee->n_held; i++)
        send_again(tracee, &tracee->held[i]);
    tracee->stage = HL_TRACEE_GONE;
}

void hl_release_tracee(struct hl_tracee *tracee) {
    if (tracee->stage >= HL_TRACEE_STOPPED)
        let_go(tracee);
    free(tracee->vectors);
    tracee->vectors = NULL;
    if (tracee->memory >= 0)
        close(tracee->memory);
    if (tracee->lock >= 0)
        close(tracee->lock);
    tracee->memory = tracee->lock = -1;
}

#endif
