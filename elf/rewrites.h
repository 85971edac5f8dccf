/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Marks of objects that rewrite or move their own text. */
#ifndef HL_REWRITES_H
#define HL_REWRITES_H

#include "context.h"

/* A row of rewrites.def; the strings are static. */
struct hl_mark {
    const char *section, *what;
};

/* The mark that the ELF64 file FD has; NULL if it has none, or cannot be read. */
const struct hl_mark *hl_find_mark(int fd);

/* Whether OBJECT's file has a mark that it rewrites its own text (rewrites.def).  False if the file is not at hand, or its path
   leads to another one by now. */
bool hl_rewrites_text(struct hl_context *context, struct hl_work *work);

/* Whether OBJECT, which is mapped, may move its own text by mremap(2), since it imports that function: 0, 1 (also
   if it names no place that has the names), or a negated errno: they cannot be read. */
int hl_moves_text(const struct hl_object *object, uint64_t page_bytes);

#endif
