/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prepare: the contents of the new memory. */
#ifndef HL_FILL_H
#define HL_FILL_H

#include "context.h"

/* Fills MOVE's memory with the contents of SPAN. 0, HL_REASON_POOL_SHORT, HL_REASON_SOURCE_UNREADABLE,
   HL_REASON_NO_MEMORY, HL_REASON_NO_PROC. */
int hl_fill_span(const struct hl_context *context, const struct hl_object *object, const struct hl_span *span,
                 struct hl_move *move);

#endif
