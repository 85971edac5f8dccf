/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pieces of a program's memory that get new mappings, and the proof that the old ones are what their plan says. */
#ifndef HL_PIECES_H
#define HL_PIECES_H

#include "elf/context.h"
#include "elf/store.h"
#include "command/inject/tracee.h"

#define HL_PIECES_MAX (HL_SPANS_MAX + HL_SEGMENTS_MAX)

/* A range of a process and its new mapping: a file, from offset on. */
struct hl_piece_of_text {
    uint64_t start, end, offset;
    int prot;
    uint64_t distance; /* from there to where the object has these bytes; 0: they are there */
};

/* Adds [start, end), unless it is empty, to the *N pieces of LIST.  FLAGS: PF_R, PF_X. */
void hl_add_piece(struct hl_piece_of_text *list, unsigned *n, uint64_t start, uint64_t end, uint64_t offset,
                  uint32_t flags);

/* The layout of an image. */
struct hl_image_source {
    uint64_t base;                  /* the address of its first byte */
    struct hl_address_range header; /* the huge page with the headers; empty: the image has it only once */
    uint64_t header_offset;         /* of the second copy, with the headers as the file has them */
};

/* Reads the layout of the open IMAGE of OBJECT, whose file is FILE. */
void hl_find_image_source(struct hl_image_source *source, const struct hl_object *object,
                          const struct hl_elf_file *file, int image, const struct hl_geometry *geometry);

/* Adds [start, end) as the image has it; the part in the huge page with the headers comes from the second copy. */
void hl_add_image_pieces(struct hl_piece_of_text *list, unsigned *n, const struct hl_image_source *source,
                         uint64_t start, uint64_t end, uint32_t flags);

/* Adds the parts of OBJECT's read-only segments in [start, end), as its own file has them; as many as fit. */
void hl_add_own_pieces(struct hl_piece_of_text *list, unsigned *n, const struct hl_object *object,
                       uint64_t start, uint64_t end);

/* Whether REGION maps the file with DEVICE and INODE as SEGMENT says; neighbours may map other parts of it. */
bool hl_maps_segment(const struct hl_region *region, const struct hl_segment *segment, dev_t device,
                     ino_t inode);

/* Reads the state of NAME in the open FOLDER, or of FOLDER if NAME is empty, without asking the file system, which may not answer.  0, or a
   negated errno. */
int hl_read_state_at(struct hl_file_state *state, int folder, const char *name);

/* Whether PROCESS executes the file with STATE, which was not written to since.  0, HL_REASON_NO_IMAGE, or a negated errno. */
int hl_check_executable(const struct hl_process *process, const struct hl_file_state *state);

/* Whether PROCESS has written to none of the N pieces of LIST, which map files.  0, HL_REASON_TEXT_MODIFIED, or why that cannot be
   read. */
int hl_check_pieces_unmodified(const struct hl_process *process, const struct hl_piece_of_text *list,
                               unsigned n, uint64_t page_bytes);

/* Maps PIECE of TRACEE's descriptor FILE at AT, with MAP_FIXED or MAP_FIXED_NOREPLACE for FLAG.  0, why the call failed (hl_explain_mapping),
   or why it was not made. */
int hl_map_piece(struct hl_tracee *tracee, const struct hl_piece_of_text *piece, uint64_t at, int flag,
                 int file);
/* Maps it where it belongs, with several tries, since nothing else is mapped there. */
int hl_map_piece_surely(struct hl_tracee *tracee, const struct hl_piece_of_text *piece, int file);
/* Maps the read-only parts of OBJECT in [start, end) again from its own file, of which TRACEE has the descriptor FILE; EXTRA is added to
   the protection of text.  All are tried.  0, or why the first that failed did. */
int hl_map_own_pieces(struct hl_tracee *tracee, const struct hl_object *object, uint64_t start, uint64_t end,
                      int extra, int file);

#endif
