/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every reason for leaving something on small pages, in words. */
#ifndef HL_SKIP_H
#define HL_SKIP_H

#include "hugeld.h"

/* The words of skip.def.  SKIP must be a positive enum hl_skip; the strings are static. */
const char *hl_skip_name(enum hl_skip skip);
const char *hl_skip_sentence(enum hl_skip skip);
/* NULL: the user can do nothing about it. */
const char *hl_skip_remedy(enum hl_skip skip);

/* "text", "rodata", "data", "bss"; static. */
const char *hl_kind_name(enum hl_kind kind);

#endif
