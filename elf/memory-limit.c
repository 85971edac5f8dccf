/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether there is memory for private copies.  File text is shared with every process that runs it and can be
   dropped under pressure; a copy in anonymous memory is neither, and is charged.  A container of 40 MiB runs
   64 MiB of file text happily and is killed by a copy of it.

   At its start nothing tells how much memory a program is going to need, nor which processes look at the
   same moment.  So free memory under a limit is not considered: if a limit applies, or cannot be ruled
   out, no copy is made that the user has not asked for, and a machine without limits keeps a margin.  If
   the user asked, with backend=thp, the headroom of the moment decides. */
#include "memory-limit.h"
#include "sys.h"
#include "line.h"

#include <linux/resource.h>

/* Of the usable nodes, in bytes. */
struct memory {
    uint64_t total, available;
};

/* The memory cgroup of this process under the mount of its hierarchy; and then in turn its ancestors up to
   the mount itself, which inside a container is the container's own group. */
struct group {
    bool is_v1;
    size_t mount_bytes;
    struct hl_line directory;
};

static uint64_t in_bytes(const struct hl_number *kib) {
    return kib->value <= UINT64_MAX / 1024 ? kib->value * 1024 : 0;
}

void hl_read_machine(struct hl_machine *machine, const struct hl_roots *roots) {
    static const char *const keys[] = {
        "MemTotal:", "MemAvailable:", "CommitLimit:", "Committed_AS:", "Hugetlb:"};
    struct hl_number number[5];
    struct hl_line path;
    hl_set_line(&path, roots->proc);
    hl_add_text(&path, "/meminfo");
    for (unsigned i = 0; i < 5; i++)
        hl_seek_number(&number[i], keys[i]);
    bool is_read = hl_read_numbers(path.at, number, 5) && number[1].value > 0;
    machine->total = is_read ? hl_subtract(in_bytes(&number[0]), in_bytes(&number[4])) : 0;
    machine->available = in_bytes(&number[1]);
    machine->commit_limit = in_bytes(&number[2]);
    machine->commit_room = hl_subtract(in_bytes(&number[2]), in_bytes(&number[3]));
    machine->pools = number[4].is_found ? in_bytes(&number[4]) : UINT64_MAX;
}

static bool read_overcommit(uint64_t *overcommit, const struct hl_roots *roots) {
    struct hl_line path;
    hl_set_line(&path, roots->proc);
    hl_add_text(&path, "/sys/vm/overcommit_memory");
    return hl_read_number(path.at, overcommit);
}

/* --- nodes --- */

/* Adds the memory of node NODE ("Node 0 MemFree:   4711 kB"); its free memory and file pages are available. */
static void add_node(struct memory *sum, const struct hl_roots *roots, uint64_t node) {
    static const char *const names[] = {" MemTotal:", " MemFree:", " Active(file):", " Inactive(file):"};
    struct hl_number number[4];
    struct hl_line path, key[4];
    for (unsigned i = 0; i < 4; i++) {
        hl_set_line(&key[i], "Node ");
        hl_add_number(&key[i], node);
        hl_add_text(&key[i], names[i]);
        hl_seek_number(&number[i], key[i].at);
    }
    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/devices/system/node/node");
    hl_add_number(&path, node);
    hl_add_text(&path, "/meminfo");
    hl_read_numbers(path.at, number, 4);
    sum->total += in_bytes(&number[0]);
    sum->available += in_bytes(&number[1]) + in_bytes(&number[2]) + in_bytes(&number[3]);
}

/* Sums up the usable nodes.  False if every node is usable; then nothing more is read. */
static bool read_nodes(struct memory *sum, const struct hl_roots *roots,
                       const struct hl_placement *placement) {
    struct hl_line path;
    char online[1024];
    uint64_t first, last;
    bool restricted = false;
    sum->total = sum->available = 0;
    if (placement->is_only_node)
        return false;
    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/devices/system/node/online");
    long bytes = hl_read_line(path.at, online, sizeof online);
    const char *end = online + (bytes > 0 ? bytes : 0);
    for (const char *at = online; hl_scan_range(&at, end, &first, &last);)
        for (uint64_t node = first; node <= last && node < HL_NODE_NUMBERS; node++)
            restricted = restricted || hl_find_node_use(placement, node) != HL_NODE_USABLE;
    for (const char *at = online; restricted && hl_scan_range(&at, end, &first, &last);)
        for (uint64_t node = first; node <= last && node < HL_NODE_NUMBERS; node++)
            if (hl_find_node_use(placement, node) == HL_NODE_USABLE)
                add_node(sum, roots, node);
    return restricted;
}

/* --- control groups --- */

/* Like hl_read_line, for the file NAME ("/memory.max") of GROUP.  A path that is too long is a
   directory's. */
static long read_in(struct group *group, const char *name, char *buffer, size_t buffer_bytes) {
    size_t directory_bytes = group->directory.bytes;
    hl_add_text(&group->directory, name);
    long bytes = hl_read_line(group->directory.at, buffer, buffer_bytes);
    group->directory.bytes = directory_bytes;
    return bytes;
}

/* Like hl_read_numbers, for GROUP's memory.stat. */
static bool read_stat(struct group *group, struct hl_number *number, unsigned n) {
    size_t directory_bytes = group->directory.bytes;
    hl_add_text(&group->directory, "/memory.stat");
    bool is_read = hl_read_numbers(group->directory.at, number, n);
    group->directory.bytes = directory_bytes;
    return is_read;
}

/* The number in the file NAME of GROUP; UINT64_MAX for "max" or an error.  0, or a negated errno. */
static int read_bytes(struct group *group, const char *name, uint64_t *number) {
    char buffer[64];
    const char *at = buffer;
    *number = UINT64_MAX;
    long bytes = read_in(group, name, buffer, sizeof buffer);
    if (bytes < 0)
        return (int)bytes;
    if (bytes >= 3 && hl_same_bytes(buffer, "max", 3))
        return 0;
    return hl_scan_number(&at, buffer + bytes, 10, number) ? 0 : -EINVAL;
}

static bool exists(struct group *group) {
    char controllers[512];
    return read_in(group, "/cgroup.controllers", controllers, sizeof controllers) >= 0;
}

/* cgroup.events is in every group but the root. */
static bool is_root(struct group *group) {
    char events[512];
    return read_in(group, "/cgroup.events", events, sizeof events) == -ENOENT;
}

static bool go_up(struct group *group) {
    size_t bytes = group->directory.bytes;
    if (bytes == group->mount_bytes)
        return false;
    while (bytes > group->mount_bytes && group->directory.at[bytes - 1] != '/')
        bytes--;
    while (bytes > group->mount_bytes && group->directory.at[bytes - 1] == '/')
        bytes--;
    group->directory.bytes = bytes;
    return true;
}

static void set_mount(struct group *group, const struct hl_roots *roots, const char *mount) {
    hl_set_line(&group->directory, roots->sys);
    hl_add_text(&group->directory, mount);
    group->mount_bytes = group->directory.bytes;
}

static void set_group(struct group *group, const struct hl_roots *roots, struct hl_string path, bool is_v1) {
    group->is_v1 = is_v1;
    set_mount(group, roots, is_v1 ? "/fs/cgroup/memory" : "/fs/cgroup");
    if (!is_v1 && !exists(group))
        set_mount(group, roots, "/fs/cgroup/unified");
    while (path.bytes > 0 && path.at[path.bytes - 1] == '/')
        path.bytes--;
    for (size_t i = 0; i < path.bytes; i++)
        hl_add_text(&group->directory, (char[]){path.at[i], '\0'});
}

/* Where the text behind the next colon begins, or END. */
static const char *pass_colon(const char *at, const char *end) {
    while (at < end && *at++ != ':')
        ;
    return at;
}

/* Whether the comma-separated controllers of a v1 line have "memory" among them. */
static bool has_memory_controller(struct hl_string controllers) {
    for (size_t at = 0; at < controllers.bytes;) {
        size_t bytes = 0;
        while (at + bytes < controllers.bytes && controllers.at[at + bytes] != ',')
            bytes++;
        if (bytes == 6 && hl_same_bytes(controllers.at + at, "memory", 6))
            return true;
        at += bytes + 1;
    }
    return false;
}

/* Finds the group whose memory this process counts in, from lines like "4:memory:/path" (v1) and "0::/path"
   (v2); a controller is in one hierarchy only.  1, 0 if there is none, or a negated errno. */
static int find_group(struct group *group, const struct hl_roots *roots) {
    struct hl_line path;
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    const char *line, *end;
    int found = 0;
    hl_set_line(&path, roots->proc);
    hl_add_text(&path, "/self/cgroup");
    hl_open_lines(&lines, path.at, buffer, sizeof buffer);
    if (lines.fd == -ENOENT) /* the kernel has no groups */
        return 0;
    while ((found == 0 || !group->is_v1) && hl_next_line(&lines, &line, &end)) {
        const char *names = pass_colon(line, end), *group_path = pass_colon(names, end);
        size_t names_bytes = group_path > names ? (size_t)(group_path - names - 1) : 0;
        bool is_v1 = has_memory_controller((struct hl_string){names, names_bytes});
        if (!is_v1 && (end - line < 3 || !hl_same_bytes(line, "0::", 3)))
            continue;
        set_group(group, roots, (struct hl_string){group_path, (size_t)(end - group_path)}, is_v1);
        found = 1;
    }
    hl_close_lines(&lines);
    return lines.failed ? -EIO : found;
}

/* memory.stat has the least limit of the group and of all ancestors, also of those outside a container. */
static int check_v1(struct group *group, uint64_t total) {
    struct hl_number limit;
    hl_seek_number(&limit, "hierarchical_memory_limit ");
    if (!read_stat(group, &limit, 1) || !limit.is_found)
        return HL_REASON_MEMORY_UNKNOWN;
    return limit.value < total ? HL_REASON_MEMORY_LIMIT : 0;
}

/* The files are missing in groups without the controller, and in the root.  A mount of another group than
   the root is a container's, whose ancestors cannot be seen. */
static int check_v2(struct group *group, uint64_t total) {
    do {
        uint64_t max, high = UINT64_MAX;
        int result = read_bytes(group, "/memory.max", &max);
        if ((result != -ENOENT || !exists(group)) &&
            (result != 0 || read_bytes(group, "/memory.high", &high) != 0))
            return HL_REASON_MEMORY_UNKNOWN;
        if (max < total || high < total)
            return HL_REASON_MEMORY_LIMIT;
    } while (go_up(group));
    return is_root(group) ? 0 : HL_REASON_MEMORY_UNKNOWN;
}

static int check_groups(const struct hl_roots *roots, uint64_t total) {
    struct group group;
    int found = find_group(&group, roots);
    if (found <= 0)
        return found == 0 ? 0 : HL_REASON_MEMORY_UNKNOWN;
    return group.is_v1 ? check_v1(&group, total) : check_v2(&group, total);
}

/* The usage of GROUP that it could not give back by dropping file pages. */
static uint64_t read_fixed_usage(struct group *group) {
    struct hl_number file[2];
    hl_seek_number(&file[0], group->is_v1 ? "total_active_file " : "active_file ");
    hl_seek_number(&file[1], group->is_v1 ? "total_inactive_file " : "inactive_file ");
    uint64_t usage;
    if (read_bytes(group, group->is_v1 ? "/memory.usage_in_bytes" : "/memory.current", &usage) != 0)
        return 0;
    read_stat(group, file, 2);
    return hl_subtract(hl_subtract(usage, file[0].value), file[1].value);
}

static uint64_t read_group_headroom(struct group *group) {
    uint64_t limit, high = UINT64_MAX;
    read_bytes(group, group->is_v1 ? "/memory.limit_in_bytes" : "/memory.max", &limit);
    if (!group->is_v1)
        read_bytes(group, "/memory.high", &high);
    limit = high < limit ? high : limit;
    return limit == UINT64_MAX ? limit : hl_subtract(limit, read_fixed_usage(group));
}

static uint64_t read_groups_headroom(const struct hl_roots *roots) {
    struct group group;
    uint64_t least = UINT64_MAX;
    if (find_group(&group, roots) <= 0)
        return least;
    do {
        uint64_t headroom = read_group_headroom(&group);
        least = headroom < least ? headroom : least;
    } while (go_up(&group));
    return least;
}

/* --- the questions --- */

static int check_rlimit(int resource) {
    struct rlimit64 limit;
    if (hl_is_error(HL_CALL(__NR_prlimit64, 0, resource, NULL, &limit, 0, 0)))
        return HL_REASON_MEMORY_UNKNOWN;
    return limit.rlim_cur == RLIM64_INFINITY ? 0 : HL_REASON_MEMORY_LIMIT;
}

int hl_check_address_limit(void) { return check_rlimit(RLIMIT_AS); }

int hl_check_resource_limits(void) {
    int result = hl_check_address_limit();
    return result != 0 ? result : check_rlimit(RLIMIT_DATA);
}

/* Whether too little of TOTAL would be left.  Several processes may look at the same moment. */
static bool is_short(uint64_t total, uint64_t available, uint64_t bytes) {
    uint64_t left = hl_subtract(available, bytes);
    return left < total / 4 || left < bytes;
}

/* CommitLimit is one only where overcommitting is forbidden.  Elsewhere more may be committed than that. */
static int check_overcommit(const struct hl_roots *roots, const struct hl_machine *machine, uint64_t bytes) {
    uint64_t overcommit;
    if (machine->commit_limit > 0 && !is_short(machine->commit_limit, machine->commit_room, bytes))
        return 0;
    if (!read_overcommit(&overcommit, roots))
        return HL_REASON_MEMORY_UNKNOWN;
    return overcommit == 2 ? HL_REASON_MEMORY_LIMIT : 0;
}

int hl_check_memory_limit(const struct hl_roots *roots, const struct hl_placement *placement,
                          const struct hl_machine *machine, uint64_t bytes) {
    struct memory nodes;
    int result = machine->total > 0 ? check_overcommit(roots, machine, bytes) : HL_REASON_MEMORY_UNKNOWN;
    if (result == 0)
        result = check_groups(roots, machine->total);
    if (result != 0)
        return result;
    bool restricted = read_nodes(&nodes, roots, placement);
    if (restricted && nodes.total == 0)
        return HL_REASON_MEMORY_UNKNOWN;
    bool is_any_short = is_short(machine->total, machine->available, bytes) ||
                        (restricted && is_short(nodes.total, nodes.available, bytes));
    return is_any_short ? HL_REASON_MEMORY_SHORT : 0;
}

uint64_t hl_read_memory_headroom(const struct hl_roots *roots, const struct hl_placement *placement) {
    struct hl_machine machine;
    struct memory nodes;
    uint64_t least = read_groups_headroom(roots), overcommit;
    hl_read_machine(&machine, roots);
    if (read_nodes(&nodes, roots, placement) && nodes.total > 0 && nodes.available < least)
        least = nodes.available;
    if (machine.total == 0)
        return least;
    if (machine.available < least)
        least = machine.available;
    if (machine.commit_room < least && read_overcommit(&overcommit, roots) && overcommit == 2)
        least = machine.commit_room;
    return least;
}
