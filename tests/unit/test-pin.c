/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a process that may wait for no server opens (command/base/pin.h); /proc stands for a file system that may not answer. */
#include "command/base/local.h"
#include "command/base/pin.h"
#include "command/file/elf-file.h"
#include "command/file/program.h"
#include "command/image/eligible.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char away[] = "/proc/self/maps";

static int wait_again(void **state) {
    (void)state;
    hl_pins_by = NULL;
    return 0;
}

static void test_open_elf_soon(void **state) {
    struct hl_elf_file file;
    (void)state;
    assert_int_not_equal(hl_open_elf_soon(&file, away, true), HL_ELF_UNREADABLE);
    hl_pins_by = hl_open_local_path;
    errno = 0;
    assert_int_equal(hl_open_elf_soon(&file, away, true), HL_ELF_UNREADABLE);
    assert_int_equal(errno, EREMOTE);
}

/* What a unit starts, which may be a user's. */
static void test_open_program(void **state) {
    static const char program[] = "/proc/self/exe";
    struct hl_program found;
    (void)state;
    assert_true(hl_open_program(&found, program));
    assert_true(hl_read_program(&found));
    hl_close_program(&found);
    hl_pins_by = hl_open_local_path;
    assert_false(hl_open_program(&found, program));
    assert_int_equal(errno, EREMOTE);
}

/* The path of a file that is open may lead to such a file system by now: neither its folders nor itself is asked. */
static void test_explain_exposed(void **state) {
    int file = open(away, O_RDONLY | O_CLOEXEC);
    (void)state;
    assert_true(file >= 0);
    for (int waits = 0; waits < 2; waits++) {
        hl_pins_by = waits ? NULL : hl_open_local_path;
        int error = -1;
        char *problem = hl_explain_exposed(file, away, true, &error);
        bool is_left_out =
            problem != NULL && strstr(problem, "/proc lies on a file system that may not answer") == problem;
        assert_int_equal(is_left_out, !waits);
        assert_int_equal(error, waits ? 0 : EREMOTE);
        free(problem);
    }
    close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_open_elf_soon, wait_again),
        cmocka_unit_test_teardown(test_open_program, wait_again),
        cmocka_unit_test_teardown(test_explain_exposed, wait_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
