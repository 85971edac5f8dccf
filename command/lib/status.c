/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads /proc/PID/status once, for all who want a field of it. */
#include "command/lib/basics.h"
#include "command/lib/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(format, field)                                                                                 \
    { format, offsetof(struct hl_task_status, field) }

static const struct {
    const char *format; /* of sscanf(3), for one value */
    size_t offset;
} fields[] = {
    FIELD("State: %c", state),
    FIELD("Tgid: %d", process),
    FIELD("TracerPid: %d", tracer),
    FIELD("VmLck: %" SCNu64, locked_kib),
    FIELD("SigPnd: %" SCNx64, pending),
    FIELD("ShdPnd: %" SCNx64, shared_pending),
    FIELD("SigCgt: %" SCNx64, caught),
    FIELD("Seccomp: %d", filter_mode),
    FIELD("THP_enabled: %d", thp_enabled),
};

static void read_line(struct hl_task_status *status, const char *line) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strncmp(line, fields[i].format, strcspn(fields[i].format, " ")) == 0)
            sscanf(line, fields[i].format, (char *)status + fields[i].offset);
    sscanf(line, "Uid: %u %u %*u %u", &status->user, &status->effective_user, &status->file_user);
    sscanf(line, "Gid: %*u %*u %*u %u", &status->file_group);
    if (strncmp(line, "NSpid:", strlen("NSpid:")) == 0)
        status->inner_pid = (pid_t)strtol(strrchr(line, '\t') + 1, NULL, 10);
    if (strncmp(line, "x86_Thread_features:", strlen("x86_Thread_features:")) == 0)
        status->has_shadow_stack = strstr(line, "shstk") != NULL;
}

int hl_read_task_status(struct hl_task_status *status, int folder, const char *name) {
    FILE *text = hl_open_text(folder, name);
    char *line = NULL;
    size_t size = 0;
    *status = (struct hl_task_status){.state = 'X',
                                      .user = (uid_t)-1,
                                      .effective_user = (uid_t)-1,
                                      .filter_mode = 1,
                                      .thp_enabled = 1,
                                      .caught = UINT64_MAX};
    if (text == NULL)
        return errno == ENOENT ? -ESRCH : -errno;
    while (getline(&line, &size, text) >= 0)
        read_line(status, line);
    int result = status->state == 'X' ? -ESRCH : 0;
    free(line);
    fclose(text);
    return result;
}

int hl_read_thread_status(struct hl_task_status *status, pid_t process, pid_t thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", process, thread);
    return hl_read_task_status(status, AT_FDCWD, path);
}
