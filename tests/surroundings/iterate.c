/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stands in for dl_iterate_phdr, and finds the real one in its constructor, as ThreadSanitizer and profilers do: who calls it
   earlier jumps to address 0.  A library to preload, or a part of an executable. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

typedef int look(struct dl_phdr_info *info, size_t size, void *data);
static int (*iterate)(look *call, void *data);

int dl_iterate_phdr(look *call, void *data) { return iterate(call, data); }

__attribute__((constructor)) static void find(void) {
    iterate = (int (*)(look *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
}
