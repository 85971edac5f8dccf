/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The mappings in a range, as the kernel answers for addresses and as maps has it; the meaning of VmFlags; pages that were written,
   and huge ones. */
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
        {" rd ex mr mw me dw ac sd bt hg nr ", false},
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

/* A private mapping of a new file of BYTES. */
static char *map_file(size_t bytes) {
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)bytes), 0);
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    fclose(file);
    return at;
}

/* Pages that were written count, in more runs than one call of the kernel returns; those that were read don't. By PAGEMAP_SCAN and
   by reading. */
static void test_written(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 3 * PAGES * page;
    char *at = map_file(bytes), sum = 0;
    uint64_t start = (uint64_t)(uintptr_t)at, middle = start + 2 * PAGES * page, end = start + bytes;
    int pagemap = (int)hl_open_pagemap();
    assert_true(pagemap >= 0);
    for (size_t i = 0; i < bytes; i += page)
        sum += at[i];
    for (unsigned may_scan = 0; may_scan < 2; may_scan++) {
        assert_int_equal(hl_measure_written(pagemap, start, end, page, may_scan), 0);
        assert_int_equal(hl_check_unmodified(pagemap, start, end, page, may_scan), 0);
    }
    for (size_t i = 0; i < PAGES; i++)
        at[2 * i * page] = (char)(sum + 1);
    for (unsigned may_scan = 0; may_scan < 2; may_scan++) {
        assert_int_equal(hl_measure_written(pagemap, start, end, page, may_scan), PAGES * page);
        assert_int_equal(hl_measure_written(pagemap, start + page, start + 4 * page, page, may_scan), page);
        assert_int_equal(hl_measure_written(pagemap, middle, end, page, may_scan), 0);
        assert_int_equal(hl_check_unmodified(pagemap, start, end, page, may_scan), HL_REASON_TEXT_MODIFIED);
        assert_int_equal(hl_check_unmodified(pagemap, middle - page, end, page, may_scan), 0);
        assert_int_equal(hl_measure_written(-1, start, end, page, may_scan), -1);
        assert_int_equal(hl_check_unmodified(-1, start, end, page, may_scan), HL_REASON_NO_PROC);
    }
    assert_int_equal(close(pagemap), 0);
    assert_int_equal(munmap(at, bytes), 0);
}

/* Whether pages are huge: neither where nothing is there, nor on small pages; where the kernel tells. */
static void test_huge(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), huge = page * (page / 8), bytes = 3 * huge;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    uint64_t start = ((uint64_t)(uintptr_t)at + huge - 1) & ~(uint64_t)(huge - 1);
    int pagemap = (int)hl_open_pagemap(), result = hl_check_huge(pagemap, start, start + huge);
    if (result < 0)
        skip();
    assert_int_equal(result, HL_REASON_THP_UNAVAILABLE);
    assert_int_equal(madvise(at, bytes, MADV_NOHUGEPAGE), 0);
    memset(at, 1, bytes);
    assert_int_equal(hl_check_huge(pagemap, start, start + huge), HL_REASON_THP_UNAVAILABLE);
    assert_int_equal(hl_measure_huge(pagemap, start, start + 2 * huge), 0);
    assert_int_equal(madvise(at, bytes, MADV_HUGEPAGE), 0);
    if (madvise((void *)(uintptr_t)start, huge, 25 /* MADV_COLLAPSE */) == 0) {
        assert_int_equal(hl_check_huge(pagemap, start, start + huge), 0);
        assert_int_equal(hl_check_huge(pagemap, start, start + 2 * huge), HL_REASON_THP_UNAVAILABLE);
        assert_int_equal(hl_measure_huge(pagemap, start, start + 2 * huge), huge);
    }
    assert_int_equal(hl_check_huge(-1, start, start + huge), -1);
    assert_int_equal(hl_measure_huge(-1, start, start + huge), -1);
    assert_int_equal(close(pagemap), 0);
    assert_int_equal(munmap(at, bytes), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range),     cmocka_unit_test(test_file),    cmocka_unit_test(test_flags),
        cmocka_unit_test(test_own_flags), cmocka_unit_test(test_written), cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
