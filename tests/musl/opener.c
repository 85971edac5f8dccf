/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* opener FOLDER: opens libone.so, libmissing.so, which lacks a symbol, and libtwo.so of FOLDER, the second
   and the third while threads run the first one's text and others map, fork and send signals (churn.h), whose
   children run it too; prints each one's answer; stops itself; closes and opens again. */
#define _GNU_SOURCE
#include "../churn.h"

#include <dlfcn.h>

typedef uint64_t (*function)(uint64_t);

static const char *folder;
static const char *text;
static atomic_int stopping;

static void *run(void *argument) {
    for (int i = 0; !stopping; i = (i + 1) % 4000)
        ((function)(text + 1024 * i))(1);
    return argument;
}

/* Twice the same. */
static bool is_same(void) {
    function first = (function)text;
    return first(1) == first(1) && first(1) != first(2);
}

static void *open_one(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    function sum = handle != NULL ? (function)dlsym(handle, "big_sum") : NULL;
    printf("%s: %016lx\n", name, sum != NULL ? (unsigned long)sum(1) : 0);
    return handle;
}

int main(int argc, char **argv) {
    pthread_t thread[2];
    if (argc != 2)
        return 2;
    folder = argv[1];
    void *one = open_one("libone.so");
    text = ((const char *(*)(void))dlsym(one, "big_address"))();
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, run, NULL);
    churn_lend(is_same);
    churn_start(CHURN_MAPS);
    churn_watch_me();
    open_one("libmissing.so");
    void *two = open_one("libtwo.so");
    open_one("libmissing.so");
    churn_stop();
    stopping = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    fflush(stdout);
    raise(SIGSTOP);
    dlclose(one);
    dlclose(two);
    open_one("libone.so");
    open_one("libtwo.so");
    return 0;
}
