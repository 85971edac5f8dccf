/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* System calls on files of /proc/PID that another process makes for this one, and that can be given up.

   A process can hold its memory (mmap_lock, for writing) for as long as it likes, as in an mmap(2) that waits for a FUSE.  What
   opens or reads its maps, smaps, environ, cmdline or map_files then waits with it, and only SIGKILL ends that wait.  Linux has no
   way to look without waiting: PROCMAP_QUERY and process_vm_readv(2) take the same lock, and maps, which newer kernels read under
   a lock of each mapping, waits for a mapping that is being replaced (seen on 6.18 and 7.3).  So any user could stop what looks at
   all processes.  A process that keeps others waiting is left out from then on, and so are the others of its user, unless that is
   root. */
#ifndef HL_PROXY_H
#define HL_PROXY_H

#include "command/proc/process.h"

struct hl_proxy;

/* Nothing is started before it is needed.  The caller owns it, and closes it after all processes that have it. */
struct hl_proxy *hl_open_proxy(void);
void hl_close_proxy(struct hl_proxy *proxy);

/* As openat(2), read(2), write(2) and ioctl(2) with PROCMAP_QUERY, on files of PROCESS, which has a proxy; less than BYTES,
   or 16 KiB, is read only at the end.  A negated errno; -ETIMEDOUT: PROCESS keeps others waiting, or is left out; -EIO: the proxy
   was killed. */
int hl_proxy_open(const struct hl_process *process, const char *name, int flags);
ssize_t hl_proxy_read(const struct hl_process *process, int file, void *to, size_t bytes);
ssize_t hl_proxy_write(const struct hl_process *process, int file, const void *from, size_t bytes);
int hl_proxy_query(const struct hl_process *process, int maps, struct hl_mapping_query *query);

/* Whether PID is the process that makes the calls. */
bool hl_is_proxy(const struct hl_proxy *proxy, pid_t pid);

/* The processor time that its calls have taken. */
double hl_proxy_ms(const struct hl_proxy *proxy);

/* Whether a process was left out. */
bool hl_has_left_out(const struct hl_proxy *proxy);

/* Says in one line which process was left out first, and how many more, if one was; DONE is what was not done: "counted". */
void hl_warn_of_left_out(const struct hl_proxy *proxy, const char *done);

#endif
