/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every reason for leaving something on small pages, in words. */
#ifndef HL_REASON_H
#define HL_REASON_H

#include "hugeld.h"

struct hl_reason_words {
    const char *name, *sentence, *remedy;
};

/* The row of a reason behind HL_REASON_COUNT.  The command defines this function; the core has no such reason. */
const struct hl_reason_words *hl_find_more_words(enum hl_reason reason);

/* The words of reason.def.  REASON must be a positive enum hl_reason; the strings are static. */
const char *hl_reason_name(enum hl_reason reason);
const char *hl_reason_sentence(enum hl_reason reason);
/* NULL: the user can do nothing about it. */
const char *hl_reason_remedy(enum hl_reason reason);

/* "text", "rodata", "data", "bss"; static. */
const char *hl_kind_name(enum hl_kind kind);

#endif
