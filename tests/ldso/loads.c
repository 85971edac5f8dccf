/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* loads HOW LIBRARY [N [OTHER]]: loads LIBRARY and calls use_features in it.

   once, new (in a namespace of its own), threads (N, each with a handle of its own, while others map,
   fork and send signals), coroutine (on a small stack that the program made), rounds (N times, each time unloading it), forks (forks N times while a thread loads and unloads
   it all the time; each child loads OTHER) */
#define _GNU_SOURCE
#include "../churn.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

#define SMALL (8 << 10) /* dlopen of this library takes half of it without hugeld */

static const char *library;

static int use(void *handle) {
    int (*use_features)(void) = handle != NULL ? (int (*)(void))dlsym(handle, "use_features") : NULL;
    if (use_features == NULL) {
        fprintf(stderr, "loads: %s\n", dlerror());
        exit(1);
    }
    return use_features();
}

/* All threads compute with the same data. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void *use_in_thread(void *result) {
    void *handle = dlopen(library, RTLD_NOW);
    pthread_mutex_lock(&one_at_a_time);
    *(int *)result = use(handle);
    pthread_mutex_unlock(&one_at_a_time);
    return NULL;
}

static void *use_watched(void *result) {
    churn_watch_me();
    use_in_thread(result);
    churn_forget_me();
    return NULL;
}

/* SMALL bytes, and nothing below them. */
static char *make_stack(void) {
    char *at = mmap(NULL, SMALL + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at + 65536, SMALL, PROT_READ | PROT_WRITE);
    return at + 65536;
}

static int result_of_use;
static void use_here(void) { result_of_use = use(dlopen(library, RTLD_NOW)); }

static void use_in_coroutine(void) {
    static ucontext_t back, there;
    getcontext(&there);
    there.uc_stack.ss_sp = make_stack();
    there.uc_stack.ss_size = SMALL;
    there.uc_link = &back;
    makecontext(&there, use_here, 0);
    swapcontext(&back, &there);
}

static int count_lines(const char *path) {
    FILE *file = fopen(path, "r");
    int n = 0;
    for (int c; (c = getc(file)) != EOF;)
        n += c == '\n';
    fclose(file);
    return n;
}

static int count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(folder) != NULL)
        n++;
    closedir(folder);
    return n;
}

static long resident_kb(void) {
    char line[256];
    long kb = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file) != NULL)
        sscanf(line, "VmRSS: %ld", &kb);
    fclose(file);
    return kb;
}

static void do_rounds(int n) {
    int maps = 0, descriptors = 0, first = 0;
    long resident = 0;
    for (int i = 0; i < n; i++) {
        void *handle = dlopen(library, RTLD_NOW);
        int result = use(handle);
        dlclose(handle);
        if (i == 0)
            first = result;
        if (result != first)
            printf("round %d: %d\n", i, result);
        if (i != 9)
            continue;
        maps = count_lines("/proc/self/maps");
        descriptors = count_descriptors();
        resident = resident_kb();
    }
    printf("maps %d, descriptors %d, grown %d\n", count_lines("/proc/self/maps") - maps,
           count_descriptors() - descriptors, resident_kb() > resident + 512);
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
    const char *how = argc > 2 ? argv[1] : "";
    int n = argc > 3 ? atoi(argv[3]) : 1, result[64] = {0};
    pthread_t thread[64];
    library = argv[2];
    if (strcmp(how, "once") == 0) {
        void *handle = dlopen(library, RTLD_NOW);
        printf("%d %d\n", use(handle), use(handle));
    } else if (strcmp(how, "new") == 0) {
        printf("%d %d\n", use(dlmopen(LM_ID_NEWLM, library, RTLD_NOW)), use(dlopen(library, RTLD_NOW)));
    } else if (strcmp(how, "coroutine") == 0) {
        use_in_coroutine();
        printf("%d\n", result_of_use);
    } else if (strcmp(how, "threads") == 0) {
        churn_start(CHURN_MAPS);
        for (int i = 0; i < n; i++)
            pthread_create(&thread[i], NULL, use_watched, &result[i]);
        int sum = 0; /* the first one changes the next one's result */
        for (int i = 0; i < n; i++) {
            pthread_join(thread[i], NULL);
            sum += result[i];
        }
        printf("%d\n", sum);
        churn_stop();
    } else if (strcmp(how, "rounds") == 0) {
        do_rounds(n);
    } else if (strcmp(how, "forks") == 0) {
        fork_while_loading(n, argv[4]);
    } else {
        return 2;
    }
    return 0;
}
