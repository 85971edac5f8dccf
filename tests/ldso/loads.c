/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* loads once LIBRARY: loads LIBRARY and calls use_features in it twice.
   loads forks LIBRARY N OTHER: forks N times while a thread loads and unloads it all the time; each child loads OTHER. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *library;

static int use(void *handle) {
    int (*use_features)(void) = handle != NULL ? (int (*)(void))dlsym(handle, "use_features") : NULL;
    if (use_features == NULL) {
        fprintf(stderr, "loads: %s\n", dlerror());
        exit(1);
    }
    return use_features();
}

static _Atomic int stop;

static void *load_for_ever(void *data) {
    while (!stop) {
        void *handle = dlopen(library, RTLD_NOW);
        if (handle == NULL || dlclose(handle) != 0)
            exit(1);
    }
    return data;
}

/* A child may have to wait for a lock that this thread had, or find that glibc was in the middle of something (an assertion of
   ld.so's, status 127), as it does without hugeld. */
static void fork_while_loading(int n, const char *other) {
    pthread_t thread;
    pthread_create(&thread, NULL, load_for_ever, NULL);
    for (int i = 0; i < n; i++) {
        int status;
        usleep(3000);
        pid_t child = fork();
        if (child == 0) {
            alarm(1);
            _exit(dlopen(other, RTLD_NOW) != NULL ? 0 : 1);
        }
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM)
            printf("a child ended with %x\n", (unsigned)status);
    }
    stop = 1;
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    library = argv[2];
    if (strcmp(argv[1], "once") == 0) {
        void *handle = dlopen(library, RTLD_NOW);
        printf("%d %d\n", use(handle), use(handle));
    } else {
        fork_while_loading(atoi(argv[3]), argv[4]);
    }
    return 0;
}
