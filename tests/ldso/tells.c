/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prints the facts that a program can know of how it was started, a line each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static __thread int number = 7;
static int constructed;

__attribute__((constructor)) static void construct(void) { constructed++; }

static void *in_thread(void *unused) {
    number++;
    return unused;
}

/* The mapped files that are dynamic linkers, once for each mapping. */
static void tell_linkers(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        const char *path = strchr(line, '/');
        if (path != NULL && (strstr(path, "/ld-linux") != NULL || strstr(path, "ld.so") != NULL))
            printf("linker %s", path);
    }
    fclose(maps);
}

int main(int argc, char **argv) {
    char exe[4096] = "";
    pthread_t thread;
    Dl_info info;
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0)
        return 1;
    printf("exe %s\n", exe);
    for (int i = 0; i < argc; i++)
        printf("argument %s\n", argv[i]);
    printf("constructed %d, secure %lu, variable %s\n", constructed, getauxval(AT_SECURE),
           getenv("HL_TELLS"));
    printf("pagesize %ld, uid %lu of %d\n", sysconf(_SC_PAGESIZE), getauxval(AT_UID), getuid());
    if (pthread_create(&thread, NULL, in_thread, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 2;
    printf("number %d, math %s\n", number, dlopen("libm.so.6", RTLD_NOW) != NULL ? "loaded" : dlerror());
    const ElfW(Ehdr) *base = (const ElfW(Ehdr) *)getauxval(AT_BASE);
    if (base != NULL)
        printf("base %s\n",
               dladdr(base, &info) != 0 && info.dli_fbase == base ? "is the linker's" : "is none");
    tell_linkers();
    return 3;
}
