/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* share WAY NTH LIBRARY...: opens and closes the libraries (table.S) in turn, while another process uses the same memory.  WAY is

     clone   that process was made by clone(CLONE_VM)
     vfork   it is the parent of the one that opens, which was made by vfork
     alone   there is none
     locked  there is none, and all memory that comes is locked (mlockall)
     poke, protect, seal
             as with clone, and meanwhile the text is changed: right after the first mremap(2) with MREMAP_DONTUNMAP a debugger
             writes to it, or it becomes writable as well, or mseal(2) seals a part of it (x86-64)

   The libraries are equally large, so each one comes to lie where the one before it was.  A tracer stops the one that opens before
   and after each system call of dlopen, as if it were slow.  Once the bytes in the middle of the text are there they have to be
   there at each stop: else there was a hole, in which a mapping of the other process could have landed, or changed text.  In each
   dlopen the tracer lets the NTH mremap(2) with MREMAP_FIXED fail (x86-64), if that is not 0.  Prints

     opened N, wrong N, looked N, holes N, failed N, status N

   wrong counts libraries whose functions gave other results than the first one's, looked the stops at which the text was there;
   status is wait(2)'s of the process that opens. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)256 << 10)
#define HUGE_PAGE_BYTES ((uintptr_t)2 << 20)
#define FUNCTIONS 4096
#define BYTES 64

typedef uint64_t (*function)(uint64_t, void *);

/* For the tracer, which does not share the memory. */
static struct {
    atomic_int opener; /* its PID */
    atomic_int is_traced, is_opening;
    atomic_uintptr_t text;
    unsigned char expected[BYTES];
    long opened, wrong, looked, holes, failed;
} * shared;

static const char *way;
static int nth, n_libraries;
static char **library;

static void fail(const char *what) {
    fprintf(stderr, "share: %s\n", what);
    exit(1);
}

static uint64_t use_library(const char *path) {
    atomic_store(&shared->is_opening, 1);
    void *handle = dlopen(path, RTLD_NOW);
    atomic_store(&shared->is_opening, 0);
    if (handle == NULL)
        fail(dlerror());
    function *table = dlsym(handle, "table");
    uint64_t x = 0;
    for (int i = 0; i < FUNCTIONS; i += 7)
        x = table[i](x, NULL);
    uintptr_t text = ((uintptr_t)table[0] + HUGE_PAGE_BYTES) & -HUGE_PAGE_BYTES;
    memcpy(shared->expected, (void *)text, BYTES);
    atomic_store(&shared->text, text);
    dlclose(handle);
    return x;
}

static int open_all(void *unused) {
    uint64_t expected = 0;
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    atomic_store(&shared->opener, (int)getpid());
    while (!atomic_load(&shared->is_traced))
        sched_yield();
    for (int i = 0; i < n_libraries; i++) {
        uint64_t found = use_library(library[i]);
        expected = i == 0 ? found : expected;
        shared->opened++;
        shared->wrong += found != expected;
    }
    return 0;
}

/* Whether the text is there. */
static bool is_there(void) {
    unsigned char bytes[BYTES];
    struct iovec to = {bytes, BYTES}, from = {(void *)atomic_load(&shared->text), BYTES};
    return process_vm_readv(atomic_load(&shared->opener), &to, 1, &from, 1, 0) == BYTES &&
           memcmp(bytes, shared->expected, BYTES) == 0;
}

/* Lets the call that OPENER is about to make, or that it has made, fail, if it is the NTH one. */
static void fail_call(int opener) {
#if defined __x86_64__
    static int n, is_failing;
    struct user_regs_struct regs;
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, opener, sizeof info, &info) <= 0)
        return;
    if (!atomic_load(&shared->is_opening))
        n = 0;
    bool is_entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
    if (is_entry && info.entry.nr == SYS_mremap && (info.entry.args[3] & MREMAP_FIXED))
        is_failing = ++n == nth;
    if (!is_failing || ptrace(PTRACE_GETREGS, opener, 0, &regs) != 0)
        return;
    if (is_entry) {
        regs.orig_rax = -1;
    } else {
        regs.rax = -ENOMEM;
        shared->failed++;
        is_failing = 0;
    }
    ptrace(PTRACE_SETREGS, opener, 0, &regs);
#else
    (void)opener;
#endif
}

/* OPENER, which stands behind a system call, makes the call NUMBER(AT, BYTES, ARGUMENT) as well. */
static void call(int opener, long number, uint64_t at, uint64_t bytes, uint64_t argument) {
#if defined __x86_64__
    struct user_regs_struct before, regs;
    int status;
    if (ptrace(PTRACE_GETREGS, opener, 0, &before) != 0)
        fail("PTRACE_GETREGS");
    regs = before;
    regs.rax = (uint64_t)number;
    regs.rdi = at;
    regs.rsi = bytes;
    regs.rdx = argument;
    regs.rip -= 2; /* the syscall instruction */
    ptrace(PTRACE_SETREGS, opener, 0, &regs);
    for (int i = 0; i < 2; i++)
        if (ptrace(PTRACE_SYSCALL, opener, 0, 0) != 0 || waitpid(opener, &status, __WALL) != opener)
            fail("PTRACE_SYSCALL");
    if (ptrace(PTRACE_GETREGS, opener, 0, &regs) != 0 || regs.rax != 0)
        fail("a call of the tracer's failed");
    ptrace(PTRACE_SETREGS, opener, 0, &before);
#else
    (void)opener, (void)number, (void)at, (void)bytes, (void)argument;
#endif
}

/* Changes the text that OPENER has just moved aside, in its old place. */
static void meddle(int opener) {
    static uint64_t at;
    static bool was_opening;
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, opener, sizeof info, &info) <= 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        bool is_first = info.entry.nr == SYS_mremap &&
                        info.entry.args[3] == (MREMAP_MAYMOVE | MREMAP_DONTUNMAP) &&
                        info.entry.args[1] >= HUGE_PAGE_BYTES && !was_opening;
        at = is_first ? info.entry.args[0] : 0;
        was_opening = atomic_load(&shared->is_opening) && (was_opening || is_first);
    } else if (at != 0 && strcmp(way, "poke") == 0) {
        ptrace(PTRACE_POKETEXT, opener, at, ptrace(PTRACE_PEEKTEXT, opener, at, 0));
    } else if (at != 0 && strcmp(way, "protect") == 0) {
        call(opener, SYS_mprotect, at, HUGE_PAGE_BYTES / 2, PROT_READ | PROT_WRITE | PROT_EXEC);
    } else if (at != 0 && strcmp(way, "seal") == 0) {
        call(opener, 462 /* mseal */, at, HUGE_PAGE_BYTES / 2, 0);
    }
}

/* Follows the one that opens until that ends. */
static void trace(void) {
    bool was_there = false;
    int opener, status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while ((opener = atomic_load(&shared->opener)) == 0)
        sched_yield();
    if (ptrace(PTRACE_SEIZE, opener, 0, PTRACE_O_TRACESYSGOOD) != 0 ||
        ptrace(PTRACE_INTERRUPT, opener, 0, 0) != 0)
        fail("ptrace");
    atomic_store(&shared->is_traced, 1);
    while (waitpid(opener, &status, __WALL) == opener && WIFSTOPPED(status)) {
        bool there = atomic_load(&shared->is_opening) && is_there();
        shared->looked += there;
        shared->holes += was_there && !there && atomic_load(&shared->is_opening);
        was_there = there;
        fail_call(opener);
        meddle(opener);
        int signal = status >> 16 == 0 && WSTOPSIG(status) != (SIGTRAP | 0x80) ? WSTOPSIG(status) : 0;
        ptrace(PTRACE_SYSCALL, opener, 0, signal);
    }
}

static int wait_for_signal(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    return unused != NULL;
}

static int start(int (*work)(void *), int flags) {
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int child = stack == MAP_FAILED ? -1 : clone(work, stack + STACK_BYTES, CLONE_VM | SIGCHLD | flags, NULL);
    if (child < 0)
        fail("clone");
    return child;
}

int main(int argc, char **argv) {
    int status = 0, other = 0;
    if (argc < 4)
        fail("usage: share WAY NTH LIBRARY...");
    way = argv[1];
    nth = atoi(argv[2]);
    library = argv + 3;
    n_libraries = argc - 3;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    int tracer = shared == MAP_FAILED ? -1 : fork();
    if (tracer < 0)
        fail("fork");
    if (tracer == 0) {
        trace();
        _exit(0);
    }
    if (strcmp(way, "locked") == 0 && mlockall(MCL_FUTURE) != 0)
        fail("mlockall");
    if (strcmp(way, "vfork") != 0 && strcmp(way, "alone") != 0 && strcmp(way, "locked") != 0)
        other = start(wait_for_signal, 0);
    if (strcmp(way, "vfork") == 0)
        waitpid(start(open_all, CLONE_VFORK), &status, 0);
    else
        open_all(NULL);
    if (other > 0)
        kill(other, SIGKILL);
    printf("opened %ld, wrong %ld, looked %ld, holes %ld, failed %ld, status %d\n", shared->opened,
           shared->wrong, shared->looked, shared->holes, shared->failed, status);
    return 0;
}
