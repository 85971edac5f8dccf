/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* host FOLDER: opens the DSOs that conftest.py builds in all the ways that look at who calls, and prints each
   answer, while other threads map, fork and send signals (churn.h).  FOLDER does not show in the output.
   At the end it stops itself, with DSOs open.

   As DSO (-DCALLER) it is a library that opens others in its turn: it has a RUNPATH of its own. */
#include <dlfcn.h>
#include <execinfo.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef CALLER
void *caller_open(const char *name, int flags) {
    void *volatile handle = dlopen(name, flags); /* no tail call: dlopen looks at its return address */
    return handle;
}

const char *who(void) {
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    return next == NULL ? "the caller, and nobody next" : next();
}

/* Opened while the dynamic linker still works on this one. */
__attribute__((constructor)) static void construct(void) {
    void *handle = dlopen("libown.so", RTLD_NOW);
    printf("constructor: %s\n", handle != NULL ? "opened" : "not opened");
}
#else
#include "../churn.h"

typedef uint64_t (*function)(uint64_t, void *);

static const char *folder;

/* TEXT, or the part of it after the folder. */
static const char *without_folder(const char *text) {
    const char *found = text != NULL ? strstr(text, folder) : NULL;
    return found != NULL ? found + strlen(folder) : text != NULL ? text : "(none)";
}

static uint64_t sum(void *handle) {
    function *table = dlsym(handle, "table");
    const uint64_t *constants = dlsym(handle, "constants");
    uint64_t x = 1;
    if (table == NULL || constants == NULL)
        return 0;
    for (unsigned i = 0; i < 4096; i++)
        x = table[i](x, i % 2 ? (void *)table[4095 - i] : NULL) * 31 + constants[i * 128];
    return x;
}

/* The children's work: no call of the dynamic linker, whose lock their parent may have held. */
static function lent;
static bool is_right(void) { return lent(5, NULL) == 1 + 5 * 3 + 7 * 7; }

static void tell(const char *what, void *handle) {
    struct link_map *map = NULL;
    Lmid_t namespace = -7;
    if (handle == NULL) {
        printf("%s: error: %s", what, without_folder(dlerror()));
        printf("; then %s\n", without_folder(dlerror()));
        return;
    }
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    dlinfo(handle, RTLD_DI_LMID, &namespace);
    printf("%s: %s, namespace %s, sum %016lx, error %s\n", what, without_folder(map->l_name),
           namespace == LM_ID_BASE ? "base" : "another", sum(handle), without_folder(dlerror()));
}

static void *frames[32];
static uint64_t trace(uint64_t x, void *unused) {
    (void)unused;
    return x + (unsigned)backtrace(frames, 32);
}

/* A function of the DSO as seen from outside. */
static void inspect(void *handle) {
    function *table = dlsym(handle, "table");
    Dl_info info;
    uint64_t depth = table[100](0, (void *)trace);
    printf("backtrace: %s, dladdr %s\n", depth > 2 ? "through" : "stops",
           dladdr((void *)table[100], &info) ? without_folder(info.dli_fname) : "nothing");
}

static int count(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    *(int *)data += strstr(info->dlpi_name, folder) != NULL;
    return 0;
}

static void *by_path(const char *name, int flags, Lmid_t namespace) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return dlmopen(namespace, path, flags);
}

static void *open_third(void *unused) {
    (void)unused;
    return by_path("libtable3.so", RTLD_NOW, LM_ID_BASE);
}

/* Opens in a thread with a stack of 16 KiB, the smallest: moving takes more. */
static void *on_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *handle = NULL;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0 &&
        pthread_create(&thread, &attributes, open_third, NULL) == 0)
        pthread_join(thread, &handle);
    return handle;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    folder = argv[1];
    int objects = 0;
    churn_start(CHURN_MAPS);
    churn_watch_me();
    tell("not there", dlopen("libnot-there.so", RTLD_NOW));
    tell("NOLOAD before", by_path("libtable1.so", RTLD_NOW | RTLD_NOLOAD, LM_ID_BASE));
    void *one = by_path("libtable1.so", RTLD_NOW, LM_ID_BASE);
    tell("by path", one);
    lent = ((function *)dlsym(one, "table"))[7];
    churn_lend(is_right);
    printf("NOLOAD after: %s\n",
           by_path("libtable1.so", RTLD_NOW | RTLD_NOLOAD, LM_ID_BASE) == one ? "the same" : "another");
    tell("lazily", by_path("libtable2.so", RTLD_LAZY | RTLD_GLOBAL, LM_ID_BASE));
    tell("on a small stack", on_small_stack());
    tell("in a namespace", by_path("libtable1.so", RTLD_NOW, LM_ID_NEWLM));
    tell("in another one", by_path("libtable2.so", RTLD_NOW, LM_ID_NEWLM));
    tell("undefined symbol", by_path("libmissing.so", RTLD_NOW, LM_ID_BASE));
    tell("no ELF file", by_path("text.so", RTLD_NOW, LM_ID_BASE));
    tell("main's RUNPATH", dlopen("libpick.so", RTLD_NOW));
    void *caller = by_path("libcaller.so", RTLD_NOW, LM_ID_BASE);
    void *(*caller_open)(const char *, int) = (void *(*)(const char *, int))dlsym(caller, "caller_open");
    const char *(*who)(void) = (const char *(*)(void))dlsym(caller, "who");
    tell("the caller's RUNPATH", caller_open("libother.so", RTLD_NOW));
    tell("the caller's, not main's", caller_open("libonly-main.so", RTLD_NOW));
    printf("RTLD_NEXT: %s\n", who());
    inspect(one);
    dl_iterate_phdr(count, &objects);
    printf("objects: %d\n", objects);
    fflush(stdout);
    churn_stop();
    raise(SIGSTOP);
    churn_lend(NULL);
    churn_start(CHURN_MAPS);
    printf("closed: %d\n", dlclose(one) + dlclose(one));
    tell("NOLOAD at the end", by_path("libtable1.so", RTLD_NOW | RTLD_NOLOAD, LM_ID_BASE));
    one = by_path("libtable1.so", RTLD_NOW, LM_ID_BASE);
    tell("reopened", one);
    churn_stop();
    return 0;
}
#endif
