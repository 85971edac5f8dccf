/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* calls FAMILY: the kernel's answers to one family of calls, on memory beside this program's 12 MiB of
   text and on that text itself, as the manual pages document it and LTP's programs of these names try it. One
   line for each case:

       NAME: ok | a number | the name of an errno

   and at the end the sum of all functions of the text.  Without hugeld and on huge pages the lines are the
   same, but for those that begin with "4k" or "growing": they ask for a part of a huge page (doc/limits.md),
   or want more, and hugetlb answers EINVAL. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define PAGE 4096L
#define HUGE (2L << 20)
#define FUNCTIONS 12288
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define RUN (PROT_READ | PROT_EXEC)

__asm__(".text\n.p2align 12\nfunctions:\n.set i, 0\n.rept 12288\n"
        "leaq 7 + i(%rdi, %rdi, 2), %rax\nret\n.p2align 10, 0xcc\n.set i, i + 1\n.endr\n");
extern char functions[] __attribute__((visibility("hidden")));

static uint64_t sum(void) {
    uint64_t x = 1;
    for (int i = 0; i < FUNCTIONS; i++)
        x = ((uint64_t(*)(uint64_t))(functions + 1024 * i))(x);
    return x;
}

/* A huge page in the middle of the text, and a page in the middle of that. */
static char *huge(void) { return (char *)(((uintptr_t)functions + 4 * HUGE) & -HUGE); }

static char *small(void) { return huge() + 100 * PAGE; }

static void say(const char *name, bool right) { printf("%s: %s\n", name, right ? "ok" : "WRONG"); }

/* The result of a call. */
static bool tell(const char *name, long result) {
    if (result == -1)
        printf("%s: %s\n", name, strerrorname_np(errno));
    else
        printf("%s: ok\n", name);
    return result != -1;
}

static bool tell_map(const char *name, void *result) { return tell(name, result == MAP_FAILED ? -1 : 0); }

static char *map(size_t bytes, int protection) {
    char *at = mmap(NULL, bytes, protection, ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

static bool is_filled(const char *at, int c, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (char)c)
            return false;
    return true;
}

static sigjmp_buf back;

static void jump(int signal) { siglongjmp(back, signal); }

/* The signal that reading or writing one byte gives, or 0. */
static int touch(volatile char *at, bool write) {
    struct sigaction action = {.sa_handler = jump}, segv, bus;
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        char c = *at;
        if (write)
            *at = c;
    }
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return signal;
}

static void tell_touch(const char *name, volatile char *at, bool write) {
    int signal = touch(at, write);
    printf("%s: %s\n", name, signal == 0 ? "ok" : sigabbrev_np(signal));
}

static int make_file(size_t bytes) {
    int fd = memfd_create("calls", MFD_CLOEXEC);
    char page[PAGE];
    for (size_t i = 0; i < bytes / PAGE; i++) {
        memset(page, 'a' + (int)i, sizeof page);
        if (write(fd, page, sizeof page) != PAGE)
            abort();
    }
    return fd;
}

static void try_mmap(void) {
    int fd = make_file(4 * PAGE), closed = dup(fd), read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    close(closed);
    char *at = mmap(NULL, 4 * PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    say("private file", is_filled(at, 'a', PAGE) && is_filled(at + 3 * PAGE, 'd', PAGE));
    memset(at, 'x', PAGE);
    char *shared = mmap(NULL, 4 * PAGE, READ_WRITE, MAP_SHARED, fd, 0);
    say("not written to the file", is_filled(shared, 'a', PAGE));
    memset(shared + PAGE, 'y', PAGE);
    say("shared file is seen", is_filled(at + PAGE, 'y', PAGE));
    char *last = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 3 * PAGE);
    tell_touch("inside the file", last, false);
    tell_touch("behind its end", last + PAGE, false);
    say("truncated", ftruncate(fd, PAGE) == 0);
    tell_touch("cut off", shared + PAGE, false);
    tell_map("length 0", mmap(NULL, 0, PROT_READ, ANONYMOUS, -1, 0));
    tell_map("offset inside a page", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 100));
    tell_map("closed descriptor", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, closed, 0));
    tell_map("shared writable of a read-only one", mmap(NULL, PAGE, READ_WRITE, MAP_SHARED, read_only, 0));
    tell_map("neither private nor shared", mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0));
    tell_map("everything", mmap(NULL, (size_t)-PAGE, PROT_READ, ANONYMOUS, -1, 0));
    tell_map("fixed inside a page", mmap(at + 1, PAGE, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0));
    char *beside = map(3 * PAGE, READ_WRITE);
    memset(beside, 1, 3 * PAGE);
    say("fixed", mmap(beside + PAGE, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == beside + PAGE);
    say("replaced", is_filled(beside, 1, PAGE) && is_filled(beside + PAGE, 0, PAGE) && beside[2 * PAGE] == 1);
    tell_touch("no access", mmap(NULL, PAGE, PROT_NONE, ANONYMOUS, -1, 0), false);
    at = mmap(NULL, 4 * HUGE, READ_WRITE, ANONYMOUS | MAP_POPULATE | MAP_NORESERVE, -1, 0);
    say("populated", at != MAP_FAILED && is_filled(at, 0, 4 * HUGE) && munmap(at, 4 * HUGE) == 0);

    tell_map("text: fixed, not over it",
             mmap(huge(), HUGE, PROT_READ, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    tell_map("text: a page, not over it",
             mmap(small(), PAGE, PROT_READ, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    at = mmap(huge(), HUGE, PROT_READ, ANONYMOUS, -1, 0);
    say("text: as a hint", at != MAP_FAILED && at != huge());
    char *copy = map(HUGE, READ_WRITE);
    memcpy(copy, huge(), HUGE);
    char *over = mmap(small(), PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    if (tell_map("4k text: replaced", over)) {
        memcpy(small(), copy + 100 * PAGE, PAGE);
        mprotect(small(), PAGE, RUN);
    }
    over = mmap(huge(), HUGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    tell_map("text: a huge page replaced", over);
    memcpy(over, copy, HUGE);
    tell("text: and protected", mprotect(over, HUGE, RUN));
}

static void try_munmap(void) {
    char *at = map(5 * PAGE, READ_WRITE);
    memset(at, 7, 5 * PAGE);
    tell("in the middle", munmap(at + 2 * PAGE, PAGE));
    tell_touch("gone", at + 2 * PAGE, false);
    say("both sides", is_filled(at, 7, 2 * PAGE) && is_filled(at + 3 * PAGE, 7, 2 * PAGE));
    tell("with a hole", munmap(at, 5 * PAGE));
    tell("nothing there", munmap(at, 5 * PAGE));
    tell("inside a page", munmap(at + 1, PAGE));
    tell("length 0", munmap(at, 0));
    tell("beyond the end", munmap((void *)-PAGE, 2 * PAGE));
}

static void try_mremap(void) {
    char *at = map(8 * PAGE, READ_WRITE);
    memset(at, 3, 8 * PAGE);
    say("shrinks", mremap(at, 8 * PAGE, 4 * PAGE, 0) == at);
    say("grows again", mremap(at, 4 * PAGE, 6 * PAGE, 0) == at && is_filled(at, 3, 4 * PAGE) &&
                           is_filled(at + 4 * PAGE, 0, 2 * PAGE));
    mmap(at + 6 * PAGE, PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED, -1, 0);
    tell_map("blocked", mremap(at, 6 * PAGE, 8 * PAGE, 0));
    char *moved = mremap(at, 6 * PAGE, 600 * PAGE, MREMAP_MAYMOVE);
    say("moves", moved != MAP_FAILED && moved != at && is_filled(moved, 3, 4 * PAGE));
    tell_touch("nothing left", at, false);
    char *room = map(8 * PAGE, PROT_NONE);
    say("to a place",
        mremap(moved, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + PAGE) == room + PAGE);
    say("with its contents", is_filled(room + PAGE, 3, 4 * PAGE));
    tell_map("into itself",
             mremap(room + PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 2 * PAGE));
    tell_map("place inside a page", mremap(room + PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 1));
    tell_map("fixed and may not move", mremap(room + PAGE, PAGE, PAGE, MREMAP_FIXED, room));
    tell_map("inside a page", mremap(room + PAGE + 1, PAGE, PAGE, MREMAP_MAYMOVE));
    tell_map("new length 0", mremap(room + PAGE, PAGE, 0, MREMAP_MAYMOVE));
    tell_map("unknown flag", mremap(room + PAGE, PAGE, PAGE, 64));
    munmap(room, PAGE);
    tell_map("nothing there", mremap(room, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    char *left = mremap(room + PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    say("and stays", left != MAP_FAILED && is_filled(left, 3, PAGE) && is_filled(room + PAGE, 0, PAGE));
    int fd = make_file(2 * PAGE);
    char *shared = mmap(NULL, 2 * PAGE, READ_WRITE, MAP_SHARED, fd, 0);
    char *twice = mremap(shared, 0, 2 * PAGE, MREMAP_MAYMOVE);
    shared[5] = 'z';
    say("a second view", twice != MAP_FAILED && twice[5] == 'z');

    tell_map("growing text", mremap(huge(), HUGE, 2 * HUGE, 0));
    char *aside = map(3 * HUGE, PROT_NONE);
    aside = (char *)(((uintptr_t)aside + HUGE) & -HUGE);
    char *there = mremap(huge(), HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, aside);
    say("text: a huge page aside", there == aside);
    tell_touch("text: nothing left", huge(), false);
    say("text: and back", mremap(there, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, huge()) == huge());
    there = mremap(small(), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, aside);
    if (tell_map("4k text: aside", there))
        mremap(there, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, small());
}

static void try_madvise(void) {
    static const struct {
        const char *name;
        int advice;
    } advices[] = {
        {"normal", MADV_NORMAL},     {"random", MADV_RANDOM},        {"sequential", MADV_SEQUENTIAL},
        {"dontfork", MADV_DONTFORK}, {"dofork", MADV_DOFORK},        {"dontdump", MADV_DONTDUMP},
        {"dodump", MADV_DODUMP},     {"willneed", MADV_WILLNEED},    {"cold", MADV_COLD},
        {"hugepage", MADV_HUGEPAGE}, {"nohugepage", MADV_NOHUGEPAGE}};
    char *at = map(8 * PAGE, READ_WRITE);
    for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++) {
        memset(at, 5, 8 * PAGE);
        tell(advices[i].name, madvise(at + PAGE, PAGE, advices[i].advice));
        say("contents", is_filled(at, 5, 8 * PAGE));
    }
    tell("dontneed", madvise(at + PAGE, PAGE, MADV_DONTNEED));
    say("zeros",
        is_filled(at, 5, PAGE) && is_filled(at + PAGE, 0, PAGE) && is_filled(at + 2 * PAGE, 5, 6 * PAGE));
    tell("free", madvise(at, PAGE, MADV_FREE));
    at[0] = 9;
    say("kept when written", at[0] == 9);
    int fd = make_file(2 * PAGE);
    char *shared = mmap(NULL, 2 * PAGE, READ_WRITE, MAP_SHARED, fd, 0);
    tell("remove", madvise(shared, PAGE, MADV_REMOVE));
    say("punched", is_filled(shared, 0, PAGE) && is_filled(shared + PAGE, 'b', PAGE));
    tell("free a file's", madvise(shared, PAGE, MADV_FREE));
    tell("unknown", madvise(at, PAGE, 12345));
    tell("inside a page", madvise(at + 1, PAGE, MADV_NORMAL));
    tell("length 0", madvise(at, 0, MADV_DONTNEED));
    tell("overflow", madvise(at, (size_t)-1, MADV_DONTNEED));
    munmap(at + 4 * PAGE, PAGE);
    tell("with a hole", madvise(at, 8 * PAGE, MADV_NORMAL));
    say("done all the same", madvise(at, 8 * PAGE, MADV_DONTNEED) == -1 && is_filled(at + 5 * PAGE, 0, PAGE));

    static const int harmless[] = {MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_DONTDUMP};
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        tell("text: a huge page", madvise(huge(), HUGE, harmless[i]));
        tell("text: two", madvise(huge(), 2 * HUGE, harmless[i]));
    }
    tell("4k text: random", madvise(small(), PAGE, MADV_RANDOM));
    tell("text: unknown", madvise(small(), PAGE, 12345));
    tell("text: inside a page", madvise(small() + 1, PAGE, MADV_NORMAL));
    tell("text: willneed", madvise(huge(), HUGE, MADV_WILLNEED));
}

static void try_mprotect(void) {
    static const int protections[] = {PROT_NONE, PROT_READ, READ_WRITE, RUN, READ_WRITE | PROT_EXEC,
                                      READ_WRITE};
    char *at = map(6 * PAGE, READ_WRITE);
    memset(at, 4, 6 * PAGE);
    for (size_t i = 0; i < sizeof protections / sizeof protections[0]; i++) {
        tell("in the middle", mprotect(at + 2 * PAGE, 2 * PAGE, protections[i]));
        tell_touch("read", at + 2 * PAGE, false);
        tell_touch("write", at + 3 * PAGE, true);
        say("both sides", touch(at + PAGE, true) == 0 && touch(at + 4 * PAGE, true) == 0);
    }
    say("contents", is_filled(at, 4, 6 * PAGE));
    tell("inside a page", mprotect(at + 1, PAGE, PROT_READ));
    tell("length 0", mprotect(at, 0, PROT_READ));
    tell("both ways", mprotect(at, PAGE, PROT_READ | PROT_GROWSDOWN | PROT_GROWSUP));
    tell("unknown", mprotect(at, PAGE, 0x800000));
    munmap(at + 3 * PAGE, PAGE);
    tell("with a hole", mprotect(at, 6 * PAGE, PROT_READ));
    tell_touch("before the hole", at + 2 * PAGE, true);
    tell_touch("behind it", at + 4 * PAGE, true);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    tell("a read-only file's", mprotect(at, PAGE, READ_WRITE));

    tell_touch("text: write", huge(), true);
    tell("text: a huge page", mprotect(huge(), HUGE, PROT_READ));
    tell("text: for writing", mprotect(huge(), HUGE, READ_WRITE | PROT_EXEC));
    tell_touch("text: write", huge(), true);
    char first = *(volatile char *)small();
    *(volatile char *)small() = (char)0xc3;
    *(volatile char *)small() = first;
    tell("text: back", mprotect(huge(), HUGE, RUN));
    tell_touch("text: write", huge(), true);
    tell("text: what it has", mprotect(small(), PAGE, RUN));
    tell("text: none", mprotect(huge(), HUGE, PROT_NONE));
    tell_touch("text: read", small(), false);
    tell("text: back", mprotect(huge(), HUGE, RUN));
    if (tell("4k text: read", mprotect(small(), PAGE, PROT_READ)))
        mprotect(small(), PAGE, RUN);
}

static void try_brk(void) {
    char *start = sbrk(0);
    say("the same again", sbrk(0) == start);
    tell("grows", brk(start + 3 * PAGE));
    say("zeros", is_filled(start, 0, 3 * PAGE));
    memset(start, 6, 3 * PAGE);
    tell("by a byte", brk(start + 3 * PAGE + 1));
    say("kept", is_filled(start, 6, 3 * PAGE) && sbrk(0) == start + 3 * PAGE + 1);
    tell("shrinks", brk(start + PAGE));
    tell("grows again", brk(start + 3 * PAGE));
    say("zeros again", is_filled((char *)(((uintptr_t)start + 2 * PAGE) & -PAGE), 0, PAGE));
    tell("much", brk(start + 8 * HUGE));
    memset(start, 8, 8 * HUGE);
    tell("back", brk(start));
    tell("before its start", brk((void *)PAGE));
    say("unchanged", sbrk(0) == start);
    tell("everything", brk((void *)-PAGE));
    say("unchanged", sbrk(0) == start);
    tell("text: into it", brk(huge()));
    say("unchanged", sbrk(0) == start);
}

static void tell_child(const char *name, pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        tell(name, -1);
    else
        printf("%s: status %#x\n", name, (unsigned)status);
}

static int run_sum(void *expected) { return sum() == *(uint64_t *)expected ? 7 : 1; }

static void write_text(char *at, char value) {
    int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (fd < 0 || pwrite(fd, &value, 1, (off_t)(uintptr_t)at) != 1)
        tell("write", -1);
    close(fd);
}

static void try_fork(void) {
    uint64_t expected = sum();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(run_sum(&expected));
    tell_child("fork", child);
    child = vfork();
    if (child == 0)
        _exit(run_sum(&expected));
    tell_child("vfork", child);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(run_sum(&expected));
    tell_child("clone", child);
    char *stack = map(64 << 10, READ_WRITE);
    tell_child("clone with memory", clone(run_sum, stack + (64 << 10), CLONE_VM | SIGCHLD, &expected));
    tell("clone of a thread without memory", clone(run_sum, stack + (64 << 10), CLONE_THREAD, &expected));
    child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(run_sum(&expected));
        int status;
        waitpid(grandchild, &status, 0);
        _exit(WEXITSTATUS(status) + 1);
    }
    tell_child("grandchild", child);
    char *data = map(4 * HUGE, READ_WRITE);
    memset(data, 1, 4 * HUGE);
    child = fork();
    if (child == 0) {
        memset(data, 2, 4 * HUGE);
        _exit(is_filled(data, 2, 4 * HUGE) ? 5 : 1);
    }
    memset(data, 3, HUGE);
    tell_child("writes", child);
    say("not seen", is_filled(data, 3, HUGE) && is_filled(data + HUGE, 1, 3 * HUGE));
    child = fork();
    if (child == 0) { /* a child's text is its own */
        write_text(huge(), (char)0xc3);
        munmap(huge() + HUGE, HUGE);
        _exit(*(volatile char *)huge() == (char)0xc3 ? 6 : 1);
    }
    tell_child("text: a child changes its own", child);
    say("text: not seen", sum() == expected);
    child = fork();
    if (child == 0) {
        char *const argv[] = {"calls", "none", NULL};
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    tell_child("exec", child);
}

static pid_t traced(uint64_t *expected) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(run_sum(expected));
    }
    waitpid(child, NULL, 0);
    return child;
}

static void tell_stop(const char *name, pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSTOPPED(status))
        printf("%s: stopped by %s\n", name, sigabbrev_np(WSTOPSIG(status)));
    else
        printf("%s: status %#x\n", name, (unsigned)status);
}

static void try_ptrace(void) {
    uint64_t expected = sum();
    char *function = huge() + 7 * 1024;
    pid_t child = traced(&expected);
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, child, function, NULL);
    say("peek", errno == 0 && memcmp(&word, function, sizeof word) == 0);
    tell("poke", ptrace(PTRACE_POKETEXT, child, function, (word & ~0xffL) | 0xcc));
    say("own text is the same", memcmp(&word, function, sizeof word) == 0);
    tell("continue", ptrace(PTRACE_CONT, child, NULL, NULL));
    tell_stop("breakpoint", child);
    struct user_regs_struct registers;
    tell("registers", ptrace(PTRACE_GETREGS, child, NULL, &registers));
    say("where", registers.rip == (uintptr_t)function + 1);
    tell("poke back", ptrace(PTRACE_POKETEXT, child, function, word));
    registers.rip = (uintptr_t)function;
    tell("set registers", ptrace(PTRACE_SETREGS, child, NULL, &registers));
    for (int i = 0; i < 3; i++) {
        tell("step", ptrace(PTRACE_SINGLESTEP, child, NULL, NULL));
        tell_stop("stepped", child);
    }
    char copy[64];
    struct iovec here = {copy, sizeof copy}, there = {function, sizeof copy};
    tell("process_vm_readv", process_vm_readv(child, &here, 1, &there, 1, 0));
    say("the text", memcmp(copy, function, sizeof copy) == 0);
    tell("process_vm_writev", process_vm_writev(child, &here, 1, &there, 1, 0));
    errno = 0;
    ptrace(PTRACE_PEEKDATA, child, NULL, NULL);
    tell("peek at nothing", errno == 0 ? 0 : -1);
    tell("unknown request", ptrace(12345, child, NULL, NULL));
    tell("unknown signal", ptrace(PTRACE_CONT, child, NULL, 12345));
    tell("detach", ptrace(PTRACE_DETACH, child, NULL, NULL));
    tell_stop("ends", child);
    tell("nobody", ptrace(PTRACE_ATTACH, child, NULL, NULL));

    child = fork();
    if (child == 0) {
        for (;;)
            if (sum() != expected)
                _exit(1);
    }
    tell("attach", ptrace(PTRACE_ATTACH, child, NULL, NULL));
    tell_stop("attached", child);
    tell("detach", ptrace(PTRACE_DETACH, child, NULL, NULL));
    tell("seize", ptrace(PTRACE_SEIZE, child, NULL, NULL));
    tell("while it runs", ptrace(PTRACE_GETREGS, child, NULL, &registers));
    tell("interrupt", ptrace(PTRACE_INTERRUPT, child, NULL, NULL));
    tell_stop("interrupted", child);
    tell("poke", ptrace(PTRACE_POKETEXT, child, function, (word & ~0xffL) | 0xcc));
    tell("continue", ptrace(PTRACE_CONT, child, NULL, NULL));
    tell_stop("breakpoint", child);
    tell("kill", kill(child, SIGKILL));
    tell_stop("killed", child);
}

struct faults {
    int fd;
    unsigned served;
};

static void *serve(void *argument) {
    struct faults *faults = argument;
    char page[PAGE];
    memset(page, 'u', sizeof page);
    for (;;) {
        struct pollfd ready = {faults->fd, POLLIN, 0};
        struct uffd_msg message;
        if (poll(&ready, 1, -1) != 1 || read(faults->fd, &message, sizeof message) != sizeof message)
            return NULL;
        uintptr_t at = message.arg.pagefault.address & -PAGE;
        struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
        struct uffdio_zeropage zero = {.range = {at, PAGE}};
        if (faults->served++ % 2 == 0)
            ioctl(faults->fd, UFFDIO_COPY, &copy);
        else
            ioctl(faults->fd, UFFDIO_ZEROPAGE, &zero);
    }
}

static void try_userfaultfd(void) {
    struct faults faults = {(int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), 0};
    if (!tell("open", faults.fd))
        return;
    tell("unknown flag", syscall(SYS_userfaultfd, 0x1000));
    char *at = map(8 * PAGE, READ_WRITE);
    struct uffdio_register wanted = {.range = {(uintptr_t)at, 8 * PAGE},
                                     .mode = UFFDIO_REGISTER_MODE_MISSING};
    tell("register before the API", ioctl(faults.fd, UFFDIO_REGISTER, &wanted));
    struct uffdio_api api = {.api = 1234};
    tell("wrong API", ioctl(faults.fd, UFFDIO_API, &api));
    api = (struct uffdio_api){.api = UFFD_API};
    tell("API", ioctl(faults.fd, UFFDIO_API, &api));
    tell("register", ioctl(faults.fd, UFFDIO_REGISTER, &wanted));
    pthread_t thread;
    pthread_create(&thread, NULL, serve, &faults);
    for (int i = 0; i < 6; i++)
        say("served", is_filled(at + i * PAGE, i % 2 == 0 ? 'u' : 0, PAGE));
    say("by the thread", faults.served == 6);
    struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)functions, .len = PAGE};
    tell("copy over a page", ioctl(faults.fd, UFFDIO_COPY, &copy));
    copy.dst = (uintptr_t)at + 6 * PAGE;
    tell("copy from the text", ioctl(faults.fd, UFFDIO_COPY, &copy));
    say("the text", memcmp(at + 6 * PAGE, functions, PAGE) == 0);
    copy.dst++;
    tell("copy inside a page", ioctl(faults.fd, UFFDIO_COPY, &copy));
    copy.dst = (uintptr_t)map(PAGE, READ_WRITE);
    tell("copy to what is not registered", ioctl(faults.fd, UFFDIO_COPY, &copy));
    struct uffdio_range range = {(uintptr_t)at, 8 * PAGE};
    tell("unregister", ioctl(faults.fd, UFFDIO_UNREGISTER, &range));
    say("zeros after that", is_filled(at + 7 * PAGE, 0, PAGE));
    wanted.range.start++;
    tell("register inside a page", ioctl(faults.fd, UFFDIO_REGISTER, &wanted));
    wanted = (struct uffdio_register){.range = {(uintptr_t)at, 8 * PAGE}, .mode = 0};
    tell("register for nothing", ioctl(faults.fd, UFFDIO_REGISTER, &wanted));
    wanted.range.start = (uintptr_t)at & -HUGE;
    wanted.range.len = 0;
    tell("register length 0", ioctl(faults.fd, UFFDIO_REGISTER, &wanted));
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    close(faults.fd);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*try)(void);
    } families[] = {{"mmap", try_mmap},       {"munmap", try_munmap},     {"mremap", try_mremap},
                    {"madvise", try_madvise}, {"mprotect", try_mprotect}, {"brk", try_brk},
                    {"fork", try_fork},       {"ptrace", try_ptrace},     {"userfaultfd", try_userfaultfd}};
    static char buffer[BUFSIZ]; /* malloc(3) would move the break */
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    for (size_t i = 0; argc == 2 && i < sizeof families / sizeof families[0]; i++)
        if (strcmp(argv[1], families[i].name) == 0)
            families[i].try();
    printf("sum %016lx\n", (unsigned long)sum());
    return 0;
}
