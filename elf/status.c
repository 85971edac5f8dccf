/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/thread-self/status, line by line, because it has no greatest length: the groups of a process can take
   hundreds of KiB.

   It is read before anything else is tried: a filter that a sandbox has put on the process may kill it for a system call that
   other programs never make.  Reading takes only calls that the dynamic linker has just made itself (openat, read, close).  And
   it is read on the stack of the thread that calls dlopen(3), which may be small: so the buffer is elsewhere. */
#include "status.h"
#include "line.h"
#include "numa.h"
#include "sys.h"

#include <linux/fcntl.h>

static void read_nodes(struct hl_nodes *nodes, const char *at, const char *end) {
    uint64_t first, last;
    hl_fill_nodes(nodes, 0);
    while (hl_scan_range(&at, end, &first, &last))
        for (uint64_t i = first; i <= last && i < HL_NODE_NUMBERS; i++)
            nodes->bits[i / 64] |= (uint64_t)1 << i % 64;
}

/* The real, effective, saved and file system user, or group: whether all are one, *ID. */
static bool read_ids(uint64_t *id, const char *at, const char *end) {
    uint64_t number[4];
    for (unsigned i = 0; i < 4; i++)
        if (!hl_scan_number(&at, end, 10, &number[i]) || !hl_skip_key(&at, end, ""))
            return false;
    *id = number[1];
    return number[0] == number[1] && number[2] == number[1] && number[3] == number[1];
}

/* Reads a line.  True after the last line that is wanted. */
static bool read_line(struct hl_status *status, const char *at, const char *end) {
    uint64_t number;
    if (hl_skip_key(&at, end, "TracerPid:"))
        status->is_traced = hl_scan_number(&at, end, 10, &number) && number != 0;
    else if (hl_skip_key(&at, end, "Threads:"))
        status->has_threads = !hl_scan_number(&at, end, 10, &number) || number != 1;
    else if (hl_skip_key(&at, end, "Seccomp:") || hl_skip_key(&at, end, "Seccomp_filters:"))
        status->filters = hl_scan_number(&at, end, 10, &number) ? number : HL_FILTERS_UNKNOWN;
    else if (hl_skip_key(&at, end, "Uid:"))
        status->is_one_user = read_ids(&status->user, at, end);
    else if (hl_skip_key(&at, end, "Gid:"))
        status->is_one_group = read_ids(&status->group, at, end);
    else if (hl_skip_key(&at, end, "CapPrm:"))
        status->has_capabilities = !hl_scan_number(&at, end, 16, &number) || number != 0;
    else if (hl_skip_key(&at, end, "VmLck:"))
        status->has_locked = hl_scan_number(&at, end, 10, &number) && number != 0;
    else if (hl_skip_key(&at, end, "THP_enabled:"))
        status->thp_disabled = hl_scan_number(&at, end, 10, &number) && number == 0;
    bool is_last = hl_skip_key(&at, end, "Mems_allowed_list:");
    if (is_last)
        read_nodes(&status->nodes, at, end);
    return is_last;
}

static long open_status(struct hl_status *status, const struct hl_roots *roots, const char *name) {
    size_t bytes = hl_strlen(roots->proc), more = hl_strlen(name) + 1;
    if (bytes + more > sizeof status->text)
        return -ENAMETOOLONG;
    hl_copy_bytes(status->text, roots->proc, bytes);
    hl_copy_bytes(status->text + bytes, name, more);
    return hl_open(status->text, O_RDONLY | O_CLOEXEC);
}

static void read_lines(struct hl_status *status, long fd) {
    struct hl_lines lines;
    const char *at, *end;
    hl_begin_lines(&lines, fd, status->text, sizeof status->text);
    while (hl_next_line(&lines, &at, &end) && !read_line(status, at, end))
        ;
    if (lines.failed)
        status->filters = HL_FILTERS_UNKNOWN;
}

static long read_status(struct hl_status *status, const struct hl_roots *roots, const char *name) {
    status->has_threads = true;
    status->is_traced = status->thp_disabled = status->has_locked = false;
    status->filters = 0; /* the kernel may have no filters */
    status->user = HL_USER_UNKNOWN;
    status->group = HL_USER_UNKNOWN;
    status->is_one_user = status->is_one_group = false;
    status->has_capabilities = true;
    hl_fill_nodes(&status->nodes, ~(uint64_t)0);
    long fd = open_status(status, roots, name);
    read_lines(status, fd);
    return fd;
}

void hl_read_status(struct hl_status *status, const struct hl_roots *roots) {
    long fd = read_status(status, roots, "/thread-self/status");
    if (!hl_is_error(fd))
        hl_close((int)fd);
}

long hl_read_first_status(struct hl_status *status, const struct hl_roots *roots) {
    return read_status(status, roots, "/self/status");
}
