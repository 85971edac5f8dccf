/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Text without libc: lines that are full, numbers that are too large, and files that are longer than the buffer. */
#include "unit.h"

#include "elf/line.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* What does not fit is dropped, and nothing behind the line is written to. */
static void test_full_line(void **state) {
    (void)state;
    struct {
        struct hl_line line;
        char behind[8];
    } text;
    memset(&text, 'x', sizeof text);
    hl_set_line(&text.line, "0123456");
    for (unsigned i = 0; i < 400; i++)
        hl_add_text(&text.line, "abc");
    hl_add_number(&text.line, UINT64_MAX);
    assert_int_equal(text.line.bytes, sizeof text.line.at - 1);
    assert_int_equal(strlen(text.line.at), sizeof text.line.at - 1);
    assert_memory_equal(text.behind, "xxxxxxxx", 8);
}

static void test_foreign(void **state) {
    (void)state;
    struct hl_line line;
    char name[300];
    hl_set_line(&line, "");
    hl_add_foreign(&line, (struct hl_string){"\x1b[2J\n\x7f caf\xc3\xa9", 12});
    assert_string_equal(line.at, "?[2J?? caf\xc3\xa9");
    memset(name, 'n', sizeof name);
    hl_set_line(&line, "");
    hl_add_foreign(&line, (struct hl_string){name, 200});
    assert_int_equal(line.bytes, 200);
    hl_set_line(&line, "");
    hl_add_foreign(&line, (struct hl_string){name, 201});
    assert_int_equal(line.bytes, 203);
    assert_string_equal(line.at + 199, "n...");
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes; /* of it that may be read */
        unsigned base;
        size_t digits; /* 0: it is no number */
        uint64_t number;
    } row[] = {
        {"0", 1, 10, 1, 0},
        {"4711 kB", 7, 10, 4, 4711},
        {"4711", 2, 10, 2, 47},
        {"4711", 0, 10, 0, 0},
        {"-1", 2, 10, 0, 0},
        {"12ab", 4, 10, 2, 12},
        {"12abg", 5, 16, 4, 0x12ab},
        {"18446744073709551615", 20, 10, 20, UINT64_MAX},
        {"18446744073709551616", 20, 10, 0, 0},
        {"30000000000000000000", 20, 10, 0, 0},
        {"ffffffffffffffff", 16, 16, 16, UINT64_MAX},
        {"10000000000000000", 17, 16, 0, 0},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        const char *at = row[i].text;
        uint64_t number = 0;
        bool is_number = hl_scan_number(&at, row[i].text + row[i].bytes, row[i].base, &number);
        if (is_number != (row[i].digits > 0) || number != row[i].number || at != row[i].text + row[i].digits)
            fail_msg("row %u: %s", i, row[i].text);
    }
}

/* An open file with TEXT, at its beginning. */
static int make_file(const char *text) {
    int file = memfd_create("text", MFD_CLOEXEC);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    return file;
}

/* Only a key at the start of a line counts, and the first one. */
static void test_read_numbers(void **state) {
    (void)state;
    int file = make_file("xKey: 1\nKeys: 2\nKey:\t 3 kB\nKey: 4\nNone: kB\nLast: 5");
    static const char *const keys[] = {"Key:", "Last:", "None:", "ey:"};
    struct hl_number number[4];
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (unsigned i = 0; i < 4; i++)
        hl_seek_number(&number[i], keys[i]);
    assert_true(hl_read_numbers(path, number, 4));
    assert_true(number[0].is_found && number[0].value == 3 && number[1].is_found && number[1].value == 5);
    assert_false(number[2].is_found || number[3].is_found);
    close(file);
}

/* A file is read whole and terminated, or not at all. */
static void test_read_file(void **state) {
    (void)state;
    int file = make_file("0123456");
    char path[40], buffer[9];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    memset(buffer, 'x', sizeof buffer);
    assert_int_equal(hl_read_file(path, buffer, 8), 7);
    assert_string_equal(buffer, "0123456");
    memset(buffer, 'x', sizeof buffer);
    assert_int_equal(hl_read_file(path, buffer, 7), -EFBIG);
    assert_memory_equal(buffer + 7, "xx", 2);
    assert_int_equal(hl_read_file(path, buffer, 3), -EFBIG);
    assert_int_equal(hl_read_file("/proc/self/fd", buffer, sizeof buffer), -EISDIR);
    close(file);
}

static void assert_lines(int file, const char *const *expected) {
    struct hl_lines lines;
    char buffer[16];
    const char *at, *end;
    hl_begin_lines(&lines, file, buffer, sizeof buffer);
    for (; *expected != NULL; expected++) {
        assert_true(hl_next_line(&lines, &at, &end));
        assert_int_equal(end - at, strlen(*expected));
        assert_memory_equal(at, *expected, (size_t)(end - at));
    }
    assert_false(hl_next_line(&lines, &at, &end));
    assert_false(lines.failed);
    hl_close_lines(&lines);
}

/* Lines that cross the buffer's end come whole, one that is longer than the buffer in pieces, and the last one without a newline. */
static void test_lines(void **state) {
    (void)state;
    assert_lines(make_file("one\n\ntwo and more\nthree\nfour and five\nsix"),
                 (const char *const[]){"one", "", "two and more", "three", "four and five", "six", NULL});
    assert_lines(make_file("short\n0123456789abcdefghij\nend\n"),
                 (const char *const[]){"short", "0123456789abcdef", "ghij", "end", NULL});
    assert_lines(make_file(""), (const char *const[]){NULL});
}

/* The end of what can be read is not the end of the file. */
static void test_unreadable(void **state) {
    (void)state;
    struct hl_lines lines;
    char buffer[16];
    const char *at, *end;
    hl_open_lines(&lines, "/proc/self/fd", buffer, sizeof buffer);
    assert_false(hl_next_line(&lines, &at, &end));
    assert_true(lines.failed);
    hl_close_lines(&lines);
    hl_open_lines(&lines, "/nowhere", buffer, sizeof buffer);
    assert_int_equal(lines.fd, -ENOENT);
    assert_true(lines.failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_line),    cmocka_unit_test(test_foreign),   cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_read_numbers), cmocka_unit_test(test_read_file), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_unreadable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
