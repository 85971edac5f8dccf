/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Texts of /proc/PID that cannot be read to their end (command/lib/process.h). */
#include "command/lib/process.h"

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

/* One reading gives each field; what the kernel does not list keeps the value of a process that nothing is known of. */
static void test_status(void **state) {
    static const char text[] =
        "Name:\tState: Z\nUmask:\t0022\nState:\tt (tracing stop)\nTgid:\t12\nNgid:\t0\n"
        "Pid:\t13\nPPid:\t1\nTracerPid:\t14\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"
        "NSpid:\t13\t9\nVmLck:\t      40 kB\nSigPnd:\t0000000000000001\n"
        "ShdPnd:\t0000000000010000\nSigCgt:\t0000000000000400\nTHP_enabled:\t0\n"
        "Seccomp:\t2\nSeccomp_filters:\t7\nx86_Thread_features:\tshstk wrss\n"
        "x86_Thread_features_locked:\t\nvoluntary_ctxt_switches:\t15\n"
        "nonvoluntary_ctxt_switches:\t16\n";
    struct hl_task_status all, none;
    struct t_tree tree;
    (void)state;
    t_make_tree(&tree);
    t_write(&tree, "status", text);
    int folder = open(tree.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(hl_read_task_status(&all, folder, "status"), 0);
    assert_true(all.state == 't' && all.process == 12 && all.tracer == 14 && all.inner_pid == 9);
    assert_true(all.user == 1 && all.effective_user == 2 && all.file_user == 4 && all.file_group == 8);
    assert_true(all.locked_kib == 40 && all.pending == 1 && all.shared_pending == 0x10000 &&
                all.caught == 0x400);
    assert_true(all.filter_mode == 2 && all.thp_enabled == 0 && all.has_shadow_stack);
    assert_int_equal(hl_read_task_status(&none, folder, "none"), -ESRCH);
    assert_true(none.state == 'X' && none.tracer == 0 && none.user == (uid_t)-1 && none.caught == UINT64_MAX);
    assert_true(none.filter_mode == 1 && none.thp_enabled == 1 && !none.has_shadow_stack);
    close(folder);
    t_remove_tree(&tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
