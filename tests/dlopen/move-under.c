/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* move-under COUNT DSO BACKEND [processes]: moves the DSO onto huge pages and back COUNT times, while eight threads call
   the functions of its table (table.S) and read its constants, SIGPROF asks for a backtrace a thousand
   times a second, and other threads map, fork and send signals (churn.h).  With "processes" there are eight processes that share
   the memory (CLONE_VM) instead, and no thread and no signal.

   It moves with the core's own code, as if the DSO had just come, and back by mapping its file again: with
   edges=small a span lies inside one segment, so that is one call too.  Prints one line:

       moves N, calls N, wrong N, signals N, through N, ended N

   ended counts processes that did not live until the end; wrong counts results that differ from the same functions' earlier ones, computed by each thread over
   rounds of calls and reads; through counts backtraces that went through the DSO. */
#include "../../elf/move.h"
#include "../../elf/reason.h"

#include "../churn.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 8
#define STACK_BYTES ((size_t)256 << 10)
#define FUNCTIONS 4096
#define CONSTANTS (512 * 1024)

typedef uint64_t (*function)(uint64_t, void *);

static function *table;
static const uint64_t *constants;
static uint64_t expected[16];
static atomic_ulong calls, wrong, n_signals, through;
static atomic_bool stop;

static struct {
    struct hl_object object;
    ElfW(Phdr) phdr[32];
    size_t phnum;
    uint64_t start, end;
} dso;

static void fail(const char *what) {
    fprintf(stderr, "move-under: %s\n", what);
    exit(1);
}

/* Calls every function, half of them from another one, and reads every page of the constants, in an order
   that SEED chooses. */
static uint64_t use_all(uint64_t seed) {
    uint64_t x = seed;
    for (uint64_t i = 0; i < FUNCTIONS; i++) {
        uint64_t a = (i * 1103 + seed * 17) % FUNCTIONS, b = (a * 31 + 7) % FUNCTIONS;
        x = table[a](x, i % 2 ? (void *)table[b] : NULL);
        x = x * 31 + constants[(i * 4099 + seed) % CONSTANTS];
    }
    return x;
}

static bool use_once(void) { return use_all(0) == expected[0]; }

static void *run(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    if (nice(10) ==
        -1) /* Linux: this thread alone; else the one that moves would wait for these most of the time */
        fail("nice");
    for (; !atomic_load(&stop); seed++) {
        if (use_all(seed % 16) != expected[seed % 16])
            atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&calls, FUNCTIONS + FUNCTIONS / 2);
    }
    return NULL;
}

static void handle(int signal) {
    void *at[32];
    (void)signal;
    int depth = backtrace(at, 32);
    for (int i = 0; i < depth; i++)
        if ((uint64_t)(uintptr_t)at[i] - dso.start < dso.end - dso.start) {
            atomic_fetch_add(&through, 1);
            break;
        }
    atomic_fetch_add(&n_signals, 1);
}

static int find(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    if (strcmp(info->dlpi_name, path) != 0)
        return 0;
    dso.object.path = path;
    dso.object.file = -1;
    dso.object.load_bias = info->dlpi_addr;
    dso.phnum = info->dlpi_phnum;
    memcpy(dso.phdr, info->dlpi_phdr, dso.phnum * sizeof dso.phdr[0]);
    for (size_t i = 0; i < dso.phnum; i++)
        if (dso.phdr[i].p_type == PT_LOAD)
            dso.end = info->dlpi_addr + dso.phdr[i].p_vaddr + dso.phdr[i].p_memsz;
    dso.start = info->dlpi_addr;
    return 1;
}

static void open_dso(char *path) {
    void *handle = dlopen(path, RTLD_NOW);
    if (handle == NULL)
        fail(dlerror());
    table = dlsym(handle, "table");
    constants = dlsym(handle, "constants");
    if (dl_iterate_phdr(find, path) != 1)
        fail("the DSO is not listed");
    for (uint64_t i = 0; i < 16; i++)
        expected[i] = use_all(i);
}

/* The mapping that the dynamic linker made. */
static void map_file(const struct hl_span *span, int fd) {
    for (size_t i = 0; i < dso.phnum; i++) {
        const ElfW(Phdr) *ph = &dso.phdr[i];
        uint64_t start = dso.object.load_bias + ph->p_vaddr;
        if (ph->p_type != PT_LOAD || span->start < start || span->end > start + ph->p_filesz)
            continue;
        void *at = mmap((void *)span->start, span->end - span->start,
                        span->flags & PF_X ? PROT_READ | PROT_EXEC : PROT_READ, MAP_PRIVATE | MAP_FIXED, fd,
                        (off_t)(ph->p_offset + (span->start - start)));
        if (at == MAP_FAILED)
            fail("it cannot go back");
        return;
    }
    fail("a span is not inside one segment");
}

static void move_and_return(struct hl_context *context, int fd) {
    hl_add_object(context, &dso.object, dso.phdr, dso.phnum);
    if (hl_move_objects(context) != 0 || context->n_work != 1 || context->work[0].plan.n_spans < 2)
        fail("nothing was to be moved");
    const struct hl_work *work = &context->work[0];
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        if (!work->move[i].placed)
            fail(hl_reason_name(work->reason != HL_MOVED ? work->reason : work->move[i].reason));
        map_file(&work->plan.span[i], fd);
    }
    hl_end(context);
}

/* The kernel would give all signals to this thread, which moves. */
static void start_timer(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    struct itimerspec time = {{0, 1000000}, {0, 1000000}};
    sigset_t set;
    timer_t timer;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &time, NULL) != 0)
        fail("no timer");
}

static void move_all(struct hl_context *context, int count, int fd) {
    for (int i = 0; i < count; i++)
        move_and_return(context, fd);
}

static void move_under_threads(struct hl_context *context, int count, int fd) {
    pthread_t thread[THREADS];
    void *warm_up[4];
    backtrace(warm_up, 4); /* loads libgcc_s */
    signal(SIGPROF, handle);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, run, (void *)i) != 0)
            fail("no thread");
    start_timer();
    churn_lend(use_once);
    churn_start(CHURN_MAPS);
    churn_watch_me();
    move_all(context, count, fd);
    churn_stop();
    atomic_store(&stop, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static int run_in_process(void *seed) {
    run(seed);
    return 0;
}

/* The number of processes that a signal has ended. */
static int move_under_processes(struct hl_context *context, int count, int fd) {
    int child[THREADS], status, ended = 0;
    for (uintptr_t i = 0; i < THREADS; i++) {
        char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        child[i] = stack == MAP_FAILED
                       ? -1
                       : clone(run_in_process, stack + STACK_BYTES, CLONE_VM | SIGCHLD, (void *)i);
        if (child[i] < 0)
            fail("no process");
    }
    while (atomic_load(&calls) < THREADS * FUNCTIONS)
        sched_yield();
    move_all(context, count, fd);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < THREADS; i++)
        ended += waitpid(child[i], &status, 0) != child[i] || status != 0;
    return ended;
}

int main(int argc, char **argv) {
    struct hl_config config;
    struct hl_context context;
    char text[96];
    int ended = 0;
    if (argc != 4 && argc != 5)
        fail("usage: move-under COUNT DSO BACKEND [processes]");
    open_dso(argv[2]);
    snprintf(text, sizeof text, "LD_HUGEPAGES_OPTIONS=segments=text+rodata,edges=small,data=off,backend=%s",
             argv[3]);
    const char *const environment[] = {"LD_HUGEPAGES=*", text, NULL};
    if (!hl_begin(&context, &config, environment, argv[0], HL_PRELOADER, getauxval(AT_PAGESZ)))
        fail("nothing to do");
    int fd = open(argv[2], O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("the DSO cannot be opened");
    int count = atoi(argv[1]);
    if (argc == 5)
        ended = move_under_processes(&context, count, fd);
    else
        move_under_threads(&context, count, fd);
    printf("moves %d, calls %lu, wrong %lu, signals %lu, through %lu, ended %d\n", count, atomic_load(&calls),
           atomic_load(&wrong), atomic_load(&n_signals), atomic_load(&through), ended);
    return 0;
}
