/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files that are opened without waiting for a server (command/base/local.h); /proc stands for a file system that may not
   answer. */
#include "command/base/local.h"
#include "command/file/elf-file.h"
#include "command/image/eligible.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The linker puts these in the place of libc's (--wrap). */
int __real_fcntl(int file, int command, ...);
int __wrap_fcntl(int file, int command, ...);
DIR *__real_fdopendir(int file);
DIR *__wrap_fdopendir(int file);

static int failure; /* the errno of both; 0: they work */

int __wrap_fcntl(int file, int command, ...) {
    va_list more;
    va_start(more, command);
    long argument = va_arg(more, long);
    va_end(more);
    errno = failure;
    return failure != 0 ? -1 : __real_fcntl(file, command, argument);
}

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
    assert_int_equal(hl_open_elf_soon(&file, away, true), HL_ELF_UNREADABLE);
    assert_int_equal(errno, EREMOTE);
    assert_int_equal(hl_open_elf_soon(&file, "/bin/sh", true), HL_ELF_FINE);
    hl_close_elf(&file);
    assert_int_equal(hl_open_elf_soon(&file, "/bin/no-such-program", true), HL_ELF_UNREADABLE);
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

/* Without a descriptor to spare: a relative link is not taken for one that others can change (EPERM). */
static void test_too_many_files(void **state) {
    char folder[] = "/tmp/test-pin-XXXXXX", link[64];
    struct hl_local local = {0};
    struct stat status;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink(".", link), 0);
    assert_int_equal(hl_stat_local(&local, link, true, &status), 0);
    hl_close_local(&local); /* it keeps the folder that it looked into last */
    local = (struct hl_local){0};
    failure = EMFILE;
    assert_int_equal(hl_stat_local(&local, link, true, &status), -EMFILE);
    hl_close_local(&local);
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
