/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* poke PID ADDRESS: what a debugger does to set a breakpoint; prints what the kernel said. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    pid_t pid = argc == 3 ? atoi(argv[1]) : 0;
    void *at = argc == 3 ? (void *)strtoul(argv[2], NULL, 16) : NULL;
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) != 0 || waitpid(pid, NULL, __WALL) != pid) {
        perror("poke: attach");
        return 1;
    }
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, pid, at, 0);
    puts(errno == 0 ? "read" : "not read");
    int failed = ptrace(PTRACE_POKETEXT, pid, at, word ^ 0x5c);
    puts(failed == 0 ? "written" : strerror(errno));
    ptrace(PTRACE_DETACH, pid, 0, 0);
    return 0;
}
