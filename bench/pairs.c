/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* pairs: times several ways of running a program against each other, in turns, so that whatever else the
   machine does falls on all of them alike.

   usage: pairs [-p] [-2] ROUNDS VARIANT...
   VARIANT is [@]NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... followed by an argument "--" (not after the
   last).

   Every round runs each variant once, beginning with another one each time; the first tenth of the rounds is
   warm-up. Measured is the wall-clock time from posix_spawn(3) to the end of waitpid(2), in ms; with -p it is
   the number that the program prints, and for one variant alone with @.  Printed is a line for each variant,
   NAME and its numbers.  A program that fails ends the run.

   With -2 there are two variants, which run at the same time, each on a processor of its own: the first two
   that this process may use.  They swap processors each round, and each second round who is started
   first, so a slow minute of the machine, a slow processor and its neighbour's noise fall on both alike.  The
   time counts from just before execve(2) to the end of wait4(2), both on the program's own processor.  Two
   more lines are printed, NAME:cpu, for the processor time of each in ms, its children's included. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VARIANTS_MAX 16

struct variant {
    const char *name;
    bool printed;
    char **argv, **envp;
    double *result, *cpu; /* one for each round that counts */
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
    } else {
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
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

/* What is said of one run. */
struct outcome {
    double start, end, cpu;
    int status;
};

static double ms_of(const struct rusage *usage) {
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e3 +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e3;
}

/* Runs VARIANT on PROCESSOR as soon as all others have closed GATE.  OUTPUT: where it prints.
   Returns a process that waits for it on the same processor, which is free when the program ends: one that
   waits for both elsewhere would have to push the other program aside first, and see both end at once if that
   takes long. */
static pid_t start_at_gate(const struct variant *variant, int processor, const int gate[2], int output,
                           struct outcome *outcome) {
    pid_t keeper = fork();
    if (keeper < 0)
        fail("fork", strerror(errno));
    if (keeper > 0)
        return keeper;
    cpu_set_t set;
    struct rusage usage;
    char byte;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    close(gate[1]);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("sched_setaffinity", strerror(errno));
    pid_t program = fork();
    if (program < 0)
        fail("fork", strerror(errno));
    if (program == 0) {
        if (dup2(output, STDOUT_FILENO) < 0 || read(gate[0], &byte, 1) != 0)
            _exit(126);
        outcome->start = now_ms();
        execve(variant->argv[0], variant->argv, variant->envp);
        _exit(127);
    }
    while (wait4(program, &outcome->status, 0, &usage) < 0)
        if (errno != EINTR)
            fail("wait4", strerror(errno));
    outcome->end = now_ms();
    outcome->cpu = ms_of(&usage);
    _exit(0);
}

/* Runs both at once, on processor[i] each, beginning with FIRST.  TIME and CPU get the two results. */
static void run_both(const struct variant variants[2], const int processor[2], int first, bool printed,
                     double time[2], double cpu[2]) {
    static struct outcome *outcome;
    static int nowhere = -1;
    int gate[2], output[2][2];
    pid_t keeper[2];
    if (nowhere < 0 && (nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC)) < 0)
        fail("/dev/null", strerror(errno));
    if (outcome == NULL)
        outcome = mmap(NULL, 2 * sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED || pipe2(gate, O_CLOEXEC) != 0)
        fail("no memory, or no pipe", strerror(errno));
    for (int turn = 0; turn < 2; turn++) {
        int i = turn ^ first;
        if (pipe2(output[i], O_CLOEXEC) != 0)
            fail("pipe", strerror(errno));
        keeper[i] =
            start_at_gate(&variants[i], processor[i], gate, printed ? output[i][1] : nowhere, &outcome[i]);
        close(output[i][1]);
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < 2; i++) {
        char text[64] = "";
        int status;
        while (waitpid(keeper[i], &status, 0) < 0)
            if (errno != EINTR)
                fail("waitpid", strerror(errno));
        if (status != 0 || outcome[i].status != 0)
            fail("the program failed", variants[i].name);
        if (printed && read(output[i][0], text, sizeof text - 1) <= 0)
            fail("printed no number", variants[i].name);
        close(output[i][0]);
        time[i] = printed ? strtod(text, NULL) : outcome[i].end - outcome[i].start;
        cpu[i] = outcome[i].cpu;
    }
}

static void find_two_processors(int processor[2]) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        fail("sched_getaffinity", strerror(errno));
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set))
            processor[n++] = i;
    if (n < 2)
        fail("-2 needs two processors", "");
}

static void run_at_once(struct variant variants[2], int rounds, int warm_up, bool printed) {
    int processor[2], swapped[2];
    double time[2], cpu[2];
    find_two_processors(processor);
    swapped[0] = processor[1];
    swapped[1] = processor[0];
    for (int round = -warm_up; round < rounds; round++) {
        run_both(variants, (round & 1) != 0 ? swapped : processor, round >> 1 & 1, printed, time, cpu);
        for (int i = 0; i < 2 && round >= 0; i++) {
            variants[i].result[round] = time[i];
            variants[i].cpu[round] = cpu[i];
        }
    }
}

static void run_in_turns(struct variant *variants, int n, int rounds, int warm_up, bool printed) {
    for (int round = -warm_up; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            struct variant *variant = &variants[(i + round + warm_up) % n];
            double result = run(variant, printed || variant->printed);
            if (round >= 0)
                variant->result[round] = result;
        }
    }
}

static void print_numbers(const char *name, const char *suffix, const double *number, int rounds) {
    printf("%s%s", name, suffix);
    for (int round = 0; round < rounds; round++)
        printf(" %.6g", number[round]);
    putchar('\n');
}

int main(int argc, char **argv) {
    bool printed = false, at_once = false;
    char **word = argv + 1;
    for (; argc > 1 && *word != NULL && **word == '-'; word++) {
        printed = printed || strcmp(*word, "-p") == 0;
        at_once = at_once || strcmp(*word, "-2") == 0;
    }
    int rounds = *word != NULL ? atoi(*word++) : 0;
    if (rounds < 1 || *word == NULL)
        fail("usage: pairs [-p] [-2] ROUNDS NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]... [-- ...]", "");

    struct variant variants[VARIANTS_MAX];
    int n = 0;
    while (*word != NULL) {
        if (n == VARIANTS_MAX)
            fail("too many variants", *word);
        word = read_variant(&variants[n], word);
        variants[n].result = allocate((size_t)rounds, sizeof(double));
        variants[n++].cpu = allocate((size_t)rounds, sizeof(double));
    }
    if (at_once && n != 2)
        fail("-2 compares two variants", "");

    int warm_up = rounds / 10 + 1;
    if (at_once)
        run_at_once(variants, rounds, warm_up, printed);
    else
        run_in_turns(variants, n, rounds, warm_up, printed);
    for (int i = 0; i < n; i++) {
        print_numbers(variants[i].name, "", variants[i].result, rounds);
        if (at_once)
            print_numbers(variants[i].name, ":cpu", variants[i].cpu, rounds);
    }
    return 0;
}
