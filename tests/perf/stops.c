/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Something for debuggers, five calls deep in the middle of text that is large enough to move.

   stops work N    sleeps N times for a millisecond
   stops crash     aborts
   stops self      prints its call chain as libunwind and backtrace(3) see it: libunwind's names, then the
                   offsets in the file of the functions of the program (dladdr(3)) */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <execinfo.h>
#include <libunwind.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sdt.h>
#include <unistd.h>

#define FILLER(name)                                                                                         \
    __asm__(".text\n.p2align 12\n.type " name ", @function\n" name ": .fill 3 << 20, 1, 0xcc\n.size " name   \
            ", . - " name)

FILLER("filler_below");

volatile unsigned long counter;
static const char *mode;

static void print_chain(void) {
    unw_context_t context;
    unw_cursor_t cursor;
    char name[64];
    unw_word_t offset;
    void *at[32];
    Dl_info self, info;
    char *base;
    unw_getcontext(&context);
    unw_init_local(&cursor, &context);
    do
        printf("%s ", unw_get_proc_name(&cursor, name, sizeof name, &offset) == 0 ? name : "?");
    while (unw_step(&cursor) > 0);
    puts("");
    dladdr((void *)print_chain, &self);
    base = IS_PIE ? self.dli_fbase : NULL; /* as addr2line wants it */
    for (int i = 0, n = backtrace(at, 32); i < n; i++)
        if (dladdr(at[i], &info) && info.dli_fbase == self.dli_fbase)
            printf("%#tx ", (char *)at[i] - base);
    puts("");
}

__attribute__((noipa)) unsigned long deep_leaf(unsigned long x) {
    counter += x;
    DTRACE_PROBE1(stops, leaf, x);
    if (strcmp(mode, "crash") == 0)
        abort();
    if (strcmp(mode, "self") == 0)
        print_chain();
    usleep(1000);
    return counter;
}

__attribute__((noipa)) unsigned long deep_three(unsigned long x) { return deep_leaf(x + 3) + x; }
__attribute__((noipa)) unsigned long deep_two(unsigned long x) { return deep_three(x + 2) + x; }
__attribute__((noipa)) unsigned long deep_one(unsigned long x) { return deep_two(x + 1) + x; }

int main(int argc, char **argv) {
    unsigned long x = 1;
    mode = argv[1];
    for (int n = argc > 2 ? atoi(argv[2]) : 1; n > 0; n--)
        x += deep_one(x) & 7;
    printf("%lu\n", x);
    return 0;
}

FILLER("filler_above");
