/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* asks LIBRARY [PATH...]: prints all that a program can learn about an object, and whether each PATH leads to
   the same one. On standard error: the files that are mapped and have "libbig" in their names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int tell_object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    if (info->dlpi_addr == *(ElfW(Addr) *)data)
        printf("phdr %s %d %llu\n", info->dlpi_name, info->dlpi_phnum, info->dlpi_adds - info->dlpi_subs);
    return 0;
}

static void tell_maps(void) {
    char line[PATH_MAX + 128];
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file) != NULL)
        if (strstr(line, "libbig") != NULL)
            fputs(line, stderr);
    fclose(file);
}

/* Whether nothing is mapped at AT. */
static int is_gone(const void *at) {
    unsigned char there;
    return mincore((void *)((uintptr_t)at & -4096), 1, &there) != 0;
}

static uint64_t (*find(void *handle))(uint64_t) {
    return handle == NULL ? NULL : (uint64_t(*)(uint64_t))dlsym(handle, "big_sum");
}

int main(int argc, char **argv) {
    char origin[PATH_MAX];
    struct link_map *map;
    Dl_info info;
    printf("loaded before: %d\n", dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    void *handle = dlopen(argv[1], RTLD_NOW);
    uint64_t (*sum)(uint64_t) = find(handle);
    if (sum == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    printf("%lx\n", (unsigned long)sum(1));
    tell_maps();
    dladdr((void *)sum, &info);
    printf("dladdr %s %s\n", info.dli_fname, info.dli_sname);
    dlinfo(handle, RTLD_DI_ORIGIN, origin);
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    printf("origin %s, name %s\n", origin, map->l_name);
    dl_iterate_phdr(tell_object, &map->l_addr);
    printf("loaded now: %d\n", dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == handle);
    for (int i = 2; i < argc; i++)
        printf("%s is %s\n", argv[i], dlopen(argv[i], RTLD_NOW) == handle ? "the same" : "another");
    for (int i = 0; i <= argc; i++)
        dlclose(handle);
    printf("gone: %d\n", is_gone(info.dli_fbase) && is_gone((void *)sum));
    handle = dlopen(argv[1], RTLD_NOW);
    printf("again %lx\n", (unsigned long)find(handle)(1));
    return handle == NULL;
}
