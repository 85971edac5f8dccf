/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lists processes, and finds the files that they map. */
#include "command/lib/common.h"
#include "command/lib/process.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

pid_t hl_next_process(DIR **proc) {
    struct dirent *entry;
    pid_t pid = 0;
    if (*proc == NULL)
        *proc = opendir("/proc");
    while (*proc != NULL && pid == 0 && (errno = 0, entry = readdir(*proc)) != NULL)
        pid = hl_parse_pid(entry->d_name);
    if (*proc != NULL && pid == 0) {
        int error = errno;
        closedir(*proc);
        *proc = NULL;
        errno = error;
    }
    return pid;
}

static bool is_among(const struct hl_pids *pids, pid_t pid) {
    for (size_t i = 0; i < pids->n; i++)
        if (pids->pid[i] == pid)
            return true;
    return false;
}

void hl_add_pid(struct hl_pids *pids, pid_t pid) {
    if (is_among(pids, pid))
        return;
    pids->pid = hl_xrealloc(pids->pid, (pids->n + 1) * sizeof pid);
    pids->pid[pids->n++] = pid;
}

void hl_add_children(struct hl_pids *pids) {
    for (size_t before = 0; before < pids->n;) {
        DIR *proc = NULL;
        before = pids->n;
        for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
            struct hl_usage usage;
            if (pid != getpid() && hl_read_usage(pid, &usage) == 0 && is_among(pids, usage.parent))
                hl_add_pid(pids, pid);
        }
    }
}

uint64_t hl_find_mapped_device(int file, uint64_t device) {
    struct hl_region region;
    char *line = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ, MAP_PRIVATE, file, 0);
    uint64_t shown = at != MAP_FAILED && hl_find_own_region(&region, at, &line) ? region.device : device;
    free(line);
    if (at != MAP_FAILED)
        munmap(at, page);
    return shown;
}

void hl_map_cached(char *at, size_t n, uint64_t page_bytes, const unsigned char *cached) {
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && (cached[end] & 1); end++)
            ;
        if (end > i)
            madvise(at + i * page_bytes, (end - i) * page_bytes, MADV_POPULATE_READ);
    }
}
