/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The mappings in a range, as the kernel answers for addresses and as maps has it; and the meaning of VmFlags. */
#include "unit.h"

#include "elf/maps.h"

#include <sys/mman.h>
#include <unistd.h>

#define PAGES ((size_t)200)

static void compare(uint64_t start, uint64_t end, size_t n) {
    struct hl_maps asked, read;
    assert_int_equal(hl_read_maps(&asked, start, end, true), 0);
    assert_int_equal(hl_read_maps(&read, start, end, false), 0);
    assert_int_equal(asked.n, n);
    assert_int_equal(read.n, n);
    assert_true(hl_same_maps(&asked, &read, start, end));
    for (size_t i = 0; i < n; i++) {
        assert_true(asked.mapping[i].end > start && asked.mapping[i].start < end);
        assert_int_equal(asked.mapping[i].name, read.mapping[i].name);
    }
    hl_free_maps(&asked);
    hl_free_maps(&read);
}

/* More than few, and only those in the range; the first and the last may be one with their neighbours. */
static void test_range(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = PAGES * page;
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    for (size_t i = 1; i < PAGES; i += 2)
        assert_int_equal(mprotect(at + i * page, page, PROT_READ), 0);
    uint64_t start = (uint64_t)(uintptr_t)at;
    compare(start, start + bytes, PAGES);
    compare(start + 3 * page + 1, start + 5 * page + 1, 3);
    compare(start + 3 * page, start + 3 * page + 1, 1);
    assert_int_equal(munmap(at + 8 * page, 8 * page), 0);
    compare(start + 8 * page, start + 16 * page, 0);
    compare(start + 4 * page, start + 20 * page, 8);
    assert_int_equal(munmap(at, bytes), 0);
}

/* A file's: this program's own text. */
static void test_file(void **state) {
    (void)state;
    uint64_t at = (uint64_t)(uintptr_t)test_file;
    struct hl_maps maps;
    compare(at, at + 1, 1);
    assert_int_equal(hl_read_maps(&maps, at, at + 1, true), 0);
    assert_int_equal(maps.mapping[0].prot, PROT_READ | PROT_EXEC);
    assert_int_not_equal(maps.mapping[0].inode, 0);
    hl_free_maps(&maps);
}

static void test_flags(void **state) {
    (void)state;
    static const struct {
        const char *flags;
        bool is_special;
    } row[] = {
        {" rd ex mr mw me \n", false},
        {" rd ex mr mw me dw ac sd bt hg mg nr sl ", false},
        {"", false},
        {" rd ex mr mw me lo ", true},
        {" rd ex mr mw me sr ", true},
        {" rd rr ex mr mw me ", true},
        {" rd ex mr mw me dc ", true},
        {" rd ex mr mw me uw ", true},
        {" rd ex mr mw me zz ", true},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        size_t bytes = strlen(row[i].flags);
        bytes -= bytes > 0 && row[i].flags[bytes - 1] == '\n';
        if (hl_has_special_flags(row[i].flags, row[i].flags + bytes) != row[i].is_special)
            fail_msg("%s", row[i].flags);
    }
}

/* This process's, by the kernel's own file. */
static void test_own_flags(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t start = (uint64_t)(uintptr_t)at;
    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(hl_check_flags(start, start + page), 0);
    assert_int_equal(madvise(at + page, page, MADV_DONTFORK), 0);
    assert_int_equal(hl_check_flags(start, start + page), 0);
    assert_int_equal(hl_check_flags(start, start + 2 * page), HL_REASON_MAPPED_SPECIALLY);
    assert_int_equal(munmap(at, 2 * page), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_own_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
