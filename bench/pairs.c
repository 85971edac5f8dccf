/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* pairs: times several ways of running a program against each other, in turns, so that whatever else the
   machine does falls on all of them alike.

   usage: pairs [-p] ROUNDS VARIANT...
   VARIANT is [@]NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... followed by an argument "--" (not after the
   last).

   Every round runs each variant once, beginning with another one each time; the first tenth of the rounds is
   warm-up. Measured is the wall-clock time from posix_spawn(3) to the end of waitpid(2), in ms; with -p it is
   the number that the program prints, and for one variant alone with @.  Printed is a line for each variant,
   NAME and its numbers.  A program that fails ends the run. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VARIANTS_MAX 16

struct variant {
    const char *name;
    bool printed;
    char **argv, **envp;
    double *result; /* one for each round that counts */
};

extern char **environ;

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "pairs: %s%s%s\n", what, detail[0] != '\0' ? ": " : "", detail);
    exit(2);
}

static void *allocate(size_t n, size_t bytes) {
    void *memory = calloc(n, bytes);
    if (memory == NULL)
        fail("no memory", "");
    return memory;
}

/* Reads one variant from WORD, up to "--" or the end, and returns the word after it. */
static char **read_variant(struct variant *variant, char **word) {
    variant->printed = **word == '@';
    variant->name = *word++ + variant->printed;

    size_t n_set = 0, n_inherited = 0;
    while (word[n_set] != NULL && strchr(word[n_set], '=') != NULL)
        n_set++;
    while (environ[n_inherited] != NULL)
        n_inherited++;
    variant->envp = allocate(n_set + n_inherited + 1, sizeof *variant->envp);
    memcpy(variant->envp, word, n_set * sizeof *word);
    memcpy(variant->envp + n_set, environ, n_inherited * sizeof *word);

    variant->argv = word += n_set;
    while (*word != NULL && strcmp(*word, "--") != 0)
        word++;
    if (word == variant->argv)
        fail("no program", variant->name);
    if (*word != NULL)
        *word++ = NULL;
    return word;
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static double run(const struct variant *variant, bool printed) {
    int pipe_fds[2] = {-1, -1};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (printed) {
        if (pipe2(pipe_fds, O_CLOEXEC) != 0)
            fail("pipe", strerror(errno));
        posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    }

    double start = now_ms();
    pid_t pid;
    int error = posix_spawn(&pid, variant->argv[0], &actions, NULL, variant->argv, variant->envp);
    if (error != 0)
        fail(variant->argv[0], strerror(error));
    char text[64] = "";
    if (printed) {
        close(pipe_fds[1]);
        if (read(pipe_fds[0], text, sizeof text - 1) <= 0)
            fail("printed no number", variant->name);
        close(pipe_fds[0]);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid", strerror(errno));
    double elapsed = now_ms() - start;
    if (status != 0)
        fail("the program failed", variant->name);
    posix_spawn_file_actions_destroy(&actions);
    return printed ? strtod(text, NULL) : elapsed;
}

int main(int argc, char **argv) {
    char **word = argv + 1;
    bool printed = argc > 1 && strcmp(*word, "-p") == 0;
    word += printed;
    int rounds = *word != NULL ? atoi(*word++) : 0;
    if (rounds < 1 || *word == NULL)
        fail("usage: pairs [-p] ROUNDS NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... [-- ...]", "");

    struct variant variants[VARIANTS_MAX];
    int n = 0;
    while (*word != NULL) {
        if (n == VARIANTS_MAX)
            fail("too many variants", *word);
        word = read_variant(&variants[n], word);
        variants[n++].result = allocate((size_t)rounds, sizeof(double));
    }

    int warm_up = rounds / 10 + 1;
    for (int round = -warm_up; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            struct variant *variant = &variants[(i + round + warm_up) % n];
            double result = run(variant, printed || variant->printed);
            if (round >= 0)
                variant->result[round] = result;
        }
    }
    for (int i = 0; i < n; i++) {
        printf("%s", variants[i].name);
        for (int round = 0; round < rounds; round++)
            printf(" %.6g", variants[i].result[round]);
        putchar('\n');
    }
    return 0;
}
