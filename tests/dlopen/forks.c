/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* forks ROUNDS DSO: the first thread opens, calls and closes the DSO (table.S) ROUNDS times, while two more
   make children all the time by fork, vfork, posix_spawn and a raw clone(2).  Children call functions of the
   program's own text (table.S, too) and of the DSO where they have it, and live for 2 ms, so that they share
   pages with objects that are being opened.  With ROUNDS 0 it is opened once, with no children.  Prints

       opened N, wrong N
       children N N N N, moved N, most N

   children by each call; wrong: those that did not exit with 0, and wrong results; moved: rounds in which
   there were more huge pages than before; most: KiB on hugetlb pages. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t (*function)(uint64_t, void *);

extern const function table[4096];
static const function *_Atomic library; /* NULL unless it can be called */
static uint64_t expected[2];
static atomic_ulong children[4], wrong;
static atomic_bool stop;

static uint64_t call_some(const function *functions) {
    uint64_t x = 1;
    for (unsigned i = 0; i < 4096; i += 64)
        x = functions[i](x, NULL);
    return x;
}

/* Nothing that may hold another thread's lock. */
static _Noreturn void be_child(void) {
    const function *opened = library;
    bool right = call_some(table) == expected[0] && (opened == NULL || call_some(opened) == expected[1]);
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
    _exit(right ? 0 : 1);
}

static pid_t by_fork(void) {
    pid_t child = fork();
    if (child == 0)
        be_child();
    return child;
}

static pid_t by_clone(void) {
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        be_child();
    return child;
}

/* It has the parent's memory, where the DSO may be closed meanwhile. */
static pid_t by_vfork(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(call_some(table) == expected[0] ? 0 : 1);
    return child;
}

static pid_t by_spawn(void) {
    char *argv[] = {"true", NULL}, *env[] = {NULL};
    pid_t child;
    return posix_spawn(&child, "/bin/true", NULL, NULL, argv, env) == 0 ? child : -1;
}

static void *make_children(void *argument) {
    static pid_t (*const make[4])(void) = {by_fork, by_vfork, by_spawn, by_clone};
    for (uintptr_t i = (uintptr_t)argument; !atomic_load(&stop); i++) {
        int status = -1;
        pid_t child = make[i % 4]();
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child by way %d: status %#x\n", (int)(i % 4), (unsigned)status);
            atomic_fetch_add(&wrong, 1);
        }
        atomic_fetch_add(&children[i % 4], 1);
    }
    return NULL;
}

static long hugetlb_kib(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strstr(line, "_Hugetlb:") != NULL)
            kib += atol(strchr(line, ':') + 1);
    if (file != NULL)
        fclose(file);
    return kib;
}

static long open_and_close(const char *path) {
    void *handle = dlopen(path, RTLD_NOW);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    const function *functions = dlsym(handle, "table");
    uint64_t x = call_some(functions);
    if (expected[1] == 0)
        expected[1] = x;
    atomic_fetch_add(&wrong, x != expected[1]);
    library = functions;
    long kib = hugetlb_kib();
    library = NULL;
    dlclose(handle);
    return kib;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    unsigned long rounds = strtoul(argv[1], NULL, 0), moved = 0;
    pthread_t thread[2];
    expected[0] = call_some(table);
    long own = hugetlb_kib(), most = open_and_close(argv[2]);
    for (uintptr_t i = 0; rounds != 0 && i < 2; i++)
        pthread_create(&thread[i], NULL, make_children, (void *)(2 * i));
    for (unsigned long i = 0; i < rounds; i++) {
        long kib = open_and_close(argv[2]);
        moved += kib > own;
        most = kib > most ? kib : most;
    }
    atomic_store(&stop, true);
    for (int i = 0; rounds != 0 && i < 2; i++)
        pthread_join(thread[i], NULL);
    printf("opened %lu, wrong %lu\n", rounds, wrong);
    printf("children %lu %lu %lu %lu, moved %lu, most %ld\n", children[0], children[1], children[2],
           children[3], moved, most);
    return 0;
}
