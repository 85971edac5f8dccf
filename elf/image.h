/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prepare, where an image of the object's file is in a store: its read-only spans come from that. */
#ifndef HL_IMAGE_H
#define HL_IMAGE_H

#include "context.h"
#include "store.h"

/* For a WORK whose object may move, before its plan is checked.  0: it is planned anew (hl_set_image_options) and checked, and
   its read-only spans are mapped from its image; a span that could not be mapped says why, HL_REASON_LOST if its text is
   gone.  Else the reason, which is also in no_image, and WORK is as it was. */
int hl_use_image(struct hl_context *context, struct hl_work *work);

/* Sets OPTIONS to those for mapping from an image: segments=text+rodata, and pages with little text, too. */
void hl_set_image_options(struct hl_options *options);

/* For a WORK that the dynamic linker has mapped from an image (object.is_image): plans it, with the same
   options, and takes its read-only spans for placed, without a system call. */
void hl_adopt_image(const struct hl_context *context, struct hl_work *work);

/* The last step for such a WORK: where a span holds more than one segment, all of it is mapped with the span's protection, so
   that its boundary pages are huge ones too.  No other code knows of the object yet. */
void hl_join_image(const struct hl_context *context, struct hl_work *work);

/* The stores in which images are looked for, in this order. */
struct hl_stores {
    struct {
        long folder;    /* open; or a negated errno, why it is not used */
        uint64_t owner; /* the user who may have written to it, beside root */
        struct hl_file_state state;
    } store[2];           /* the one named by store=, and the system's, */
    bool is_second_open;  /* which hl_open_image opens only if the first has no image */
    uint64_t image_bytes; /* the size of the image that it has opened */
};

/* Opens the stores for CONTEXT, whose options and status are known.  False: there are none, and nothing is to be closed.
   Without a store this only opens a path, since a filter of system calls might forbid any other call.  That answer is remembered
   in CONTEXT. */
bool hl_open_stores(struct hl_stores *stores, struct hl_context *context);
void hl_close_stores(const struct hl_stores *stores);

/* Opens the image of a file with STATE in the first of the STORES that has one.  A descriptor for reading that the caller
   closes, or a negated enum hl_reason: HL_REASON_NO_IMAGE, why a store is not used (HL_REASON_STORE_UNSAFE,
   HL_REASON_STORE_FOREIGN, HL_REASON_STORE_FILE_SYSTEM), or HL_REASON_THP_DISABLED: the kernel would map its huge pages by small
   entries. */
long hl_open_image(struct hl_stores *stores, struct hl_context *context, const struct hl_file_state *state);

/* The address of the first byte of OBJECT's image, a multiple of a huge page.  An image begins with the ELF header, so where no
   segment has that, and text begins at such a multiple, it is one huge page below. */
uint64_t hl_find_image_base(const struct hl_object *object, const struct hl_geometry *geometry);

/* Whether the open IMAGE is OBJECT laid out: the same segments, at offsets equal to their addresses modulo a huge page;
   read-only ones may have other borders, as in an executable's image (command/image/loads.c).  0, HL_REASON_IMAGE_PLACE or
   HL_REASON_IMAGE_MISMATCH. */
int hl_check_image(const struct hl_object *object, int image, const struct hl_geometry *geometry);

/* Whether a file of BYTES with the segments of LAID_OUT is OBJECT laid out.  The same results. */
int hl_compare_image(const struct hl_object *object, const struct hl_object *laid_out, uint64_t bytes,
                     const struct hl_geometry *geometry);

#endif
