/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 3, check: whether an object in memory is what its program headers say. */
#ifndef HL_CHECK_H
#define HL_CHECK_H

#include "context.h"

/* Reads what is mapped in the object's place, unless that is known or the object holds its place.
   0, HL_SKIP_NO_PROC or HL_SKIP_NO_MEMORY. */
int hl_look_at_object(const struct hl_context *context, struct hl_work *work);

/* Between plan and prepare: whether the object's mappings are what its program headers say and nothing wrote
   to its read-only pages.  0, or the reason why the object stays. */
int hl_check_object(struct hl_context *context, struct hl_work *work);

/* Whether what MAPS has in SPAN's place is what the dynamic linker maps there, from OBJECT's file. */
bool hl_is_as_mapped(const struct hl_maps *maps, const struct hl_object *object, const struct hl_span *span);

/* Whether edges=small would leave out what is mapped between the segments of WORK's object, and still plan
   something of KIND. */
bool hl_helps_to_keep_edges(const struct hl_context *context, const struct hl_work *work, enum hl_kind kind);

#endif
