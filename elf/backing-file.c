/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file behind an object.

   Nothing wrote to its read-only pages (check.c), so the file has the same bytes as the memory, and gives them faster.  A large
   read is read ahead by as much as the device takes at once, a fault only by the device's setting: 128 MiB that are not cached
   take 70 ms, by faults with a read-ahead of 128 KiB 800 ms (6.18, ext4).

   The file is the one that a new object has just been mapped from, or the executable's, if /proc/self/maps says the same of it; the
   name as well, since subvolumes of btrfs share device and inode numbers.  The name of any other object may lead to another file by
   now; so the object is copied from memory, like every file that cannot be opened. */
#include "backing-file.h"
#include "check.h"
#include "move.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>

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
