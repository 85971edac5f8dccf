/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld perf-map: finding names, and the folder and file of the map. */
#ifndef HL_PERF_MAP_H
#define HL_PERF_MAP_H

#include "perf-maps/write.h"
#include "command/proc/process.h"

/* The moved text of one object: the parts of its executable segments that are not mapped from its file. */
struct hl_moved {
    const struct hl_loaded *loaded;
    size_t n_ranges;
    struct hl_text_range *range; /* ascending */
};

/* After hl_find_loaded: the objects of PROCESS with moved text, ascending.  The caller frees each range, and
   the result. */
struct hl_moved *hl_find_moved(const struct hl_process *process, size_t *n);

/* Adds the lines of MOVED to TEXT, with names from the object's file, its debug file (by build ID or debug
   link) or its .gnu_debugdata, demangled if wanted.  A file without names costs a line on stderr. */
void hl_add_names(struct hl_map_text *text, const struct hl_process *process, const struct hl_moved *moved,
                  bool demangle);

/* The place of a process's map. */
struct hl_map_place {
    int folder;      /* /tmp of its mount namespace; opened with O_PATH */
    pid_t inner_pid; /* its number in its own PID namespace */
    uid_t uid;       /* the user its files belong to */
    gid_t gid;
};

/* 0, or a negated errno and nothing is open. */
int hl_find_place(struct hl_map_place *place, const struct hl_process *process);
void hl_close_place(struct hl_map_place *place);

/* Writes TEXT as the map of PROCESS, as its user.  0, or a negated errno: -EBUSY when a map is there that
   has lines for anything but the N objects in MOVED, or that the process has open: a JIT's.  Without
   MOVED, any old file is replaced. */
int hl_replace_map(const struct hl_map_place *place, const struct hl_process *process,
                   const struct hl_moved *moved, size_t n, const struct hl_map_text *text);

/* Adds TEXT to the present map, which must be a plain file of the process's user or of ours, unless it has
   these lines already (*KNOWN).  If there is none, as hl_replace_map. */
int hl_append_map(const struct hl_map_place *place, const struct hl_process *process,
                  const struct hl_map_text *text, bool *known);

/* Removes from /tmp the maps of processes that are gone: those of the calling user, or of all if that is
   root. How many, or a negated errno. */
long hl_remove_stale_maps(void);

/* Writes all of it.  0, or a negated errno. */
int hl_write_all(int fd, const char *at, size_t bytes);

#endif
