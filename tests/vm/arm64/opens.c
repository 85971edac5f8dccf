/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* opens DSO: opens, uses and closes DSO, three times, and stops itself with SIGSTOP each time that it is
   open.  Functions are called by pointer, so with PROT_BTI their pages must still know landing pads. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 0; i < 3; i++) {
        void *handle = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
        if (handle == NULL) {
            fprintf(stderr, "opens: %s\n", dlerror());
            return 1;
        }
        uint64_t (*sum)(uint64_t) = (uint64_t(*)(uint64_t))dlsym(handle, "big_sum");
        printf("%016lx\n", (unsigned long)sum(1));
        fflush(stdout);
        raise(SIGSTOP);
        printf("%016lx\n", (unsigned long)sum(2));
        if (dlclose(handle) != 0)
            return 1;
    }
    return 0;
}
