/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writes the image of an ELF file. */
#ifndef HL_COMMAND_IMAGE_H
#define HL_COMMAND_IMAGE_H

#include "command/image/layout.h"

/* Writes IMAGE, which hl_plan_image made from FILE, to OUT: a file without bytes of its own, open for reading and writing.  0, a
   negated errno, or HL_REASON_SOURCE_UNREADABLE if FILE ended early. */
int hl_write_image(const struct hl_image *image, const struct hl_elf_file *file, int out);

/* Whether the open OUT has the bytes that hl_write_image would write now: 0, HL_REASON_IMAGE_MISMATCH, a negated errno, or
   HL_REASON_SOURCE_UNREADABLE. */
int hl_compare_written(const struct hl_image *image, const struct hl_elf_file *file, int out);

/* The digest of all bytes of an image, as hexadecimal digits. */
#define HL_DIGEST_TEXT 33

/* Sets DIGEST to the digest of the open IMAGE.  0 or a negated errno. */
int hl_digest_image(char digest[HL_DIGEST_TEXT], int image);

#endif
