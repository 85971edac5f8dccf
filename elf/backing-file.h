/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file behind an object. */
#ifndef HL_BACKING_FILE_H
#define HL_BACKING_FILE_H

#include "context.h"
#include "store.h"

/* The open file that WORK's object is mapped from, if it is new or the executable, whose file hl_end closes.  Negative for any other,
   and where it is not certain. */
int hl_find_file(struct hl_context *context, struct hl_work *work);

/* Opens the file that OBJECT, which is not new, should be mapped from; hl_is_mapped_from tells whether it
   is.  A descriptor that the caller closes, or a negated errno. */
long hl_open_object_file(const struct hl_object *object);

/* The file that WORK's object is mapped from, open; or a negated errno, -ESTALE if it is another one by now.  Under a filter of
   system calls, which may kill for asking, its path has to do. */
long hl_open_mapped_file(struct hl_context *context, struct hl_work *work);
void hl_close_mapped_file(const struct hl_work *work, long file);

/* Whether WORK's object is mapped from the open FILE, which is in STATE, according to its maps. */
bool hl_is_mapped_from(const struct hl_context *context, const struct hl_work *work, int file,
                       const struct hl_file_state *state);

#endif
