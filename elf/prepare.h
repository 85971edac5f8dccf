/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prepare: the new memory. */
#ifndef HL_PREPARE_H
#define HL_PREPARE_H

#include "context.h"

/* Prepare: new memory, filled and with its final protection, for the spans of one KIND of one object,
   all or none.  0, or the reason, which then stands in each of these spans' moves; nothing is left behind. */
int hl_prepare_spans(struct hl_context *context, struct hl_work *work, enum hl_kind kind);

/* Whether copies of the spans of KIND would be made, by what can be told before: there are pages, or memory. */
bool hl_may_be_copied(struct hl_context *context, const struct hl_work *work, enum hl_kind kind);

/* Makes the spans of WORK's plan undecided. */
void hl_clear_moves(struct hl_work *work);

/* Gives back MOVE's new memory, or its surroundings if that is in place. */
void hl_free_memory(struct hl_move *move);

#endif
