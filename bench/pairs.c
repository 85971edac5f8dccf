/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* pairs: times several ways of running a program against each other, in turns, so that whatever else the
   machine does falls on all of them alike.

   usage: pairs [-p UNIT] ROUNDS VARIANT...
   VARIANT is NAME[=BASE] [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... followed by an argument "--" (not after
   the last).

   Every round runs each variant once, beginning with another one each time; the first tenth of the rounds is
   warm-up. Measured is the wall-clock time from posix_spawn(3) to the end of wait4(2), in ms; with -p it is
   the number that the program prints, in UNIT.  Printed are each variant's median and, against its BASE (an
   earlier variant), the median of the differences within a round with its 95 % interval (from order
   statistics), and the ratio of the medians.  A program that fails ends the run. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
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
    int base; /* index, or -1 */
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

static int find_variant(const struct variant *variants, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(variants[i].name, name) == 0)
            return i;
    fail("no such variant", name);
    return -1;
}

/* Reads one variant from WORD, up to "--" or the end, and returns the word after it. */
static char **read_variant(struct variant *variants, int n, char **word) {
    struct variant *variant = &variants[n];
    char *base = strchr(*word, '=');
    variant->base = -1;
    if (base != NULL) {
        *base = '\0';
        variant->base = find_variant(variants, n, base + 1);
    }
    variant->name = *word++;

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

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(const double *sorted, int n) { return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2; }

static void report(const struct variant *variants, int n, int rounds, const char *unit) {
    double *sorted = allocate((size_t)rounds, sizeof *sorted);
    double medians[VARIANTS_MAX];
    for (int i = 0; i < n; i++) {
        const struct variant *variant = &variants[i];
        memcpy(sorted, variant->result, (size_t)rounds * sizeof *sorted);
        qsort(sorted, (size_t)rounds, sizeof *sorted, compare);
        medians[i] = median(sorted, rounds);
        printf("  %-32s %9.3f %s", variant->name, medians[i], unit);
        if (variant->base >= 0) {
            for (int j = 0; j < rounds; j++)
                sorted[j] = variant->result[j] - variants[variant->base].result[j];
            qsort(sorted, (size_t)rounds, sizeof *sorted, compare);
            int half = (int)(0.98 * sqrt(rounds)) + 1, middle = rounds / 2;
            int low = middle - half > 0 ? middle - half : 0,
                high = middle + half < rounds ? middle + half : rounds - 1;
            printf("  %+9.3f [%+.3f, %+.3f] %s and %.3f times '%s'", median(sorted, rounds), sorted[low],
                   sorted[high], unit, medians[i] / medians[variant->base], variants[variant->base].name);
        }
        putchar('\n');
    }
    free(sorted);
}

int main(int argc, char **argv) {
    const char *unit = NULL;
    char **word = argv + 1;
    if (argc > 2 && strcmp(*word, "-p") == 0) {
        unit = word[1];
        word += 2;
    }
    int rounds = *word != NULL ? atoi(*word++) : 0;
    if (rounds < 1 || *word == NULL)
        fail("usage: pairs [-p UNIT] ROUNDS NAME[=BASE] [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... [-- ...]",
             "");

    struct variant variants[VARIANTS_MAX];
    int n = 0;
    while (*word != NULL) {
        if (n == VARIANTS_MAX)
            fail("too many variants", *word);
        word = read_variant(variants, n, word);
        variants[n++].result = allocate((size_t)rounds, sizeof(double));
    }

    int warm_up = rounds / 10 + 1;
    for (int round = -warm_up; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            struct variant *variant = &variants[(i + round + warm_up) % n];
            double result = run(variant, unit != NULL);
            if (round >= 0)
                variant->result[round] = result;
        }
    }
    report(variants, n, rounds, unit != NULL ? unit : "ms");
    return 0;
}
