/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plan: segments become spans. */
#ifndef HL_PLAN_H
#define HL_PLAN_H

#include "options.h"

/* Plan.  Pure: no system calls, no allocation.  OBJECT comes from hl_read_segments; PLAN is
   overwritten. 0 when at least one span is planned, else the reason why the object as a whole stays. */
int hl_plan_object(struct hl_plan *plan, const struct hl_object *object, const struct hl_options *options,
                   const struct hl_geometry *geometry);

/* How many bytes of text a huge page needs for being planned. */
uint64_t hl_least_text_bytes(const struct hl_options *options, const struct hl_geometry *geometry);

#endif
