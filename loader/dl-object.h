/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The dynamic linker's lists of loaded objects, for the core. */
#ifndef HL_DL_OBJECT_H
#define HL_DL_OBJECT_H

#include "elf/context.h"

#include <link.h>

/* struct r_debug of version 2 (glibc 2.35 and newer), where each namespace has one. */
struct hl_debug {
    struct r_debug base;
    struct hl_debug *next;
};

/* What debuggers read: the list of objects, the executable first.  NULL if this dynamic linker has none. */
const struct hl_debug *hl_find_debug(void);

static inline const struct hl_debug *hl_next_namespace(const struct hl_debug *debug) {
    return debug != NULL && debug->base.r_version >= 2 ? debug->next : NULL;
}

/* Whether LD_HUGEPAGES selects MAP, whose NAMES are filled in; EXECUTABLE is the path of the executable, or NULL if MAP is another
   object.  It calls nothing, and reads nothing that the dynamic linker has not read: most objects are not selected. */
bool hl_is_linked_selected(const struct hl_context *context, struct hl_names *names,
                           const struct link_map *map, const char *executable);

/* Opens /proc/self/mem, for writing if that is allowed, if *MEMORY is -1.  The caller closes it, if it is open. */
void hl_open_memory(long *memory);

/* Gives the object of MAP to the core, if it is selected; ld.so, the vdso and this object never.  EXECUTABLE as above.  Its
   headers are read through *MEMORY, as in hl_open_memory, or HL_OWN_MEMORY.  Strings live until hl_end.  One thread at a time, on a
   stack that may be small. */
void hl_add_linked(struct hl_context *context, const struct link_map *map, const char *executable,
                   long *memory);

#endif
