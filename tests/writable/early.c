/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs before libhugeld.so (linked with -z initfirst and loaded after it) and changes writable memory as
   earlier constructors do.  T_EARLY has words "verb" or "verb:number" (in hexadecimal), separated by commas:

   fill writes all of .data and .bss.  sbrk:bytes allocates so much by sbrk(2) and fills it, malloc:bytes in
   blocks of 20000.  threads:n starts n threads that write to .data and .bss as long as the process lives, and
   threads of churn.h that map nothing; timer:n has a handler do that every n microseconds.  lock is
   mlockall(MCL_FUTURE); mdwe and no-thp are of prctl(2).  data:more and as:more limit RLIMIT_DATA and
   RLIMIT_AS to the present use and MORE.

   early_check() counts the words that are no longer as written. */
#define _GNU_SOURCE
#include "writable.h"
#include "../churn.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

#pragma weak much_data
#pragma weak much_bss

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#define BLOCK_WORDS 2500
#define BLOCKS_MAX 2000

#define SLOTS (DATA_WORDS / 512)

static int filled, timed, has_churn;
static volatile uint64_t ticks;
static uint64_t *by_sbrk, *block[BLOCKS_MAX];
static size_t sbrk_words, n_blocks;
static pthread_barrier_t started;

static void fill_data(void) {
    fill(much_data, DATA_WORDS, 1);
    fill(much_bss, BSS_WORDS, 2);
    filled = 1;
}

static void allocate_by_sbrk(long bytes) {
    by_sbrk = sbrk(bytes);
    if (by_sbrk == (void *)-1)
        abort();
    sbrk_words = (size_t)bytes / 8;
    fill(by_sbrk, sbrk_words, 3);
}

static void allocate_by_malloc(long bytes) {
    for (; bytes > 0 && n_blocks < BLOCKS_MAX; bytes -= 8 * BLOCK_WORDS) {
        block[n_blocks] = malloc(8 * BLOCK_WORDS);
        fill(block[n_blocks], BLOCK_WORDS, 4 + n_blocks);
        n_blocks++;
    }
}

static void *write_for_ever(void *data) {
    size_t mine = (size_t)data;
    for (uint64_t round = 0;; round++) {
        for (size_t i = mine; i < DATA_WORDS; i += 64)
            much_data[i] = pattern(i, 1);
        for (size_t i = mine; i < BSS_WORDS; i += 64)
            much_bss[i] = pattern(i, 2);
        if (round == 0)
            pthread_barrier_wait(&started);
    }
    return NULL;
}

static void start_threads(long n) {
    pthread_t thread;
    pthread_barrier_init(&started, NULL, (unsigned)n + 1);
    for (long i = 0; i < n; i++)
        if (pthread_create(&thread, NULL, write_for_ever, (void *)i) != 0)
            abort();
    pthread_barrier_wait(&started);
    churn_start(CHURN_MAPS_NOTHING);
    churn_watch_me();
    has_churn = 1;
}

/* Before the process ends, or its last child might outlive it. */
__attribute__((destructor)) static void end_threads(void) {
    if (has_churn)
        churn_stop();
}

/* A word in another page each time, all over. */
static size_t slot_of(uint64_t tick) { return tick * 641 % SLOTS * 512; }

static void write_slot(int signal) {
    (void)signal;
    ticks++;
    much_data[slot_of(ticks)] = ticks;
}

static void set_timer(long microseconds) {
    timed = 1;
    struct itimerval every = {{0, microseconds}, {0, microseconds}};
    struct sigaction action = {.sa_handler = write_slot, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

/* Of the last writes none may be lost. */
static size_t count_lost(void) {
    size_t lost = 0;
    set_timer(0);
    for (uint64_t tick = ticks > SLOTS ? ticks - SLOTS + 1 : 1; tick <= ticks; tick++)
        lost += much_data[slot_of(tick)] != tick;
    return lost;
}

/* From the kernel, without stdio, whose buffers would allocate. */
static long read_status(const char *name) {
    char text[8192] = "";
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL || fread(text, 1, sizeof text - 1, file) == 0)
        abort();
    fclose(file);
    return strtol(strstr(text, name) + strlen(name) + 1, NULL, 10) * 1024;
}

static void limit(int resource, long bytes) {
    struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
    if (setrlimit(resource, &limit) != 0)
        abort();
}

static void act(const char *verb, long number) {
    size_t length = strcspn(verb, ":,");
    char name[16] = "";
    memcpy(name, verb, length < sizeof name ? length : 0);
    int failed = 0;
    if (strcmp(name, "fill") == 0)
        fill_data();
    else if (strcmp(name, "sbrk") == 0)
        allocate_by_sbrk(number);
    else if (strcmp(name, "malloc") == 0)
        allocate_by_malloc(number);
    else if (strcmp(name, "threads") == 0)
        start_threads(number);
    else if (strcmp(name, "timer") == 0)
        set_timer(number);
    else if (strcmp(name, "lock") == 0)
        failed = mlockall(MCL_FUTURE);
    else if (strcmp(name, "mdwe") == 0)
        failed = prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0);
    else if (strcmp(name, "no-thp") == 0)
        failed = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    else if (strcmp(name, "data") == 0)
        limit(RLIMIT_DATA, read_status("VmData:") + number);
    else if (strcmp(name, "as") == 0)
        limit(RLIMIT_AS, read_status("VmSize:") + number);
    else
        failed = 1;
    if (failed)
        abort();
}

__attribute__((constructor)) static void start(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    if (much_data == NULL) /* a wrapper, or a child's child */
        return;
    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, "T_EARLY=", 8) != 0)
            continue;
        for (const char *verb = *envp + 8; *verb != '\0'; verb += strcspn(verb, ","), verb += *verb == ',') {
            const char *number = verb + strcspn(verb, ":,");
            act(verb, *number == ':' ? strtol(number + 1, NULL, 16) : 0);
        }
    }
}

size_t early_check(void) {
    size_t wrong = count_wrong(by_sbrk, sbrk_words, 3);
    for (size_t i = 0; i < n_blocks; i++)
        wrong += count_wrong(block[i], BLOCK_WORDS, 4 + i);
    if (timed)
        wrong += count_lost();
    if (filled)
        wrong += count_wrong(much_data, DATA_WORDS, 1) + count_wrong(much_bss, BSS_WORDS, 2);
    return wrong;
}

/* Whether early_check() has looked at .data and .bss. */
int early_filled(void) { return filled || timed; }
