/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The way back for an object that the dynamic linker has just mapped. */
#ifndef HL_MAP_AGAIN_H
#define HL_MAP_AGAIN_H

#include "hugeld.h"

/* After a call failed that should have brought something into SPAN's place: maps from OBJECT's file what the
   dynamic linker had mapped there, if it is gone.  OBJECT holds its place and is not relocated; text gets what
   PROT, the span's, has beside PROT_READ and PROT_EXEC.  0, or HL_SKIP_LOST: somebody else may hold a part of
   the place by now, or there is no memory. */
int hl_map_again(const struct hl_object *object, const struct hl_span *span, int prot,
                 const struct hl_geometry *geometry);

#endif
