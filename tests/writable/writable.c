/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at every byte of its writable data and of the heap that early.c made, then does as argv[1] says:

     check             nothing more
     fork N THREADS    N children read and write all of the data while THREADS threads write to it and others
                       map, fork and send signals (churn.h); with a fourth argument it stops (SIGSTOP) after
                       the first child

   Exit status 0 and a line of "right" for each thing that is as it must be. */
#define _GNU_SOURCE
#include "writable.h"
#include "../churn.h"

#include <string.h>

#define TEXT_OF(x) #x
#define STRING_OF(x) TEXT_OF(x)
__asm__(".data\n.globl much_data\n.type much_data, @object\n.p2align 3\nmuch_data:\n.set i, 0\n"
        ".rept " STRING_OF(DATA_WORDS) "\n.quad (i+1)*0x9e3779b97f4a7c15\n.set i, i+1\n.endr\n"
                                       ".size much_data, 8*" STRING_OF(DATA_WORDS) "\n.text\n");
uint64_t much_bss[BSS_WORDS];

size_t early_check(void) __attribute__((weak));
int early_filled(void) __attribute__((weak));
uint64_t big_sum(uint64_t x) __attribute__((weak)); /* the large text and read-only data */

static int failures;

static void say(const char *what, bool right) {
    printf("%s: %s\n", what, right ? "right" : "WRONG");
    fflush(stdout);
    failures += !right;
}

static void check_contents(void) {
    size_t wrong = early_check ? early_check() : 0;
    if (!early_filled || !early_filled()) {
        wrong += count_wrong(much_data, DATA_WORDS, 0);
        for (size_t i = 0; i < BSS_WORDS; i++)
            wrong += much_bss[i] != 0;
    }
    say("contents", wrong == 0);
    if (big_sum)
        printf("sum %016lx\n", (unsigned long)big_sum(1));
}

/* --- fork --- */

/* The words below these are the main thread's, those above belong to the writing threads: their low half is
   always the same, the high half is how often it was written. */
#define OWN_WORDS (DATA_WORDS / 2)
#define OWN_BSS_WORDS (BSS_WORDS / 2)

static volatile bool stop_threads;
static size_t n_threads;

static void write_shared(uint64_t *at, size_t first, size_t end, size_t step, uint64_t round) {
    for (size_t i = first; i < end; i += step)
        ((volatile uint64_t *)at)[i] = round << 32 | (uint32_t)i;
}

static size_t count_wrong_shared(const uint64_t *at, size_t first, size_t end) {
    size_t wrong = 0;
    for (size_t i = first; i < end; i++)
        wrong += (uint32_t)((const volatile uint64_t *)at)[i] != (uint32_t)i;
    return wrong;
}

static void *write_data(void *data) {
    for (uint64_t round = 1; !stop_threads; round++) {
        write_shared(much_data, OWN_WORDS + (size_t)data, DATA_WORDS, n_threads, round);
        write_shared(much_bss, OWN_BSS_WORDS + (size_t)data, BSS_WORDS, n_threads, round);
        usleep(1000);
    }
    return NULL;
}

static size_t count_wrong_data(uint64_t who) {
    return count_wrong(much_data, OWN_WORDS, who) + count_wrong(much_bss, OWN_BSS_WORDS, who) +
           count_wrong_shared(much_data, OWN_WORDS, DATA_WORDS) +
           count_wrong_shared(much_bss, OWN_BSS_WORDS, BSS_WORDS);
}

static void write_own(uint64_t who) {
    fill(much_data, OWN_WORDS, who);
    fill(much_bss, OWN_BSS_WORDS, who);
}

/* Reads all, writes all, reads all again. */
static int be_child(uint64_t who) {
    size_t wrong = count_wrong_data(who);
    write_own(who + 1000);
    write_shared(much_data, OWN_WORDS, DATA_WORDS, 1, who);
    write_shared(much_bss, OWN_BSS_WORDS, BSS_WORDS, 1, who);
    return wrong + count_wrong_data(who + 1000) == 0 ? 0 : 1;
}

struct count {
    int exited, wrong, killed;
};

/* Only for CHILD: the others' children are their own. */
static void count_end(struct count *count, pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child)
        abort();
    if (WIFSIGNALED(status))
        fprintf(stderr, "a child died of signal %d\n", WTERMSIG(status));
    count->killed += WIFSIGNALED(status);
    count->exited += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    count->wrong += WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

/* Reads a word of each page. */
static bool can_read_data(void) {
    size_t wrong = 0;
    for (size_t i = OWN_WORDS; i < DATA_WORDS; i += 512)
        wrong += count_wrong_shared(much_data, i, i + 1);
    return wrong == 0;
}

#define AT_ONCE 4

static void fork_many(int n, size_t threads, bool stop) {
    pthread_t thread[64];
    pid_t running[AT_ONCE] = {0};
    struct count count = {0, 0, 0};
    n_threads = threads;
    write_shared(much_data, OWN_WORDS, DATA_WORDS, 1, 0);
    write_shared(much_bss, OWN_BSS_WORDS, BSS_WORDS, 1, 0);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, write_data, (void *)i);
    if (threads > 0) {
        churn_lend(can_read_data);
        churn_start(CHURN_MAPS);
        churn_watch_me();
    }
    for (int i = 0; i < n; i++) {
        pid_t *child = &running[i % AT_ONCE];
        if (i >= AT_ONCE)
            count_end(&count, *child);
        write_own((uint64_t)i);
        *child = fork();
        if (*child < 0)
            abort();
        if (*child == 0)
            _exit(be_child((uint64_t)i));
        if (stop && i == 0)
            raise(SIGSTOP);
        /* A child's writes are not ours. */
        count.wrong += i % 10 == 0 && count_wrong_data((uint64_t)i) != 0;
    }
    for (int i = 0; i < AT_ONCE && i < n; i++)
        count_end(&count, running[i]);
    if (threads > 0)
        churn_stop();
    stop_threads = true;
    for (size_t i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("exited %d, wrong %d, killed %d\n", count.exited, count.wrong, count.killed);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "check";
    check_contents();
    if (strcmp(mode, "fork") == 0 && argc > 3)
        fork_many(atoi(argv[2]), (size_t)atoi(argv[3]), argc > 4);
    return failures > 0 ? 1 : 0;
}
