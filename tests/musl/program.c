/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* program [COMMAND ARGUMENT...]: linked with large text; runs all of it, and in threads that map and unmap,
   take signals and fork meanwhile; then COMMAND as its child. */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef OWN_ENVIRON
char **environ = NULL; /* libc has __environ */
#else
extern char **environ;
#endif

uint64_t big_sum(uint64_t x);
const char *big_address(void);

static const char *constructed = "no";
__attribute__((constructor)) static void construct(void) { constructed = getenv("T_CONSTRUCTED"); }

static void ignore(int signal) { (void)signal; }

/* big_address is the second of 4096 functions of 1 KiB. */
static void *call(void *argument) {
    uint64_t *x = argument;
    for (int i = 0; i < 4000; i++) {
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        page[i] = 1;
        *x = ((uint64_t(*)(uint64_t))(big_address() + 1024 * i))(*x);
        if (i % 100 == 0)
            raise(SIGUSR1);
        munmap(page, 4096);
    }
    return NULL;
}

static int wait_for(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -status;
}

static void run_threads(void) {
    pthread_t thread[4];
    uint64_t x[4];
    signal(SIGUSR1, ignore);
    for (unsigned i = 0; i < 4; i++) {
        x[i] = i;
        pthread_create(&thread[i], NULL, call, &x[i]);
    }
    int forks = 0;
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(((uint64_t(*)(uint64_t))(big_address()))(1) != 0);
        forks += wait_for(child) == 1;
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        printf("thread %016lx\n", (unsigned long)x[i]);
    }
    printf("forks %d\n", forks);
}

int main(int argc, char **argv) {
    printf("constructed %s, sum %016lx\n", constructed ? constructed : "", (unsigned long)big_sum(1));
    run_threads();
    fflush(stdout);
    pid_t child;
    if (argc > 1 && posix_spawn(&child, argv[1], NULL, NULL, argv + 1, environ) == 0)
        printf("child %d\n", wait_for(child));
    return 3;
}
