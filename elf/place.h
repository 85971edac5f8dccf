/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where an object should go, for a dynamic linker that may choose. */
#ifndef HL_PLACE_H
#define HL_PLACE_H

#include "options.h"

struct hl_place {
    uint64_t bias;    /* the load bias modulo the size of a huge page */
    bool on_boundary; /* the text begins on a boundary then: edges=keep loses next to nothing */
};

/* Pure.  Finds where OBJECT, which was read with a load bias of 0, should go.  Its bias must be a multiple of
   ALIGNMENT, a power of two of at least a page.  False if it does not matter or cannot be chosen. */
bool hl_choose_place(struct hl_place *place, const struct hl_object *object, const struct hl_options *options,
                     const struct hl_geometry *geometry, uint64_t alignment);

#endif
