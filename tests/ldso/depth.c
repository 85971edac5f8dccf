/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* depth [new] LIBRARY: opens it in a thread, in a new namespace if "new", and prints how many bytes of its stack that has
   used. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (256 << 10)
#define PAINT 0xa5

static Lmid_t namespace = LM_ID_BASE;
static const char *library;
static char *stack, *top;

__attribute__((noinline)) static void *open_library(void *unused) {
    top = __builtin_frame_address(0);
    /* The stack used by the thread's start does not count either. */
    memset(stack, PAINT, (size_t)(top - stack) - 512);
    if (dlmopen(namespace, library, RTLD_NOW) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_attr_t attributes;
    pthread_t thread;
    library = argv[argc - 1];
    if (argc == 3)
    namespace = LM_ID_NEWLM;
    if (posix_memalign((void **)&stack, 4096, STACK_BYTES) != 0)
        return 2;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK_BYTES);
    if (pthread_create(&thread, &attributes, open_library, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    char *lowest = stack;
    while (*lowest == (char)PAINT)
        lowest++;
    printf("%td\n", top - lowest);
    return 0;
}
