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
          {"proc/thread-self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 999999 kB\n"},
          {NODES "node1/meminfo", "Node 1 MemTotal: 2097152 kB\nNode 1 MemFree:  10240 kB\n"
                                  "Node 1 Active(file):  20480 kB\nNode 1 Inactive(file):    30720 kB\n"}},
         60 * MIB},
        {"both nodes: the machine's figure",
         {MEMINFO,
          {"proc/thread-self/status", "Mems_allowed_list:\t0-1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node0/meminfo", "Node 0 MemFree: 1024 kB\n"},
          {NODES "node1/meminfo", "Node 1 MemFree: 1024 kB\n"}},
         1024 * MIB},
        {"v2: max, less what is used",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.high", "max\n"},
          {CGROUP "app/memory.current", "41943040\n"},
          {CGROUP "app/memory.stat", "anon 41943040\nfile 0\nactive_file 0\ninactive_file 0\n"}},
         60 * MIB},
        {"v2: the files it caches can go",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.current", "94371840\n"},
          {CGROUP "app/memory.stat", "inactive_anon 7\nactive_file 10485760\ninactive_file 31457280\n"}},
         50 * MIB},
        {"v2: high below max",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"},
          {CGROUP "app/memory.high", "20971520\n"},
          {CGROUP "app/memory.current", "0\n"}},
         20 * MIB},
        {"v2: high alone",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "max\n"},
          {CGROUP "app/memory.high", "20971520\n"},
          {CGROUP "app/memory.current", "1048576\n"}},
         19 * MIB},
        {"v2: an ancestor",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/a/b/c\n"},
          {CGROUP "a/memory.max", "104857600\n"},
          {CGROUP "a/memory.current", "10485760\n"},
          {CGROUP "a/b/memory.max", "max\n"},
          {CGROUP "a/b/c/memory.max", "max\n"}},
         90 * MIB},
        {"v2: inside a container the mount is the group",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/\n"},
          {CGROUP "memory.max", "41943040\n"},
          {CGROUP "memory.current", "1048576\n"}},
         39 * MIB},
        {"v2: no limit",
         {MEMINFO, ROOT, {"proc/self/cgroup", "0::/app\n"}, {CGROUP "app/memory.max", "max\n"}},
         1024 * MIB},
        {"v2: more used than allowed",
         {MEMINFO,
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "1048576\n"},
          {CGROUP "app/memory.current", "2097152\n"}},
         0},
        {"v2: limit of 0 bytes",
         {MEMINFO, ROOT, {"proc/self/cgroup", "0::/app\n"}, {CGROUP "app/memory.max", "0\n"}},
         0},
        {"overcommit: what is committed counts, not what is used",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n"
                           "CommitLimit: 2097152 kB\nCommitted_AS: 2048000 kB\n"},
          {"proc/sys/vm/overcommit_memory", "2\n"}},
         48 * MIB},
        {"overcommit: more is committed than allowed",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n"
                           "CommitLimit: 1024 kB\nCommitted_AS: 2048 kB\n"},
          {"proc/sys/vm/overcommit_memory", "2\n"}},
         0},
        {"overcommit is allowed",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n"
                           "CommitLimit: 1024 kB\nCommitted_AS: 2048 kB\n"},
          {"proc/sys/vm/overcommit_memory", "1\n"}},
         1024 * MIB},
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
          {CGROUP "unified/two/cgroup.procs", "1\n"}},
         100 * MIB},
        {"v1 of others, and v2",
         {MEMINFO,
          {"proc/self/cgroup", "4:cpu:/one\n0::/two\n"},
          {CGROUP "unified/cgroup.controllers", "memory\n"},
          {CGROUP "unified/two/memory.max", "41943040\n"}},
         40 * MIB},
        {"the machine has less than the group",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 10240 kB\n"},
          ROOT,
          {"proc/self/cgroup", "0::/app\n"},
          {CGROUP "app/memory.max", "104857600\n"}},
         10 * MIB},
        {"rubbish",
         {MEMINFO,
          ROOT,
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

#define COMMITTED(kib)                                                                                       \
    {                                                                                                        \
        "proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\nCommitLimit: 2097152 kB\n"          \
                        "Committed_AS: " kib " kB\n"                                                         \
    }
#define MACHINE                                                                                              \
    MEMINFO, { "proc/sys/vm/overcommit_memory", "0\n" }
#define NO_LIMIT_V1 "9223372036854771712\n"

/* The machine has 4 GiB, of which one is available: margin and limits alike are judged for no bytes at all
   unless a row says more. */
static void test_limits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        struct file file[12];
        int result;
        uint64_t bytes;
    } row[] = {
        {"nothing can be read", {{NULL, NULL}}, HL_REASON_MEMORY_UNKNOWN, 0},
        {"no groups in this kernel", {MACHINE}, 0, 0},
        {"overcommit is allowed", {MEMINFO, {"proc/sys/vm/overcommit_memory", "1\n"}}, 0, 0},
        {"overcommit is forbidden",
         {MEMINFO, {"proc/sys/vm/overcommit_memory", "2\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"overcommit cannot be read", {MEMINFO}, HL_REASON_MEMORY_UNKNOWN, 0},
        {"overcommit is forbidden, and a quarter is left",
         {COMMITTED("1572864"), {"proc/sys/vm/overcommit_memory", "2\n"}},
         0,
         0},
        {"overcommit is forbidden, and less than a quarter would be left",
         {COMMITTED("1572864"), {"proc/sys/vm/overcommit_memory", "2\n"}},
         HL_REASON_MEMORY_LIMIT,
         2 * MIB},
        {"overcommit is forbidden, and less than the copies' size would be left",
         {COMMITTED("0"), {"proc/sys/vm/overcommit_memory", "2\n"}},
         HL_REASON_MEMORY_LIMIT,
         1025 * MIB},
        {"more is committed than there is, as is allowed",
         {COMMITTED("3000000"), {"proc/sys/vm/overcommit_memory", "0\n"}},
         0,
         0},
        {"no MemAvailable (before Linux 3.14)",
         {{"proc/meminfo", "MemTotal: 4194304 kB\n"}, {"proc/sys/vm/overcommit_memory", "0\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"no MemTotal",
         {{"proc/meminfo", "MemAvailable: 4194304 kB\n"}, {"proc/sys/vm/overcommit_memory", "0\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},

        {"v2: the root", {MACHINE, ROOT, {"proc/self/cgroup", "0::/\n"}}, 0, 0},
        {"v2: no limit",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a/b\n"},
          {CGROUP "a/memory.max", "max\n"},
          {CGROUP "a/memory.high", "max\n"},
          {CGROUP "a/b/memory.max", "max\n"},
          {CGROUP "a/b/memory.high", "max\n"}},
         0,
         0},
        {"v2: max",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a\n"},
          {CGROUP "a/memory.max", "4294963200\n"},
          {CGROUP "a/memory.high", "max\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v2: max is all that the machine has",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a\n"},
          {CGROUP "a/memory.max", "4294967296\n"},
          {CGROUP "a/memory.high", "max\n"}},
         0,
         0},
        {"v2: high",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a\n"},
          {CGROUP "a/memory.max", "max\n"},
          {CGROUP "a/memory.high", "4294963200\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v2: max of an ancestor",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a/b/c\n"},
          {CGROUP "a/memory.max", "104857600\n"},
          {CGROUP "a/memory.high", "max\n"},
          {CGROUP "a/b/memory.max", "max\n"},
          {CGROUP "a/b/memory.high", "max\n"},
          {CGROUP "a/b/c/cgroup.controllers", "\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v2: the controller does not reach the group",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a/b\n"},
          {CGROUP "a/memory.max", "max\n"},
          {CGROUP "a/memory.high", "max\n"},
          {CGROUP "a/b/cgroup.controllers", ""}},
         0,
         0},
        {"v2: the group is not there",
         {MACHINE, ROOT, {"proc/self/cgroup", "0::/a\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: the group has been removed",
         {MACHINE, ROOT, {"proc/self/cgroup", "0::/a (deleted)\n"}, {CGROUP "a/cgroup.controllers", "\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: outside the namespace",
         {MACHINE, ROOT, {"proc/self/cgroup", "0::/../a\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: not mounted", {MACHINE, {"proc/self/cgroup", "0::/\n"}}, HL_REASON_MEMORY_UNKNOWN, 0},
        {"v2: a container without a limit, in which one cannot see the ancestors'",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/\n"},
          {CGROUP "cgroup.events", "populated 1\nfrozen 0\n"},
          {CGROUP "memory.max", "max\n"},
          {CGROUP "memory.high", "max\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: the same, where the controller does not reach it",
         {MACHINE, ROOT, {"proc/self/cgroup", "0::/\n"}, {CGROUP "cgroup.events", "populated 1\nfrozen 0\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: a container with a limit",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/\n"},
          {CGROUP "cgroup.events", "populated 1\nfrozen 0\n"},
          {CGROUP "memory.max", "104857600\n"},
          {CGROUP "memory.high", "max\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v2: rubbish",
         {MACHINE,
          ROOT,
          {"proc/self/cgroup", "0::/a\n"},
          {CGROUP "a/memory.max", "rubbish\n"},
          {CGROUP "a/memory.high", "max\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v2: no memory.high",
         {MACHINE, ROOT, {"proc/self/cgroup", "0::/a\n"}, {CGROUP "a/memory.max", "max\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},

        {"v1: no limit",
         {MACHINE,
          {"proc/self/cgroup", "5:cpu:/x\n4:memory:/a\n0::/\n"},
          {CGROUP "memory/a/memory.stat",
           "cache 0\nhierarchical_memory_limit " NO_LIMIT_V1 "total_cache 0\n"}},
         0,
         0},
        {"v1: its own or an ancestor's",
         {MACHINE,
          {"proc/self/cgroup", "5:cpu:/x\n4:memory:/a\n0::/\n"},
          {CGROUP "memory/a/memory.stat", "cache 0\nhierarchical_memory_limit 104857600\ntotal_cache 0\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v1: all that the machine has",
         {MACHINE,
          {"proc/self/cgroup", "4:memory:/a\n"},
          {CGROUP "memory/a/memory.stat", "hierarchical_memory_limit 4294967296\n"}},
         0,
         0},
        {"v1: with another controller",
         {MACHINE,
          {"proc/self/cgroup", "4:cpuset,memory:/a\n"},
          {CGROUP "memory/a/memory.stat", "hierarchical_memory_limit 104857600\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v1: the group is not there, as in a container that sees the names of outside",
         {MACHINE,
          {"proc/self/cgroup", "4:memory:/docker/a\n"},
          {CGROUP "memory/memory.stat", "hierarchical_memory_limit " NO_LIMIT_V1}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v1: memory.stat does not say it",
         {MACHINE, {"proc/self/cgroup", "4:memory:/a\n"}, {CGROUP "memory/a/memory.stat", "cache 0\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
        {"v1 of other controllers, and v2",
         {MACHINE,
          {"proc/self/cgroup", "5:cpu:/x\n0::/a\n"},
          {CGROUP "unified/cgroup.controllers", "memory\n"},
          {CGROUP "unified/a/memory.max", "104857600\n"},
          {CGROUP "unified/a/memory.high", "max\n"}},
         HL_REASON_MEMORY_LIMIT,
         0},
        {"v1 of other controllers alone", {MACHINE, {"proc/self/cgroup", "5:cpu:/x\n"}}, 0, 0},
        {"a list of groups that cannot be read",
         {MACHINE, {"proc/self/cgroup/is-a-folder", "\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},

        {"short: a quarter remains",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1064960 kB\n"},
          {"proc/sys/vm/overcommit_memory", "0\n"}},
         0,
         16 * MIB},
        {"short: less than a quarter remains",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1064960 kB\n"},
          {"proc/sys/vm/overcommit_memory", "0\n"}},
         HL_REASON_MEMORY_SHORT,
         18 * MIB},
        {"short: a pool takes most of the machine",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 278528 kB\nHugetlb: 3145728 kB\n"},
          {"proc/sys/vm/overcommit_memory", "0\n"}},
         0,
         16 * MIB},
        {"short: less than a quarter of what a pool leaves",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 278528 kB\nHugetlb: 3145728 kB\n"},
          {"proc/sys/vm/overcommit_memory", "0\n"}},
         HL_REASON_MEMORY_SHORT,
         18 * MIB},
        {"short: less than the copies' size remains",
         {{"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\n"},
          {"proc/sys/vm/overcommit_memory", "0\n"}},
         HL_REASON_MEMORY_SHORT,
         2050 * MIB},
        {"short: more than there is", {MACHINE}, HL_REASON_MEMORY_SHORT, UINT64_MAX},
        {"short: the node, and not the machine",
         {MACHINE,
          {"proc/thread-self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node1/meminfo", "Node 1 MemTotal: 2097152 kB\nNode 1 MemFree:  10240 kB\n"}},
         HL_REASON_MEMORY_SHORT,
         0},
        {"a node with enough",
         {MACHINE,
          {"proc/thread-self/status", "Mems_allowed_list:\t1\n"},
          {NODES "online", "0-1\n"},
          {NODES "node1/meminfo", "Node 1 MemTotal: 2097152 kB\nNode 1 MemFree:  524288 kB\n"}},
         0,
         0},
        {"a node that cannot be read",
         {MACHINE, {"proc/thread-self/status", "Mems_allowed_list:\t1\n"}, {NODES "online", "0-1\n"}},
         HL_REASON_MEMORY_UNKNOWN,
         0},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        int result = limit_of(row[i].file, T_COUNT(row[i].file), row[i].bytes);
        if (result != row[i].result)
            fail_msg("%s: %s", row[i].name, result > 0 ? hl_reason_name((enum hl_reason)result) : "no limit");
    }
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
        cmocka_unit_test(test_headroom),
        cmocka_unit_test(test_endless_paths),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_resource_limits),
        cmocka_unit_test(test_resource_limits_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
