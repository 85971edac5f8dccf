/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which code hugeld takes for the dynamic linker's empty function, and so overwrites.  The first rows are
   those of distributions' glibc, as objdump shows them. */
#include "unit.h"

#include "../../elf/code.h"

static const struct {
    unsigned char code[16];
    bool is_empty;
} row[] = {
    /* ret; data16 cs nopw 0(%rax,%rax,1); nopl 0(%rax): Debian 12 */
    {{0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0}, true},
    /* endbr64; ret; padding: built with -fcf-protection */
    {{0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, true},
    {{0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x55, 0x48, 0x89}, true}, /* nothing of what follows is overwritten */
    {{0xc3, 0x90, 0x90, 0x90, 0x90, 0x55}, true},
    {{0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0x55}, true},
    {{0xc3, 0x66, 0x90, 0x66, 0x90, 0x55}, true},
    {{0xc3, 0x0f, 0x1f, 0x44, 0, 0, 0x55}, true},
    {{0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x55}, true},
    /* not empty, not enough room, or something of somebody's */
    {{0xcc, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84}, false}, /* a breakpoint */
    {{0xf3, 0x0f, 0x1e, 0xfa, 0xcc}, false},
    {{0xcc, 0x0f, 0x1e, 0xfa, 0xc3}, false},
    {{0xc3, 0x55, 0x48, 0x89, 0xe5}, false},
    {{0xc3, 0x90, 0x90, 0x90, 0x55}, false},
    {{0xc3, 0x0f, 0x1f, 0xc0, 0x55, 0x55}, false},
    {{0xc3, 0x0f, 0x0b, 0x90, 0x90, 0x90}, false}, /* ud2 */
    {{0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3}, false},
    {{0xc2, 0x08, 0x00, 0x90, 0x90}, false},
    {{0xe9, 0x00, 0x00, 0x00, 0x00}, false}, /* a jump: taken already */
};

static void test_functions(void **state) {
    (void)state;
    for (unsigned i = 0; i < T_COUNT(row); i++)
        if (hl_is_empty_function(row[i].code, sizeof row[i].code) != row[i].is_empty)
            fail_msg("row %u", i);
}

/* Never beyond what can be read (lint builds this with AddressSanitizer). */
static void test_bounds(void **state) {
    uint64_t random = 7;
    (void)state;
    for (unsigned round = 0; round < 200000; round++) {
        static const unsigned char piece[] = {0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x90, 0xcc, 0x00, 0x44};
        size_t count = 1 + t_random(&random) % 8;
        unsigned char *code = malloc(count);
        for (size_t i = 0; i < count; i++)
            code[i] = piece[t_random(&random) % sizeof piece];
        hl_is_empty_function(code, count);
        free(code);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
