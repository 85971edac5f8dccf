/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* stop-at CALL N COMMAND PROGRAM ARGUMENT...: becomes PROGRAM, stops it before its N-th system call number
   CALL, runs a shell COMMAND, and lets it go on untraced.  The tracer is a grandchild, so that the program is
   the child of the same parent as without. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void trace(pid_t pid, unsigned long call, int n, const char *command) {
    struct __ptrace_syscall_info info;
    int status;
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status), event = status >> 16;
        if (signal == (SIGTRAP | 0x80)) {
            ptrace(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof info, &info);
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == call && --n == 0) {
                int failed = system(command);
                ptrace(failed ? PTRACE_KILL : PTRACE_DETACH, pid, 0, 0);
                _exit(failed);
            }
            signal = 0;
        } else if (event != 0) {
            signal = 0;
        }
        ptrace(PTRACE_SYSCALL, pid, 0, signal);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    int ready[2];
    char byte;
    pid_t self = getpid();
    if (argc < 5 || pipe2(ready, O_CLOEXEC) != 0)
        return 99;
    pid_t child = fork();
    if (child == 0) {
        if (fork() != 0)
            _exit(0);
        for (int fd = 0; fd < 3; fd++)
            dup2(open("/dev/null", O_RDWR | O_CLOEXEC), fd);
        if (ptrace(PTRACE_SEIZE, self, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL) !=
            0)
            _exit(1);
        unsetenv("LD_PRELOAD"); /* it is the program's, not the shell's */
        close(ready[0]);
        write(ready[1], "x", 1);
        trace(self, strtoul(argv[1], NULL, 10), atoi(argv[2]), argv[3]);
    }
    close(ready[1]);
    waitpid(child, NULL, 0);
    if (read(ready[0], &byte, 1) != 1)
        return 98;
    execv(argv[4], argv + 4);
    return 97;
}
