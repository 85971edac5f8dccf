/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* segments: the subjects of linkhuge and linkhuge_rw of libhugetlbfs: small and large constants, initialised
   data and .bss, and text.  Looks at every byte, writes to all writable bytes, and stops (SIGSTOP), so that
   another process can look at its memory; then a child finds all that and writes over it, which this process must
   not see.  Prints a line for each.  Built with -DONLY_BSS there is no initialised data of its own. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SMALL 4
#define LARGE (1 << 19) /* 4 MiB */

#define NUMBERS(section, name)                                                                               \
    __asm__(section "\n.p2align 3\n" #name                                                                   \
                    ":\n.set i, 0\n.rept 524288\n.quad (i + 1) * 0x9e3779b97f4a7c15\n"                       \
                    ".set i, i + 1\n.endr\n.text\n");                                                        \
    extern uint64_t name[] __attribute__((visibility("hidden")))

NUMBERS(".section .rodata", large_constants);
static const uint64_t small_constants[SMALL] = {0x9e3779b97f4a7c15, 2 * 0x9e3779b97f4a7c15,
                                                3 * 0x9e3779b97f4a7c15, 4 * 0x9e3779b97f4a7c15};
#ifndef ONLY_BSS
NUMBERS(".data", large_data);
static uint64_t small_data[SMALL] = {0x9e3779b97f4a7c15, 2 * 0x9e3779b97f4a7c15, 3 * 0x9e3779b97f4a7c15,
                                     4 * 0x9e3779b97f4a7c15};
#endif
static uint64_t small_bss[SMALL], large_bss[LARGE];

uint64_t big_sum(uint64_t x) __attribute__((weak)); /* the padding */

static uint64_t numbered(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15; }

static uint64_t zero(uint64_t i) {
    (void)i;
    return 0;
}

static uint64_t of_parent(uint64_t i) { return i * 3 + 1; }

static uint64_t of_child(uint64_t i) { return ~i; }

typedef uint64_t (*content)(uint64_t);

static bool has(const volatile uint64_t *words, size_t n, content content) {
    for (size_t i = 0; i < n; i++)
        if (words[i] != content(i))
            return false;
    return true;
}

static void check(const char *name, const uint64_t *words, size_t n, content content) {
    printf("%s: %s\n", name, has(words, n, content) ? "right" : "WRONG");
}

static void check_writable(content data, content bss) {
#ifndef ONLY_BSS
    check("small data", small_data, SMALL, data);
    check("large data", large_data, LARGE, data);
#else
    (void)data;
#endif
    check("small bss", small_bss, SMALL, bss);
    check("large bss", large_bss, LARGE, bss);
    fflush(stdout);
}

static void fill(uint64_t *words, size_t n, content content) {
    for (size_t i = 0; i < n; i++)
        words[i] = content(i);
}

static void fill_writable(content content) {
#ifndef ONLY_BSS
    fill(small_data, SMALL, content);
    fill(large_data, LARGE, content);
#endif
    fill(small_bss, SMALL, content);
    fill(large_bss, LARGE, content);
}

int main(void) {
    int status = -1;
    check("small constants", small_constants, SMALL, numbered);
    check("large constants", large_constants, LARGE, numbered);
    check_writable(numbered, zero);
    fill_writable(of_parent);
    raise(SIGSTOP);
    pid_t child = fork();
    if (child == 0) {
        check_writable(of_parent, of_parent);
        fill_writable(of_child);
        check_writable(of_child, of_child);
        _exit(0);
    }
    waitpid(child, &status, 0);
    check_writable(of_parent, of_parent);
    if (big_sum != NULL)
        printf("sum %016lx\n", (unsigned long)big_sum(1));
    return status;
}
