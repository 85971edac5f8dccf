/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a store has an image of a file, and whether a process would map it. */
#ifndef HL_FIND_IMAGE_H
#define HL_FIND_IMAGE_H

#include "elf/store.h"
#include "command/file/file-plan.h"

enum hl_image_use {
    HL_IMAGE_UNUSED,
    HL_IMAGE_USED,
    HL_IMAGE_DEPENDS /* on the address that it gets, which is not known: used at multiples of a huge page */
};

struct hl_found_image {
    enum hl_image_use use;
    enum hl_skip skip;       /* why it is not used; HL_MOVED: it is, or it depends, or backend= takes none */
    bool is_unwanted;        /* backend= takes none */
    char *path;              /* the image; NULL: there is none that may be used */
    uint64_t bytes;          /* its length */
    bool is_placed_anywhere; /* a PIE: only who executes the image itself has it at an address that goes */
    uint64_t needed_pages;   /* where there is none and one can be made: the huge pages that a store needs */
    struct hl_plan plan;     /* from an image, at the address of the file's plan */
};

/* Whether the executable segments of OBJECT have as much as a huge page of text must have (hl_least_text_bytes).  An image for less
   is made only where it is asked for by name (share add --way=image). */
bool hl_has_enough_text(const struct hl_object *object, const struct hl_geometry *geometry);

/* hl_open_image, as a process of this user with OPTIONS would call it that may have huge pages; or that has STATUS. */
long hl_open_image_of(const struct hl_file_state *state, const struct hl_options *options);
long hl_open_image_as(const struct hl_status *status, const struct hl_file_state *state,
                      const struct hl_options *options);

/* For FILE, of which no image was found where OPTIONS say because of SKIP: SKIP where this user can make one and it is of use,
   and *PAGES is what a store needs for it; else what speaks against one. */
enum hl_skip hl_consider_image(enum hl_skip skip, const struct hl_elf_file *file,
                               const struct hl_options *options, const struct hl_geometry *geometry,
                               uint64_t *pages);

/* The offset at which the open IMAGE has the huge page with the headers once more, as FILE has them (image/layout.c); HEADER is the
   address of the ELF header, modulo a huge page.  0: it has none. */
uint64_t hl_find_header_page(int image, const struct hl_elf_file *file, uint64_t header,
                             const struct hl_geometry *geometry);

/* Whether nothing may be executed where the open FILE lies. */
bool hl_is_noexec(int file);

/* Looks for the image of FILE_PLAN's file where OPTIONS say, as a process of this user would find it.
   KNOWS_ADDRESS: the load bias of FILE_PLAN is what the object gets, modulo a huge page.  hl_free_found_image
   frees FOUND's path. */
void hl_find_image(struct hl_found_image *found, const struct hl_file_plan *file_plan,
                   const struct hl_options *options, bool knows_address);
void hl_free_found_image(struct hl_found_image *found);

/* OPTIONS as they are for what is mapped from an image (elf/image.c). */
struct hl_options hl_options_for_image(const struct hl_options *options);

/* For the file at PATH: what would have it mapped from an image.  NULL: nothing has to be done, or nothing can
   be; the caller frees it. */
char *hl_format_image_remedy(const struct hl_found_image *found, const char *path);

#endif
