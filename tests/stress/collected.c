/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* collected ROUNDS DSO: four threads keep lists whose only references are on their stacks, and let go of half
   of them again and again; two of them collect (libgc), one allocates, and one opens, calls and closes the
   DSO (table.S). dlopen(3) is not libgc's, which forbids collections meanwhile, and libraries are no roots.

   Every collection stops all threads by a signal and reads their stacks from where that signal found them.
   Prints

       opened N, objects N, wrong N, lost N
       collections N

   wrong: objects that have changed; lost: those that the collector took, by their finalizers, while
   a list still had them.  The first line is the same in each run. */
#define GC_THREADS
#include <gc.h>
#undef dlopen

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH 300

typedef uint64_t (*function)(uint64_t, void *);

struct node {
    struct node *next;
    uint64_t number, check;
    uint64_t let_go;
    char filling[64];
};

static atomic_ulong objects, wrong, lost;
static atomic_bool stop;

static void finalize(void *object, void *unused) {
    (void)unused;
    atomic_fetch_add(&lost, !((struct node *)object)->let_go);
}

static struct node *make_list(uint64_t seed) {
    struct node *list = NULL;
    for (uint64_t i = 0; i < LENGTH; i++) {
        struct node *node = GC_MALLOC(sizeof *node);
        node->number = seed + i;
        node->check = ~node->number * 0x9e3779b97f4a7c15;
        node->next = list;
        list = node;
        if (i % 8 == 0)
            GC_REGISTER_FINALIZER_NO_ORDER(node, finalize, NULL, NULL, NULL);
    }
    return list;
}

static void check_list(const struct node *list, uint64_t seed) {
    uint64_t i = LENGTH;
    for (; list != NULL && i > 0; list = list->next) {
        i--;
        if (list->number != seed + i || list->check != ~list->number * 0x9e3779b97f4a7c15 || list->let_go) {
            atomic_fetch_add(&wrong, 1);
            return;
        }
    }
    if (i != 0 || list != NULL)
        atomic_fetch_add(&wrong, 1);
}

static void let_go(struct node *list) {
    for (; list != NULL; list = list->next)
        list->let_go = 1;
}

/* One list for all the time, and one for this round. */
static void *collect(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument << 40;
    struct node *volatile kept = make_list(seed);
    for (uint64_t round = 1; !atomic_load(&stop); round++) {
        struct node *volatile list = make_list(seed + round * LENGTH);
        if (argument < (void *)3)
            GC_gcollect();
        check_list(list, seed + round * LENGTH);
        check_list(kept, seed);
        let_go(list);
    }
    check_list(kept, seed);
    let_go(kept);
    return NULL;
}

struct work {
    const char *path;
    unsigned long rounds, opened;
};

static void *open_and_close(void *argument) {
    struct work *work = argument;
    struct node *volatile kept = make_list(0);
    uint64_t first = 0;
    for (unsigned long round = 1; round <= work->rounds; round++) {
        struct node *volatile list = make_list(round * LENGTH);
        void *handle = dlopen(work->path, RTLD_NOW);
        if (handle == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        const function *table = dlsym(handle, "table");
        uint64_t x = 1;
        for (unsigned i = 0; i < 4096; i += 16)
            x = table[i](x, NULL);
        first = round == 1 ? x : first;
        atomic_fetch_add(&wrong, x != first);
        work->opened += dlclose(handle) == 0;
        check_list(list, round * LENGTH);
        check_list(kept, 0);
        atomic_fetch_add(&objects, 2 * LENGTH);
        let_go(list);
    }
    let_go(kept);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    GC_set_no_dls(1);
    GC_INIT();
    struct work work = {argv[2], strtoul(argv[1], NULL, 0), 0};
    pthread_t thread[4];
    pthread_create(&thread[0], NULL, open_and_close, &work);
    for (uintptr_t i = 1; i < 4; i++)
        pthread_create(&thread[i], NULL, collect, (void *)i);
    pthread_join(thread[0], NULL);
    atomic_store(&stop, true);
    for (int i = 1; i < 4; i++)
        pthread_join(thread[i], NULL);
    GC_gcollect();
    printf("opened %lu, objects %lu, wrong %lu, lost %lu\n", work.opened, objects, wrong, lost);
    printf("collections %lu\n", (unsigned long)GC_get_gc_no());
    return 0;
}
