/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The best address for an object, for a dynamic linker that may choose. */
#ifndef HL_LOAD_ADDRESS_H
#define HL_LOAD_ADDRESS_H

#include "options.h"

/* Pure.  Finds where OBJECT, which was read with a load bias of 0, should go: *BIAS is its load bias modulo
   the size of a huge page, a multiple of ALIGNMENT, a power of two of at least a page.  False if it does not
   matter or cannot be chosen. */
bool hl_choose_load_bias(uint64_t *bias, const struct hl_object *object, const struct hl_options *options,
                         const struct hl_geometry *geometry, uint64_t alignment);

#endif
