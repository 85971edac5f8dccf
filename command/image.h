/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writes the image of an ELF file. */
#ifndef HL_IMAGE_H
#define HL_IMAGE_H

#include "layout.h"

/* Writes IMAGE, which hl_plan_image made from FILE, to OUT: an empty file, open for reading and writing, on any
   file system.  On hugetlbfs, which has no write(2), it is mapped, and ends at a whole huge page.  0, a negated
   errno, or HL_SKIP_SOURCE_UNREADABLE where FILE ended early. */
int hl_write_image(const struct hl_image *image, const struct hl_elf_file *file, int out);

#endif
