/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a store has an image of a file, and whether a process would map it. */
#ifndef HL_FIND_IMAGE_H
#define HL_FIND_IMAGE_H

#include "elf/store.h"
#include "command/lib/file-plan.h"

enum hl_image_use {
    HL_IMAGE_UNUSED,
    HL_IMAGE_USED,
    HL_IMAGE_DEPENDS /* on the load address, which is not known: used at multiples of a huge page */
};

struct hl_found_image {
    enum hl_image_use use;
    enum hl_reason reason;   /* why it is not used; HL_MOVED: it is, or it depends, or backend= takes none */
    bool is_unwanted;        /* backend= takes none */
    char *path;              /* the image; NULL: none that may be used */
    uint64_t bytes;          /* its length */
    bool is_placed_anywhere; /* a PIE: it gets a suitable address only if the image itself is executed */
    uint64_t needed_pages;   /* if there is no image and one can be made: the huge pages that a store needs */
    struct hl_plan plan;     /* from an image, at the address of the file's plan */
};

/* As many bytes as a huge page of text must have (hl_least_text_bytes).  An image for less is made only if the user asks for it by name
   (enable --way=image). */
uint64_t hl_find_least_text_bytes(const struct hl_geometry *geometry);

/* hl_open_image, called as by a process of this user with OPTIONS and STATUS. */
long hl_open_image_as(const struct hl_status *status, const struct hl_file_state *state,
                      const struct hl_options *options);

/* For FILE, for which no image was found with OPTIONS because of REASON: returns REASON if this user can make a useful image, which
   needs *PAGES of a store; else the reason against one. */
enum hl_reason hl_consider_image(enum hl_reason reason, const struct hl_elf_file *file,
                                 const struct hl_options *options, const struct hl_geometry *geometry,
                                 uint64_t *pages);

/* Whether a program can be changed at its exec stop with this processor: 0, or HL_REASON_EXEC_OVERLAYS. */
int hl_check_exec_stop_machine(void);

/* The offset of the second huge page with headers, which are FILE's, in the open IMAGE (image/layout.c); HEADER is the address of
   the ELF header, modulo a huge page.  0: there is none. */
uint64_t hl_find_header_page(int image, const struct hl_elf_file *file, uint64_t header,
                             const struct hl_geometry *geometry);

/* Looks for the image of FILE_PLAN's file with OPTIONS, as a process of this user would.  KNOWS_ADDRESS: the load bias of FILE_PLAN
   is the object's real one, modulo a huge page.  The caller frees FOUND's path. */
void hl_find_image(struct hl_found_image *found, const struct hl_file_plan *file_plan,
                   const struct hl_options *options, bool knows_address);

/* OPTIONS as they apply to an object that is mapped from an image (elf/image.c). */
struct hl_options hl_options_for_image(const struct hl_options *options);

/* How the user can have the file at PATH mapped from an image.  NULL: nothing has to be done, or nothing can be; the caller frees
   it. */
char *hl_format_image_remedy(const struct hl_found_image *found, const char *path);

#endif
