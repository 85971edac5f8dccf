/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files that are opened without waiting for a server (command/lib/local.h); /proc stands for a file system that may not
   answer. */
#include "command/lib/local.h"
#include "command/lib/elf-file.h"
#include "command/image/eligible.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The linker puts it in the place of libc's (--wrap). */
DIR *__real_fdopendir(int file);
DIR *__wrap_fdopendir(int file);

static int failure; /* its errno; 0: it works */

DIR *__wrap_fdopendir(int file) {
    errno = failure;
    return failure != 0 ? NULL : __real_fdopendir(file);
}

static const char away[] = "/proc/self/maps";

static int succeed_again(void **state) {
    (void)state;
    failure = 0;
    return 0;
}

static void test_open_elf_soon(void **state) {
    struct hl_elf_file file;
    (void)state;
    errno = 0;
    assert_int_equal(hl_open_elf_soon(&file, away), HL_ELF_UNREADABLE);
    assert_int_equal(errno, EREMOTE);
    assert_int_equal(hl_open_elf_soon(&file, "/bin/sh"), HL_ELF_FINE);
    hl_close_elf(&file);
    assert_int_equal(hl_open_elf_soon(&file, "/bin/no-such-program"), HL_ELF_UNREADABLE);
    assert_int_equal(errno, ENOENT);
}

/* The path of a file that is open may lead to such a file system by now: neither its folders nor itself is asked. */
static void test_explain_exposed(void **state) {
    int file = open(away, O_RDONLY | O_CLOEXEC);
    (void)state;
    assert_true(file >= 0);
    int error = -1;
    char *problem = hl_explain_exposed(file, away, true, &error);
    assert_true(problem != NULL &&
                strstr(problem, "/proc lies on a file system that may not answer") == problem);
    assert_int_equal(error, EREMOTE);
    free(problem);
    close(file);
}

/* With few descriptors to spare a relative link is resolved, or its error passes; it is never taken for one that others can change
   (EPERM). */
static void test_too_many_files(void **state) {
    char folder[] = "/tmp/test-pin-XXXXXX", link[64];
    struct stat status;
    struct rlimit limit;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink(".", link), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int lowest = dup(STDERR_FILENO), refused = 0;
    close(lowest);
    for (int spare = 0; spare < 8; spare++) {
        struct hl_local local = {0};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){lowest + spare, limit.rlim_max}), 0);
        int result = hl_stat_local(&local, link, true, &status);
        hl_close_local(&local);
        char *problem = hl_explain_exposed(STDERR_FILENO, "/bin/sh", false, NULL);
        assert_true(spare > 0 || strncmp(problem, "/ ", 2) == 0);
        free(problem);
        assert_true(result == 0 || hl_is_passing_error(-result));
        refused += result != 0;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_in_range(refused, 1, 7);
    unlink(link);
    rmdir(folder);
}

/* A folder that cannot be listed is closed, and errno says why. */
static void test_open_folder(void **state) {
    struct hl_local local = {0};
    (void)state;
    int before = dup(STDERR_FILENO);
    assert_true(before >= 0);
    close(before);
    failure = ENOMEM;
    assert_null(hl_open_folder(&local, "/", true));
    assert_int_equal(errno, ENOMEM);
    hl_close_local(&local);
    int after = dup(STDERR_FILENO);
    close(after);
    assert_int_equal(after, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_open_elf_soon, succeed_again),
        cmocka_unit_test_teardown(test_explain_exposed, succeed_again),
        cmocka_unit_test_teardown(test_too_many_files, succeed_again),
        cmocka_unit_test_teardown(test_open_folder, succeed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
