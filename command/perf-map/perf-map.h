/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld perf-map: the names for a process, and the file of its map. */
#ifndef HL_PERF_MAP_H
#define HL_PERF_MAP_H

#include "perf-maps/write.h"
#include "command/lib/process.h"

/* Adds the functions of the moved text of LOADED, an object of PROCESS, to TEXT: from its file, and if that has no .symtab, from its
   debug file or its .gnu_debugdata too.  A file without names costs a line on stderr.  False: none of its text was moved. */
bool hl_add_names(struct hl_map_text *text, const struct hl_process *process, const struct hl_loaded *loaded);

/* Opens PATH, from which no link leads out, in the root folder of the mount namespace of PROCESS (perf does not enter a chroot in our
   own), or of this process for NULL.  A descriptor, or a negated errno. */
int hl_open_inside(const struct hl_process *process, const char *path, uint64_t flags);

#endif
