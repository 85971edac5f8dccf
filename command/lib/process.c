/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the texts of /proc/PID: smaps, numa_maps, auxv, comm, exe.

   The process that is looked at chooses a part of their contents (file names, its own name), so lines have no length limit and a
   line that doesn't parse is skipped.  Everything is opened relative to one descriptor of /proc/PID, so that a reused number gives
   ESRCH and never two processes in one answer. */
#include "command/lib/process.h"
#include "command/lib/basics.h"
#include "elf/line.h"
#include "elf/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define INITIAL_PID_NAMESPACE 0xeffffffc /* PROC_PID_INIT_INO (Linux, include/linux/proc_ns.h) */

bool hl_is_outermost(void) {
    struct stat space;
    return stat("/proc/self/ns/pid", &space) == 0 && space.st_ino == INITIAL_PID_NAMESPACE;
}

int hl_open_process_file(const struct hl_process *process, const char *name) {
    int fd = openat(process->folder, name, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

ssize_t hl_read_process_file(const struct hl_process *process, const char *name, void *to, size_t bytes) {
    int file = hl_open_process_file(process, name);
    if (file < 0)
        return file;
    ssize_t done = read(file, to, bytes);
    close(file);
    return done >= 0 ? done : -EIO;
}

/* The kernel makes a page of text in each call, and stdio would ask for a quarter of that.  BUFFER is the caller's until fclose(3):
   thread-local memory of that size would cost each `hugeld run` a mapping at its start. */
#define TEXT_BYTES ((size_t)4096)
static FILE *open_text(const struct hl_process *process, const char *name, char buffer[TEXT_BYTES]) {
    FILE *text = hl_open_text(process->folder, name);
    if (text != NULL)
        setvbuf(text, buffer, _IOFBF, TEXT_BYTES);
    return text;
}

int hl_open_process(struct hl_process *process, pid_t pid) {
    memset(process, 0, sizeof *process);
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", pid);
    process->pid = pid;
    process->folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process->folder < 0)
        return -errno;
    char name[80]; /* longer than any; a name may hold newlines, and the last one is the kernel's */
    char buffer[TEXT_BYTES];
    FILE *text = open_text(process, "comm", buffer);
    size_t bytes = text != NULL ? fread(name, 1, sizeof name, text) : 0;
    process->name = bytes > 0 ? hl_xasprintf("%.*s", (int)bytes - 1, name) : hl_xasprintf("?");
    if (text != NULL)
        fclose(text);
    return 0;
}

/* "00400000-00452000 r-xp 00000000 08:02 173521   /usr/bin/x" */
static bool parse_region(struct hl_region *region, char *line) {
    char permissions[5];
    unsigned major, minor;
    uint64_t inode;
    int name = 0;
    memset(region, 0, sizeof *region);
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &region->start,
               &region->end, permissions, &region->offset, &major, &minor, &inode, &name) < 7 ||
        strlen(permissions) != 4 || region->start >= region->end)
        return false;
    region->flags = (permissions[0] == 'r' ? PF_R : 0) | (permissions[1] == 'w' ? PF_W : 0) |
                    (permissions[2] == 'x' ? PF_X : 0);
    region->shared = permissions[3] == 's';
    region->device = makedev(major, minor);
    region->inode = (ino_t)inode;
    region->name = line + name;
    return true;
}

bool hl_next_region(struct hl_region *region, FILE *maps, char **line, size_t *size) {
    while (getline(line, size, maps) >= 0) {
        (*line)[strcspn(*line, "\n")] = '\0';
        if (parse_region(region, *line))
            return true;
    }
    return false;
}

bool hl_find_own_region(struct hl_region *region, const void *start, char **line) {
    FILE *maps = fopen("/proc/self/maps", "re");
    size_t size = 0;
    bool found = false;
    while (maps != NULL && !found && hl_next_region(region, maps, line, &size))
        found = region->start == (uint64_t)start && region->inode != 0;
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* "AnonHugePages:      2048 kB" */
static void parse_field(struct hl_region *region, const char *line) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"KernelPageSize:", offsetof(struct hl_region, page_bytes)},
        {"Rss:", offsetof(struct hl_region, resident_bytes)},
        {"Private_Hugetlb:", offsetof(struct hl_region, private_hugetlb_bytes)},
        {"Shared_Hugetlb:", offsetof(struct hl_region, shared_hugetlb_bytes)},
        {"AnonHugePages:", offsetof(struct hl_region, anon_huge_bytes)},
        {"FilePmdMapped:", offsetof(struct hl_region, file_pmd_bytes)},
        {"ShmemPmdMapped:", offsetof(struct hl_region, shmem_pmd_bytes)},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        size_t length = strlen(fields[i].name);
        if (strncmp(line, fields[i].name, length) == 0) {
            uint64_t bytes = strtoull(line + length, NULL, 10) * 1024;
            memcpy((char *)region + fields[i].offset, &bytes, sizeof bytes);
        }
    }
    /* A copy on transparent huge pages may be a memfd's (map_thp in elf/prepare.c). */
    if (region->shmem_pmd_bytes > 0 && region->name != NULL &&
        strcmp(region->name, "/memfd:hugeld" HL_DELETED) == 0) {
        region->anon_huge_bytes = region->shmem_pmd_bytes;
        region->shmem_pmd_bytes = region->inode = 0;
    }
    if (strncmp(line, "ProtectionKey:", strlen("ProtectionKey:")) == 0)
        region->protection_key = strtoul(line + strlen("ProtectionKey:"), NULL, 10);
    if (strncmp(line, "VmFlags: ", strlen("VmFlags: ")) == 0)
        snprintf(region->vm_flags, sizeof region->vm_flags, "%s", line + strlen("VmFlags: "));
}

bool hl_has_huge_pages(const struct hl_process *process) {
    struct hl_region sum = {0};
    size_t size = 0;
    char *line = NULL, buffer[TEXT_BYTES];
    FILE *text = open_text(process, "smaps_rollup", buffer);
    if (text == NULL)
        return false;
    while (getline(&line, &size, text) >= 0)
        parse_field(&sum, line);
    free(line);
    fclose(text);
    return hl_huge_bytes(&sum) > 0;
}

/* Takes over REGION's pointers. */
static void add_region(struct hl_process *process, const struct hl_region *region) {
    size_t n = process->n_regions;
    if (n == 0 || (n >= 8 && (n & (n - 1)) == 0)) /* 8 at first, and then twice as many */
        process->region = hl_xrealloc(process->region, (n == 0 ? 8 : 2 * n) * sizeof *region);
    process->region[process->n_regions++] = *region;
}

/* Reads from the text NAME, maps or smaps, the regions that overlap the N ascending RANGEs, and stops after the last one; with
   LITTLE in small calls, since the kernel looks at all regions that fit into a call's buffer. */
static int search_ranges(struct hl_process *process, const char *name, const struct hl_address_range *range,
                         size_t n, bool little) {
    char buffer[TEXT_BYTES];
    FILE *text = open_text(process, name, buffer);
    struct hl_region region;
    size_t size = 0, i = 0;
    bool is_wanted = false;
    char *line = NULL, few[256];
    if (text == NULL)
        return -errno;
    if (little)
        setvbuf(text, few, _IOFBF, sizeof few);
    while (i < n && getline(&line, &size, text) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        if (!parse_region(&region, line)) {
            if (is_wanted)
                parse_field(&process->region[process->n_regions - 1], line);
            continue;
        }
        while (i < n && range[i].end <= region.start)
            i++;
        is_wanted = i < n && region.end > range[i].start;
        if (!is_wanted)
            continue;
        region.name = hl_xasprintf("%s", region.name);
        add_region(process, &region);
    }
    int result = ferror(text) ? -EIO : 0;
    free(line);
    fclose(text);
    return result;
}

static int read_text_of_regions(struct hl_process *process, const char *name) {
    const struct hl_address_range all = {0, UINT64_MAX};
    int result = search_ranges(process, name, &all, 1, false);
    return result == 0 && process->n_regions == 0 ? -ENODATA : result;
}

/* " N0=3 N1=9 kernelpagesize_kB=2048": pages of that size on each node. */
static void parse_nodes(struct hl_region *region, const char *line) {
    uint64_t kib = 0;
    const char *size = strstr(line, " kernelpagesize_kB=");
    if (size == NULL || sscanf(size, " kernelpagesize_kB=%" SCNu64, &kib) != 1)
        return;
    region->node_bytes = hl_xmalloc(HL_PROCESS_NODES * sizeof *region->node_bytes);
    for (const char *at = strstr(line, " N"); at != NULL; at = strstr(at + 1, " N")) {
        unsigned node;
        uint64_t pages;
        if (sscanf(at, " N%u=%" SCNu64, &node, &pages) == 2 && node < HL_PROCESS_NODES)
            region->node_bytes[node] = pages * kib * 1024;
    }
}

static bool any_is_huge(const struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions; i++)
        if (hl_huge_bytes(&process->region[i]) > 0)
            return true;
    return false;
}

/* Reads the nodes of huge pages only.  A kernel without NUMA has no numa_maps, and then no node is named. */
static void read_nodes(struct hl_process *process) {
    char buffer[TEXT_BYTES];
    FILE *text = any_is_huge(process) ? open_text(process, "numa_maps", buffer) : NULL;
    if (text == NULL)
        return;
    size_t size = 0, next = 0;
    char *line = NULL;
    while (getline(&line, &size, text) >= 0) {
        uint64_t start;
        if (sscanf(line, "%" SCNx64, &start) != 1)
            continue;
        while (next < process->n_regions && process->region[next].start < start)
            next++;
        if (next < process->n_regions && process->region[next].start == start &&
            hl_huge_bytes(&process->region[next]) > 0 && process->region[next].node_bytes == NULL)
            parse_nodes(&process->region[next], line);
    }
    free(line);
    fclose(text);
}

static void read_auxv(struct hl_process *process) {
    Elf64_auxv_t entry;
    char buffer[TEXT_BYTES];
    FILE *auxv = open_text(process, "auxv", buffer);
    if (auxv == NULL)
        return;
    while (fread(&entry, sizeof entry, 1, auxv) == 1 && entry.a_type != AT_NULL)
        if (entry.a_type == AT_ENTRY)
            process->entry = entry.a_un.a_val;
    fclose(auxv);
}

uint64_t hl_read_limit(const struct hl_process *process, const char *name) {
    char line[256], buffer[TEXT_BYTES];
    uint64_t limit = 0;
    size_t length = strlen(name);
    FILE *limits = open_text(process, "limits", buffer);
    while (limits != NULL && fgets(line, sizeof line, limits) != NULL)
        if (strncmp(line, name, length) == 0 && sscanf(line + length, " %" SCNu64, &limit) != 1)
            limit = UINT64_MAX; /* "unlimited" */
    if (limits != NULL)
        fclose(limits);
    return limit;
}

/* 0, or a negated errno: CAP_PERFMON is enough for maps and smaps (perfmon_capable in mm_access), but not for exe and map_files, and
   without these the process would look as if it had loaded nothing. */
static int read_executable(struct hl_process *process) {
    read_auxv(process);
    process->executable = hl_read_link(process->folder, "exe");
    return process->executable == NULL && (errno == EACCES || errno == EPERM) ? -errno : 0;
}

int hl_read_process(struct hl_process *process) {
    int result = read_text_of_regions(process, "smaps");
    if (result != 0)
        return result;
    read_nodes(process);
    return read_executable(process);
}

int hl_read_process_map(struct hl_process *process) {
    int result = read_text_of_regions(process, "maps");
    return result == 0 ? read_executable(process) : result;
}

/* Makes PROCESS the same process as OPENED, with nothing read yet. */
static int open_again(struct hl_process *process, const struct hl_process *opened) {
    memset(process, 0, sizeof *process);
    process->pid = opened->pid;
    process->folder = fcntl(opened->folder, F_DUPFD_CLOEXEC, 0);
    return process->folder < 0 ? -errno : 0;
}

int hl_read_mappings(struct hl_process *process, const struct hl_process *opened) {
    int result = open_again(process, opened);
    return result == 0 ? read_text_of_regions(process, "maps") : result;
}

static void add_answer(struct hl_process *process, const struct hl_process *opened,
                       const struct hl_mapping_query *answer) {
    const struct hl_region *before = hl_find_region(opened, answer->end - 1);
    struct hl_region region = {
        .start = answer->start,
        .end = answer->end,
        .flags = (answer->flags & HL_QUERY_READABLE ? PF_R : 0) |
                 (answer->flags & HL_QUERY_WRITABLE ? PF_W : 0) |
                 (answer->flags & HL_QUERY_EXECUTABLE ? PF_X : 0),
        .shared = (answer->flags & HL_QUERY_SHARED) != 0,
        .offset = answer->offset,
        .device = makedev(answer->major, answer->minor),
        .inode = (ino_t)answer->inode,
        .name = hl_xasprintf("%s", before != NULL && before->end == answer->end ? before->name : ""),
    };
    add_region(process, &region);
}

/* Asks for the regions one after the other.  -ENOTTY: the kernel does not support the query. */
static int query_range(struct hl_process *process, const struct hl_process *opened, int maps,
                       const struct hl_address_range *range) {
    uint64_t end = process->n_regions > 0 ? process->region[process->n_regions - 1].end : 0;
    uint64_t at = end > range->start ? end : range->start;
    while (at < range->end) {
        struct hl_mapping_query query = {
            .size = sizeof query, .query_flags = HL_QUERY_OR_NEXT, .address = at};
        if (ioctl(maps, HL_MAPPING_QUERY, &query) != 0)
            return errno == ENOENT ? 0 : -errno;
        if (query.start >= range->end)
            break;
        add_answer(process, opened, &query);
        at = query.end;
    }
    return 0;
}

static int compare_ranges(const void *a, const void *b) {
    const struct hl_address_range *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

int hl_read_some_regions(struct hl_process *process, const struct hl_process *opened,
                         struct hl_address_range *range, size_t n) {
    int result = open_again(process, opened);
    qsort(range, n, sizeof *range, compare_ranges);
    return result == 0 ? search_ranges(process, "smaps", range, n, true) : result;
}

int hl_read_some_mappings(struct hl_process *process, const struct hl_process *opened,
                          struct hl_address_range *range, size_t n) {
    int result = open_again(process, opened);
    int maps = result == 0 ? hl_open_process_file(process, "maps") : result;
    qsort(range, n, sizeof *range, compare_ranges);
    if (maps < 0)
        return maps;
    for (size_t i = 0; i < n && result == 0; i++)
        result = query_range(process, opened, maps, &range[i]);
    close(maps);
    return result == -ENOTTY ? search_ranges(process, "maps", range, n, false) : result;
}

const struct hl_region *hl_find_region(const struct hl_process *process, uint64_t at) {
    size_t low = 0, high = process->n_regions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (process->region[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < process->n_regions && process->region[low].start <= at ? &process->region[low] : NULL;
}

int hl_read_usage(pid_t pid, struct hl_usage *usage) {
    char path[32], line[1024];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    long bytes = hl_read_file(path, line, sizeof line - 1);
    line[bytes > 0 ? bytes : 0] = '\0';
    const char *at = strrchr(line, ')'); /* a name may hold newlines and parentheses */
    if (at == NULL ||
        sscanf(at,
               ") %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d "
               "%" SCNu64,
               &usage->state, &usage->parent, &usage->flags, &user, &kernel, &usage->started) != 6)
        return bytes < 0 && bytes != -ENOENT ? (int)bytes : -ESRCH;
    double tick_ms = 1e3 / (double)sysconf(_SC_CLK_TCK);
    usage->user_ms = (double)user * tick_ms;
    usage->system_ms = (double)kernel * tick_ms;
    return 0;
}

int hl_has_same(int folder, const char *name) {
    char path[64];
    struct stat own, its;
    snprintf(path, sizeof path, "/proc/self/%s", name);
    if (stat(path, &own) != 0 || fstatat(folder, name, &its, 0) != 0)
        return -1;
    return own.st_ino == its.st_ino && own.st_dev == its.st_dev;
}

bool hl_has_capability(unsigned number) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & CAP_TO_MASK(number)) != 0;
}

const char *hl_explain_denial(pid_t pid) {
    struct hl_task_status status;
    hl_read_thread_status(&status, pid, pid);
    if (geteuid() != 0)
        return status.effective_user == geteuid()
                   ? "its owner may not read it (it has more privileges, or PR_SET_DUMPABLE); run hugeld as "
                     "root"
                   : "another user's process; run hugeld as its owner or as root";
    if (!hl_has_capability(CAP_SYS_PTRACE))
        return "root may not read it without CAP_SYS_PTRACE; run hugeld with that capability (in a "
               "container: --cap-add=SYS_PTRACE)";
    return "permission denied: a security policy or a user namespace denies root access to the process; run "
           "hugeld outside of it";
}

void hl_say_unreadable(pid_t pid, int result) {
    int error = -result;
    if (error == ENOENT || error == ESRCH)
        hl_warn("%d: no such process, or it has ended; ps -e lists all", pid);
    else if (error == EACCES || error == EPERM)
        hl_warn("%d: %s", pid, hl_explain_denial(pid));
    else if (error == ENODATA)
        hl_warn("%d: the process has no memory: it is a kernel thread, or it (or its first thread) has "
                "ended; name another",
                pid);
    else
        hl_warn("%d: the process cannot be read: %s; %s", pid, strerror(error),
                error == EMFILE ? "raise the limit (ulimit -n)" : "try again");
}
