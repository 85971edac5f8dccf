/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a file has the same bytes as a running process.

   The comparison takes most of the time of an attach, so an image is not copied before.  The bytes are read in chunks. */
#include "command/base/common.h"
#include "command/inject/attachment.h"
#include "command/inject/tracee.h"

#if defined __x86_64__

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Half of a processor's own cache; smaller reads take longer. */
#define CHUNK_BYTES ((size_t)512 << 10)

struct comparison {
    pid_t pid;
    int file;
    const struct hl_loaded *loaded;
    uint64_t header;    /* address of the ELF header in the process; 0: it is not mapped */
    char *here, *there; /* room for a chunk of each */
    int result;
};

/* Makes BYTES at FIELD equal in the file's and the process's bytes of the chunk [at, at + CHUNK_BYTES). */
static void pass_over(const struct comparison *c, uint64_t at, uint64_t field, uint64_t bytes) {
    for (uint64_t i = field; i < field + bytes; i++)
        if (i - at < CHUNK_BYTES)
            c->there[i - at] = c->here[i - at];
}

/* In an image these fields of the headers hold offsets in the image, so they differ from the file's.  All other fields are
   compared. */
static void pass_over_offsets(const struct comparison *c, uint64_t at) {
    uint64_t table = c->header + c->loaded->file->header.e_phoff;
    if (c->header == 0)
        return;
    pass_over(c, at, c->header + offsetof(Elf64_Ehdr, e_shoff), sizeof(Elf64_Off));
    for (size_t i = 0; i < c->loaded->file->phnum; i++) {
        uint64_t entry = table + i * sizeof(Elf64_Phdr);
        pass_over(c, at, entry + offsetof(Elf64_Phdr, p_offset), sizeof(Elf64_Off));
        pass_over(c, at, entry + offsetof(Elf64_Phdr, p_align), sizeof(Elf64_Xword));
    }
}

static void compare_range(struct comparison *c, uint64_t at, uint64_t end, uint64_t offset) {
    for (uint64_t bytes; at < end && c->result == 0; at += bytes, offset += bytes) {
        bytes = end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES;
        if (pread(c->file, c->here, bytes, (off_t)offset) == (ssize_t)bytes)
            c->result = hl_read_thread(c->pid, at, c->there, bytes);
        else
            c->result = HL_REASON_SOURCE_UNREADABLE;
        pass_over_offsets(c, at);
        if (c->result == 0 && memcmp(c->here, c->there, bytes) != 0)
            c->result = HL_REASON_ATTACH_DIFFERS;
    }
}

/* Gaps between segments belong to no segment, and are not compared. */
static void compare_piece(struct comparison *c, const struct hl_piece_of_text *piece) {
    const struct hl_object *object = &c->loaded->object;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t from = piece->start + piece->distance, to = piece->end + piece->distance;
        uint64_t start = segment->start > from ? segment->start : from;
        uint64_t end = segment->file_end < to ? segment->file_end : to;
        if (start < end)
            compare_range(c, start - piece->distance, end - piece->distance, piece->offset + (start - from));
    }
}

static uint64_t find_header(const struct hl_object *object) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (object->segment[i].offset == 0 && object->segment[i].file_end > object->segment[i].start)
            return object->segment[i].first_page;
    return 0;
}

static int compare(const struct hl_attachment *attachment, int file, const struct hl_piece_of_text *piece,
                   unsigned n) {
    struct comparison c = {.pid = attachment->process.pid,
                           .file = file,
                           .loaded = attachment->loaded,
                           .header = find_header(&attachment->loaded->object)};
    c.here = hl_xmalloc(2 * CHUNK_BYTES);
    c.there = c.here + CHUNK_BYTES;
    for (unsigned i = 0; i < n; i++)
        compare_piece(&c, &piece[i]);
    free(c.here);
    return c.result;
}

int hl_compare_attached_text(const struct hl_attachment *attachment) {
    return compare(attachment, attachment->file, attachment->piece, attachment->n_pieces);
}

int hl_compare_with_own_file(const struct hl_attachment *attachment) {
    return compare(attachment, attachment->back_file, attachment->back, attachment->n_back);
}

#endif
