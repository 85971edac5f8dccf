/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Threads that repeat all the time the work of real programs' threads, beside a test:

   - one maps memory, fills it, checks it and unmaps it: other code that unmaps it, or writes to it, shows
   as SIGSEGV or as a wrong byte;
   - one makes children by fork, vfork and posix_spawn; the first two run the function that churn_lend has
   lent them;
   - one sends SIGURG to each thread that called churn_watch_me, whose handler looks where it runs, and
   where it interrupted the thread: on that thread's own stack, or the alternate one, as garbage collectors
   and
     coroutines rely on.

   A fault ends the program with a line on standard error.  Each thread does its work once at least.

   Where a test compares all mappings of the process, it starts them with CHURN_MAPS_NOTHING: then there is
   no mapper, and no posix_spawn, whose child needs a stack. */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHURN_WATCHED_MAX 64

enum churn_kind { CHURN_MAPS, CHURN_MAPS_NOTHING };

static struct {
    atomic_bool stop;
    enum churn_kind kind;
    pthread_t mapper, forker, sender;
    pthread_mutex_t lock; /* of what follows */
    bool (*lent)(void);
    pthread_t watched[CHURN_WATCHED_MAX];
    int n_watched;
} churn = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of this thread: [0] the stack, [1] the alternate one. */
static _Thread_local struct { uintptr_t start, end; } churn_stack[2];

__attribute__((format(printf, 1, 2))) static void churn_fail(const char *format, ...) {
    char line[200] = "churn: ";
    va_list arguments;
    va_start(arguments, format);
    int n = 10 + vsnprintf(line + 10, sizeof line - 11, format, arguments);
    va_end(arguments);
    line[n] = '\n';
    if (write(2, line, (size_t)n + 1) < 0)
        _exit(97);
    _exit(98);
}

static void churn_map(size_t bytes, unsigned char mark) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        churn_fail("mmap of %zu bytes: %m", bytes);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < bytes; i += 4096)
            at[i] = mark;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (i % 4096 == 0 ? mark : 0))
            churn_fail("byte %zu of %zu is %u, not what was written", i, bytes, at[i]);
    if (munmap(at, bytes) != 0)
        churn_fail("munmap: %m");
}

static void *churn_map_all(void *unused) {
    unsigned char mark = 1;
    do {
        churn_map(64 << 10, mark);
        churn_map(2 << 20, mark);
        mark = (unsigned char)(mark % 255 + 1);
    } while (!atomic_load(&churn.stop));
    return unused;
}

static void churn_wait_for(pid_t child, const char *how) {
    int status;
    if (child < 0)
        churn_fail("%s: %m", how);
    if (waitpid(child, &status, 0) != child)
        churn_fail("waitpid: %m");
    if (status != 0)
        churn_fail("the child of %s ended with status %#x", how, (unsigned)status);
}

static void churn_be_child(void) { _exit(churn.lent == NULL || churn.lent() ? 0 : 1); }

static void *churn_fork_all(void *unused) {
    do {
        pthread_mutex_lock(&churn.lock);
        pid_t child = fork();
        if (child == 0)
            churn_be_child();
        pthread_mutex_unlock(&churn.lock);
        churn_wait_for(child, "fork");

        pthread_mutex_lock(&churn.lock);
        child = vfork();
        if (child == 0)
            churn_be_child();
        pthread_mutex_unlock(&churn.lock);
        churn_wait_for(child, "vfork");

        if (churn.kind == CHURN_MAPS_NOTHING)
            continue;
        char *argv[] = {"true", NULL}, *envp[] = {NULL};
        if (posix_spawn(&child, "/bin/true", NULL, NULL, argv, envp) != 0)
            churn_fail("posix_spawn");
        churn_wait_for(child, "posix_spawn");
    } while (!atomic_load(&churn.stop));
    return unused;
}

static bool churn_is_own(uintptr_t at) {
    for (int i = 0; i < 2; i++)
        if (at >= churn_stack[i].start && at < churn_stack[i].end)
            return true;
    return false;
}

static uintptr_t churn_interrupted(const ucontext_t *context) {
#if defined __x86_64__
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#else
    return (uintptr_t)context->uc_mcontext.sp;
#endif
}

static void churn_handle(int signal, siginfo_t *info, void *context) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), there = churn_interrupted(context);
    (void)signal, (void)info;
    if (!churn_is_own(here))
        churn_fail("a handler runs on a foreign stack, at %#lx", (unsigned long)here);
    if (!churn_is_own(there))
        churn_fail("a handler interrupted a foreign stack, at %#lx", (unsigned long)there);
}

static void *churn_send_all(void *unused) {
    do {
        pthread_mutex_lock(&churn.lock);
        for (int i = 0; i < churn.n_watched; i++)
            pthread_kill(churn.watched[i], SIGURG);
        pthread_mutex_unlock(&churn.lock);
        usleep(50);
    } while (!atomic_load(&churn.stop));
    return unused;
}

/* From here on this thread gets signals, until churn_forget_me. */
static inline void churn_watch_me(void) {
    pthread_attr_t attributes;
    stack_t alternate;
    size_t bytes;
    void *at;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 || sigaltstack(NULL, &alternate) != 0)
        churn_fail("no stack");
    pthread_attr_getstack(&attributes, &at, &bytes);
    pthread_attr_destroy(&attributes);
    churn_stack[0].start = (uintptr_t)at;
    churn_stack[0].end = (uintptr_t)at + bytes;
    churn_stack[1].start = (uintptr_t)alternate.ss_sp;
    churn_stack[1].end =
        (uintptr_t)alternate.ss_sp + (alternate.ss_flags & SS_DISABLE ? 0 : alternate.ss_size);
    pthread_mutex_lock(&churn.lock);
    if (churn.n_watched == CHURN_WATCHED_MAX)
        churn_fail("too many threads");
    churn.watched[churn.n_watched++] = pthread_self();
    pthread_mutex_unlock(&churn.lock);
}

static inline void churn_forget_me(void) {
    pthread_mutex_lock(&churn.lock);
    for (int i = 0; i < churn.n_watched; i++)
        if (pthread_equal(churn.watched[i], pthread_self()))
            churn.watched[i--] = churn.watched[--churn.n_watched];
    pthread_mutex_unlock(&churn.lock);
}

/* Children call TEXT, which says whether all is right, until it is NULL: before its object is closed. */
static inline void churn_lend(bool (*text)(void)) {
    pthread_mutex_lock(&churn.lock);
    churn.lent = text;
    pthread_mutex_unlock(&churn.lock);
}

static void churn_start(enum churn_kind kind) {
    struct sigaction action = {.sa_sigaction = churn_handle,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    pthread_attr_t attributes;
    atomic_store(&churn.stop, false);
    churn.kind = kind;
    sigaction(SIGURG, &action, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10); /* the same part of them stays each time */
    if ((kind == CHURN_MAPS && pthread_create(&churn.mapper, &attributes, churn_map_all, NULL) != 0) ||
        pthread_create(&churn.forker, &attributes, churn_fork_all, NULL) != 0 ||
        pthread_create(&churn.sender, &attributes, churn_send_all, NULL) != 0)
        churn_fail("no thread");
    pthread_attr_destroy(&attributes);
}

static void churn_stop(void) {
    atomic_store(&churn.stop, true);
    if (churn.kind == CHURN_MAPS)
        pthread_join(churn.mapper, NULL);
    pthread_join(churn.forker, NULL);
    pthread_join(churn.sender, NULL);
}
