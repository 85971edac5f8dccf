/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When transparent huge pages may stand in.  File text is shared with every process that runs it and can be
   dropped under pressure; a copy in anonymous memory is neither, and is charged to the process's memory
   cgroup.  A container of 40 MiB runs 64 MiB of file text happily and is killed by a copy of it. */
#include "thp.h"
#include "sys.h"
#include "text.h"

#include <linux/prctl.h>

/* Bit 1 of PR_GET_THP_DISABLE's answer: disabled, but not where memory was advised (Linux 6.18). */
#define DISABLED_EXCEPT_ADVISED 2

/* The chosen word of a sysfs choice, "always [madvise] never": whether it is WORD. */
static bool is_chosen(const char *choice, const char *word) {
    size_t bytes = hl_text_bytes(word);
    for (; *choice != '\0'; choice++)
        if (*choice == '[')
            return hl_text_bytes(choice) > bytes + 1 && hl_same_bytes(choice + 1, word, bytes) &&
                   choice[bytes + 1] == ']';
    return false;
}

int hl_check_thp_policy(const struct hl_roots *roots) {
    struct hl_text path;
    char choice[256];
    hl_set_text(&path, roots->sys);
    hl_add_text(&path, "/kernel/mm/transparent_hugepage/");
    size_t directory_bytes = path.bytes;

    /* Since Linux 6.8 each size has a setting of its own, which may inherit the general one. */
    struct hl_geometry geometry;
    hl_read_geometry(&geometry, roots, 4096);
    hl_add_text(&path, "hugepages-");
    hl_add_number(&path, geometry.huge_page_bytes / 1024);
    hl_add_text(&path, "kB/enabled");
    if (hl_read_file(path.at, choice, sizeof choice) <= 0 || is_chosen(choice, "inherit")) {
        path.bytes = directory_bytes;
        hl_add_text(&path, "enabled");
        if (hl_read_file(path.at, choice, sizeof choice) <= 0)
            return HL_SKIP_THP_NEVER;
    }
    if (is_chosen(choice, "never"))
        return HL_SKIP_THP_NEVER;
    long disabled = hl_prctl(PR_GET_THP_DISABLE, 0, 0);
    return disabled > 0 && !(disabled & DISABLED_EXCEPT_ADVISED) ? HL_SKIP_THP_DISABLED : 0;
}

static bool read_number_in(const struct hl_text *directory, const char *name, uint64_t *number) {
    struct hl_text path;
    hl_set_text(&path, directory->at);
    hl_add_text(&path, name);
    return hl_read_number(path.at, number); /* memory.max says "max" where there is no limit */
}

/* What the group at DIRECTORY uses and could not give back by dropping file pages. */
static uint64_t read_fixed_usage(const struct hl_text *directory, const char *usage_name,
                                 const char *prefix) {
    struct hl_text path, key;
    char stat[16384];
    uint64_t usage = 0, active = 0, inactive = 0;
    read_number_in(directory, usage_name, &usage);
    hl_set_text(&path, directory->at);
    hl_add_text(&path, "/memory.stat");
    if (hl_read_file(path.at, stat, sizeof stat) > 0) {
        hl_set_text(&key, prefix);
        hl_add_text(&key, "active_file ");
        hl_find_number(stat, key.at, &active);
        hl_set_text(&key, prefix);
        hl_add_text(&key, "inactive_file ");
        hl_find_number(stat, key.at, &inactive);
    }
    return hl_subtract(hl_subtract(usage, active), inactive);
}

static uint64_t read_group_headroom(const struct hl_text *directory, bool v1) {
    uint64_t limit = UINT64_MAX, high;
    if (v1) {
        read_number_in(directory, "/memory.limit_in_bytes", &limit);
    } else {
        read_number_in(directory, "/memory.max", &limit);
        if (read_number_in(directory, "/memory.high", &high) && high < limit)
            limit = high;
    }
    if (limit == UINT64_MAX)
        return limit;
    return hl_subtract(limit, v1 ? read_fixed_usage(directory, "/memory.usage_in_bytes", "total_")
                                 : read_fixed_usage(directory, "/memory.current", ""));
}

/* The least headroom of the group at PATH under MOUNT and of all its ancestors up to the mount itself, which
   inside a container is the container's own group. */
static uint64_t read_ancestors_headroom(const char *mount, struct hl_string path, bool v1) {
    uint64_t least = UINT64_MAX;
    for (size_t bytes = path.bytes;;) {
        while (bytes > 0 && path.at[bytes - 1] == '/')
            bytes--;
        struct hl_text directory;
        hl_set_text(&directory, mount);
        for (size_t i = 0; i < bytes; i++)
            hl_add_text(&directory, (char[]){path.at[i], '\0'});
        uint64_t headroom = read_group_headroom(&directory, v1);
        least = headroom < least ? headroom : least;
        if (bytes == 0)
            return least;
        while (bytes > 0 && path.at[bytes - 1] != '/')
            bytes--;
    }
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

/* One line of /proc/self/cgroup, "4:memory:/path" or "0::/path". */
static uint64_t read_line_headroom(const struct hl_roots *roots, const char *line, const char *end) {
    struct hl_text mount;
    const char *controllers = line;
    while (controllers < end && *controllers++ != ':')
        ;
    const char *path = controllers;
    while (path < end && *path != ':')
        path++;
    struct hl_string names = {controllers, (size_t)(path - controllers)};
    path += path < end;
    struct hl_string group = {path, (size_t)(end - path)};

    hl_set_text(&mount, roots->sys);
    hl_add_text(&mount, "/fs/cgroup");
    size_t mount_bytes = mount.bytes;
    if (names.bytes > 0) {
        hl_add_text(&mount, "/memory");
        return has_memory_controller(names) ? read_ancestors_headroom(mount.at, group, true) : UINT64_MAX;
    }
    uint64_t unified = read_ancestors_headroom(mount.at, group, false);
    mount.bytes = mount_bytes;
    hl_add_text(&mount, "/unified");
    uint64_t hybrid = read_ancestors_headroom(mount.at, group, false);
    return unified < hybrid ? unified : hybrid;
}

/* The number after NAME in node NODE's meminfo ("Node 0 MemFree:   4711 kB"), in bytes; 0 if it isn't there.
 */
static uint64_t read_node_field(const char *meminfo, uint64_t node, const char *name) {
    struct hl_text key;
    uint64_t number = 0;
    hl_set_text(&key, "Node ");
    hl_add_number(&key, node);
    hl_add_text(&key, name);
    return hl_find_number(meminfo, key.at, &number) ? number * 1024 : 0;
}

/* Free memory and file pages of node NODE. */
static uint64_t read_node_headroom(const struct hl_roots *roots, uint64_t node, bool *read) {
    struct hl_text path;
    char meminfo[8192];
    hl_set_text(&path, roots->sys);
    hl_add_text(&path, "/devices/system/node/node");
    hl_add_number(&path, node);
    hl_add_text(&path, "/meminfo");
    if (hl_read_file(path.at, meminfo, sizeof meminfo) <= 0)
        return 0;
    *read = true;
    return read_node_field(meminfo, node, " MemFree:") + read_node_field(meminfo, node, " Active(file):") +
           read_node_field(meminfo, node, " Inactive(file):");
}

/* The same of all usable nodes; UINT64_MAX where every node is usable, which takes no further reading, or
   none can be read. */
static uint64_t read_nodes_headroom(const struct hl_roots *roots, const struct hl_placement *placement) {
    struct hl_text path;
    char online[1024];
    uint64_t sum = 0, first, last;
    bool restricted = false, read = false;
    hl_set_text(&path, roots->sys);
    hl_add_text(&path, "/devices/system/node/online");
    long bytes = hl_read_file(path.at, online, sizeof online);
    const char *end = online + (bytes > 0 ? bytes : 0);
    for (const char *at = online; hl_scan_range(&at, end, &first, &last);)
        for (uint64_t node = first; node <= last && node < HL_NODE_NUMBERS; node++)
            restricted = restricted || hl_find_node_use(placement, node) != HL_NODE_USABLE;
    for (const char *at = online; restricted && hl_scan_range(&at, end, &first, &last);)
        for (uint64_t node = first; node <= last && node < HL_NODE_NUMBERS; node++)
            if (hl_find_node_use(placement, node) == HL_NODE_USABLE)
                sum += read_node_headroom(roots, node, &read);
    return read ? sum : UINT64_MAX;
}

uint64_t hl_read_memory_headroom(const struct hl_roots *roots, const struct hl_placement *placement) {
    struct hl_text path;
    char buffer[8192];
    uint64_t least = read_nodes_headroom(roots, placement), available;
    hl_set_text(&path, roots->proc);
    size_t proc_bytes = path.bytes;
    hl_add_text(&path, "/meminfo");
    if (hl_read_file(path.at, buffer, sizeof buffer) > 0 &&
        hl_find_number(buffer, "MemAvailable:", &available) && available * 1024 < least)
        least = available * 1024;

    path.bytes = proc_bytes;
    hl_add_text(&path, "/self/cgroup");
    long bytes = hl_read_file(path.at, buffer, sizeof buffer);
    for (const char *line = buffer, *end; bytes > 0 && line < buffer + bytes; line = end + 1) {
        for (end = line; end < buffer + bytes && *end != '\n'; end++)
            ;
        uint64_t headroom = read_line_headroom(roots, line, end);
        least = headroom < least ? headroom : least;
    }
    return least;
}
