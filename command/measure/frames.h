/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* In how many frames of 2 MiB the text of files lies in physical memory: a TLB that keeps adjacent pages together, and a host that
   backs the guest with small pages, miss less the fewer they are.  Read from mappings of this process's own, so no other is walked. */
#ifndef HL_SURVEY_FRAMES_H
#define HL_SURVEY_FRAMES_H

#include <stddef.h>
#include <stdint.h>

struct hl_frames {
    size_t n;
    uint64_t *frame;
};

/* Adds the frames of those pages of the open FILE, of FILE_BYTES, that are cached among the 2 MiB from OFFSET on.  Adds nothing where
   the kernel does not tell: only root may know. */
void hl_add_frames(struct hl_frames *frames, int file, uint64_t file_bytes, uint64_t offset);

/* Their number; 0: unknown.  FRAMES is empty then. */
uint64_t hl_count_frames(struct hl_frames *frames);

#endif
