/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Commit: the new memory comes into place. */
#ifndef HL_COMMIT_H
#define HL_COMMIT_H

#include "context.h"

/* Commit: all prepared spans of an object come into place, or none and everything is as it was
   before.  0, or the reason; HL_REASON_LOST: it must not be used, and only hl_unmap_rest may unmap the rest of it. */
int hl_commit_object(struct hl_context *context, struct hl_work *work);

#endif
