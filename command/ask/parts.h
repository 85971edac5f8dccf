/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of a file that stay on small pages, each with its reason. */
#ifndef HL_PARTS_H
#define HL_PARTS_H

#include "command/lib/file-plan.h"
#include "elf/reason.h"

/* A part of a segment that is planned as one: to be moved, or to stay for one reason. */
struct hl_part {
    uint64_t start, end;
    unsigned segment;
    enum hl_reason reason; /* why it stays; HL_MOVED if it is moved, or lies outside whole huge pages */
    const char *sentence;  /* the same in words; NULL: it is moved; static */
};

/* Lists the parts of all segments of OBJECT, in the order of addresses, for PLAN, which was made with OPTIONS.  Returns their
   number, and *PARTS, which the caller frees. */
size_t hl_list_parts(struct hl_part **parts, const struct hl_object *object, const struct hl_plan *plan,
                     const struct hl_options *options, const struct hl_geometry *geometry);

#endif
