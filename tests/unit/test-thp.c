/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When transparent huge pages may stand in, on made-up machines: the administrator's word, this process's,
   and what every ancestor cgroup (v2, v1, both) and the machine leave to be charged. */
#include "tree.h"

#include <sys/prctl.h>

#include "../../elf/thp.h"

#define MIB ((uint64_t)1 << 20)
#define THP "sys/kernel/mm/transparent_hugepage/"

static void test_thp_policy(void **state) {
    (void)state;
    static const struct {
        const char *general, *sized;
        int result;
    } row[] = {
        {"[always] madvise never\n", NULL, 0},
        {"always [madvise] never\n", NULL, 0},
        {"always madvise [never]\n", NULL, HL_SKIP_THP_NEVER},
        {NULL, NULL, HL_SKIP_THP_NEVER}, /* a kernel without them */
        {"", NULL, HL_SKIP_THP_NEVER},
        {"always [madvise] never\n", "always [inherit] madvise never\n", 0},
        {"always madvise [never]\n", "always [inherit] madvise never\n", HL_SKIP_THP_NEVER},
        {"always madvise [never]\n", "always inherit [madvise] never\n", 0},
        {"[always] madvise never\n", "always inherit madvise [never]\n", HL_SKIP_THP_NEVER},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct t_tree tree;
        t_make_tree(&tree);
        if (row[i].general != NULL)
            t_write(&tree, THP "enabled", row[i].general);
        if (row[i].sized != NULL)
            t_write(&tree, THP "hugepages-2048kB/enabled", row[i].sized);
        int result = hl_check_thp_policy(&tree.roots);
        if (result != row[i].result)
            fail_msg("row %u: %s", i, result > 0 ? hl_skip_name((enum hl_skip)result) : "allowed");
        t_remove_tree(&tree);
    }
}

static void test_thp_disabled_for_process(void **state) {
    (void)state;
    struct t_tree tree;
    t_make_tree(&tree);
    t_write(&tree, THP "enabled", "[always] madvise never\n");
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
        skip();
    int result = hl_check_thp_policy(&tree.roots);
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    assert_int_equal(result, HL_SKIP_THP_DISABLED);
    assert_int_equal(hl_check_thp_policy(&tree.roots), 0);
    t_remove_tree(&tree);
}

struct file {
    const char *path, *text;
};

static uint64_t headroom_of(const struct file *files, unsigned n) {
    struct t_tree tree;
    t_make_tree(&tree);
    for (unsigned i = 0; i < n && files[i].path != NULL; i++)
        t_write(&tree, files[i].path, files[i].text);
    struct hl_placement placement;
    hl_read_placement(&placement, &tree.roots, HL_NUMA_ANY);
    uint64_t headroom = hl_read_memory_headroom(&tree.roots, &placement);
    t_remove_tree(&tree);
    return headroom;
}

#define CGROUP "sys/fs/cgroup/"
#define NODES "sys/devices/system/node/"
#define MEMINFO                                                                                              \
    { "proc/meminfo", "MemTotal:  4194304 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n" }

static void test_headroom(void **state) {
    (void)state;
    static const struct {
        const char *name;
        struct file file[12];
        uint64_t headroom;
    } row[] = {
        {"nothing can be read", {{NULL, NULL}}, UINT64_MAX},
        {"only the machine", {MEMINFO}, 1024 * MIB},
        {"one node of two: what is free there, and its file pages",
         {MEMINFO,
          {"proc/self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 999999 kB\n"},
          {NODES "node1/meminfo", "Node 1 MemTotal: 2097152 kB\nNode 1 MemFree:  10240 kB\n"
                                  "Node 1 Active(file):  20480 kB\nNode 1 Inactive(file):    30720 kB\n"}},
         60 * MIB},
        {"both nodes: the machine's figure",
         {MEMINFO,
          {"proc/self/status", "Mems_allowed_list:\t0-1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 1024 kB\n"},
          {NODES "node1/meminfo", "Node 1 MemFree: 1024 kB\n"}},
         1024 * MIB},
        {"v2: max, less what is used",
         {MEMINFO,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.high", "max\n"},
          {CGROUP "app/memory.current", "41943040\n"},
          {CGROUP "app/memory.stat", "anon 41943040\nfile 0\nactive_file 0\ninactive_file 0\n"}},
         60 * MIB},
        {"v2: the files it caches can go",
         {MEMINFO,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.current", "94371840\n"},
          {CGROUP "app/memory.stat", "inactive_anon 7\nactive_file 10485760\ninactive_file 31457280\n"}},
         50 * MIB},
        {"v2: high below max",
         {MEMINFO,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.high", "20971520\n"},
          {CGROUP "app/memory.current", "0\n"}},
         20 * MIB},
        {"v2: high alone",
         {MEMINFO,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "max\n"},
          {CGROUP "app/memory.high", "20971520\n"},
          {CGROUP "app/memory.current", "1048576\n"}},
         19 * MIB},
        {"v2: an ancestor",
         {MEMINFO,
          {"proc/self/cgroup", "0::/a/b/c\n"},
          {CGROUP "a/memory.max", "104857600\n"},
          {CGROUP "a/memory.current", "10485760\n"},
          {CGROUP "a/b/memory.max", "max\n"},
          {CGROUP "a/b/c/memory.max", "max\n"}},
         90 * MIB},
        {"v2: inside a container the mount is the group",
         {MEMINFO,
          {"proc/self/cgroup", "0::/\n"},
          {CGROUP "memory.max", "41943040\n"},
          {CGROUP "memory.current", "1048576\n"}},
         39 * MIB},
        {"v2: no limit",
         {MEMINFO, {"proc/self/cgroup", "0::/app\n"}, {CGROUP "app/memory.max", "max\n"}},
         1024 * MIB},
        {"v2: more used than allowed",
         {MEMINFO,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "1048576\n"},
          {CGROUP "app/memory.current", "2097152\n"}},
         0},
        {"v2: limit of 0 bytes",
         {MEMINFO, {"proc/self/cgroup", "0::/app\n"}, {CGROUP "app/memory.max", "0\n"}},
         0},
        {"v1",
         {MEMINFO,
          {"proc/self/cgroup", "11:cpu,cpuacct:/x\n4:memory:/app\n1:name=systemd:/y\n"},
          {CGROUP "memory/app/memory.limit_in_bytes", "104857600\n"},
          {CGROUP "memory/app/memory.usage_in_bytes", "52428800\n"},
          {CGROUP "memory/app/memory.stat",
           "active_file 1\ninactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 0\n"},
          {CGROUP "memory/memory.limit_in_bytes", "9223372036854771712\n"}},
         60 * MIB},
        {"v1: an ancestor",
         {MEMINFO,
          {"proc/self/cgroup", "4:memory:/a/b\n"},
          {CGROUP "memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
          {CGROUP "memory/a/memory.limit_in_bytes", "41943040\n"},
          {CGROUP "memory/a/memory.usage_in_bytes", "0\n"}},
         40 * MIB},
        {"v1: memory together with another controller",
         {MEMINFO,
          {"proc/self/cgroup", "4:cpuset,memory:/app\n"},
          {CGROUP "memory/app/memory.limit_in_bytes", "41943040\n"}},
         40 * MIB},
        {"v1: another controller's group of that name",
         {MEMINFO,
          {"proc/self/cgroup", "4:memoryx:/app\n5:cpu:/app\n"},
          {CGROUP "memory/app/memory.limit_in_bytes", "41943040\n"}},
         1024 * MIB},
        {"v1 and v2",
         {MEMINFO,
          {"proc/self/cgroup", "4:memory:/one\n0::/two\n"},
          {CGROUP "memory/one/memory.limit_in_bytes", "104857600\n"},
          {CGROUP "unified/two/memory.max", "41943040\n"}},
         40 * MIB},
        {"the machine has less than the group",
         {{"proc/meminfo", "MemAvailable: 10240 kB\n"},
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"}},
         10 * MIB},
        {"rubbish",
         {MEMINFO,
          {"proc/self/cgroup", "0\n\n:::\n0::\n4:memory\nx\n0::/app"},
          {CGROUP "app/memory.max", "rubbish\n"},
          {CGROUP "app/memory.current", "-5\n"}},
         1024 * MIB},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        uint64_t headroom = headroom_of(row[i].file, T_COUNT(row[i].file));
        if (headroom != row[i].headroom)
            fail_msg("%s: %ju MiB, not %ju", row[i].name, (uintmax_t)(headroom / MIB),
                     (uintmax_t)(row[i].headroom / MIB));
    }
}

/* A group's path as long as a path can be, and a thousand ancestors: no crash, and no headroom invented. */
static void test_endless_paths(void **state) {
    (void)state;
    char *text = malloc(4100);
    assert_non_null(text);
    strcpy(text, "0::");
    for (unsigned i = 3; i < 4090; i++)
        text[i] = i % 2 ? '/' : 'a';
    text[4090] = '\0';
    struct file deep[] = {MEMINFO, {"proc/self/cgroup", text}, {CGROUP "a/memory.max", "41943040\n"}};
    uint64_t headroom = headroom_of(deep, 3);
    assert_int_equal(headroom, 40 * MIB);
    memset(text + 3, '/', 4087);
    struct file slashes[] = {MEMINFO, {"proc/self/cgroup", text}};
    assert_int_equal(headroom_of(slashes, 2), 1024 * MIB);
    memset(text + 3, 'a', 4087);
    assert_int_equal(headroom_of(slashes, 2), 1024 * MIB);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thp_policy),
        cmocka_unit_test(test_thp_disabled_for_process),
        cmocka_unit_test(test_headroom),
        cmocka_unit_test(test_endless_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
