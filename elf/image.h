/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare, where an image of the object's file is in a store: its read-only spans come from that. */
#ifndef HL_IMAGE_H
#define HL_IMAGE_H

#include "context.h"
#include "store.h"

/* For a WORK whose object may move, before its plan is checked.  0: it is planned anew (segments=text+rodata,
   sparse_text=on: a page of an image costs nothing), checked, and its read-only spans are prepared; or the
   reason, which then stands in no_image, and WORK is as it was.  CONTEXT's maps and pagemap are open. */
int hl_prepare_image(struct hl_context *context, struct hl_work *work);

/* Whether there is a store in which images would be looked for.  Until then nothing is asked that a filter of
   system calls might not allow: a path is opened.  It is remembered in CONTEXT if there is none. */
bool hl_has_store(struct hl_context *context);

/* Opens the image of the open FILE, with STATE, in the store that store= names, else in the system's or the
   user's.  A descriptor for reading that the caller closes, or a negated enum hl_skip: HL_SKIP_NO_IMAGE,
   HL_SKIP_STORE_UNSAFE. */
long hl_open_image(const struct hl_context *context, const struct hl_file_state *state);

/* Whether the open IMAGE is OBJECT laid out: the same segments, at offsets that go with their addresses.  0,
   HL_SKIP_IMAGE_PLACE or HL_SKIP_IMAGE_MISMATCH. */
int hl_check_image(const struct hl_object *object, int image, const struct hl_geometry *geometry);

#endif
