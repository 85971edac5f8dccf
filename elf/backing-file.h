/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file behind a read-only span. */
#ifndef HL_BACKING_FILE_H
#define HL_BACKING_FILE_H

#include "context.h"
#include "store.h"

/* The file behind a read-only span, as long as it is filled. */
struct hl_backing_file {
    int file;     /* open for reading, and proved to be what is mapped; or -1: there is only the memory */
    bool is_ours; /* to be closed */
    uint64_t at;  /* it is mapped here as it is at the span's start: */
    unsigned n_mapped; /* what is in the span of the object's first so many segments */
};

/* Opens and maps the file, if it is at hand.  The caller closes SOURCE in any case. */
void hl_open_backing_file(struct hl_backing_file *source, const struct hl_context *context,
                          const struct hl_object *object, const struct hl_span *span);
void hl_close_backing_file(struct hl_backing_file *source, const struct hl_object *object,
                           const struct hl_span *span);

/* Whether OBJECT is mapped from the open FILE, which is in STATE, as CONTEXT's maps had it. */
bool hl_is_mapped_from(const struct hl_context *context, const struct hl_object *object, int file,
                       const struct hl_file_state *state);

/* Whether something of the SPAN would have to come from the disk.  SOURCE has a file.  False under a filter
   of system calls. */
bool hl_is_cold(const struct hl_backing_file *source, const struct hl_context *context,
                const struct hl_object *object, const struct hl_span *span);

#endif
