/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Texts of /proc/PID that cannot be read to their end (command/proc/process.h). */
#include "command/proc/process.h"

#include "tree.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>

/* At the address 0, where reading begins, nothing is mapped. */
static const char fails[] = "/proc/self/mem";

static void test_fails(void **state) {
    struct t_tree tree;
    struct hl_process opened = {.folder = -1}, found;
    struct hl_address_range range = {0, UINT64_MAX};
    char path[T_PATH_BYTES];
    (void)state;
    t_make_tree(&tree);
    opened.folder = open(tree.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(opened.folder >= 0);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", tree.root, i == 0 ? "smaps" : "maps");
        assert_int_equal(symlink(fails, path), 0);
    }
    assert_int_equal(hl_read_some_regions(&found, &opened, &range, 1), -EIO);
    close(found.folder);
    assert_int_equal(hl_read_some_mappings(&found, &opened, &range, 1), -EIO);
    close(found.folder);
    close(opened.folder);
    t_remove_tree(&tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
