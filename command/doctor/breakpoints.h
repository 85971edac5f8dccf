/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a debugger could set breakpoints in text on hugetlb pages, for `hugeld doctor`. */
#ifndef HL_BREAKPOINTS_H
#define HL_BREAKPOINTS_H

#include "elf/hugeld.h"

enum hl_answer_of_kernel { HL_UNKNOWN, HL_NO, HL_YES };

/* Tries it on a child, with one page of the pool for a moment.  HL_UNKNOWN: no page is free, or this process may trace nothing. */
enum hl_answer_of_kernel hl_try_breakpoint(const struct hl_geometry *geometry);

#endif
