/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a program for its output.

   Both of its streams go to memory files: nothing must be read while it runs, and it can't block. */
#include "command/lib/subprocess.h"
#include "command/lib/common.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS_MAX 30
#define NOBODY 65534
#define MEMORY_MAX ((rlim_t)1 << 30)

/* A file with TEXT, to be read; limits the process for a text that may be hostile. */
static int make_input(const char *text) {
    size_t bytes = strlen(text);
    const struct rlimit memory = {MEMORY_MAX, MEMORY_MAX},
                        output = {8 * bytes + (1 << 20), 8 * bytes + (1 << 20)};
    int file = memfd_create("input", 0);
    bool is_fine = file >= 0 && write(file, text, bytes) == (ssize_t)bytes && lseek(file, 0, SEEK_SET) == 0 &&
                   setrlimit(RLIMIT_AS, &memory) == 0 && setrlimit(RLIMIT_FSIZE, &output) == 0;
    return is_fine ? file : -1;
}

static void run_child(const char *path, char *const *argv, bool as_nobody, const char *text, int output,
                      int errors) {
    int input = text != NULL ? make_input(text) : open("/dev/null", O_RDONLY);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0)
        _exit(HL_EXIT_CANNOT_RUN);
    if (as_nobody && (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) {
        dprintf(STDERR_FILENO, "the rights of nobody cannot be taken on: %s\n", strerror(errno));
        _exit(HL_EXIT_CANNOT_RUN);
    }
    if (as_nobody)
        clearenv();
    setenv("LD_HUGEPAGES", "!*", 1);
    setenv("LC_ALL", "C", 1);
    alarm(SECONDS_MAX);
    execv(path, argv);
    dprintf(STDERR_FILENO, "%s\n", strerror(errno));
    _exit(HL_EXIT_CANNOT_RUN);
}

/* Reads the whole file FD as a string; closes it. */
static char *read_all(int fd) {
    struct stat stat_buffer;
    size_t size = fd >= 0 && fstat(fd, &stat_buffer) == 0 ? (size_t)stat_buffer.st_size : 0;
    char *text = hl_xmalloc(size + 1);
    ssize_t bytes = size > 0 ? pread(fd, text, size, 0) : 0;
    text[bytes > 0 ? bytes : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

/* Waits until CHILD has ended, and kills it after MS.  It may be another user's, whose processes can stop it, and an alarm doesn't
   end a stopped process.  Its status as in waitpid(2), or -1. */
static int end_in_time(pid_t child, double ms) {
    int status = -1, pidfd = child > 0 ? (int)syscall(SYS_pidfd_open, child, 0) : -1;
    struct pollfd ends = {pidfd, POLLIN, 0};
    if (child > 0 && (pidfd < 0 || poll(&ends, 1, (int)ms) <= 0))
        kill(child, SIGKILL); /* not waited for yet, so the number is still its own */
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (pidfd >= 0)
        close(pidfd);
    return status;
}

int hl_call_in_child(int (*work)(void *data), void *data, double ms) {
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL); /* if it is ignored, the exit status is lost */
    pid_t child = fork();
    if (child == 0)
        _exit(work(data));
    int status = end_in_time(child, ms);
    signal(SIGCHLD, inherited);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void hl_ask_program(struct hl_answer *answer, const char *path, char *const *argv, bool as_nobody,
                    const char *input) {
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL); /* as above */
    int output = memfd_create("output", MFD_CLOEXEC), errors = memfd_create("errors", MFD_CLOEXEC);
    pid_t child = output >= 0 && errors >= 0 ? fork() : -1;
    if (child == 0)
        run_child(path, argv, as_nobody, input, output, errors);
    answer->succeeded = end_in_time(child, (SECONDS_MAX + 1) * 1e3) == 0;
    signal(SIGCHLD, inherited);
    answer->output = read_all(output);
    answer->errors = read_all(errors);
}

void hl_free_answer(struct hl_answer *answer) {
    free(answer->output);
    free(answer->errors);
}
