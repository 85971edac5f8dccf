/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/thread-self/status: the kernel's data on the calling thread and its process. */
#ifndef HL_STATUS_H
#define HL_STATUS_H

#include "kernel.h"

/* As many as the kernel can be built for (NODES_SHIFT is 10 at most). */
#define HL_NODE_NUMBERS 1024

struct hl_nodes {
    uint64_t bits[HL_NODE_NUMBERS / 64];
};

/* More filters of system calls than there can be: their number is unknown. */
#define HL_FILTERS_UNKNOWN UINT64_MAX

/* No user's number: (uid_t)-1. */
#define HL_USER_UNKNOWN ((uint64_t)UINT32_MAX)

struct hl_status {
    bool has_threads;  /* other threads than this one; true if that can't be read */
    bool is_traced;    /* by a debugger, strace; false if that can't be read */
    bool thp_disabled; /* PR_SET_THP_DISABLE, also for advised memory; false where that can't be read (Linux
                          before 5.0) */
    uint64_t filters;  /* of system calls (seccomp) on this thread: how many, or before Linux 5.9 its mode;
                          HL_FILTERS_UNKNOWN where that can't be read */
    uint64_t user, group; /* the effective ones' numbers; HL_USER_UNKNOWN where they can't be read */
    bool is_one_user,
        is_one_group;      /* the real, effective, saved and file system numbers agree; false where they
                                       can't be read */
    bool has_capabilities; /* some are permitted (CapPrm); true where that can't be read */
    bool has_locked;       /* some of its memory is locked (VmLck); false where that can't be read */
    struct hl_nodes nodes; /* Mems_allowed, the cpuset's; all where that can't be read */
    char text[1536];       /* for hl_read_status alone: mostly enough for all of the file */
};

/* Reads the status, which is out of date at once: nothing in it is a promise. */
void hl_read_status(struct hl_status *status, const struct hl_roots *roots);

/* The same for the process's first thread, for which the kernel makes fewer files of /proc.  The file, which the caller closes, or
   a negated errno. */
long hl_read_first_status(struct hl_status *status, const struct hl_roots *roots);

#endif
