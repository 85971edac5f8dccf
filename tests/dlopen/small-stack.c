/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Opens a library on a stack of its own (makecontext), below which nothing may be touched, and prints the least bytes that suffice
   for that.  Each try is a child's. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST 32768
#define STEP 64

static const char *library;
static void *handle;

static void open_library(void) { handle = dlopen(library, RTLD_NOW); }

static int works_on(size_t bytes) {
    long page = sysconf(_SC_PAGESIZE);
    ucontext_t here, there;
    char *guard = mmap(NULL, page + MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guard == MAP_FAILED || mprotect(guard, page, PROT_NONE) != 0 || getcontext(&there) != 0)
        exit(2);
    there.uc_stack.ss_sp = guard + page;
    there.uc_stack.ss_size = bytes;
    there.uc_link = &here;
    makecontext(&there, open_library, 0);
    return swapcontext(&here, &there) == 0 && handle != NULL;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    library = argv[1];
    for (size_t bytes = STEP; bytes <= MOST; bytes += STEP) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(works_on(bytes) ? 0 : 1);
        if (waitpid(child, &status, 0) != child)
            return 2;
        if (status == 0) {
            printf("%zu\n", bytes);
            return 0;
        }
    }
    return 1;
}
