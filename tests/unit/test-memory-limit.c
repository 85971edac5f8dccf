/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether there is memory for private copies, on made-up machines: the memory that every ancestor cgroup
   (v2, v1, both) and the machine leave to be charged, and whether any limit applies at all. */
#include "tree.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "elf/memory-limit.h"
#include "elf/reason.h"

#define MIB ((uint64_t)1 << 20)

struct file {
    const char *path, *text;
};

static void make_machine(struct t_tree *tree, struct hl_placement *placement, const struct file *files,
                         unsigned n) {
    t_make_tree(tree);
    for (unsigned i = 0; i < n && files[i].path != NULL; i++)
        t_write(tree, files[i].path, files[i].text);
    t_read_placement(placement, tree);
}

static uint64_t headroom_of(const struct file *files, unsigned n) {
    struct t_tree tree;
    struct hl_placement placement;
    make_machine(&tree, &placement, files, n);
    uint64_t headroom = hl_read_memory_headroom(&tree.roots, &placement);
    t_remove_tree(&tree);
    return headroom;
}

static int limit_of(const struct file *files, unsigned n, uint64_t bytes) {
    struct t_tree tree;
    struct hl_placement placement;
    make_machine(&tree, &placement, files, n);
    struct hl_machine machine;
    hl_read_machine(&machine, &tree.roots);
    int result = hl_check_memory_limit(&tree.roots, &placement, &machine, bytes);
    t_remove_tree(&tree);
    return result;
}

#define CGROUP "sys/fs/cgroup/"
#define ROOT                                                                                                 \
    { CGROUP "cgroup.controllers", "cpu memory\n" }
#define NODES "sys/devices/system/node/"
#define MEMINFO                                                                                              \
    { "proc/meminfo", "MemTotal:  4194304 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n" }
#define COMMITTED(limit, kib)                                                                                \
    {                                                                                                        \
        "proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\nCommitLimit: " limit " kB\n"        \
                        "Committed_AS: " kib " kB\n"                                                         \
    }
#define OVERCOMMIT(mode)                                                                                     \
    { "proc/sys/vm/overcommit_memory", mode "\n" }
#define MACHINE MEMINFO, OVERCOMMIT("0")
#define GROUPS(text)                                                                                         \
    { "proc/self/cgroup", text }
#define V2(path) MACHINE, ROOT, GROUPS("0::" path "\n")
#define MAX(path, text)                                                                                      \
    { CGROUP path "memory.max", text "\n" }
#define HIGH(path, text)                                                                                     \
    { CGROUP path "memory.high", text "\n" }
#define USED(path, text)                                                                                     \
    { CGROUP path "memory.current", text "\n" }
#define LIMIT_V1(path, text)                                                                                 \
    { CGROUP "memory/" path "memory.limit_in_bytes", text "\n" }
#define STAT_V1(path, text)                                                                                  \
    { CGROUP "memory/" path "memory.stat", text "\n" }
#define CONTAINER                                                                                            \
    V2("/"), { CGROUP "cgroup.events", "populated 1\nfrozen 0\n" }
#define NO_LIMIT_V1 "9223372036854771712"
#define NODE_1 "Node 1 MemTotal: 2097152 kB\nNode 1 MemFree:  "

/* The machine has 4 GiB, of which one is available.  How much is left to be charged, and the reason against a copy of no bytes. */
static void test_machines(void **state) {
    (void)state;
    static const struct {
        const char *name;
        struct file file[12];
        uint64_t headroom;
        int result;
    } row[] = {
        {"nothing can be read", {{NULL, NULL}}, UINT64_MAX, HL_REASON_MEMORY_UNKNOWN},
        {"no groups in this kernel", {MACHINE}, 1024 * MIB, 0},
        {"overcommit cannot be read", {MEMINFO}, 1024 * MIB, HL_REASON_MEMORY_UNKNOWN},
        {"overcommit is allowed", {COMMITTED("1024", "2048"), OVERCOMMIT("1")}, 4096 * MIB, 0},
        {"overcommit is forbidden: what is committed counts, not what is used",
         {COMMITTED("2097152", "2048000"), OVERCOMMIT("2")},
         48 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"overcommit is forbidden, and more is committed",
         {COMMITTED("1024", "2048"), OVERCOMMIT("2")},
         0,
         HL_REASON_MEMORY_LIMIT},
        {"overcommit is forbidden, and a quarter is left",
         {COMMITTED("2097152", "1572864"), OVERCOMMIT("2")},
         512 * MIB,
         0},
        {"more is committed than there is, as is allowed",
         {COMMITTED("2097152", "3000000"), OVERCOMMIT("0")},
         4096 * MIB,
         0},
        {"no MemAvailable (before Linux 3.14)",
         {{"proc/meminfo", "MemTotal: 4194304 kB\n"}, OVERCOMMIT("0")},
         UINT64_MAX,
         HL_REASON_MEMORY_UNKNOWN},
        {"no MemTotal",
         {{"proc/meminfo", "MemAvailable: 4194304 kB\n"}, OVERCOMMIT("0")},
         UINT64_MAX,
         HL_REASON_MEMORY_UNKNOWN},
        {"one node of two: what is free there, and its file pages",
         {MACHINE,
          {"proc/thread-self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 999999 kB\n"},
          {NODES "node1/meminfo",
           NODE_1 "10240 kB\nNode 1 Active(file):  20480 kB\nNode 1 Inactive(file):    30720 kB\n"}},
         60 * MIB,
         HL_REASON_MEMORY_SHORT},
        {"both nodes: the machine's figure",
         {MACHINE,
          {"proc/thread-self/status", "Mems_allowed_list:\t0-1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 1024 kB\n"},
          {NODES "node1/meminfo", "Node 1 MemFree: 1024 kB\n"}},
         1024 * MIB,
         0},
        {"a node with enough",
         {MACHINE,
          {"proc/thread-self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node1/meminfo", NODE_1 "524288 kB\n"}},
         512 * MIB,
         0},
        {"a node that cannot be read",
         {MACHINE, {"proc/thread-self/status", "Mems_allowed_list:\t1\n"}, {NODES "online", "0-1\n"}},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},

        {"v2: the root", {V2("/")}, 1024 * MIB, 0},
        {"v2: no limit",
         {V2("/a/b"), MAX("a/", "max"), HIGH("a/", "max"), MAX("a/b/", "max"), HIGH("a/b/", "max")},
         1024 * MIB,
         0},
        {"v2: max, less what is used",
         {V2("/a"),
          MAX("a/", "104857600"),
          HIGH("a/", "max"),
          USED("a/", "41943040"),
          {CGROUP "a/memory.stat", "anon 41943040\nfile 0\nactive_file 0\ninactive_file 0\n"}},
         60 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: the files it caches can go",
         {V2("/a"),
          MAX("a/", "104857600"),
          HIGH("a/", "max"),
          USED("a/", "94371840"),
          {CGROUP "a/memory.stat", "inactive_anon 7\nactive_file 10485760\ninactive_file 31457280\n"}},
         50 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: max is nearly all that the machine has",
         {V2("/a"), MAX("a/", "4294963200"), HIGH("a/", "max")},
         1024 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: max is all that the machine has",
         {V2("/a"), MAX("a/", "4294967296"), HIGH("a/", "max")},
         1024 * MIB,
         0},
        {"v2: high is nearly all that the machine has",
         {V2("/a"), MAX("a/", "max"), HIGH("a/", "4294963200")},
         1024 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: high alone",
         {V2("/a"), MAX("a/", "max"), HIGH("a/", "20971520")},
         20 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: high below max",
         {V2("/a"), MAX("a/", "104857600"), HIGH("a/", "20971520"), USED("a/", "1048576")},
         19 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: an ancestor",
         {V2("/a/b/c"),
          MAX("a/", "104857600"),
          HIGH("a/", "max"),
          USED("a/", "10485760"),
          MAX("a/b/", "max"),
          HIGH("a/b/", "max"),
          {CGROUP "a/b/c/cgroup.controllers", "\n"}},
         90 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: the controller does not reach the group",
         {V2("/a/b"), MAX("a/", "max"), HIGH("a/", "max"), {CGROUP "a/b/cgroup.controllers", ""}},
         1024 * MIB,
         0},
        {"v2: more used than allowed",
         {V2("/a"), MAX("a/", "1048576"), HIGH("a/", "max"), USED("a/", "2097152")},
         0,
         HL_REASON_MEMORY_LIMIT},
        {"v2: limit of 0 bytes", {V2("/a"), MAX("a/", "0"), HIGH("a/", "max")}, 0, HL_REASON_MEMORY_LIMIT},
        {"v2: the machine has less than the group",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 10240 kB\n"},
          OVERCOMMIT("0"),
          ROOT,
          GROUPS("0::/a\n"),
          MAX("a/", "104857600"),
          HIGH("a/", "max")},
         10 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: the group is not there", {V2("/a")}, 1024 * MIB, HL_REASON_MEMORY_UNKNOWN},
        {"v2: the group has been removed",
         {V2("/a (deleted)"), {CGROUP "a/cgroup.controllers", "\n"}},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v2: outside the namespace", {V2("/../a")}, 1024 * MIB, HL_REASON_MEMORY_UNKNOWN},
        {"v2: not mounted", {MACHINE, GROUPS("0::/\n")}, 1024 * MIB, HL_REASON_MEMORY_UNKNOWN},
        {"v2: a container without a limit, in which one cannot see the ancestors'",
         {CONTAINER, MAX("", "max"), HIGH("", "max")},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v2: the same, where the controller does not reach it",
         {CONTAINER},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v2: a container with a limit: the mount is the group",
         {CONTAINER, MAX("", "41943040"), HIGH("", "max"), USED("", "1048576")},
         39 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v2: rubbish",
         {MACHINE, ROOT, GROUPS("0\n\n:::\n0::\n4:memory\nx\n0::/a"), MAX("a/", "rubbish"), HIGH("a/", "max"),
          USED("a/", "-5")},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v2: no memory.high", {V2("/a"), MAX("a/", "max")}, 1024 * MIB, HL_REASON_MEMORY_UNKNOWN},

        {"v1: no limit",
         {MACHINE, GROUPS("5:cpu:/x\n4:memory:/a\n0::/\n"), LIMIT_V1("a/", NO_LIMIT_V1),
          STAT_V1("a/", "cache 0\nhierarchical_memory_limit " NO_LIMIT_V1 "\ntotal_cache 0")},
         1024 * MIB,
         0},
        {"v1: its own limit",
         {MACHINE,
          GROUPS("11:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/y\n"),
          LIMIT_V1("a/", "104857600"),
          {CGROUP "memory/a/memory.usage_in_bytes", "52428800\n"},
          STAT_V1("a/", "active_file 1\ninactive_file 1\nhierarchical_memory_limit 104857600\n"
                        "total_inactive_file 10485760\ntotal_active_file 0"),
          LIMIT_V1("", NO_LIMIT_V1)},
         60 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v1: an ancestor's",
         {MACHINE,
          GROUPS("4:memory:/a/b\n"),
          LIMIT_V1("a/b/", NO_LIMIT_V1),
          LIMIT_V1("a/", "41943040"),
          {CGROUP "memory/a/memory.usage_in_bytes", "0\n"},
          STAT_V1("a/b/", "hierarchical_memory_limit 41943040")},
         40 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v1: all that the machine has",
         {MACHINE, GROUPS("4:memory:/a\n"), STAT_V1("a/", "hierarchical_memory_limit 4294967296")},
         1024 * MIB,
         0},
        {"v1: with another controller",
         {MACHINE, GROUPS("4:cpuset,memory:/a\n"), LIMIT_V1("a/", "41943040"),
          STAT_V1("a/", "hierarchical_memory_limit 41943040")},
         40 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v1: other controllers' groups of that name",
         {MACHINE, GROUPS("4:memoryx:/a\n5:cpu:/a\n"), LIMIT_V1("a/", "41943040"),
          STAT_V1("a/", "hierarchical_memory_limit 41943040")},
         1024 * MIB,
         0},
        {"v1: the group is not there, as in a container that sees the names of outside",
         {MACHINE, GROUPS("4:memory:/docker/a\n"), STAT_V1("", "hierarchical_memory_limit " NO_LIMIT_V1)},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v1: memory.stat does not say it",
         {MACHINE, GROUPS("4:memory:/a\n"), STAT_V1("a/", "cache 0")},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
        {"v1 and v2",
         {MACHINE,
          GROUPS("4:memory:/one\n0::/two\n"),
          LIMIT_V1("one/", "104857600"),
          STAT_V1("one/", "hierarchical_memory_limit 104857600"),
          {CGROUP "unified/two/cgroup.procs", "1\n"}},
         100 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"v1 of other controllers, and v2",
         {MACHINE,
          GROUPS("4:cpu:/one\n0::/two\n"),
          {CGROUP "unified/cgroup.controllers", "memory\n"},
          MAX("unified/two/", "41943040"),
          HIGH("unified/two/", "max")},
         40 * MIB,
         HL_REASON_MEMORY_LIMIT},
        {"a list of groups that cannot be read",
         {MACHINE, {"proc/self/cgroup/is-a-folder", "\n"}},
         1024 * MIB,
         HL_REASON_MEMORY_UNKNOWN},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        uint64_t headroom = headroom_of(row[i].file, T_COUNT(row[i].file));
        int result = limit_of(row[i].file, T_COUNT(row[i].file), 0);
        if (headroom != row[i].headroom || result != row[i].result)
            fail_msg("%s: %ju MiB, not %ju; %s", row[i].name, (uintmax_t)(headroom / MIB),
                     (uintmax_t)(row[i].headroom / MIB),
                     result > 0 ? hl_reason_name((enum hl_reason)result) : "no limit");
    }
}

/* Of the memory, or of what a pool leaves of it, a quarter remains, and as much as the copies have. */
static void test_bytes(void **state) {
    (void)state;
#define AVAILABLE(kib, more)                                                                                 \
    { {"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: " kib " kB\n" more}, OVERCOMMIT("0") }
#define POOL "Hugetlb: 3145728 kB\n"
    static const struct {
        struct file file[2];
        uint64_t bytes;
        int result;
    } row[] = {
        {{COMMITTED("2097152", "1572864"), OVERCOMMIT("2")}, 2 * MIB, HL_REASON_MEMORY_LIMIT},
        {{COMMITTED("2097152", "0"), OVERCOMMIT("2")}, 1025 * MIB, HL_REASON_MEMORY_LIMIT},
        {AVAILABLE("1064960", ""), 16 * MIB, 0},
        {AVAILABLE("1064960", ""), 18 * MIB, HL_REASON_MEMORY_SHORT},
        {AVAILABLE("278528", POOL), 16 * MIB, 0},
        {AVAILABLE("278528", POOL), 18 * MIB, HL_REASON_MEMORY_SHORT},
        {AVAILABLE("4194304", ""), 2050 * MIB, HL_REASON_MEMORY_SHORT},
        {{MACHINE}, UINT64_MAX, HL_REASON_MEMORY_SHORT},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++)
        if (limit_of(row[i].file, T_COUNT(row[i].file), row[i].bytes) != row[i].result)
            fail_msg("row %u", i);
}

/* A group's path as long as a path can be, and a thousand ancestors: no crash, no headroom
   invented, and no limit ruled out. */
static void test_endless_paths(void **state) {
    (void)state;
    char *text = malloc(4100);
    assert_non_null(text);
    strcpy(text, "0::");
    for (unsigned i = 3; i < 4090; i++)
        text[i] = i % 2 ? '/' : 'a';
    text[4090] = '\0';
    struct file deep[] = {MEMINFO,
                          {"proc/sys/vm/overcommit_memory", "0\n"},
                          ROOT,
                          {"proc/self/cgroup", text},
                          {CGROUP "a/memory.max", "41943040\n"}};
    assert_int_equal(headroom_of(deep, 5), 40 * MIB);
    assert_int_equal(limit_of(deep, 5, 0), HL_REASON_MEMORY_UNKNOWN);
    memset(text + 3, '/', 4087);
    assert_int_equal(headroom_of(deep, 4), 1024 * MIB);
    assert_int_equal(limit_of(deep, 4, 0), 0);
    memset(text + 3, 'a', 4087);
    assert_int_equal(headroom_of(deep, 4), 1024 * MIB);
    assert_int_equal(limit_of(deep, 4, 0), HL_REASON_MEMORY_UNKNOWN);
    free(text);
}

static void test_resource_limits(void **state) {
    (void)state;
    static const int resources[] = {RLIMIT_AS, RLIMIT_DATA};
    for (unsigned i = 0; i < T_COUNT(resources); i++) {
        struct rlimit before, limit;
        assert_int_equal(getrlimit(resources[i], &before), 0);
        limit = (struct rlimit){(rlim_t)1 << 46, before.rlim_max};
        assert_int_equal(setrlimit(resources[i], &limit), 0);
        int result = hl_check_resource_limits();
        assert_int_equal(setrlimit(resources[i], &before), 0);
        assert_int_equal(result, HL_REASON_MEMORY_LIMIT);
        assert_int_equal(hl_check_resource_limits(), 0);
    }
}

/* A filter of system calls that refuses prlimit64. */
static void test_resource_limits_refused(void **state) {
    (void)state;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {T_COUNT(code), code};
    pid_t child = fork();
    if (child == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            _exit(77);
        _exit(hl_check_resource_limits() == HL_REASON_MEMORY_UNKNOWN ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_endless_paths),
        cmocka_unit_test(test_resource_limits),
        cmocka_unit_test(test_resource_limits_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
