/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Huge pages of the page cache. */
#ifndef HL_PAGECACHE_H
#define HL_PAGECACHE_H

#include "context.h"

/* How many bytes of SPAN are in segments whose addresses are congruent with their offsets in the file, modulo
   the size of a huge page: only these can be on huge pages of the page cache. */
uint64_t hl_congruent_bytes(const struct hl_object *object, const struct hl_span *span,
                            uint64_t huge_page_bytes);

/* Whether the kernel has mapped huge pages of the page cache to three quarters of the spans of one KIND of WORK's object, or more,
   after a read in each.  A span whose addresses go with its offsets is read from the file for that. */
bool hl_is_huge_already(struct hl_context *context, struct hl_work *work, enum hl_kind kind);

#endif
