/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pieces of a program's memory that get new mappings, and the proof that the old ones are what their plan says. */
#include "command/inject/pieces.h"
#include "command/lib/basics.h"
#include "command/image/find.h"
#include "elf/image.h"
#include "elf/maps.h"
#include "elf/sys.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#ifndef STATX_TYPE /* the starter's libc is musl before 1.2.5 */
#include <linux/stat.h>
#endif

#ifndef AT_STATX_DONT_SYNC
#define AT_STATX_DONT_SYNC 0x4000
#endif

/* --- the list --- */

void hl_add_piece(struct hl_piece_of_text *list, unsigned *n, uint64_t start, uint64_t end, uint64_t offset,
                  uint32_t flags) {
    if (start < end)
        list[(*n)++] = (struct hl_piece_of_text){
            start, end, offset, (flags & PF_R ? PROT_READ : 0) | (flags & PF_X ? PROT_EXEC : 0), 0};
}

void hl_find_image_source(struct hl_image_source *source, const struct hl_object *object,
                          const struct hl_elf_file *file, int image, const struct hl_geometry *geometry) {
    uint64_t huge = geometry->huge_page_bytes;
    *source = (struct hl_image_source){.base = hl_find_image_base(object, geometry)};
    for (unsigned i = 0; i < object->n_segments; i++) {
        uint64_t header = object->segment[i].first_page, start = hl_round_down(header, huge);
        if (object->segment[i].offset != 0 || object->segment[i].file_end <= object->segment[i].start)
            continue; /* zeros may have any offset */
        source->header_offset = hl_find_header_page(image, file, header, geometry);
        if (source->header_offset != 0)
            source->header = (struct hl_address_range){start, start + huge};
    }
}

void hl_add_image_pieces(struct hl_piece_of_text *list, unsigned *n, const struct hl_image_source *source,
                         uint64_t start, uint64_t end, uint32_t flags) {
    uint64_t from = source->header.start > start ? source->header.start : start;
    uint64_t to = source->header.end < end ? source->header.end : end;
    if (from >= to)
        from = to = start;
    hl_add_piece(list, n, start, from, start - source->base, flags);
    hl_add_piece(list, n, from, to, source->header_offset + (from - source->header.start), flags);
    hl_add_piece(list, n, to, end, to - source->base, flags);
}

void hl_add_own_pieces(struct hl_piece_of_text *list, unsigned *n, const struct hl_object *object,
                       uint64_t start, uint64_t end) {
    for (unsigned i = 0; i < object->n_segments && *n < HL_PIECES_MAX; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t from = segment->first_page > start ? segment->first_page : start;
        uint64_t to = segment->end_page < end ? segment->end_page : end;
        if (!(segment->flags & PF_W))
            hl_add_piece(list, n, from, to, segment->offset + (from - segment->first_page), segment->flags);
    }
}

/* --- the proof --- */

bool hl_maps_segment(const struct hl_region *region, const struct hl_segment *segment, dev_t device,
                     ino_t inode) {
    return !region->shared && region->inode == inode && region->device == device &&
           region->flags == segment->flags &&
           region->offset - segment->offset == region->start - segment->first_page;
}

int hl_read_state_at(struct hl_file_state *state, int folder, const char *name) {
    struct statx found;
    long result =
        HL_CALL(__NR_statx, folder, name, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &found, 0);
    if (hl_is_error(result))
        return (int)result;
    *state = (struct hl_file_state){.device = makedev(found.stx_dev_major, found.stx_dev_minor),
                                    .inode = found.stx_ino,
                                    .bytes = found.stx_size,
                                    .ctime_seconds = (uint64_t)found.stx_ctime.tv_sec,
                                    .ctime_nanoseconds = found.stx_ctime.tv_nsec};
    return 0;
}

int hl_check_executable(const struct hl_process *process, const struct hl_file_state *state) {
    struct hl_file_state now;
    int result = hl_read_state_at(&now, process->folder, "exe");
    return result == 0 && !hl_is_same_state(&now, state) ? HL_REASON_NO_IMAGE : result;
}

int hl_check_pieces_unmodified(const struct hl_process *process, const struct hl_piece_of_text *list,
                               unsigned n, uint64_t page_bytes) {
    int pagemap = hl_open_process_file(process, "pagemap"), result = pagemap < 0 ? pagemap : 0;
    for (unsigned i = 0; i < n && result == 0; i++)
        result = hl_check_unmodified(pagemap, list[i].start, list[i].end, page_bytes, true);
    if (pagemap >= 0)
        close(pagemap);
    return result;
}

/* --- the new mappings --- */

int hl_map_piece(struct hl_tracee *tracee, const struct hl_piece_of_text *piece, uint64_t at, int flag,
                 int file) {
    long mapped;
    int result = hl_call(tracee, &mapped, SYS_mmap, at, piece->end - piece->start, (uint64_t)piece->prot,
                         (uint64_t)(MAP_PRIVATE | flag), (uint64_t)file, piece->offset);
    return result == HL_REASON_ATTACH_CALL ? hl_explain_mapping(mapped) : result;
}

int hl_map_piece_surely(struct hl_tracee *tracee, const struct hl_piece_of_text *piece, int file) {
    int result = HL_REASON_NO_MEMORY;
    for (unsigned tries = 0; tries < HL_TRIES && result > 0; tries++)
        result = hl_map_piece(tracee, piece, piece->start, MAP_FIXED, file);
    return result;
}

int hl_map_own_pieces(struct hl_tracee *tracee, const struct hl_object *object, uint64_t start, uint64_t end,
                      int extra, int file) {
    struct hl_piece_of_text own[HL_PIECES_MAX];
    unsigned n = 0;
    int result = 0;
    hl_add_own_pieces(own, &n, object, start, end);
    for (unsigned i = 0; i < n; i++) {
        own[i].prot |= own[i].prot & PROT_EXEC ? extra : 0;
        int mapped = hl_map_piece_surely(tracee, &own[i], file);
        result = result == 0 ? mapped : result;
    }
    return result;
}
