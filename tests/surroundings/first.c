/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs before libhugeld.so (linked with -z initfirst and loaded after it, so that this one wins) and changes the
   process as earlier constructors do.  T_FIRST has words "verb:a:b", separated by commas; numbers are hexadecimal,
   addresses relative to the executable's first page.

     seal:at:bytes  protect:at:bytes:prot  advise:at:bytes:advice  lock:at:bytes  write:at  share:at:bytes
     fill:at:bytes  map something where nothing is
     file:at:bytes:offset  map the file T_FILE as text
     occupy:n       map pages until n mappings are left below vm.max_map_count
     process        a process made by clone(CLONE_VM) sleeps for as long as this one lives
     threads:n      n threads call the functions of the large text for as long as the process lives
     churn:n        and others map, unless n is 0, fork and send signals (churn.h); their children call functions of
                    the large text, and the signals go to the thread that runs the constructors
     timer:n        SIGPROF every n microseconds; its handler calls such a function */
#define _GNU_SOURCE
#include "../churn.h"

#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#ifndef __NR_mseal
#define __NR_mseal 462
#endif
#define PAGE ((uintptr_t)4096)

/* Functions of 1 KiB in the large text; the second one of the second half. */
const void *big_address(void) __attribute__((weak));

static char *base;
static const char *file = ""; /* T_FILE */
static bool has_churn;

static int find_base(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    for (int i = 0; base == NULL; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            base = (char *)((info->dlpi_addr + info->dlpi_phdr[i].p_vaddr) & -PAGE);
    return 1;
}

/* The functions' results are known: a wrong byte in the text shows at once. */
static bool is_right(unsigned i) {
    uint64_t (*function)(uint64_t) = (uint64_t(*)(uint64_t))((char *)big_address() + 1024 * i);
    return function(i) == 12345 + (i + 1) * 7 + 3 * (uint64_t)i;
}

static void call_function(unsigned i) {
    if (!is_right(i))
        abort();
}

static bool call_some(void) {
    for (unsigned i = 0; i < 4000; i += 97)
        if (!is_right(i))
            return false;
    return true;
}

static void *call_functions(void *data) {
    for (unsigned i = 0;; i = (i + 997) % 4000)
        call_function(i);
    return data;
}

static void handle(int signal) {
    static unsigned i;
    (void)signal;
    call_function(i++ % 4000);
}

static void start_timer(long microseconds) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    struct itimerspec every = {{0, microseconds * 1000}, {0, microseconds * 1000}};
    timer_t timer;
    sigaction(SIGPROF, &action, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &every, NULL) != 0)
        abort();
}

static void start_threads(long n) {
    pthread_t thread;
    while (n-- > 0)
        if (pthread_create(&thread, NULL, call_functions, NULL) != 0)
            abort();
}

static int sleep_until_end(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        pause();
}

static int start_process(void) {
    static char stack[16384] __attribute__((aligned(16)));
    return clone(sleep_until_end, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL) < 0;
}

static void start_churn(enum churn_kind kind) {
    churn_lend(call_some);
    churn_start(kind);
    churn_watch_me();
    has_churn = true;
}

/* Before the process ends, or its last child might outlive it. */
__attribute__((destructor)) static void end_churn(void) {
    if (has_churn)
        churn_stop();
}

static void occupy(long left) {
    long n = 0;
    char *room = mmap(NULL, 70000 * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(room, 70000 * 2 * PAGE);
    while (n < 70000 && mmap(room + 2 * n * PAGE, PAGE, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED)
        n++;
    for (; left > 0; left--)
        munmap(room + 2 * --n * PAGE, PAGE);
}

static void write_byte(char *at) {
    mprotect(at, PAGE, PROT_READ | PROT_WRITE);
    *(volatile char *)at = *at;
    mprotect(at, PAGE, PROT_READ | PROT_EXEC);
}

/* A shared copy in a file's place. */
static void share(char *at, size_t bytes) {
    char *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, at, bytes);
    mprotect(copy, bytes, PROT_READ | PROT_EXEC);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
        abort();
}

static int map_file(char *at, size_t bytes, off_t offset) {
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    int failed = mmap(at, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, offset) != at;
    close(fd);
    return failed;
}

static void act(const char *verb, const char *numbers) {
    long number[3] = {0};
    char *end = (char *)numbers;
    size_t length = strcspn(verb, ":,");
    for (int i = 0; i < 3 && *end == ':'; i++)
        number[i] = strtol(end + 1, &end, 16);
    char *at = base + number[0];
    int failed = 0;
    if (strncmp(verb, "seal", length) == 0)
        failed = (int)syscall(__NR_mseal, at, number[1], 0);
    else if (strncmp(verb, "protect", length) == 0)
        failed = mprotect(at, number[1], (int)number[2]);
    else if (strncmp(verb, "advise", length) == 0)
        failed = madvise(at, number[1], (int)number[2]);
    else if (strncmp(verb, "lock", length) == 0)
        failed = mlock(at, number[1]);
    else if (strncmp(verb, "write", length) == 0)
        write_byte(at);
    else if (strncmp(verb, "share", length) == 0)
        share(at, number[1]);
    else if (strncmp(verb, "fill", length) == 0)
        failed =
            mmap(at, number[1], PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at;
    else if (strncmp(verb, "file", length) == 0)
        failed = map_file(at, (size_t)number[1], number[2]);
    else if (strncmp(verb, "occupy", length) == 0)
        occupy(number[0]);
    else if (strncmp(verb, "process", length) == 0)
        failed = start_process();
    else if (strncmp(verb, "threads", length) == 0)
        start_threads(number[0]);
    else if (strncmp(verb, "churn", length) == 0)
        start_churn(number[0] ? CHURN_MAPS : CHURN_MAPS_NOTHING);
    else if (strncmp(verb, "timer", length) == 0)
        start_timer(number[0]);
    else
        failed = 1;
    if (failed)
        abort();
}

__attribute__((constructor)) static void start(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    dl_iterate_phdr(find_base, NULL);
    for (char **variable = envp; *variable != NULL; variable++) /* environ is not set yet */
        if (strncmp(*variable, "T_FILE=", 7) == 0)
            file = *variable + 7;
    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, "T_FIRST=", 8) != 0)
            continue;
        for (const char *verb = *envp + 8; *verb != '\0'; verb += strcspn(verb, ","), verb += *verb == ',')
            act(verb, verb + strcspn(verb, ":,"));
    }
}
