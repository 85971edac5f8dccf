/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pool check on made-up machines: one node, many, numbers with gaps, a cpuset, files missing or full of
 * rubbish. */
#include "tree.h"

#include "elf/pool.h"
#include "elf/sys.h"

#include <inttypes.h>

#define MACHINE "sys/kernel/mm/hugepages/hugepages-2048kB/"

struct node {
    unsigned number, total, free, surplus;
};

static void write_in(struct t_tree *tree, const char *directory, const char *name, uint64_t number) {
    char path[400];
    snprintf(path, sizeof path, "%s%s", directory, name);
    t_write_number(tree, path, number);
}

static void write_machine(struct t_tree *tree, const uint64_t counts[5]) {
    static const char *const names[] = {"nr_hugepages", "free_hugepages", "resv_hugepages",
                                        "surplus_hugepages", "nr_overcommit_hugepages"};
    for (unsigned i = 0; i < 5; i++)
        write_in(tree, MACHINE, names[i], counts[i]);
}

static void write_nodes(struct t_tree *tree, const struct node *node, unsigned n, const char *online,
                        const char *allowed) {
    char text[300];
    for (unsigned i = 0; i < n; i++) {
        snprintf(text, sizeof text, "sys/devices/system/node/node%u/hugepages/hugepages-2048kB/",
                 node[i].number);
        write_in(tree, text, "nr_hugepages", node[i].total);
        write_in(tree, text, "free_hugepages", node[i].free);
        write_in(tree, text, "surplus_hugepages", node[i].surplus);
    }
    t_write(tree, "sys/devices/system/node/online", online);
    snprintf(text, sizeof text,
             "Name:\tapp\nMems_allowed:\t00000000,000000ff\nMems_allowed_list:\t%s\nThreads:\t1\n", allowed);
    t_write(tree, "proc/thread-self/status", text);
}

/* Reads the machine for a process placed as TREE and numa=any allow, with CHANGE made to it. */
static void read_placed(struct hl_pool *pool, struct t_tree *tree, void (*change)(struct hl_placement *)) {
    struct hl_placement placement;
    memset(pool, 0xa5, sizeof *pool);
    memset(&placement, 0xa5, sizeof placement);
    t_read_placement(&placement, tree);
    if (change != NULL)
        change(&placement);
    assert_int_equal(hl_read_pool(pool, &tree->roots, &t_geometry, &placement), 0);
}

static void read_pool(struct hl_pool *pool, struct t_tree *tree) { read_placed(pool, tree, NULL); }

static void test_one_node(void **state) {
    (void)state;
    struct t_tree tree;
    struct hl_pool pool;
    t_make_tree(&tree);
    write_machine(&tree, (uint64_t[]){64, 60, 10, 4, 6});
    write_nodes(&tree, (struct node[]){{0, 64, 60, 4}}, 1, "0\n", "0");
    read_pool(&pool, &tree);
    assert_int_equal(pool.total_pages, 64);
    assert_int_equal(pool.free_pages, 60);
    assert_int_equal(pool.reserved_pages, 10);
    assert_int_equal(pool.surplus_pages, 4);
    assert_int_equal(pool.overcommit_pages, 6);
    assert_int_equal(pool.n_nodes, 1);
    assert_int_equal(pool.node[0].node, 0);
    assert_int_equal(pool.node[0].use, HL_NODE_USABLE);
    assert_int_equal(pool.node[0].total_pages, 64);
    assert_int_equal(pool.node[0].free_pages, 60);
    assert_int_equal(pool.node[0].surplus_pages, 4);
    assert_int_equal(hl_pool_available(&pool, 0),
                     50 + 2); /* free and not reserved, and the pages that overcommit may add */
    assert_int_equal(hl_pool_available(&pool, 50), 2);
    assert_int_equal(hl_pool_available(&pool, 52), 0);
    assert_int_equal(hl_pool_available(&pool, 1000), 0);
    assert_int_equal(hl_pool_available(&pool, UINT64_MAX), 0);
    t_remove_tree(&tree);
}

static void test_empty_pool(void **state) {
    (void)state;
    struct t_tree tree;
    struct hl_pool pool;
    t_make_tree(&tree);
    write_machine(&tree, (uint64_t[]){0, 0, 0, 0, 0});
    write_nodes(&tree, (struct node[]){{0, 0, 0, 0}}, 1, "0\n", "0");
    read_pool(&pool, &tree);
    assert_int_equal(hl_pool_available(&pool, 0), 0);
    write_machine(&tree,
                  (uint64_t[]){8, 3, 5, 9, 7}); /* more reserved than free, more surplus than overcommit */
    read_pool(&pool, &tree);
    assert_int_equal(hl_pool_available(&pool, 0), 0);
    t_remove_tree(&tree);
}

static void bind_to_2_and_17(struct hl_placement *placement) {
    memset(&placement->bound, 0, sizeof placement->bound);
    placement->binds = true;
    placement->bound.bits[0] = 1u << 2 | 1u << 17;
}

static void local_on_17(struct hl_placement *placement) {
    placement->numa = HL_NUMA_LOCAL;
    placement->local_node = 17;
}

static void local_on_3_bound(struct hl_placement *placement) {
    bind_to_2_and_17(placement);
    placement->numa = HL_NUMA_LOCAL;
    placement->local_node = 3;
}

static void interleave_bound(struct hl_placement *placement) {
    bind_to_2_and_17(placement);
    placement->numa = HL_NUMA_INTERLEAVE;
}

static void local_on_1000(struct hl_placement *placement) {
    placement->numa = HL_NUMA_LOCAL;
    placement->local_node = 1000;
}

#define OK HL_NODE_USABLE
#define CPUSET HL_NODE_NOT_IN_CPUSET
#define POLICY HL_NODE_NOT_IN_POLICY
#define LOCAL HL_NODE_NOT_LOCAL

/* Only the pages of nodes that the cpuset allows count; the memory policy and numa= take nodes away from these. */
static void test_nodes(void **state) {
    (void)state;
    static const struct node node[] = {{0, 5, 1, 0}, {2, 5, 2, 0}, {3, 5, 4, 0}, {17, 5, 8, 0}};
    static const struct {
        const char *allowed;
        void (*change)(struct hl_placement *);
        enum hl_node_use use[4];
        unsigned available;
    } row[] = {
        {"0-17", NULL, {OK, OK, OK, OK}, 15},
        {"2-17", NULL, {CPUSET, OK, OK, OK}, 14},
        {"0,3", NULL, {OK, CPUSET, OK, CPUSET}, 5},
        {"0-17", bind_to_2_and_17, {POLICY, OK, POLICY, OK}, 10},
        {"0-3", bind_to_2_and_17, {POLICY, OK, POLICY, CPUSET}, 2},
        {"0-17", local_on_17, {LOCAL, LOCAL, LOCAL, OK}, 8},
        {"0-3", local_on_17, {LOCAL, LOCAL, LOCAL, CPUSET}, 0},
        {"0-17", local_on_3_bound, {POLICY, LOCAL, POLICY, LOCAL}, 0},
        {"0-17", interleave_bound, {POLICY, OK, POLICY, OK}, 10},
        {"0-17", local_on_1000, {LOCAL, LOCAL, LOCAL, LOCAL}, 0},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct t_tree tree;
        struct hl_pool pool;
        t_make_tree(&tree);
        write_machine(&tree, (uint64_t[]){20, 15, 0, 0, 0});
        write_nodes(&tree, node, 4, "0,2-3,17\n", row[i].allowed);
        read_placed(&pool, &tree, row[i].change);
        assert_int_equal(pool.n_nodes, 4);
        for (unsigned j = 0; j < 4; j++) {
            assert_int_equal(pool.node[j].node, node[j].number);
            assert_int_equal(pool.node[j].free_pages, node[j].free);
            if (pool.node[j].use != row[i].use[j])
                fail_msg("row %u: node %u is %s", i, j, hl_node_use_name(pool.node[j].use));
        }
        assert_int_equal(hl_pool_available(&pool, 0), row[i].available);
        t_remove_tree(&tree);
    }
}

/* The kernel's answer about this process counts: MPOL_BIND binds, the preferences don't. */
static void test_own_policy(void **state) {
    (void)state;
    struct t_tree tree;
    struct hl_placement placement;
    uint64_t node_0 = 1;
    t_make_tree(&tree);
    t_write(&tree, "proc/thread-self/status", "Mems_allowed_list:\t0-3\n");
    t_read_placement(&placement, &tree);
    assert_false(placement.binds);
    static const struct {
        int mode;
        bool binds;
    } row[] = {{2 /* MPOL_BIND */, true},
               {2 | 1 << 15 /* MPOL_F_STATIC_NODES */, true},
               {2 | 1 << 14 /* MPOL_F_RELATIVE_NODES: their numbers name no nodes */, false},
               {1 /* MPOL_PREFERRED */, false},
               {3 /* MPOL_INTERLEAVE */, false}};
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        if (hl_is_error(HL_CALL(__NR_set_mempolicy, row[i].mode, &node_0, 64, 0, 0, 0))) {
            print_message("skipped: a kernel or container without set_mempolicy\n");
            skip();
        }
        t_read_placement(&placement, &tree);
        assert_int_equal(placement.binds, row[i].binds);
        if (row[i].binds) {
            assert_int_equal(hl_find_node_use(&placement, 0), HL_NODE_USABLE);
            assert_int_equal(hl_find_node_use(&placement, 1), HL_NODE_NOT_IN_POLICY);
        }
    }
    assert_int_equal(HL_CALL(__NR_set_mempolicy, 0, 0, 0, 0, 0, 0), 0);
    assert_int_equal(hl_find_node_use(&placement, UINT64_MAX), HL_NODE_NOT_IN_CPUSET);
    t_remove_tree(&tree);
}

/* numa= becomes a policy of the mapping, made of usable nodes; one that the kernel refuses is a reason. */
static void test_place_memory(void **state) {
    (void)state;
    enum { PREFERS_NOTHING = 0, BIND = 2, INTERLEAVE = 3, OF_ADDRESS = 2 /* MPOL_F_ADDR */ };
    static const struct {
        uint64_t cpuset, bound;
        unsigned numa, local_node;
        int result, mode;
    } row[] = {
        {3, 0, HL_NUMA_ANY, 0, 0, PREFERS_NOTHING},
        {3, 0, HL_NUMA_INTERLEAVE, 0, 0, INTERLEAVE},
        {3, 0, HL_NUMA_LOCAL, 0, 0, BIND},
        {3, 0, HL_NUMA_LOCAL, 900, HL_REASON_NUMA, PREFERS_NOTHING},
        {3, 1, HL_NUMA_INTERLEAVE, 0, 0, INTERLEAVE},
        {1, 0, HL_NUMA_INTERLEAVE, 0, 0, PREFERS_NOTHING}, /* one node: there is no choice */
        {1, 0, HL_NUMA_LOCAL, 0, 0, PREFERS_NOTHING},
        {1, 0, HL_NUMA_LOCAL, 1, HL_REASON_NUMA, PREFERS_NOTHING}, /* the CPU's node is not in the cpuset */
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_placement placement;
        int mode = -1;
        memset(&placement, 0, sizeof placement);
        placement.numa = row[i].numa;
        placement.cpuset.bits[0] = row[i].cpuset;
        placement.binds = row[i].bound != 0;
        placement.bound.bits[0] = row[i].bound;
        placement.local_node = row[i].local_node;
        long at = hl_mmap(0, 4096, 3, 0x22, -1, 0);
        assert_false(hl_is_error(at));
        int result = hl_bind_memory(&placement, (uint64_t)at, 4096);
        assert_false(hl_is_error(HL_CALL(__NR_get_mempolicy, &mode, 0, 0, at, OF_ADDRESS, 0)));
        if (result != row[i].result || mode != row[i].mode)
            fail_msg("row %u: result %d, mode %d", i, result, mode);
        hl_munmap((uint64_t)at, 4096);
    }
}

static void test_missing_files(void **state) {
    (void)state;
    struct t_tree tree;
    struct hl_pool pool;
    t_make_tree(&tree);
    struct hl_placement placement;
    t_read_placement(&placement, &tree);
    memset(&pool, 0xa5, sizeof pool);
    assert_int_equal(hl_read_pool(&pool, &tree.roots, &t_geometry, &placement), HL_REASON_NO_HUGETLB);
    assert_int_equal(
        pool.total_pages + pool.free_pages + pool.reserved_pages + pool.surplus_pages + pool.n_nodes, 0);
    assert_int_equal(hl_pool_available(&pool, 0), 0);

    /* No nodes in sysfs (CONFIG_NUMA=n): the machine's numbers alone. */
    write_machine(&tree, (uint64_t[]){64, 60, 10, 0, 0});
    read_pool(&pool, &tree);
    assert_int_equal(pool.n_nodes, 0);
    assert_int_equal(hl_pool_available(&pool, 0), 50);

    /* A node without files (memory hot-plugged away): no pages. */
    t_write(&tree, "sys/devices/system/node/online", "0-1");
    read_pool(&pool, &tree);
    assert_int_equal(pool.n_nodes, 2);
    assert_int_equal(hl_pool_available(&pool, 0), 0);

    /* Another size of page is another pool. */
    assert_int_equal(hl_read_pool(&pool, &tree.roots, &(struct hl_geometry){T_PAGE, 32 << 20}, &placement),
                     HL_REASON_NO_HUGETLB);
    t_remove_tree(&tree);
}

/* Rubbish in the files: no crash, no endless loop, nothing beyond the table, nothing available that is not
 * there. */
static void test_hostile_contents(void **state) {
    (void)state;
    static const char *const rubbish[] = {"",
                                          "\n",
                                          "-1\n",
                                          "x",
                                          "99999999999999999999999999",
                                          "0-",
                                          "0-4294967295",
                                          "4294967295-0",
                                          "5-3",
                                          ",,,",
                                          "0,0,0,0",
                                          "1 2 3",
                                          "0x10",
                                          "0-18446744073709551615",
                                          "\xff\xfe"};
    char *endless = malloc(100001);
    assert_non_null(endless);
    memset(endless, '1', 100000);
    endless[100000] = '\0';
    for (unsigned i = 0; i <= T_COUNT(rubbish); i++) {
        const char *text = i < T_COUNT(rubbish) ? rubbish[i] : endless;
        struct t_tree tree;
        struct hl_pool pool;
        t_make_tree(&tree);
        write_machine(&tree, (uint64_t[]){8, 8, 0, 0, 0});
        t_write(&tree, "sys/devices/system/node/online", text);
        read_pool(&pool, &tree);
        assert_true(pool.n_nodes <= HL_NODES_MAX);
        assert_true(hl_pool_available(&pool, 0) <= 8);

        write_nodes(&tree, (struct node[]){{0, 8, 8, 0}}, 1, "0\n", "0");
        t_write(&tree, "proc/thread-self/status", text);
        read_pool(&pool, &tree);
        assert_true(hl_pool_available(&pool, 0) <= 8);

        t_write(&tree, "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", text);
        t_write(&tree, MACHINE "resv_hugepages", text);
        t_write(&tree, MACHINE "surplus_hugepages", text);
        read_pool(&pool, &tree);
        assert_true(hl_pool_available(&pool, 0) <= 8);
        t_write(&tree, MACHINE "free_hugepages", text);
        read_pool(&pool, &tree);
        hl_pool_available(&pool, UINT64_MAX);
        t_remove_tree(&tree);
    }
    free(endless);
}

/* The bytes that a PMD maps, with each of AArch64's page sizes. */
static void test_geometry(void **state) {
    (void)state;
    static const uint64_t row[][2] = {{4096, 2 << 20}, {16384, 32 << 20}, {65536, 512 << 20}};
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_geometry geometry;
        hl_set_geometry(&geometry, row[i][0]);
        assert_int_equal(geometry.page_bytes, row[i][0]);
        assert_int_equal(geometry.huge_page_bytes, row[i][1]);
    }
}

static void check_fit(const struct t_tree *tree, uint64_t page_bytes, uint64_t backend, uint64_t expected) {
    struct hl_options options;
    struct hl_geometry geometry;
    hl_default_options(&options);
    options.backend = backend;
    hl_set_geometry(&geometry, page_bytes);
    hl_fit_geometry(&geometry, &options, &tree->roots);
    assert_int_equal(geometry.page_bytes, page_bytes);
    assert_int_equal(geometry.huge_page_bytes, expected);
}

/* The pool that there is decides, of hugetlb alone; machines with pages of 16 and 64 KiB. */
static void test_fit(void **state) {
    (void)state;
    static const uint64_t row[][2] = {{16384, 32 << 20}, {65536, 512 << 20}};
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        uint64_t page = row[i][0], huge = row[i][1];
        char large[200];
        struct t_tree tree;
        t_make_tree(&tree);
        snprintf(large, sizeof large, "sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/", huge / 1024);
        check_fit(&tree, page, HL_BACKEND_HUGETLB, huge);
        write_machine(&tree, (uint64_t[]){0, 0, 0, 0, 0});
        write_in(&tree, large, "nr_hugepages", 0);
        check_fit(&tree, page, HL_BACKEND_HUGETLB, huge);
        write_machine(&tree, (uint64_t[]){0, 0, 0, 0, 1});
        check_fit(&tree, page, HL_BACKEND_HUGETLB, 2 << 20);
        write_machine(&tree, (uint64_t[]){64, 0, 0, 0, 0});
        check_fit(&tree, page, HL_BACKEND_HUGETLB, 2 << 20);
        check_fit(&tree, page, HL_BACKEND_AUTO, huge);
        check_fit(&tree, page, HL_BACKEND_THP, huge);
        check_fit(&tree, page, HL_BACKEND_IMAGE, huge);
        check_fit(&tree, 4096, HL_BACKEND_HUGETLB, 2 << 20);
        write_in(&tree, large, "nr_overcommit_hugepages", 1);
        check_fit(&tree, page, HL_BACKEND_HUGETLB, huge);
        write_in(&tree, large, "nr_overcommit_hugepages", 0);
        write_in(&tree, large, "nr_hugepages", 1);
        check_fit(&tree, page, HL_BACKEND_HUGETLB, huge);
        t_remove_tree(&tree);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),
        cmocka_unit_test(test_empty_pool),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_own_policy),
        cmocka_unit_test(test_place_memory),
        cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_hostile_contents),
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
