/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* steps kill NTH COMMAND ARGUMENT...: runs a tracer, and kills it before its NTH step (from 1).
   steps fail NTH ERRNO COMMAND ARGUMENT...: lets the NTH call that it makes in another process fail.
   steps signal NTH PID NUMBER COMMAND ARGUMENT...: sends a signal to PID before the NTH step, and lets it go on.
   steps run NTH SCRIPT COMMAND ARGUMENT...: runs a script of the shell's before the NTH step, and lets it go on.

   Steps are the calls with which it does something to another process, counted from its first ptrace(2): ptrace,
   pwrite64, pidfd_getfd and sendmsg, and wait4 where it follows one of these.  So each state in which it
   could die comes up once.

   A call in another process is known by the registers that it sets there.  To let it fail, its number is replaced by
   one that no call has, and its result by ERRNO.

   Prints how many there were; the exit status is the command's, or 99 when it was killed. */
#define _GNU_SOURCE
#include <elf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static const long steps[] = {SYS_ptrace, SYS_pwrite64, SYS_pidfd_getfd, SYS_sendmsg, SYS_wait4};
#define STEPS (sizeof steps / sizeof steps[0])
static const long calls[] = {SYS_socketpair, SYS_recvmsg, SYS_close, SYS_mmap,
                             SYS_madvise,    SYS_mremap,  SYS_munmap};
#define NO_CALL 4095

#if defined __aarch64__
#define NUMBER regs[8]
#define RESULT regs[0]
#define ARGUMENT(r, i) ((r)->regs[i])
#define MAKES_CALL(r) true
#define CALL(r) ((r)->regs[8])
#else
#define NUMBER rax
#define RESULT rax
#define ARGUMENT(r, i) ((i) == 0 ? (r)->rdi : (i) == 2 ? (r)->rdx : (r)->r10)
#define MAKES_CALL(r) ((r)->orig_rax == (uint64_t)-1)
#define CALL(r) ((r)->orig_rax)
#endif

static bool kills, fails, signals, runs;
static long nth, error, n, last = SYS_wait4;
static bool failing; /* the call that fails is under way */

static void run_child(char **argv) {
    struct sock_filter code[STEPS + 3];
    unsigned at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < STEPS; i++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)steps[i],
                                                  (unsigned char)(STEPS - i), 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog program = {(unsigned short)at, code};
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        perror("seccomp");
    execv(argv[0], argv);
    _exit(127);
}

/* Whether the step that comes is one that counts. */
static bool is_step(long call) {
    bool counts = call == SYS_wait4 ? n > 0 && last != SYS_wait4 : n > 0 || call == SYS_ptrace;
    last = call;
    return counts;
}

/* The registers that the ptrace(2) with R sets or reads, at *AT of the tracer. */
static bool read_set(pid_t thread, const struct user_regs_struct *r, struct user_regs_struct *set,
                     uint64_t *at) {
    struct iovec vector, here = {&vector, sizeof vector}, there = {(void *)ARGUMENT(r, 3), sizeof vector};
    if (ARGUMENT(r, 2) != NT_PRSTATUS || process_vm_readv(thread, &here, 1, &there, 1, 0) != sizeof vector)
        return false;
    *at = (uint64_t)vector.iov_base;
    here = (struct iovec){set, sizeof *set};
    there = (struct iovec){vector.iov_base, sizeof *set};
    return process_vm_readv(thread, &here, 1, &there, 1, 0) == sizeof *set;
}

static void write_word(pid_t thread, uint64_t at, uint64_t value) {
    ptrace(PTRACE_POKEDATA, thread, (void *)at, (void *)value);
}

static bool is_wanted(uint64_t number) {
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if ((uint64_t)calls[i] == number)
            return true;
    return false;
}

/* Looks at a ptrace(2) that is about to be made; whether to look again when it is. */
static bool look(pid_t thread, const struct user_regs_struct *r) {
    struct user_regs_struct set;
    uint64_t at;
    if (ARGUMENT(r, 0) == PTRACE_GETREGSET)
        return failing && ARGUMENT(r, 2) == NT_PRSTATUS;
    if (ARGUMENT(r, 0) != PTRACE_SETREGSET || !read_set(thread, r, &set, &at) || !MAKES_CALL(&set) ||
        !is_wanted(set.NUMBER))
        return false;
    failing = ++n == nth;
    if (failing)
        write_word(thread, at + offsetof(struct user_regs_struct, NUMBER), NO_CALL);
    return false;
}

/* The tracer has read the result. */
static void replace_result(pid_t thread, const struct user_regs_struct *r) {
    struct user_regs_struct got;
    uint64_t at;
    if (read_set(thread, r, &got, &at))
        write_word(thread, at + offsetof(struct user_regs_struct, RESULT), (uint64_t)-error);
    failing = false;
}

/* A process of the tracer's own may make this step, or be about to make another one. */
static void kill_tracer(pid_t child, pid_t thread) {
    int status;
    kill(child, SIGKILL);
    kill(thread, SIGKILL);
    while ((thread = waitpid(-1, &status, __WALL)) > 0)
        if (WIFSTOPPED(status))
            kill(thread, SIGKILL);
    printf("%ld\n", n);
    exit(99);
}

int main(int argc, char **argv) {
    kills = argc > 3 && strcmp(argv[1], "kill") == 0;
    fails = argc > 4 && strcmp(argv[1], "fail") == 0;
    signals = argc > 5 && strcmp(argv[1], "signal") == 0;
    runs = argc > 4 && strcmp(argv[1], "run") == 0;
    nth = argc > 3 ? atol(argv[2]) : 0;
    error = fails ? atol(argv[3]) : 0;
    pid_t child = fork();
    int status, code = 98;
    if (child == 0)
        run_child(argv + (kills ? 3 : fails || runs ? 4 : 5));
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, NULL,
           (void *)(PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL |
                    PTRACE_O_TRACESYSGOOD));
    ptrace(PTRACE_CONT, child, NULL, NULL);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread == child && WIFEXITED(status))
            code = WEXITSTATUS(status);
        if (thread < 0 || (thread == child && !WIFSTOPPED(status)))
            break;
        if (!WIFSTOPPED(status))
            continue;
        int signal = WSTOPSIG(status);
        struct user_regs_struct r;
        bool again = false;
        struct iovec all = {&r, sizeof r};
        ptrace(PTRACE_GETREGSET, thread, (void *)NT_PRSTATUS, &all);
        if (signal == (SIGTRAP | 0x80)) {
            replace_result(thread, &r);
            signal = 0;
        } else if (status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) {
            long call = (long)CALL(&r);
            bool is_nth = !fails && is_step(call) && ++n == nth;
            if (is_nth && kills)
                kill_tracer(child, thread);
            if (is_nth && signals)
                kill((pid_t)atol(argv[3]), (int)atol(argv[4]));
            if (is_nth && runs && system(argv[3]) != 0)
                perror(argv[3]);
            again = fails && call == SYS_ptrace && look(thread, &r);
        }
        if (status >> 16 != 0 || signal == SIGSTOP)
            signal = 0;
        ptrace(again ? PTRACE_SYSCALL : PTRACE_CONT, thread, NULL, (void *)(long)signal);
    }
    printf("%ld\n", n);
    return code;
}
