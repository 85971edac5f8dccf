/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into hugeld run, whose helper then meets the fault in T_MEDDLE at its Nth call of ptrace(2), or at the Nth
   system call that it makes in the program:

       kill N      the helper is killed before that call of ptrace
       fail N      the program's call fails (ENOSYS)
       lose N      the program's call, an mmap, fails and unmaps the old mapping, as kernels before 6.12 can
       ruin N      the same, and no later call succeeds
       end N       the program's call fails, and so does every later one
       swap        before it is executed, the program's file is replaced by T_OTHER
       stop        its process group, and the program's, is stopped once the program is at its exec stop
       halt        the group is stopped, the helper with it, as soon as the process that is to execute the program has a helper
       die         that process is killed then
       refuse      the first execve fails, as if a security module were against it; without a tracer it works
       permit      the helper is killed when this process permits it to trace this process

   With T_BLIND, maps of a process cannot be opened any more once a call has failed so.

   It prints "meddled" where it has done so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
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

static long call(int request, pid_t pid, void *address, void *data) {
    long (*real)(int, ...) = (long (*)(int, ...))dlsym(RTLD_NEXT, "ptrace");
    return real(request, pid, address, data);
}

/* Where a system call has its number, before it, and its result. */
#ifdef __x86_64__
static unsigned long long *number_in(struct user_regs_struct *registers) { return &registers->rax; }
static unsigned long long *result_in(struct user_regs_struct *registers) { return &registers->rax; }
#else
static unsigned long long *number_in(struct user_regs_struct *registers) { return &registers->regs[8]; }
static unsigned long long *result_in(struct user_regs_struct *registers) { return &registers->regs[0]; }
#endif

static int is_now(const char *what, int *count) {
    const char *meddle = getenv("T_MEDDLE");
    size_t bytes = strlen(what);
    return meddle != NULL && strncmp(meddle, what, bytes) == 0 && ++*count == atoi(meddle + bytes);
}

static int has_failed;

static void tell(void) {
    static const char line[] = "meddled\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0)
        _exit(9);
}

long ptrace(enum __ptrace_request request, ...) {
    static int calls, sets, lost, stopped, ruined;
    va_list list;
    va_start(list, request);
    pid_t pid = va_arg(list, pid_t);
    void *address = va_arg(list, void *), *data = va_arg(list, void *);
    va_end(list);
    if (is_now("kill ", &calls)) {
        tell();
        kill(getpid(), SIGKILL);
    }
    const char *meddle = getenv("T_MEDDLE");
    if (meddle != NULL && strcmp(meddle, "stop") == 0 && request == PTRACE_GETREGSET && stopped++ == 0) {
        tell();
        kill(-getpgid(pid), SIGSTOP);
    }
    if (request == PTRACE_SETREGSET) {
        struct user_regs_struct registers;
        memcpy(&registers, ((struct iovec *)data)->iov_base, sizeof registers);
        int before = sets, fails = is_now("fail ", &sets);
        sets = before;
        int loses = is_now("lose ", &sets);
        sets = before;
        int ruins = is_now("ruin ", &sets);
        sets = before;
        int ends = is_now("end ", &sets);
        sets = before + 1;
        loses |= ruins;
        fails |= ruined | ends;
        if (fails || loses) {
            if (!ruined)
                tell();
            ruined |= ruins | ends;
            has_failed = 1;
            *number_in(&registers) = fails ? 9999 : SYS_munmap;
            lost = loses;
            struct iovec changed = {&registers, sizeof registers};
            return call(request, pid, address, &changed);
        }
    }
    long done = call(request, pid, address, data);
    if (request == PTRACE_GETREGSET && lost) {
        lost = 0;
        *result_in(((struct iovec *)data)->iov_base) = (unsigned long long)-ENOMEM;
    }
    return done;
}

static int open_it(const char *name, int folder, const char *path, int flags, unsigned mode) {
    int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, name);
    if (has_failed && getenv("T_BLIND") != NULL && strcmp(path, "maps") == 0) {
        errno = ENFILE;
        return -1;
    }
    return real(folder, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, unsigned) : 0;
    va_end(list);
    return open_it("openat", folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, unsigned) : 0;
    va_end(list);
    return open_it("openat64", folder, path, flags, mode);
}

int clone(int (*function)(void *), void *stack, int flags, void *argument, ...) {
    int (*real)(int (*)(void *), void *, int, void *, ...) =
        (int (*)(int (*)(void *), void *, int, void *, ...))dlsym(RTLD_NEXT, "clone");
    const char *meddle = getenv("T_MEDDLE");
    va_list list;
    va_start(list, argument);
    void *parent = va_arg(list, void *), *tls = va_arg(list, void *), *child = va_arg(list, void *);
    va_end(list);
    int made = real(function, stack, flags, argument, parent, tls, child);
    bool dies = meddle != NULL && strcmp(meddle, "die") == 0;
    if (dies || (meddle != NULL && strcmp(meddle, "halt") == 0)) {
        tell();
        if (!dies)
            kill(made, SIGSTOP); /* as the group's does before it has a group of its own */
        kill(dies ? getpid() : 0, dies ? SIGKILL : SIGSTOP);
    }
    return made;
}

int prctl(int option, ...) {
    int (*real)(int, ...) = (int (*)(int, ...))dlsym(RTLD_NEXT, "prctl");
    const char *meddle = getenv("T_MEDDLE");
    unsigned long argument[4];
    va_list list;
    va_start(list, option);
    for (int i = 0; i < 4; i++)
        argument[i] = va_arg(list, unsigned long);
    va_end(list);
    if (meddle != NULL && strcmp(meddle, "permit") == 0 && option == PR_SET_PTRACER) {
        siginfo_t ended;
        tell();
        kill((pid_t)argument[0], SIGKILL);
        waitid(P_PID, (id_t)argument[0], &ended, WEXITED | WNOWAIT | __WALL);
    }
    return real(option, argument[0], argument[1], argument[2], argument[3]);
}

int execv(const char *path, char *const *arguments) {
    static int calls;
    int (*real)(const char *, char *const *) =
        (int (*)(const char *, char *const *))dlsym(RTLD_NEXT, "execv");
    const char *meddle = getenv("T_MEDDLE");
    if (meddle != NULL && strcmp(meddle, "swap") == 0) {
        tell();
        rename(getenv("T_OTHER"), path);
    }
    if (meddle != NULL && strcmp(meddle, "refuse") == 0 && calls++ == 0) {
        tell();
        errno = EPERM;
        return -1;
    }
    return real(path, arguments);
}
