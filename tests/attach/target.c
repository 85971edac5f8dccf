/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* target MODE [NUMBER]: a program to be attached to.

   It has some MiB of text that it calls all the time, and compares the results.  MODE says what its first thread does: it is one
   of the waits below, from which it must come back as if it had not been interrupted, or something else that is named there.  A
   child, which is forked first, wakes it when standard input ends.  It prints "ready" when it is about to wait, and at last a
   checksum; the exit status is 7, or 9 after a line that says what was wrong. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "text.h"

#define FUNCTIONS (MIBS * 1024)

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    _exit(9);
}

static uint64_t call_all(uint64_t x) {
    for (long i = 0; i < FUNCTIONS; i++)
        x = ((uint64_t(*)(uint64_t))(functions + 1024 * i))(x);
    return x;
}

/* The result of call_all, without its text. */
static uint64_t expect_all(uint64_t x) {
    for (long i = 0; i < FUNCTIONS; i++)
        x = x * 3 + 12345 + (uint64_t)i * 7;
    return x;
}

static void check_all(void) {
    if (call_all(1) != expect_all(1))
        fail("the text computes something else");
}

/* --- memory that both processes share --- */

static struct shared {
    _Atomic uint32_t word; /* a futex: 1 after the wake */
    _Atomic int stop;
    _Atomic unsigned answered;
} * shared;
static int pipe_[2], pair[2], semaphores, listener;
static struct sockaddr_un address;
static pid_t parent, waker;

static void want(bool condition, const char *what) {
    if (!condition)
        fail("%s: %s", what, strerror(errno));
}

/* --- the waits; each ends when wake() is called --- */

static void wait_futex(void) {
    while (shared->word == 0)
        want(syscall(SYS_futex, &shared->word, FUTEX_WAIT, 0, NULL, NULL, 0) == 0 || errno == EAGAIN,
             "futex");
}

static void wait_futex_timed(void) {
    struct timespec timeout = {60, 0};
    while (shared->word == 0)
        want(syscall(SYS_futex, &shared->word, FUTEX_WAIT, 0, &timeout, NULL, 0) == 0 || errno == EAGAIN,
             "futex with a timeout");
}

static double read_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void wait_nanosleep(void) {
    while (!shared->stop) {
        double began = read_clock();
        struct timespec time = {0, 200000000};
        want(nanosleep(&time, NULL) == 0, "nanosleep");
        want(read_clock() - began >= 0.2, "nanosleep was short");
    }
}

/* Many programs sleep so again and again. */
static void wait_nanosleep_rest(void) {
    struct timespec time = {0, 200000000}, rest = {7, 7};
    while (!shared->stop) {
        double began = read_clock();
        want(nanosleep(&time, &time) == 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &rest) == 0,
             "nanosleep");
        want(read_clock() - began >= 0.4, "nanosleep was short");
        want(time.tv_nsec == 200000000 && rest.tv_nsec == 7, "nanosleep has written the rest");
    }
}

static void wait_clock_nanosleep(void) {
    while (!shared->stop) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        time.tv_sec++;
        want(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == 0, "clock_nanosleep");
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        want(now.tv_sec > time.tv_sec || (now.tv_sec == time.tv_sec && now.tv_nsec >= time.tv_nsec),
             "clock_nanosleep was short");
    }
}

static void wait_poll(void) {
    struct pollfd file = {pipe_[0], POLLIN, 0};
    want(poll(&file, 1, -1) == 1, "poll");
}

static void wait_poll_timed(void) {
    struct pollfd file = {pipe_[0], POLLIN, 0};
    want(poll(&file, 1, 60000) == 1, "poll with a timeout");
}

static void wait_ppoll(void) {
    struct pollfd file = {pipe_[0], POLLIN, 0};
    sigset_t none;
    sigemptyset(&none);
    want(ppoll(&file, 1, NULL, &none) == 1, "ppoll");
}

static void wait_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipe_[0], &set);
    struct timeval timeout = {60, 0};
    want(select(pipe_[0] + 1, &set, NULL, NULL, &timeout) == 1, "select");
}

static void wait_pselect(void) {
    fd_set set;
    sigset_t none;
    sigemptyset(&none);
    FD_ZERO(&set);
    FD_SET(pipe_[0], &set);
    want(pselect(pipe_[0] + 1, &set, NULL, NULL, NULL, &none) == 1, "pselect");
}

#ifdef __x86_64__
/* With a timeout in read-only memory, where the kernel cannot write the rest of it. */
static void wait_select_constant(void) {
    static const struct timeval second = {1, 0};
    while (!shared->stop)
        want(syscall(SYS_select, 0, NULL, NULL, NULL, &second) == 0, "select");
}
#endif

static int make_epoll(void) {
    int epoll = epoll_create1(0);
    struct epoll_event wanted = {EPOLLIN, {0}};
    want(epoll_ctl(epoll, EPOLL_CTL_ADD, pipe_[0], &wanted) == 0, "epoll_ctl");
    return epoll;
}

static void wait_epoll(void) {
    struct epoll_event got;
    want(epoll_wait(make_epoll(), &got, 1, -1) == 1, "epoll_wait");
}

static void wait_epoll_pwait(void) {
    struct epoll_event got;
    sigset_t none;
    sigemptyset(&none);
    want(epoll_pwait(make_epoll(), &got, 1, 60000, &none) == 1, "epoll_pwait");
}

static void wait_pipe(void) {
    char byte;
    want(read(pipe_[0], &byte, 1) == 1, "read of a pipe");
}

static void wait_pipe_write(void) {
    static char bytes[1 << 20];
    int full[2];
    want(pipe(full) == 0, "pipe");
    pid_t reader = fork();
    if (reader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte;
        close(full[1]);
        while (read(pipe_[0], &byte, 1) != 1)
            continue;
        while (read(full[0], bytes, sizeof bytes) > 0)
            continue;
        _exit(0);
    }
    close(full[0]);
    want(write(full[1], bytes, sizeof bytes) == sizeof bytes, "write to a pipe");
    close(full[1]);
    want(waitpid(reader, NULL, 0) == reader, "waitpid");
}

/* Of two bytes the first is there, so that an interrupted call would return it. */
static void wait_socket_lowat(void) {
    char bytes[2];
    int two = 2;
    want(setsockopt(pair[0], SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two) == 0, "SO_RCVLOWAT");
    want(write(pair[1], "x", 1) == 1 && read(pair[0], bytes, 2) == 2, "read of a socket");
}

/* Of two events the first has happened. */
static void wait_io_getevents(void) {
    int ready[2];
    aio_context_t context = 0;
    struct io_event got[2];
    want(pipe(ready) == 0 && write(ready[1], "x", 1) == 1, "pipe");
    struct iocb polls[2] = {
        {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)ready[0], .aio_buf = POLLIN},
        {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)pipe_[0], .aio_buf = POLLIN}};
    struct iocb *both[2] = {&polls[0], &polls[1]};
    want(syscall(SYS_io_setup, 8, &context) == 0 && syscall(SYS_io_submit, context, 2, both) == 2,
         "io_submit");
    want(syscall(SYS_io_getevents, context, 2, 2, got, NULL) == 2, "io_getevents");
}

static void wait_accept(void) { want(accept(listener, NULL, NULL) >= 0, "accept"); }

static void block_usr1(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    sigprocmask(SIG_BLOCK, set, NULL);
}

static void wait_sigwait(void) {
    sigset_t set;
    siginfo_t info;
    block_usr1(&set);
    want(sigwaitinfo(&set, &info) == SIGUSR1 && info.si_pid == waker, "sigwaitinfo");
}

static _Atomic int handled;
static void handle(int number) {
    (void)number;
    handled++;
}

static void wait_sigsuspend(void) {
    sigset_t set, none;
    signal(SIGUSR1, handle);
    block_usr1(&set);
    sigemptyset(&none);
    want(sigsuspend(&none) == -1 && errno == EINTR && handled == 1, "sigsuspend");
}

/* The signal must get it out, with EINTR. */
static void wait_for_eintr(void) {
    struct epoll_event got;
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    want(epoll_wait(epoll_create1(0), &got, 1, -1) == -1 && errno == EINTR && handled == 1, "EINTR");
}

/* A signal that only the call lets through. */
static void wait_pwait_eintr(void) {
    struct epoll_event got;
    struct sigaction action = {.sa_handler = handle};
    sigset_t set, none;
    sigemptyset(&none);
    sigaction(SIGUSR1, &action, NULL);
    block_usr1(&set);
    want(epoll_pwait(epoll_create1(0), &got, 1, -1, &none) == -1 && errno == EINTR && handled == 1, "EINTR");
}

static void *wait_in_thread(void *data) {
    wait_futex();
    return data;
}

/* Sends signals that only the call lets through; each must end it, and the sender waits until it has. */
static void send_and_wait(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned sent = 1; !shared->stop; sent++) {
        double began = read_clock();
        syscall(SYS_tgkill, parent, parent, SIGUSR2);
        while (shared->answered != sent && !shared->stop) {
            want(read_clock() - began < 30, "a signal did not end epoll_pwait");
            usleep(100);
        }
    }
    _exit(0);
}

static void wait_every_eintr(void) {
    struct sigaction action = {.sa_handler = handle};
    struct epoll_event got;
    sigset_t set, none;
    int result, status, epoll = make_epoll();
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGUSR2, &action, NULL);
    pid_t sender = fork();
    if (sender == 0)
        send_and_wait();
    while ((result = epoll_pwait(epoll, &got, 1, -1, &none)) < 0) {
        want(errno == EINTR && handled > 0, "epoll_pwait");
        shared->answered = (unsigned)handled;
    }
    want(result == 1 && waitpid(sender, &status, 0) == sender && status == 0, "epoll_pwait");
}

/* A signal that cannot be held back for long, and that comes once. */
static void wait_faulted(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGSEGV, &action, NULL);
    wait_futex();
    want(handled == 1, "the signal was lost, or came twice");
}

/* The same of two that come at once. */
static void wait_faulted_twice(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    wait_futex();
    want(handled == 2, "a signal was lost, or came twice");
}

static void wait_semop(void) {
    struct sembuf down = {0, -1, 0};
    want(semop(semaphores, &down, 1) == 0, "semop");
}

static void wait_semtimedop(void) {
    struct sembuf down = {0, -1, 0};
    struct timespec timeout = {60, 0};
    want(semtimedop(semaphores, &down, 1, &timeout) == 0, "semtimedop");
}

static void wait_wait4(void) { want(wait4(waker, NULL, 0, NULL) == waker, "wait4"); }

static void wait_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        while (shared->word == 0)
            syscall(SYS_futex, &shared->word, FUTEX_WAIT, 0, NULL, NULL, 0);
        _exit(3);
    }
    int status;
    want(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3, "vfork");
}

static int ring;
static struct io_uring_params ring_parameters;

/* Gives a ring of its own something to do, and returns its queues. */
static char *use_ring(const struct io_uring_sqe *entry) {
    ring = (int)syscall(SYS_io_uring_setup, 4, &ring_parameters);
    want(ring >= 0, "io_uring_setup");
    char *queues = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    *entries = *entry;
    *(uint32_t *)(queues + ring_parameters.sq_off.array) = 0;
    *(uint32_t *)(queues + ring_parameters.sq_off.tail) = 1;
    want(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1, "io_uring_enter");
    return queues;
}

/* One of the kernel's threads waits for data, which it is to move from one pipe to another. */
static void wait_io_uring(void) {
    use_ring(&(struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = pipe_[0], .poll32_events = POLLIN});
    want(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0,
         "io_uring_enter, waiting");
}

static void wait_terminal(void) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    want(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0, "posix_openpt");
    int other = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    if (fork() == 0) {
        char byte;
        while (read(pipe_[0], &byte, 1) != 1)
            continue;
        want(write(terminal, "x\n", 2) == 2, "write to a terminal");
        while (!shared->stop)
            usleep(1000);
        usleep(200000);
        _exit(0);
    }
    char bytes[8];
    want(read(other, bytes, sizeof bytes) == 2, "read of a terminal");
    waitpid(-1, NULL, 0);
}

/* --- not in a call --- */

static void run_compute(void) {
    while (!shared->stop)
        check_all();
}

/* Sleeps for some milliseconds again and again, and computes in between. */
static void run_doze(void) {
    while (!shared->stop) {
        poll(NULL, 0, 5);
        check_all();
    }
}

/* While another thread waits. */
static void run_compute_beside(void) {
    pthread_t thread;
    want(pthread_create(&thread, NULL, wait_in_thread, NULL) == 0, "pthread_create");
    run_compute();
    pthread_join(thread, NULL);
}

/* In a handler, on an alternate stack that has no room for more. */
static void doze_in_handler(int number) {
    (void)number;
    run_doze();
}

static void run_handler(void) {
    static char stack[16384] __attribute__((aligned(64)));
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, after;
    struct sigaction action = {.sa_handler = doze_in_handler, .sa_flags = SA_ONSTACK};
    want(sigaltstack(&alternate, NULL) == 0, "sigaltstack");
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    want(sigaltstack(NULL, &after) == 0 && after.ss_sp == stack && after.ss_size == sizeof stack &&
             after.ss_flags == 0,
         "the alternate stack has changed");
}

/* On a coroutine's stack, with other data right below. */
static struct {
    unsigned char canary[65536];
    char stack[4096 + 2048] __attribute__((aligned(64)));
} small;
static ucontext_t outside, inside;

static void doze_on_small_stack(void) {
    run_doze();
    swapcontext(&inside, &outside);
}

static void run_coroutine(void) {
    memset(small.canary, 0xa5, sizeof small.canary);
    getcontext(&inside);
    inside.uc_stack = (stack_t){.ss_sp = small.stack, .ss_size = sizeof small.stack};
    inside.uc_link = &outside;
    makecontext(&inside, doze_on_small_stack, 0);
    swapcontext(&outside, &inside);
    for (size_t i = 0; i < sizeof small.canary; i++)
        want(small.canary[i] == 0xa5, "something was written below the stack");
}

/* In a handler whose stack is an array on the stack that it has interrupted: the BYTES below are in use. */
static void run_handler_above(size_t bytes) {
    char stack[8192] __attribute__((aligned(64)));
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = doze_in_handler, .sa_flags = SA_ONSTACK};
    want(sigaltstack(&alternate, NULL) == 0, "sigaltstack");
    sigaction(SIGUSR2, &action, NULL);
    unsigned char *below = alloca(bytes);
    memset(below, 0xa5, bytes);
    __asm__ volatile("" : : "r"(below) : "memory");
    raise(SIGUSR2);
    for (size_t i = 0; i < bytes; i++)
        want(below[i] == 0xa5, "something was written below the handler's stack");
    alternate.ss_flags = SS_DISABLE;
    want(sigaltstack(&alternate, NULL) == 0, "sigaltstack");
}

static void run_handler_below(void) { run_handler_above(4096); }

/* To the end of the stack. */
static void run_handler_deep(void) { run_handler_above(300000); }

/* A coroutine, where the first thread's own stack has been used to its end. */
static void run_coroutine_deep(void) {
    unsigned char *deep = alloca(300000);
    memset(deep, 0xa5, 300000);
    __asm__ volatile("" : : "r"(deep) : "memory");
    run_coroutine();
    want(deep[0] == 0xa5, "the stack has changed");
}

#ifdef __x86_64__
/* Registers that only XSAVE restores: a value in each while it sleeps, compared afterwards. */
__attribute__((target("avx"))) static void run_vectors(void) {
    typedef uint64_t vector __attribute__((vector_size(32)));
    const struct timespec time = {0, 5000000};
    while (!shared->stop) {
        vector a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, c = {9, 10, 11, 12}, d = {13, 14, 15, 16};
        long result = SYS_nanosleep;
        __asm__ volatile("syscall"
                         : "+a"(result), "+x"(a), "+x"(b), "+x"(c), "+x"(d)
                         : "D"(&time), "S"(NULL)
                         : "rcx", "r11", "memory");
        vector sum = a + b + c + d;
        want(sum[0] == 28 && sum[1] == 32 && sum[2] == 36 && sum[3] == 40, "a vector register has changed");
        check_all();
    }
}
#endif

static _Atomic unsigned alarms;
static void count_alarm(int number) {
    (void)number;
    alarms++;
    check_all();
}

/* Sends signals all the time, whose handlers use the text. */
static void run_signals(void) {
    struct sigaction action = {.sa_handler = count_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval time = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &time, NULL);
    while (!shared->stop) {
        char byte;
        struct pollfd file = {pipe_[0], POLLIN, 0};
        if (poll(&file, 1, 5) < 0)
            want(errno == EINTR, "poll under signals");
        else if (file.revents != 0)
            want(read(pipe_[0], &byte, 1) == 1, "read under signals");
    }
    memset(&time, 0, sizeof time);
    setitimer(ITIMER_REAL, &time, NULL);
    want(alarms > 0, "no alarm came");
}

/* Maps and unmaps memory all the time, wherever the kernel finds a hole. */
static void *churn_memory(void *data) {
    for (size_t i = 0; !shared->stop; i++) {
        size_t bytes = (size_t)65536 << i % 8;
        char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        want(at != MAP_FAILED, "mmap");
        for (size_t j = 0; j < bytes; j += 65536)
            at[j] = (char)(i + 1);
        for (size_t j = 0; j < bytes; j += 65536)
            want(at[j] == (char)(i + 1), "memory has changed");
        munmap(at, bytes);
    }
    return data;
}

static void run_memory(void) {
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        want(pthread_create(&thread[i], NULL, churn_memory, NULL) == 0, "pthread_create");
    wait_futex();
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

static void run_forks(void) {
    while (!shared->stop) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            check_all();
            _exit(5);
        }
        want(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5, "a child");
        poll(NULL, 0, 1);
    }
}

/* --- refused, or filtered --- */

static void run_locked(void) {
    want(mlock((void *)functions, 1024 * FUNCTIONS) == 0, "mlock");
    wait_futex();
}

static void run_locked_later(void) {
    want(mlockall(MCL_FUTURE) == 0, "mlockall");
    wait_futex();
}

static void run_advised(void) {
    want(madvise((void *)functions, 1024 * FUNCTIONS, MADV_NOHUGEPAGE) == 0, "madvise");
    wait_futex();
}

static void run_small(void) {
    want(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, "PR_SET_THP_DISABLE");
    wait_futex();
}

static void run_sealed(void) {
    want(syscall(462 /* mseal */, (uintptr_t)functions & -4096UL, 1024L * FUNCTIONS, 0) == 0, "mseal");
    wait_futex();
}

/* Writes the same byte again. */
static void run_patched(void) {
    char *page = (char *)(((uintptr_t)functions + (3 << 20)) & -4096UL);
    want(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0, "mprotect");
    *(volatile char *)page = *page;
    want(mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0, "mprotect");
    wait_futex();
}

static void run_filtered(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
             prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
         "seccomp");
    wait_futex();
}

/* A filter that answers CALL with ACTION, for all threads; a descriptor if that asks a supervisor. */
static int filter_call(unsigned call, unsigned action, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    int result = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    want(result >= 0, "seccomp");
    return result;
}

/* Waits until the first thread's stack has grown: the frame is there. */
static void await_frame(void) {
    char line[512];
    unsigned long start, before = 0;
    for (bool grown = false; !grown && !shared->stop;) {
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof line, maps) != NULL)
            if (strstr(line, "[stack]") != NULL && sscanf(line, "%lx-", &start) == 1) {
                grown = before != 0 && start < before;
                before = start;
            }
        fclose(maps);
    }
}

#ifdef __x86_64__
/* Its call is answered by a supervisor, which must not be asked twice. */
static void run_supervised(void) {
    int listener = filter_call(SYS_pause, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    pid_t supervisor = fork();
    if (supervisor == 0) {
        struct seccomp_notif asked = {0};
        want(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0, "a notification");
        while (!shared->stop)
            usleep(1000);
        struct seccomp_notif_resp answer = {.id = asked.id, .val = 5};
        _exit(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0 ? 3 : 4);
    }
    close(listener);
    int status;
    want(syscall(SYS_pause) == 5, "the supervisor's answer");
    want(waitpid(supervisor, &status, 0) == supervisor && WEXITSTATUS(status) == 3, "the supervisor");
}

/* A filter forbids mkdir.  As soon as a tracer has the first thread, the syscall instruction of the dynamic linker that the tracer
   could use for calls leads to one. */
static const char forbidden[] = "/tmp/hugeld-test-escaped";
__asm__(".text\n"
        "escape: mov $83, %eax\n"
        "lea forbidden_path(%rip), %rdi\n"
        "mov $0755, %esi\n"
        "syscall\n"
        "1: pause\n"
        "jmp 1b\n"
        ".section .rodata\n"
        "forbidden_path: .asciz \"/tmp/hugeld-test-escaped\"\n"
        ".text\n");
extern const char escape[];

static void *escape_when_traced(void *data) {
    unsigned char jump[12] = {0x48, 0xb8, [10] = 0xff, 0xe0}, *text = NULL, *saved;
    uint64_t target = (uint64_t)escape;
    char line[512], permissions[8];
    unsigned long start, end;
    size_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL && text == NULL)
        if (sscanf(line, "%lx-%lx %7s", &start, &end, permissions) == 3 &&
            strstr(line, "/ld-linux") != NULL && strcmp(permissions, "r-xp") == 0) {
            text = (unsigned char *)start;
            bytes = end - start;
        }
    fclose(maps);
    memcpy(jump + 2, &target, sizeof target);
    saved = malloc(bytes);
    memcpy(saved, text, bytes);
    await_frame();
    mprotect(text, bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (unsigned char *at = text; (at = memmem(at, text + bytes - at, "\x0f\x05\xc3", 3)) != NULL; at += 3)
        memcpy(at, jump, sizeof jump); /* hugeld uses one of them */
    usleep(300000);
    memcpy(text, saved, bytes);
    return data;
}

static void run_escape(void) {
    pthread_t thread;
    rmdir(forbidden);
    filter_call(SYS_mkdir, SECCOMP_RET_ERRNO | EPERM, 0);
    pthread_create(&thread, NULL, escape_when_traced, NULL);
    wait_futex();
    pthread_join(thread, NULL);
    want(access(forbidden, F_OK) != 0, "a filter was evaded");
}
#endif

/* This byte tells the kernel whether calls outside of [0, 0) are let through; they are. */
static void run_dispatch(void) {
    static char selector;
    want(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector) == 0, "syscall user dispatch");
    wait_futex();
}

static void run_privileged(void) {
    want(prctl(PR_SET_DUMPABLE, 0) == 0, "dumpable");
    wait_futex();
}

/* Executes this program and OTHER in turns, every few milliseconds, until the file NAME is there. */
static int run_execs(char **argv) {
    struct timespec now;
    char *const next[] = {argv[3], argv[1], argv[2], argv[0], NULL};
    check_all();
    if (access(argv[2], F_OK) == 0)
        return 7;
    clock_gettime(CLOCK_MONOTONIC, &now);
    usleep((useconds_t)(now.tv_nsec / 100 % 20000));
    execv(argv[3], next);
    return 8;
}

static const char *victim;

/* A thread that waits until the FIFO NAME has a writer, and then executes the program PATH. */
static void *execute_later(void *path) {
    close(open(victim, O_RDONLY));
    execl(path, path, "executed", NULL);
    return path;
}

static void run_execs_beside(void) {
    pthread_t thread;
    want(pthread_create(&thread, NULL, execute_later, "/proc/self/exe") == 0, "pthread_create");
    pthread_join(thread, NULL);
}

/* Changes the text as the FIFO NAME says: l locks it, a advises something, u unloads the LIBRARY, e executes another program,
   m maps a part elsewhere, as V8 does. */
static void *library;
static const char *elsewhere;

static const char *aligned_text(void) {
    return (const char *)(((uintptr_t)functions + 0x1fffff) & ~0x1fffffUL);
}

static void *obey(void *data) {
    size_t bytes = 1024 * FUNCTIONS;
    char byte, *from = (char *)((uintptr_t)functions & -4096UL);
    want(read(open(victim, O_RDWR), &byte, 1) == 1, victim);
    if (byte == 'l')
        want(mlock(from, bytes) == 0, "mlock");
    if (byte == 'a')
        want(madvise(from, bytes, MADV_DONTFORK) == 0, "madvise");
    if (byte == 'm')
        elsewhere = mremap((void *)aligned_text(), 2 << 20, 2 << 20, 5 /* MAYMOVE, DONTUNMAP */);
    want(elsewhere != MAP_FAILED, "mremap");
    if (byte == 'u')
        want(dlclose(library) == 0, "dlclose");
    if (byte == 'e')
        execlp("sleep", "sleep", "1000", NULL);
    prctl(PR_SET_NAME, "obeyed");
    while (!shared->stop)
        pause();
    return data;
}

static void run_told(void) {
    pthread_t thread;
    const char *path = getenv("LIBRARY");
    want(path == NULL || (library = dlopen(path, RTLD_NOW)) != NULL, "dlopen");
    want(pthread_create(&thread, NULL, obey, NULL) == 0, "pthread_create");
    wait_futex();
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    if (elsewhere != NULL)
        want(memcmp(elsewhere, aligned_text(), 2 << 20) == 0, "the text elsewhere");
}

/* The executed program gets a signal that it ignores, at which a tracer would stop it. */
static int run_executed(void) {
    char byte;
    prctl(PR_SET_NAME, "executed");
    raise(SIGWINCH);
    while (read(0, &byte, 1) > 0)
        continue;
    check_all();
    puts("executed");
    return 7;
}

/* NAME is a program whose file system does not answer.  A thread executes it when the first one is about to wait. */
static void *execute_unanswered(void *data) {
    execl(victim, victim, NULL);
    return data;
}

static void run_execs_unanswered(void) {
    pthread_t thread;
    want(pthread_create(&thread, NULL, execute_unanswered, NULL) == 0, "pthread_create");
    wait_futex();
    pthread_join(thread, NULL);
}

/* An attacker of the process that looks at it: its descriptors are other ones all the time, connected to the socket NAME
   among them, and so are its mappings, its stacks' contents and its name. */

/* The lowest descriptor that is free, as soon as a call of the tracer's has made it. */
static int await_descriptor(void) {
    int low = dup(0);
    close(low);
    while (fcntl(low, F_GETFD) < 0 && !shared->stop)
        continue;
    return low;
}

static void *swap_descriptors(void *data) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, victim, sizeof name.sun_path - 1);
    int bait = fcntl(socket(AF_UNIX, SOCK_DGRAM, 0), F_DUPFD, 500);
    int null = fcntl(open("/dev/null", O_RDWR), F_DUPFD, 501);
    want(connect(bait, (struct sockaddr *)&name, sizeof name) == 0, "connect to the victim");
    for (unsigned turn = 0; !shared->stop; turn++) {
        int low = await_descriptor();
        for (int i = low; i < low + 2; i++)
            dup2(turn % 4 ? bait : null, i);
        usleep(1000);
        for (int i = low; i < low + 2; i++)
            close(i);
    }
    return data;
}

static void *swap_mappings(void *data) {
    while (!shared->stop) {
        char *at = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        prctl(PR_SET_NAME, "\n\033[31m) R 1");
        munmap(at, 16 << 20);
        mprotect((void *)functions, 4096, PROT_READ | PROT_EXEC | PROT_WRITE);
        mprotect((void *)functions, 4096, PROT_READ | PROT_EXEC);
    }
    return data;
}

static void *scribble(void *data) {
    char *low = data;
    while (!shared->stop)
        for (size_t i = 1 << 14; i > 1 << 10; i -= 64)
            *(volatile uint64_t *)(low - i) ^= 0x5a5a;
    return NULL;
}

static void run_hostile(void) {
    pthread_t thread;
    char here;
    pthread_create(&thread, NULL, swap_descriptors, NULL);
    pthread_create(&thread, NULL, swap_mappings, NULL);
    pthread_create(&thread, NULL, scribble, &here);
    wait_futex();
}

/* A page of the file NAME as text, before all other: the server of its file system does not answer. */
static void run_unanswered(void) {
    int file = open(victim, O_RDONLY);
    want(mmap((void *)0x10000, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED,
         "mmap");
    puts("mapped");
    fflush(stdout);
    wait_futex();
}

/* Puts the file NAME, which has to be asked whether it may be closed, in the place of a descriptor of the tracer's. */
static void *swap_for_file(void *data) {
    dup2(*(int *)data, await_descriptor());
    return data;
}

static void run_unanswered_close(void) {
    pthread_t thread;
    int file = fcntl(open(victim, O_RDONLY), F_DUPFD, 500);
    want(file >= 0, victim);
    puts("mapped");
    fflush(stdout);
    pthread_create(&thread, NULL, swap_for_file, &file);
    wait_futex();
    pthread_join(thread, NULL);
}

/* --- the waker --- */

static void wake(void) {
    struct sembuf up = {0, 1, 0};
    shared->stop = 1;
    shared->word = 1;
    syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1000, NULL, NULL, 0);
    want(write(pipe_[1], "x", 1) == 1 && write(pair[1], "x", 1) == 1, "wake");
    semop(semaphores, &up, 1);
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    connect(client, (struct sockaddr *)&address, sizeof address);
    kill(parent, SIGUSR1);
}

static void run_waker(void) {
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    want(write(pair[1], "r", 1) == 1, "ready");
    while (read(0, &byte, 1) > 0)
        continue;
    wake();
    _exit(0);
}

static void prepare(void) {
    char name[64];
    char byte;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    want(pipe(pipe_) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "pipe");
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    snprintf(name, sizeof name, "/hugeld-test-%d", getpid());
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    want(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0,
         "listen");
    signal(SIGUSR1, SIG_IGN);
    parent = getpid();
    waker = fork();
    if (waker == 0)
        run_waker();
    want(read(pair[0], &byte, 1) == 1, "the waker");
}

static void forget(void) { semctl(semaphores, 0, IPC_RMID); }

static const struct mode {
    const char *name;
    void (*run)(void);
} modes[] = {
#define WAIT(name)                                                                                           \
    { #name, wait_##name }
#define RUN(name)                                                                                            \
    { #name, run_##name }
    WAIT(futex),
    WAIT(futex_timed),
    WAIT(nanosleep),
    WAIT(clock_nanosleep),
    WAIT(poll),
    WAIT(poll_timed),
    WAIT(ppoll),
    WAIT(select),
    WAIT(pselect),
    WAIT(epoll),
    WAIT(epoll_pwait),
    WAIT(pipe),
    WAIT(pipe_write),
    WAIT(accept),
    WAIT(sigwait),
    WAIT(sigsuspend),
    WAIT(for_eintr),
    WAIT(every_eintr),
    WAIT(faulted),
    WAIT(faulted_twice),
    WAIT(semop),
    WAIT(semtimedop),
    WAIT(wait4),
    WAIT(vfork),
    WAIT(io_uring),
    WAIT(terminal),
    RUN(compute),
    RUN(doze),
    RUN(handler),
    RUN(handler_below),
    RUN(coroutine),
    RUN(coroutine_deep),
    RUN(vectors),
    RUN(signals),
    RUN(memory),
    RUN(forks),
    RUN(locked),
    RUN(locked_later),
    RUN(advised),
    RUN(sealed),
    RUN(patched),
    RUN(filtered),
    RUN(dispatch),
    RUN(privileged),
    RUN(hostile),
    WAIT(pwait_eintr),
    WAIT(nanosleep_rest),
    WAIT(select_constant),
    WAIT(socket_lowat),
    WAIT(io_getevents),
    RUN(handler_deep),
    RUN(supervised),
    RUN(escape),
    RUN(small),
    RUN(compute_beside),
    RUN(unanswered),
    RUN(unanswered_close),
    RUN(told),
    RUN(execs_beside),
    RUN(execs_unanswered),
};

static _Atomic int started;
static void *compute_in_thread(void *data) {
    started++;
    run_compute();
    return data;
}

int main(int argc, char **argv) {
    pthread_t thread[64];
    long n = argc > 2 ? atol(argv[2]) : 0;
    void (*run)(void) = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (argc > 1 && strcmp(modes[i].name, argv[1]) == 0)
            run = modes[i].run;
    if (argc == 1) {
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
            puts(modes[i].name);
        return 0;
    }
    if (strcmp(argv[1], "execs") == 0)
        return run_execs(argv);
    if (strcmp(argv[1], "executed") == 0)
        return run_executed();
    victim = argv[2];
    want(run != NULL && n < 64, argv[1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare();
    for (long i = 0; i < n; i++)
        want(pthread_create(&thread[i], NULL, compute_in_thread, NULL) == 0, "pthread_create");
    while (started < n)
        usleep(100);
    check_all();
    puts("ready");
    fflush(stdout);
    run();
    for (long i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    check_all();
    forget();
    printf("%016lx\n", (unsigned long)call_all(1));
    return 7;
}
