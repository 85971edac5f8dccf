/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a program for its output.

   Both of its streams go to memory files: nothing must be read while it runs, and it can't block. */
#include "command/base/subprocess.h"
#include "command/base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
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

/* Takes on the user's real, effective and saved IDs, and the groups, with no way back. */
static bool become_user(uid_t uid) {
    const struct passwd *user = getpwuid(uid);
    if (user == NULL)
        return setgroups(0, NULL) == 0 && setgid((gid_t)uid) == 0 && setuid(uid) == 0;
    return initgroups(user->pw_name, user->pw_gid) == 0 && setgid(user->pw_gid) == 0 && setuid(uid) == 0;
}

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

static void run_child(const char *path, char *const *argv, uid_t owner, unsigned seconds, const char *text,
                      int output, int errors) {
    int input = text != NULL ? make_input(text) : open("/dev/null", O_RDONLY);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0)
        _exit(HL_EXIT_CANNOT_RUN);
    if (owner != (uid_t)-1 && !become_user(owner == HL_NOBODY ? NOBODY : owner)) {
        dprintf(STDERR_FILENO, "another user's rights cannot be taken on: %s\n", strerror(errno));
        _exit(HL_EXIT_CANNOT_RUN);
    }
    if (owner == HL_NOBODY)
        clearenv();
    setenv("LD_HUGEPAGES", "!*", 1);
    setenv("LC_ALL", "C", 1);
    alarm(seconds);
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

bool hl_call_in_child(bool (*work)(void *data), void *data, double ms) {
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL); /* if it is ignored, the exit status is lost */
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(work(data) ? 0 : 1);
    int pidfd = child > 0 ? (int)syscall(SYS_pidfd_open, child, 0) : -1;
    struct pollfd ends = {pidfd, POLLIN, 0};
    if (child > 0 && (pidfd < 0 || poll(&ends, 1, (int)ms) <= 0))
        kill(child, SIGKILL);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (pidfd >= 0)
        close(pidfd);
    signal(SIGCHLD, inherited);
    return child > 0 && status == 0;
}

/* Waits until CHILD has ended, and kills it after SECONDS.  It may be another user's, whose processes can stop it, and an alarm
   doesn't end a stopped process. */
static void end_in_time(pid_t child, unsigned seconds) {
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    struct pollfd ends = {pidfd, POLLIN, 0};
    if (pidfd >= 0 && poll(&ends, 1, ((int)seconds + 1) * 1000) <= 0)
        kill(child, SIGKILL); /* not waited for yet, so the number is still its own */
    if (pidfd >= 0)
        close(pidfd);
}

/* SECONDS: the limit; 0: none. */
static void ask(struct hl_answer *answer, const char *path, char *const *argv, uid_t owner, unsigned seconds,
                const char *input) {
    /* If it is inherited as ignored, the exit status is lost. */
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL);
    int output = memfd_create("output", MFD_CLOEXEC), errors = memfd_create("errors", MFD_CLOEXEC),
        status = -1;
    pid_t child = output >= 0 && errors >= 0 ? fork() : -1;
    if (child == 0)
        run_child(path, argv, owner, seconds, input, output, errors);
    if (child > 0 && seconds > 0)
        end_in_time(child, seconds);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    signal(SIGCHLD, inherited);
    answer->succeeded = status == 0;
    answer->output = read_all(output);
    answer->errors = read_all(errors);
}

void hl_ask_program(struct hl_answer *answer, const char *path, char *const *argv, uid_t owner) {
    ask(answer, path, argv, owner, SECONDS_MAX, NULL);
}

void hl_filter_text(struct hl_answer *answer, const char *path, char *const *argv, uid_t owner,
                    const char *input) {
    ask(answer, path, argv, owner, SECONDS_MAX, input);
}

void hl_ask_itself(struct hl_answer *answer, const char *const *argv) {
    ask(answer, "/proc/self/exe", (char *const *)argv, (uid_t)-1, 0, NULL);
}

bool hl_run_itself(const char *const *argv) {
    struct hl_answer answer;
    hl_ask_itself(&answer, argv);
    fputs(answer.output, stdout);
    fputs(answer.errors, stderr);
    bool succeeded = answer.succeeded;
    hl_free_answer(&answer);
    return succeeded;
}

void hl_free_answer(struct hl_answer *answer) {
    free(answer->output);
    free(answer->errors);
}
