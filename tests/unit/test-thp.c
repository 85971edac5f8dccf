/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether transparent huge pages are allowed, on made-up machines: the administrator's word and this
 * process's. */
#include "tree.h"

#include "elf/reason.h"
#include "elf/thp.h"

#define THP "sys/kernel/mm/transparent_hugepage/"

static int policy_of(const struct t_tree *tree) {
    struct hl_status status;
    hl_read_status(&status, &tree->roots);
    return hl_check_thp_policy(&tree->roots, &t_geometry, &status);
}

static void test_thp_policy(void **state) {
    (void)state;
    static const struct {
        const char *general, *sized;
        int result;
    } row[] = {
        {"[always] madvise never\n", NULL, 0},
        {"always [madvise] never\n", NULL, 0},
        {"always madvise [never]\n", NULL, HL_REASON_THP_NEVER},
        {NULL, NULL, HL_REASON_THP_NEVER}, /* a kernel without them */
        {"", NULL, HL_REASON_THP_NEVER},
        {"always [madvise] never\n", "always [inherit] madvise never\n", 0},
        {"always madvise [never]\n", "always [inherit] madvise never\n", HL_REASON_THP_NEVER},
        {"always madvise [never]\n", "always inherit [madvise] never\n", 0},
        {"[always] madvise never\n", "always inherit madvise [never]\n", HL_REASON_THP_NEVER},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct t_tree tree;
        t_make_tree(&tree);
        if (row[i].general != NULL)
            t_write(&tree, THP "enabled", row[i].general);
        if (row[i].sized != NULL)
            t_write(&tree, THP "hugepages-2048kB/enabled", row[i].sized);
        int result = policy_of(&tree);
        if (result != row[i].result)
            fail_msg("row %u: %s", i, result > 0 ? hl_reason_name((enum hl_reason)result) : "allowed");
        t_remove_tree(&tree);
    }
}

static void test_thp_disabled_for_process(void **state) {
    (void)state;
    static const struct {
        const char *status;
        int result;
    } row[] = {
        {"THP_enabled:\t0\n", HL_REASON_THP_DISABLED},
        {"Threads:\t1\nTHP_enabled:\t1\n", 0},
        {"Threads:\t1\n", 0}, /* Linux before 5.0 */
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct t_tree tree;
        t_make_tree(&tree);
        t_write(&tree, THP "enabled", "[always] madvise never\n");
        t_write(&tree, "proc/thread-self/status", row[i].status);
        assert_int_equal(policy_of(&tree), row[i].result);
        t_remove_tree(&tree);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thp_policy),
        cmocka_unit_test(test_thp_disabled_for_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
