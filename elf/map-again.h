/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The way back for text after a call that maps over it has failed. */
#ifndef HL_MAP_AGAIN_H
#define HL_MAP_AGAIN_H

#include "maps.h"

/* After a failed call that should have put new memory into SPAN's place, or with IS_PLACED has: restores the mappings of the dynamic
   linker there from the open FILE, OBJECT's, if they are gone.  The span is read-only and as it was loaded.  WAS has the old mappings between its
   segments; NULL: OBJECT holds its place.  Text also gets the bits of PROT, the span's, other than PROT_READ and PROT_EXEC.  0,
   or HL_REASON_LOST: another mapping may hold a part of the place by now, or there is no memory. */
int hl_map_again(const struct hl_object *object, int file, const struct hl_maps *was,
                 const struct hl_span *span, bool is_placed, int prot);

#endif
