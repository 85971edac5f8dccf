/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Processes by their names. */
#include "command/base/common.h"
#include "command/proc/process.h"

#include <dirent.h>
#include <errno.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_name(const struct hl_process *process, const char *name) {
    char path[PATH_MAX];
    if (process->name != NULL && strcmp(process->name, name) == 0)
        return true;
    ssize_t bytes = readlinkat(process->folder, "exe", path, sizeof path - 1);
    if (bytes <= 0)
        return false;
    path[bytes] = '\0';
    if (hl_ends_in(path, HL_DELETED))
        path[(size_t)bytes - strlen(HL_DELETED)] = '\0';
    return strcmp(hl_base_name(path), name) == 0;
}

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

size_t hl_add_named(struct hl_pids *pids, const char *name) {
    DIR *proc = NULL;
    size_t n = 0;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        struct hl_process process = {0};
        if (pid == getpid() || hl_open_process(&process, pid) != 0)
            continue;
        if (has_name(&process, name)) {
            hl_add_pid(pids, pid);
            n++;
        }
        hl_close_process(&process);
    }
    if (n == 0)
        hl_warn("%s: no process has this name; ps -e lists all", name);
    return n;
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

bool hl_is_number(const char *text) { return text[0] != '\0' && strspn(text, "0123456789") == strlen(text); }
