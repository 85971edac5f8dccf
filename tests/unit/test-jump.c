/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The code that hugeld takes for the dynamic linker's empty function, and so overwrites.  The first rows
   are those of distributions' glibc, as objdump shows them. */
#include "unit.h"

#include "loader/jump.h"

static const struct {
    unsigned char code[16];
    bool is_empty;
} row[] = {
#ifdef __x86_64__
    /* ret; data16 cs nopw 0(%rax,%rax,1); nopl 0(%rax): Debian 12 */
    {{0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0}, true},
    /* endbr64; ret; padding: built with -fcf-protection */
    {{0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, true},
    {{0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x55, 0x48, 0x89}, true}, /* the bytes after it are not overwritten */
    {{0xc3, 0x90, 0x90, 0x90, 0x90, 0x55}, true},
    {{0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0x55}, true},
    {{0xc3, 0x66, 0x90, 0x66, 0x90, 0x55}, true},
    {{0xc3, 0x0f, 0x1f, 0x44, 0, 0, 0x55}, true},
    {{0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x55}, true},
    /* not empty, not enough room, or another mapping in the way */
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
#else
    {{0xc0, 0x03, 0x5f, 0xd6}, true},                                         /* ret */
    {{0x5f, 0x24, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6}, true},                 /* bti c; ret */
    {{0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6}, false},                /* nop; ret */
    {{0x5f, 0x24, 0x03, 0xd5, 0x5f, 0x24, 0x03, 0xd5, 0xc0, 3, 0x5f}, false}, /* bti c twice */
    {{0x00, 0x00, 0x20, 0xd4, 0xc0, 0x03, 0x5f, 0xd6}, false},                /* brk: a breakpoint */
    {{0x01, 0x00, 0x00, 0x14}, false},                                        /* b: taken already */
#endif
};

static void test_functions(void **state) {
    (void)state;
    for (unsigned i = 0; i < T_COUNT(row); i++)
        if (hl_is_empty_function(row[i].code, sizeof row[i].code) != row[i].is_empty)
            fail_msg("row %u", i);
}

static void test_jumps(void **state) {
    unsigned char jump[HL_JUMP_BYTES];
    (void)state;
#ifdef __x86_64__
    static const unsigned char there[] = {0xe9, 0xfb, 0x0f, 0, 0}, back[] = {0xe9, 0xfb, 0xef, 0xff, 0xff};
    const uint64_t reach = UINT64_C(1) << 31, own = HL_JUMP_BYTES, unit = 1;
#else
    static const unsigned char there[] = {0, 4, 0, 0x14}, back[] = {0, 0xfc, 0xff, 0x17};
    const uint64_t reach = 128 << 20, own = 0, unit = 4;
    assert_false(hl_make_jump(jump, 0x1000, 0x2002));
#endif
    const uint64_t from = UINT64_C(0x7f0000001000);
    assert_true(hl_make_jump(jump, from, from + 0x1000));
    assert_memory_equal(jump, there, sizeof jump);
    assert_true(hl_make_jump(jump, from, from - 0x1000));
    assert_memory_equal(jump, back, sizeof jump);
    assert_true(hl_make_jump(jump, from, from + own + reach - unit));
    assert_false(hl_make_jump(jump, from, from + own + reach));
    assert_true(hl_make_jump(jump, from, from + own - reach));
    assert_false(hl_make_jump(jump, from, from + own - reach - unit));
}

/* Never beyond readable memory (lint builds this with AddressSanitizer). */
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
        cmocka_unit_test(test_jumps),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
