/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* stacks ROUNDS DSO DSO: two threads open and close a DSO each (table.S), and signals come to them all the
   time: one whose handler wants the thread's alternate stack, as Go's do, one that is handled where the
   thread is, and a timer's for the running thread.  Each handler looks where its own frame lies and where the
   thread was stopped: on the thread's stack, always.  After each round the thread's signal mask and its
   alternate stack must be unchanged. Prints

       opened N N, foreign N, changed N
       signals N N N */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define ALTERNATE_BYTES (64 << 10)

struct area {
    char *start, *end;
};

static _Thread_local struct area own, alternate;
static atomic_ulong signals[3], foreign, changed;
static atomic_int running;
static char *const *libraries;
static unsigned long rounds, opened[2];

static bool inside(struct area area, const void *at) {
    return (const char *)at >= area.start && (const char *)at < area.end;
}

static void *stack_pointer(const ucontext_t *context) {
#ifdef __x86_64__
    return (void *)context->uc_mcontext.gregs[REG_RSP];
#else
    return (void *)context->uc_mcontext.sp;
#endif
}

static void handle(int signal, siginfo_t *info, void *context) {
    (void)info;
    struct area area = signal == SIGUSR1 ? alternate : own;
    if (own.start == NULL) /* the timer's, in a thread that opens nothing */
        return;
    if (!inside(area, __builtin_frame_address(0)) || !inside(own, stack_pointer(context)))
        atomic_fetch_add(&foreign, 1);
    atomic_fetch_add(&signals[signal == SIGUSR1 ? 0 : signal == SIGUSR2 ? 1 : 2], 1);
}

static void find_stacks(void) {
    pthread_attr_t attributes;
    void *start;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        abort();
    pthread_attr_getstack(&attributes, &start, &bytes);
    pthread_attr_destroy(&attributes);
    alternate.start = malloc(ALTERNATE_BYTES);
    alternate.end = alternate.start + ALTERNATE_BYTES;
    stack_t stack = {.ss_sp = alternate.start, .ss_size = ALTERNATE_BYTES};
    if (sigaltstack(&stack, NULL) != 0)
        abort();
    own.end = (char *)start + bytes;
    own.start = start;
}

static bool is_unchanged(void) {
    stack_t stack;
    sigset_t mask;
    sigaltstack(NULL, &stack);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < NSIG; i++)
        if (sigismember(&mask, i) == 1)
            return false;
    return stack.ss_sp == alternate.start && stack.ss_size == ALTERNATE_BYTES && stack.ss_flags == 0;
}

static void *run(void *argument) {
    size_t number = (size_t)argument;
    find_stacks();
    for (unsigned long i = 0; i < rounds; i++) {
        void *handle = dlopen(libraries[number], RTLD_NOW);
        if (handle == NULL || dlsym(handle, "table") == NULL || dlclose(handle) != 0)
            abort();
        opened[number]++;
        atomic_fetch_add(&changed, !is_unchanged());
    }
    atomic_fetch_sub(&running, 1);
    while (atomic_load(&running) > 0) /* it can be signalled until both are done */
        usleep(1000);
    return NULL;
}

static void set_handler(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART | flags};
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, NULL);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    rounds = strtoul(argv[1], NULL, 0);
    libraries = argv + 2;
    set_handler(SIGUSR1, SA_ONSTACK);
    set_handler(SIGUSR2, 0);
    set_handler(SIGPROF, 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_PROF, &every, NULL);
    pthread_t thread[2];
    running = 2;
    for (size_t i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, run, (void *)i);
    struct timespec pause = {0, 20000};
    for (unsigned i = 0; atomic_load(&running) > 0; i++) {
        pthread_kill(thread[i % 2], i / 2 % 2 ? SIGUSR1 : SIGUSR2);
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    printf("opened %lu %lu, foreign %lu, changed %lu\n", opened[0], opened[1], foreign, changed);
    printf("signals %lu %lu %lu\n", signals[0], signals[1], signals[2]);
    return 0;
}
