/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* poke PID ADDRESS: sets a breakpoint as a debugger does that attaches; prints the kernel's answer.

   poke FILE ADDRESS PROGRAM ARGUMENT...: becomes PROGRAM, traced from its start; when it stops itself, does
   the same, writes that to FILE, and leaves it stopped and untraced.  The tracer is a grandchild, so that the
   program has the parent that it would have without. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void poke(pid_t pid, void *at) {
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, pid, at, 0);
    puts(errno == 0 ? "read" : "not read");
    int failed = ptrace(PTRACE_POKETEXT, pid, at, word ^ 0x5c);
    puts(failed == 0 ? "written" : strerror(errno));
    fflush(stdout);
}

static void trace(pid_t pid, const char *path, void *at) {
    int status;
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
        int signal = status >> 16 ? 0 : WSTOPSIG(status);
        if (signal == SIGSTOP) {
            dup2(open(path, O_WRONLY | O_CREAT, 0666), STDOUT_FILENO);
            poke(pid, at);
            _exit(ptrace(PTRACE_DETACH, pid, 0, SIGSTOP) != 0);
        }
        ptrace(PTRACE_CONT, pid, 0, signal);
    }
    _exit(1);
}

static int become(char **argv, void *at) {
    int ready[2];
    char byte;
    pid_t self = getpid(), child = pipe2(ready, O_CLOEXEC) == 0 ? fork() : -1;
    if (child == 0) {
        if (fork() != 0)
            _exit(0);
        for (int fd = 0; fd < 3; fd++)
            dup2(open("/dev/null", O_RDWR | O_CLOEXEC), fd);
        if (ptrace(PTRACE_SEIZE, self, 0, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL) != 0)
            _exit(1);
        close(ready[0]);
        write(ready[1], "x", 1);
        trace(self, argv[1], at);
    }
    close(ready[1]);
    waitpid(child, NULL, 0);
    if (read(ready[0], &byte, 1) != 1)
        return 98;
    execv(argv[3], argv + 3);
    return 97;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 99;
    void *at = (void *)strtoul(argv[2], NULL, 16);
    if (argc > 3)
        return become(argv, at);
    pid_t pid = atoi(argv[1]);
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) != 0 || waitpid(pid, NULL, __WALL) != pid) {
        perror("poke: attach");
        return 1;
    }
    poke(pid, at);
    ptrace(PTRACE_DETACH, pid, 0, 0);
    return 0;
}
