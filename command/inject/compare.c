/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a file has the same bytes as a running process.

   The comparison takes most of the time of an attach, so an image is not copied before.  The bytes are read in chunks. */
#include "command/lib/common.h"
#include "command/inject/attachment.h"
#include "command/inject/tracee.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Half of a processor's own cache; smaller reads take longer. */
#define CHUNK_BYTES ((size_t)512 << 10)

/* Compares PIECE, which is mapped from FILE, by way of the two CHUNKs.  Gaps between segments belong to no segment, and are not compared. */
static int compare_piece(const struct hl_attachment *attachment, const struct hl_piece_of_text *piece,
                         int file, char *chunk) {
    const struct hl_object *object = &attachment->loaded->object;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t from = piece->start + piece->distance, to = piece->end + piece->distance, bytes;
        uint64_t at = segment->start > from ? segment->start : from;
        uint64_t end = segment->file_end < to ? segment->file_end : to;
        for (; at < end; at += bytes) {
            bytes = end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES;
            if (pread(file, chunk, bytes, (off_t)(piece->offset + (at - from))) != (ssize_t)bytes)
                return HL_REASON_SOURCE_UNREADABLE;
            int result =
                hl_read_thread(attachment->process.pid, at - piece->distance, chunk + CHUNK_BYTES, bytes);
            if (result == 0 && memcmp(chunk, chunk + CHUNK_BYTES, bytes) != 0)
                result = HL_REASON_ATTACH_DIFFERS;
            if (result != 0)
                return result;
        }
    }
    return 0;
}

int hl_compare_attached_text(const struct hl_attachment *attachment) {
    const struct hl_loaded *loaded = attachment->loaded;
    const struct hl_piece_of_text *piece = attachment->piece;
    struct hl_piece_of_text own[HL_PIECES_MAX];
    unsigned n = 0;
    int file = attachment->file, result = 0;
    for (unsigned i = 0; i < attachment->n_pieces && file < 0; i++)
        hl_add_own_pieces(own, &n, &loaded->object, piece[i].start, piece[i].end);
    char *chunk = hl_xmalloc(2 * CHUNK_BYTES);
    for (unsigned i = 0; i < (file < 0 ? n : attachment->n_pieces) && result == 0; i++)
        result = compare_piece(attachment, file < 0 ? &own[i] : &piece[i], file < 0 ? loaded->file->fd : file,
                               chunk);
    free(chunk);
    return result;
}
