/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The mappings in a range, as the kernel answers for addresses and as maps has it; what smaps says of them; and pages that were
   written to, and huge ones, by PAGEMAP_SCAN and by reading pagemap. */
#include "unit.h"

#include "elf/maps.h"
#include "elf/sys.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES ((size_t)200)

/* UFFDIO_POISON of <linux/userfaultfd.h>, Linux 6.6: older headers have none. */
struct poison {
    uint64_t start, bytes, mode;
    int64_t poisoned;
};
#define POISON_REQUEST _IOWR(UFFDIO, 0x08, struct poison)
#define POISON_FEATURE ((uint64_t)1 << 14)

/* Bits of pagemap's entries (Documentation/admin-guide/mm/pagemap.rst). */
#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define OF_FILE ((uint64_t)1 << 61)
#define SOFT_DIRTY ((uint64_t)1 << 55)

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

static void test_shared(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t start = (uint64_t)(uintptr_t)at;
    struct hl_maps maps;
    assert_ptr_not_equal(at, MAP_FAILED);
    compare(start, start + page, 1);
    assert_int_equal(hl_read_maps(&maps, start, start + page, false), 0);
    assert_true(maps.mapping[0].shared);
    hl_free_maps(&maps);
    assert_int_equal(munmap(at, page), 0);
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
    assert_int_equal(hl_check_flags(start, start + 2 * page), HL_REASON_NO_PROC);
}

/* An open file with TEXT, at its beginning. */
static int make_file(const char *text) {
    int file = memfd_create("smaps", MFD_CLOEXEC);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    return file;
}

#define SMAPS_A "10000-20000 r-xp 00000000 08:01 5   /a\nFilePmdMapped:   2 kB\nShmemPmdMapped: 1 kB\n"
#define SMAPS_B "20000-30000 r-xp 00000000 00:00 0 \nAnonHugePages:   6 kB\n"

static void test_smaps(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t start, thp_bytes, file_huge_bytes;
        bool is_special;
    } row[] = {
        {SMAPS_A "VmFlags: rd ex\n", 0x10000, 0, 3072, false},
        {SMAPS_B "VmFlags: rd ex hg\n", 0x20000, 6144, 0, false},
        {SMAPS_B "VmFlags: rd lo\n", 0x20000, 6144, 0, true},
        {SMAPS_B "ProtectionKey:         0\nVmFlags: rd\n", 0x20000, 6144, 0, false},
        {SMAPS_B "ProtectionKey:         3\nVmFlags: rd\n", 0x20000, 6144, 0, true},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_smaps smaps;
        hl_begin_lines(&smaps.lines, make_file(row[i].text), smaps.buffer, sizeof smaps.buffer);
        assert_true(hl_next_smaps(&smaps));
        if (smaps.mapping.start != row[i].start || smaps.thp_bytes != row[i].thp_bytes ||
            smaps.file_huge_bytes != row[i].file_huge_bytes || smaps.is_special != row[i].is_special)
            fail_msg("row %u", i);
        assert_false(hl_next_smaps(&smaps));
        hl_close_smaps(&smaps);
    }
}

/* All executable mappings have it, or none. */
static void test_branch_protection(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int result, extra;
    } row[] = {
        {SMAPS_A "VmFlags: rd ex\n" SMAPS_B "VmFlags: rd ex\n", 0, 0},
        {SMAPS_A "VmFlags: rd ex bt\n" SMAPS_B "VmFlags: rd ex bt\n", 0, HL_PROT_BTI},
        {SMAPS_A "VmFlags: rd ex bt\n" SMAPS_B "VmFlags: rd ex\n", HL_REASON_MAPPING_CHANGED, HL_PROT_BTI},
        {"10000-20000 r--p 00000000 08:01 5 /a\nVmFlags: rd\n" SMAPS_B "VmFlags: rd ex bt\n", 0, HL_PROT_BTI},
        {"10000-20000 r--p 00000000 08:01 5 /a\nVmFlags: rd\n", HL_REASON_NO_PROC, 0},
        {SMAPS_B "VmFlags: rd ex\n30000-40000 r-xp 00000000 00:00 0 \nVmFlags: rd ex bt\n", 0, 0},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        int extra = -1,
            result = hl_read_branch_protection_in(make_file(row[i].text), 0x18000, 0x28000, &extra);
        if (result != row[i].result || extra != row[i].extra)
            fail_msg("row %u: %d, %d", i, result, extra);
    }
}

/* The same range, of mappings that begin and end elsewhere: as far as a file is mapped in it, the offsets there count. */
static void test_same(void **state) {
    (void)state;
    static const struct {
        uint64_t start, offset, inode;
        bool same;
    } row[] = {
        {0x1000, 0, 1, true},  {0x3000, 0x2000, 1, true},  {0x4000, 0x3000, 1, true},
        {0x4000, 0, 1, false}, {0x3000, 0x3000, 1, false}, {0x3000, 0x2000, 2, false},
    };
    struct hl_maps a, b;
    hl_clear_maps(&a);
    hl_clear_maps(&b);
    a.n = b.n = 1;
    a.mapping[0] = (struct hl_mapping){.start = 0x1000, .end = 0x9000, .inode = 1, .prot = PROT_READ};
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        b.mapping[0] = (struct hl_mapping){row[i].start, 0xa000, .offset = row[i].offset,
                                           .inode = row[i].inode, .prot = PROT_READ};
        assert_int_equal(hl_same_maps(&a, &b, 0x4000, 0x6000), row[i].same);
        assert_int_equal(hl_same_maps(&b, &a, 0x4000, 0x6000), row[i].same);
    }
    /* Anonymous memory has no offset. */
    a.mapping[0].inode = b.mapping[0].inode = 0;
    a.mapping[0].offset = b.mapping[0].offset = 0;
    assert_true(hl_same_maps(&a, &b, 0x4000, 0x6000));
}

/* Each field counts, and that there is a mapping. */
static void test_fields(void **state) {
    (void)state;
    static const struct hl_mapping first = {0x1000, 0x9000, 0, 2, 3, 0, PROT_READ, false},
                                   second = {0x9000, 0xa000, 0x10000, 2, 3, 0, PROT_READ, false};
    static const struct hl_mapping others[] = {
        {0x9000, 0xb000, 0x10000, 2, 3, 0, PROT_READ, false},
        {0x9000, 0xa000, 0x11000, 2, 3, 0, PROT_READ, false},
        {0x9000, 0xa000, 0x10000, 1, 3, 0, PROT_READ, false},
        {0x9000, 0xa000, 0x10000, 2, 1, 0, PROT_READ, false},
        {0x9000, 0xa000, 0x10000, 2, 3, 0, PROT_NONE, false},
        {0x9000, 0xa000, 0x10000, 2, 3, 0, PROT_READ, true},
    };
    struct hl_maps a, b;
    hl_clear_maps(&a);
    hl_clear_maps(&b);
    a.n = 2;
    a.mapping[0] = b.mapping[0] = first;
    a.mapping[1] = second;
    for (unsigned i = 0; i < T_COUNT(others); i++) {
        b.n = 2;
        b.mapping[1] = others[i];
        assert_false(hl_same_maps(&a, &b, 0x4000, 0xb000));
        assert_true(hl_same_maps(&a, &b, 0x4000, 0x9000));
    }
    b.n = 1;
    assert_false(hl_same_maps(&a, &b, 0x4000, 0xa000));
    assert_false(hl_same_maps(&b, &a, 0x4000, 0xa000));
    assert_int_equal(hl_find_mapping(&a, 0x8fff), 0);
    assert_int_equal(hl_find_mapping(&a, 0x9000), 1);
    assert_int_equal(hl_find_mapping(&a, 0xa000), 2);
}

/* Without PAGEMAP_SCAN (before Linux 6.7) the entries of pagemap tell; here of a file that stands for it, which knows no ioctl. */
static void test_read_pagemap(void **state) {
    (void)state;
    static const struct {
        uint64_t entry;
        int result;
    } row[] = {
        {0, 0},
        {SOFT_DIRTY, 0},
        {PRESENT | OF_FILE, 0},
        {SWAPPED | OF_FILE, 0},
        {PRESENT, HL_REASON_TEXT_MODIFIED},
        {PRESENT | SOFT_DIRTY, HL_REASON_TEXT_MODIFIED},
        {SWAPPED, HL_REASON_TEXT_MODIFIED},
        {SWAPPED | SOFT_DIRTY | 0x1234, HL_REASON_TEXT_MODIFIED},
    };
    static const uint64_t pages[] = {0, 1, 2047, 2048, 4095, 4999}; /* 2048 are read at once */
    uint64_t n = 5000, start = 0x400000, first = start / T_PAGE;
    int file = memfd_create("pagemap", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, (off_t)((first + n) * 8)), 0);
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        for (unsigned j = 0; j < T_COUNT(pages); j++) {
            off_t at = (off_t)((first + pages[j]) * 8);
            uint64_t none = 0;
            assert_int_equal(pwrite(file, &row[i].entry, 8, at), 8);
            for (unsigned may_scan = 0; may_scan < 2; may_scan++)
                assert_int_equal(hl_check_unmodified(file, start, start + n * T_PAGE, T_PAGE, may_scan),
                                 row[i].result);
            uint64_t page = start + pages[j] * T_PAGE; /* only the range counts */
            assert_int_equal(hl_check_unmodified(file, start, page, T_PAGE, true), 0);
            assert_int_equal(hl_check_unmodified(file, page + T_PAGE, start + n * T_PAGE, T_PAGE, true), 0);
            assert_int_equal(pwrite(file, &none, 8, at), 8);
        }
    }
    assert_false(hl_scan_unmodified(file, start, start + n * T_PAGE));
    assert_int_equal(hl_check_unmodified(file, start, start + (n + 1) * T_PAGE, T_PAGE, true),
                     HL_REASON_NO_PROC);
    close(file);
}

/* Both ways: 0 or the reason.  The first one is not in every kernel. */
static void expect_modified(uint64_t start, uint64_t end, bool is_modified) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int pagemap = (int)hl_open_pagemap(), wanted = is_modified ? HL_REASON_TEXT_MODIFIED : 0;
    assert_int_equal(hl_check_unmodified(pagemap, start, end, page, true), wanted);
    assert_int_equal(hl_check_unmodified(pagemap, start, end, page, false), wanted);
    if (hl_check_huge(pagemap, start, end) >= 0) /* it knows PAGEMAP_SCAN */
        assert_int_equal(hl_scan_unmodified(pagemap, start, end), !is_modified);
    close(pagemap);
}

/* This program's own file, mapped once more. */
static void test_written_page(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    volatile char *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    uint64_t start = (uint64_t)(uintptr_t)at;
    assert_ptr_not_equal(at, MAP_FAILED);
    expect_modified(start, start + 4 * page, false);
    assert_int_equal(at[0], 0x7f);
    expect_modified(start, start + 4 * page, false);
    at[2 * page] = at[2 * page];
    expect_modified(start, start + 4 * page, true);
    expect_modified(start, start + 2 * page, false);
    expect_modified(start + 3 * page, start + 4 * page, false);
    assert_int_equal(munmap((void *)at, 4 * page), 0);
    close(file);
}

/* A private page that was swapped out has an entry that is not present and not the file's.  So has a poisoned page, which needs
   no swap. */
static void test_swapped_page(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct uffdio_api api = {.api = UFFD_API, .features = POISON_FEATURE};
    int file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (file < 0 || ioctl(file, UFFDIO_API, &api) != 0) {
        int pagemap = (int)hl_open_pagemap();
        close(file);
        if (hl_check_huge(pagemap, 0, page) >= 0)
            skip();
        close(pagemap);
        return; /* before Linux 6.6, and before 6.7 there is no PAGEMAP_SCAN */
    }
    uint64_t at = (uint64_t)(uintptr_t)mmap(NULL, 4 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {at, 4 * page}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct poison poison = {.start = at + page, .bytes = page};
    assert_int_equal(ioctl(file, UFFDIO_REGISTER, &range), 0);
    expect_modified(at, at + 4 * page, false);
    assert_int_equal(ioctl(file, POISON_REQUEST, &poison), 0);
    expect_modified(at, at + 4 * page, true);
    expect_modified(at + 2 * page, at + 4 * page, false);
    assert_int_equal(munmap((void *)(uintptr_t)at, 4 * page), 0);
    close(file);
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
    /* khugepaged may collapse all that is advised. */
    assert_int_equal(madvise((void *)(uintptr_t)start, huge, MADV_HUGEPAGE), 0);
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
        cmocka_unit_test(test_range),        cmocka_unit_test(test_file),
        cmocka_unit_test(test_same),         cmocka_unit_test(test_fields),
        cmocka_unit_test(test_read_pagemap), cmocka_unit_test(test_written_page),
        cmocka_unit_test(test_swapped_page), cmocka_unit_test(test_flags),
        cmocka_unit_test(test_own_flags),    cmocka_unit_test(test_shared),
        cmocka_unit_test(test_smaps),        cmocka_unit_test(test_branch_protection),
        cmocka_unit_test(test_written),      cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
