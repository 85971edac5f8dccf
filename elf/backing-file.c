/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare: the file behind a read-only span.

   Nothing wrote to these pages (check.c), so the file has the same bytes as the memory, and gives them faster.
   128 MiB on 6.18, ext4:

   Cached, through a mapping of our own whose addresses and offsets are equal modulo the size of a huge page.  The kernel maps a
   large folio of the page cache by one entry there, while the program's mapping takes a fault for every 64 KiB: 12 ms against 17,
   with the copy.

   Cold, by pread(2) into the new memory.  A large read is read ahead by as much as the device takes at once, a fault only by the
   device's setting: 70 ms, whether that is 8 MiB (where faults in order do as well) or the usual 128 KiB (faults: 800 ms).

   The file is the one that a new object has just been mapped from, or the executable's, if /proc/self/maps says the same of it; the
   name as well, since subvolumes of btrfs share device and inode numbers.  The name of any other object may lead to another file by
   now; so the object is copied from memory, like every file that cannot be opened. */
#include "backing-file.h"
#include "check.h"
#include "move.h"
#include "pagecache.h"
#include "prepare.h"
#include "segments.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/mman.h>
#include <linux/uio.h>

/* The part of SEGMENT that is in SPAN, and its offset in the file. */
static bool find_part(const struct hl_segment *segment, const struct hl_span *span, struct hl_range *part,
                      uint64_t *offset) {
    part->start = segment->first_page > span->start ? segment->first_page : span->start;
    part->end = segment->end_page < span->end ? segment->end_page : span->end;
    *offset = segment->offset + (part->start - segment->first_page);
    return part->start < part->end;
}

/* The difference of offset and address in the longest part, modulo a huge page. */
static uint64_t find_distance(const struct hl_object *object, const struct hl_span *span, uint64_t huge) {
    struct hl_range part;
    uint64_t offset, longest = 0, distance = 0;
    for (unsigned i = 0; i < object->n_segments; i++)
        if (find_part(&object->segment[i], span, &part, &offset) && part.end - part.start > longest) {
            longest = part.end - part.start;
            distance = (offset - part.start) & (huge - 1);
        }
    return distance;
}

/* Finds the next part of SPAN, from segment *I on, that is contiguous in memory and in the file: of one segment or several. */
static bool next_run(const struct hl_object *object, const struct hl_span *span, unsigned *i,
                     struct hl_range *run, uint64_t *offset) {
    struct hl_range part;
    uint64_t from;
    run->start = run->end = 0;
    for (; *i < object->n_segments; ++*i) {
        if (!find_part(&object->segment[*i], span, &part, &from))
            continue;
        if (run->start == run->end) {
            *run = part;
            *offset = from;
        } else if (part.start != run->end || from - *offset != part.start - run->start) {
            break;
        } else {
            run->end = part.end;
        }
    }
    return run->start < run->end;
}

static void unmap_source(struct hl_backing_file *source, const struct hl_object *object,
                         const struct hl_span *span) {
    struct hl_range run;
    uint64_t offset = 0;
    for (unsigned i = 0; source->n_mapped > 0 && next_run(object, span, &i, &run, &offset);
         source->n_mapped--)
        hl_munmap(source->at + (run.start - span->start), run.end - run.start);
    source->n_mapped = 0;
}

/* A free address for a copy of SPAN, such that the offsets of its largest part are equal to its addresses modulo a huge page; or
   0. */
static uint64_t find_room(const struct hl_object *object, const struct hl_span *span, uint64_t huge) {
    struct hl_area area;
    if (hl_map_area(&area, hl_span_bytes(span) + 2 * huge, PROT_NONE, MAP_NORESERVE) != 0)
        return 0;
    uint64_t at = hl_round_up(area.start, huge) + find_distance(object, span, huge);
    hl_free_area(&area);
    return at;
}

/* Maps the file as it is mapped in the span.  A single piece goes where the kernel puts it, which aligns such mappings since
   there are large folios to map (Linux 5.18).  Several pieces need room; another thread may have taken that meanwhile, and the
   file is not used then. */
static bool map_source(struct hl_backing_file *source, const struct hl_context *context,
                       const struct hl_object *object, const struct hl_span *span, bool populates) {
    struct hl_range run;
    uint64_t offset = 0;
    unsigned i = 0;
    next_run(object, span, &i, &run, &offset);
    bool is_one = i == object->n_segments;
    if (!is_one && (source->at = find_room(object, span, context->config->geometry.huge_page_bytes)) == 0)
        return false;
    i = 0;
    while (next_run(object, span, &i, &run, &offset)) {
        uint64_t to = is_one ? 0 : source->at + (run.start - span->start), bytes = run.end - run.start;
        int fixed = is_one ? 0 : MAP_FIXED_NOREPLACE;
        long at = hl_mmap(to, bytes, PROT_READ, MAP_PRIVATE | fixed, source->file, offset);
        if (is_one && !hl_is_error(at))
            source->at = (uint64_t)at - (run.start - span->start);
        else if (!hl_is_error(at) && (uint64_t)at != to) /* before 4.17 the flag is unknown */
            hl_munmap((uint64_t)at, bytes);
        if (hl_is_error(at) || (!is_one && (uint64_t)at != to)) {
            unmap_source(source, object, span);
            return false;
        }
        source->n_mapped++;
        /* MAP_POPULATE would try a page that cannot be read for ever (mm/gup.c, Linux 6.18). */
        if (populates && hl_is_error(hl_madvise((uint64_t)at, bytes, MADV_POPULATE_READ))) {
            unmap_source(source, object, span);
            return false;
        }
    }
    return true;
}

bool hl_map_backing_file(struct hl_backing_file *source, const struct hl_context *context,
                         const struct hl_object *object, const struct hl_span *span) {
    if (source->n_mapped > 0)
        return true;
    source->is_populated = map_source(source, context, object, span, true);
    return source->is_populated;
}

/* How many bytes from A on, which is in MAPS_A, are mapped in one piece from the same file and offset as B in MAPS_B. */
static uint64_t find_same_file(const struct hl_maps *maps_a, uint64_t a, const struct hl_maps *maps_b,
                               uint64_t b) {
    size_t i = hl_find_mapping(maps_a, a), j = hl_find_mapping(maps_b, b);
    if (i == maps_a->n || j == maps_b->n)
        return 0;
    const struct hl_mapping *in_a = &maps_a->mapping[i], *in_b = &maps_b->mapping[j];
    bool same = in_a->start <= a && in_a->inode != 0 && in_a->inode == in_b->inode &&
                in_a->device == in_b->device && in_a->name == in_b->name &&
                in_a->offset + (a - in_a->start) == in_b->offset + (b - in_b->start);
    return same ? in_a->end - a : 0;
}

/* As in hl_mapping: stat(2) gives the kernel's new_encode_dev. */
static uint64_t mapped_device(uint64_t device) {
    uint64_t major = device >> 8 & 0xfff, minor = (device & 0xff) | (device >> 12 & 0xfff00);
    return major << 32 | minor;
}

long hl_open_object_file(const struct hl_object *object) {
    return hl_open(object->is_main && !object->is_argument ? "/proc/self/exe" : object->path,
                   O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* Whether FILE is what nothing but WORK's object is mapped from.  A filter of system calls may kill for asking. */
static bool is_its_file(const struct hl_context *context, const struct hl_work *work, int file) {
    struct hl_file_state state;
    return hl_is_just_executed(context, &work->object) ||
           (context->probed.status.filters == 0 && hl_is_as_loaded(&work->maps, &work->object) &&
            hl_read_file_state(&state, file) == 0 && hl_is_mapped_from(context, work, file, &state));
}

int hl_find_file(struct hl_context *context, struct hl_work *work) {
    struct hl_object *object = &work->object;
    if (object->file >= 0 || !object->is_main || context->n_to_close == HL_CLOSE_MAX ||
        (!hl_is_just_executed(context, object) && hl_look_at_object(context, work) != 0))
        return object->file;
    long file = hl_open_object_file(object);
    if (!hl_is_error(file) && is_its_file(context, work, (int)file)) {
        object->file = (int)file;
        hl_close_later(context, file);
    } else if (!hl_is_error(file)) {
        hl_close((int)file);
    }
    return object->file;
}

bool hl_is_mapped_from(const struct hl_context *context, const struct hl_work *work, int file,
                       const struct hl_file_state *state) {
    const struct hl_segment *segment = &work->object.segment[0];
    const struct hl_maps *maps = &work->maps;
    size_t i = hl_find_mapping(maps, segment->first_page);
    struct hl_maps now;
    if (hl_is_just_executed(context, &work->object))
        return true;
    if (i == maps->n || maps->mapping[i].inode == 0)
        return false;
    if (maps->mapping[i].inode == state->inode && maps->mapping[i].device == mapped_device(state->device))
        return true;
    /* overlayfs and btrfs have other numbers in maps than in stat: so the file is mapped, and looked up. */
    long at = hl_mmap(0, context->config->geometry.page_bytes, PROT_READ, MAP_PRIVATE, file, segment->offset);
    if (hl_is_error(at))
        return false;
    uint64_t page_bytes = context->config->geometry.page_bytes;
    bool same =
        hl_read_maps(&now, (uint64_t)at, (uint64_t)at + page_bytes, context->probed.status.filters == 0) == 0;
    if (same) {
        same = find_same_file(maps, segment->first_page, &now, (uint64_t)at) > 0;
        hl_free_maps(&now);
    }
    hl_munmap((uint64_t)at, page_bytes);
    return same;
}

long hl_open_mapped_file(struct hl_context *context, struct hl_work *work) {
    struct hl_file_state state;
    if (hl_find_file(context, work) >= 0)
        return work->object.file;
    long file = hl_open_object_file(&work->object);
    if (hl_is_error(file))
        return file == -ENOENT ? -ESTALE : file;
    if (context->probed.status.filters != 0 ||
        (hl_read_file_state(&state, (int)file) == 0 && hl_is_mapped_from(context, work, (int)file, &state)))
        return file;
    hl_close((int)file);
    return -ESTALE;
}

void hl_close_mapped_file(const struct hl_work *work, long file) {
    if (!hl_is_error(file) && file != work->object.file)
        hl_close((int)file);
}

void hl_open_backing_file(struct hl_backing_file *source, const struct hl_object *object,
                          const struct hl_span *span) {
    source->file = hl_is_writable(span) || hl_has_zeros(object, span) ? -1 : object->file;
    source->at = 0;
    source->n_mapped = 0;
    source->is_populated = false;
}

void hl_close_backing_file(struct hl_backing_file *source, const struct hl_object *object,
                           const struct hl_span *span) {
    unmap_source(source, object, span);
}

/* Whether the byte at OFFSET would have to come from the disk.  Asking makes the kernel read a little of it. */
static bool is_cold(int file, uint64_t offset) {
    char byte;
    struct iovec to = {&byte, 1};
    return HL_CALL(__NR_preadv2, file, &to, 1, offset, 0, RWF_NOWAIT) == -EAGAIN;
}

bool hl_is_cold(const struct hl_backing_file *source, const struct hl_context *context,
                const struct hl_object *object, const struct hl_span *span) {
    struct hl_range part;
    uint64_t offset;
    uint64_t next = span->start;             /* one in each huge page is asked for */
    if (context->probed.status.filters != 0) /* a filter may kill for preadv2 */
        return false;
    for (unsigned i = 0; i < object->n_segments; i++) {
        if (!find_part(&object->segment[i], span, &part, &offset))
            continue;
        for (uint64_t at = next > part.start ? next : part.start; at < part.end; at = next) {
            if (is_cold(source->file, offset + (at - part.start)))
                return true;
            next = at + context->config->geometry.huge_page_bytes;
        }
    }
    return false;
}

void hl_read_into_cache(struct hl_context *context, const struct hl_work *work, const struct hl_span *span) {
    const struct hl_object *object = &work->object;
    uint64_t huge = context->config->geometry.huge_page_bytes;
    struct hl_backing_file source;
    hl_open_backing_file(&source, object, span);
    if (source.file >= 0 && hl_is_cold(&source, context, object, span) &&
        (object->alignment >= huge || hl_may_be_copied(context, work, span->kind)) &&
        (source.n_mapped > 0 || map_source(&source, context, object, span, false))) {
        hl_madvise(source.at, hl_span_bytes(span), MADV_HUGEPAGE);
        for (uint64_t at = 0; at < hl_span_bytes(span); at += huge)
            hl_madvise(source.at + at, huge, MADV_POPULATE_READ); /* in a gap it fails */
    }
    hl_close_backing_file(&source, object, span);
}
