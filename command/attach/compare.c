/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a file has the same bytes as a running process.

   The comparison takes most of the time of an attach, so an image is not copied before.  The bytes are read in chunks. */
#include "command/base/common.h"
#include "command/attach/attachment.h"
#include "command/trace/tracee.h"

#if defined __x86_64__

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Half of a processor's own cache; smaller reads take longer. */
#define CHUNK_BYTES ((size_t)512 << 10)

struct chunk {
    uint64_t at, bytes, offset;
};

struct comparison {
    pid_t pid;
    int file;
    const char *mapped; /* all of the file, or NULL; */
    uint64_t file_bytes;
    const struct hl_loaded *loaded;
    uint64_t header;    /* address of the ELF header in the process; 0: it is not mapped */
    char *here, *there; /* room for a chunk of each */
    int result;
};

/* Makes [at, at + bytes) equal in THERE, the process's bytes of the chunk, and in HERE, the file's. */
static void pass_over(const struct chunk *chunk, const char *here, char *there, uint64_t at, uint64_t bytes) {
    for (uint64_t i = at; i < at + bytes; i++)
        if (i - chunk->at < chunk->bytes)
            there[i - chunk->at] = here[i - chunk->at];
}

/* In an image these fields of the headers hold offsets in the image, so they differ from the file's.  All other fields are
   compared. */
static void pass_over_offsets(const struct comparison *c, const struct chunk *chunk, const char *here,
                              char *there) {
    uint64_t table = c->header + c->loaded->file->header.e_phoff;
    if (c->header == 0)
        return;
    pass_over(chunk, here, there, c->header + offsetof(Elf64_Ehdr, e_shoff), sizeof(Elf64_Off));
    for (size_t i = 0; i < c->loaded->file->phnum; i++) {
        uint64_t at = table + i * sizeof(Elf64_Phdr);
        pass_over(chunk, here, there, at + offsetof(Elf64_Phdr, p_offset), sizeof(Elf64_Off));
        pass_over(chunk, here, there, at + offsetof(Elf64_Phdr, p_align), sizeof(Elf64_Xword));
    }
}

/* The file's bytes of CHUNK; NULL: the file does not have them. */
static const char *read_file(const struct comparison *c, const struct chunk *chunk) {
    if (c->mapped != NULL)
        return chunk->offset + chunk->bytes <= c->file_bytes ? c->mapped + chunk->offset : NULL;
    bool is_read = pread(c->file, c->here, chunk->bytes, (off_t)chunk->offset) == (ssize_t)chunk->bytes;
    return is_read ? c->here : NULL;
}

static int compare_chunk(const struct comparison *c, const struct chunk *chunk) {
    const char *here = read_file(c, chunk);
    if (here == NULL)
        return HL_REASON_SOURCE_UNREADABLE;
    int result = hl_read_thread(c->pid, chunk->at, c->there, chunk->bytes);
    if (result != 0)
        return result;
    pass_over_offsets(c, chunk, here, c->there);
    return memcmp(here, c->there, chunk->bytes) == 0 ? 0 : HL_REASON_ATTACH_DIFFERS;
}

static void compare_range(struct comparison *c, uint64_t at, uint64_t end, uint64_t offset) {
    for (uint64_t bytes; at < end && c->result == 0; at += bytes, offset += bytes) {
        bytes = end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES;
        c->result = compare_chunk(c, &(struct chunk){at, bytes, offset});
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

/* An image belongs to us or to root: no other user can truncate it while it is mapped here. */
static void map_image(struct comparison *c) {
    struct stat stat;
    if (fstat(c->file, &stat) != 0 || stat.st_size <= 0)
        return;
    void *at = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, c->file, 0);
    if (at == MAP_FAILED)
        return;
    c->mapped = at;
    c->file_bytes = (uint64_t)stat.st_size;
}

static int compare(const struct hl_attachment *attachment, int file, const struct hl_piece_of_text *piece,
                   unsigned n, bool is_image) {
    struct comparison c = {.pid = attachment->process.pid,
                           .file = file,
                           .loaded = attachment->loaded,
                           .header = find_header(&attachment->loaded->object)};
    c.here = hl_xmalloc(2 * CHUNK_BYTES);
    c.there = c.here + CHUNK_BYTES;
    if (is_image)
        map_image(&c);
    for (unsigned i = 0; i < n; i++)
        compare_piece(&c, &piece[i]);
    if (c.mapped != NULL)
        munmap((void *)c.mapped, c.file_bytes);
    free(c.here);
    return c.result;
}

int hl_compare_attached_text(const struct hl_attachment *attachment) {
    return compare(attachment, attachment->file, attachment->piece, attachment->n_pieces,
                   attachment->is_huge);
}

int hl_compare_with_own_file(const struct hl_attachment *attachment) {
    return compare(attachment, attachment->back_file, attachment->back, attachment->n_back, false);
}

#endif
