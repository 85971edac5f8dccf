/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The user's remedies for a part of a file that stays on small pages. */
#ifndef HL_REMEDY_H
#define HL_REMEDY_H

#include "command/file/file-plan.h"

/* REMEDY of reason.def with PATH, quoted for a shell, in the place of FILE; the caller frees it. */
char *hl_name_file(const char *remedy, const char *path);

/* The sentence of REASON in reason.def, with its remedy if it has one and PATH in the place of FILE; the caller frees it. */
char *hl_explain_reason(enum hl_reason reason, const char *path);

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
