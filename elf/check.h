/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Check: whether an object in memory is as its program headers say. */
#ifndef HL_CHECK_H
#define HL_CHECK_H

#include "context.h"

/* Reads the mappings in the object's place, unless they are known or the object holds its place. 0,
   HL_REASON_NO_PROC or HL_REASON_NO_MEMORY. */
int hl_look_at_object(const struct hl_context *context, struct hl_work *work);

/* Whether nothing but the kernel and the dynamic linker can have mapped OBJECT, an executable that begins, and has no gaps in which
   something else could lie. */
bool hl_is_just_executed(const struct hl_context *context, const struct hl_object *object);

/* Whether OBJECT's mappings need not be read: they are as its program headers say. */
bool hl_needs_no_maps(const struct hl_context *context, const struct hl_object *object);

/* Whether nothing wrote to WORK's read-only spans that are not in place yet.  0, or the reason. */
int hl_check_pages(const struct hl_context *context, const struct hl_work *work);

/* Between plan and prepare: whether the object's mappings are as its program headers say and nothing wrote
   to its read-only pages.  Sets each span's move->prot, and move->reason of a writable one that has to stay.  0, or the reason why
   the object stays. */
int hl_check_object(struct hl_context *context, struct hl_work *work);

/* Whether nothing but one file is mapped at OBJECT's read-only segments, each at its offset: a program has put nothing else there. */
bool hl_is_as_loaded(const struct hl_maps *maps, const struct hl_object *object);

/* Whether MAPS has in SPAN's place the mappings that the dynamic linker makes there, from OBJECT's file. */
bool hl_is_as_mapped(const struct hl_maps *maps, const struct hl_object *object, const struct hl_span *span);

#endif
