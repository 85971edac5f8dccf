/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The way back for text that a call has mapped over, and failed. */
#ifndef HL_MAP_AGAIN_H
#define HL_MAP_AGAIN_H

#include "maps.h"

/* After a call failed that should have brought something into SPAN's place: maps from the open FILE, OBJECT's, what the
   dynamic linker had mapped there, if it is gone.  The span is read-only and as it was loaded.  WAS says what there was
   between its segments; NULL: OBJECT holds its place.  Text gets what PROT, the span's, has beside PROT_READ and
   PROT_EXEC.  0, or HL_SKIP_LOST: another mapping may hold a part of the place by now, or there is no memory. */
int hl_map_again(const struct hl_object *object, int file, const struct hl_maps *was,
                 const struct hl_span *span, int prot, const struct hl_geometry *geometry);

#endif
