/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded into the program called $T_OPENER: a thread opens, calls and closes the DSO $T_LIBRARY (table.S)
   again and again while the program does its own work, and so does a thread in its children, down to
   generation $T_GENERATIONS.

   The file $T_COUNTS has three numbers of 64 bits that all these processes add to: times opened, processes
   that opened, and those of them where the DSO's text had left its file when it was opened for the first
   time.

   fork(2) copies one thread and the dynamic linker's unfinished work in another, so a child may only open if
   nothing was being opened when it was made: forks wait for that.  Those of the last generation do not, and
   must open nothing: glibc's lock may be held for ever there, without hugeld too. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t (*function)(uint64_t, void *);

static struct { atomic_ulong opened, processes, moved; } * counts;
static const char *library;
static int generation, last_generation;
static uint64_t expected;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static bool has_file(uint64_t address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long start, end;
    char line[512];
    bool found = false;
    while (!found && maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx", &start, &end) == 2)
            found = address >= start && address < end && strstr(line, library) != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* At a limit that the program has set for itself it cannot be opened, nor could it without hugeld. */
static void open_and_close(bool first) {
    void *handle = dlopen(library, RTLD_NOW);
    if (handle == NULL)
        return;
    const function *table = dlsym(handle, "table");
    uint64_t x = 1;
    for (unsigned i = 0; i < 4096; i += 64)
        x = table[i](x, NULL);
    if (expected == 0)
        expected = x;
    if (x != expected) {
        static const char message[] = "opener: a wrong result\n";
        (void)!write(STDERR_FILENO, message, sizeof message - 1);
        abort();
    }
    atomic_fetch_add(&counts->opened, 1);
    if (first) {
        atomic_fetch_add(&counts->processes, 1);
        atomic_fetch_add(&counts->moved, !has_file((uint64_t)(uintptr_t)table[2048]));
    }
    dlclose(handle);
}

static void *run(void *unused) {
    for (bool first = true;; first = false) {
        pthread_mutex_lock(&opening);
        open_and_close(first);
        pthread_mutex_unlock(&opening);
        usleep(1000);
    }
    return unused;
}

static void *leave(void *result) { pthread_exit(result); }

/* The first pthread_exit(3) of a process opens libgcc_s, and may come in a child of the last generation. */
static void open_libgcc(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, leave, NULL) == 0)
        pthread_join(thread, NULL);
}

/* Handlers of the program may jump out of themselves, so they must not run in this thread. */
static void start(void) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void before_fork(void) {
    if (generation < last_generation)
        pthread_mutex_lock(&opening);
}

static void in_parent(void) {
    if (generation < last_generation)
        pthread_mutex_unlock(&opening);
}

static void in_child(void) {
    if (generation >= last_generation)
        return;
    generation++;
    pthread_mutex_unlock(&opening);
    start();
}

__attribute__((constructor)) static void construct(void) {
    const char *name = getenv("T_OPENER");
    if (name == NULL || strcmp(name, program_invocation_short_name) != 0)
        return;
    library = strdup(getenv("T_LIBRARY")); /* setproctitle(3) writes over the environment */
    last_generation = atoi(getenv("T_GENERATIONS"));
    int fd = open(getenv("T_COUNTS"), O_RDWR | O_CLOEXEC);
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || counts == MAP_FAILED)
        abort();
    close(fd);
    open_libgcc();
    pthread_atfork(before_fork, in_parent, in_child);
    start();
}
