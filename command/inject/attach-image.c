/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The image for a running process.

   It is no ELF file: it holds only the ranges of text, as its own file has them, and before it is used each process's bytes are
   compared with these.  So it fits a position-independent program
   at any address, and text in which the ELF header lies.  It has no name; the kernel frees it when the last process that maps it
   ends.

   Root makes it on a tmpfs of its own that is mounted nowhere, with huge pages as they are written; other users make it in a
   memory file, whose pages are made huge afterwards (Linux 6.12).  Processes get a read-only descriptor of a file on a read-only
   file system, or of a sealed file: none can change the text of the others. */
#include "command/lib/common.h"
#include "command/inject/attachment.h"
#include "elf/maps.h"
#include "elf/memory-limit.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Without being told, copies take at most this fraction of the free memory. */
#define FREE_SHARE 8

/* Reads PIECE from the executable's file to AT; behind the end of the file are zeros, as in a mapping. */
static int read_piece(const struct hl_attachment *attachment, const struct hl_piece_of_text *piece,
                      char *at) {
    struct hl_piece_of_text own[HL_PIECES_MAX];
    unsigned n = 0;
    hl_add_own_pieces(own, &n, &attachment->loaded->object, piece->start, piece->end);
    for (unsigned i = 0; i < n; i++) {
        uint64_t end = own[i].end - own[i].start, done = 0;
        for (ssize_t bytes = 1; done < end && bytes > 0; done += bytes > 0 ? (uint64_t)bytes : 0) {
            bytes = pread(attachment->loaded->file->fd, at + (own[i].start - piece->start) + done, end - done,
                          (off_t)(own[i].offset + done));
            if (bytes < 0)
                return HL_REASON_SOURCE_UNREADABLE;
        }
    }
    return 0;
}

/* Writes one piece, through a mapping with space for huge pages. */
static int write_piece(const struct hl_attachment *attachment, const struct hl_piece_of_text *piece,
                       int out) {
    uint64_t bytes = piece->end - piece->start, unit = attachment->request->geometry.huge_page_bytes;
    char *space = mmap(NULL, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return -errno;
    char *at = (char *)hl_round_up((uint64_t)space, unit);
    int result = HL_REASON_NO_MEMORY;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, out, (off_t)piece->offset) == at) {
        madvise(at, bytes, MADV_HUGEPAGE);
        if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
            result = read_piece(attachment, piece, at);
    }
    munmap(space, bytes + unit);
    return result;
}

/* Writes all pieces to OUT, and proves that they are on huge pages. */
static int write_pieces(const struct hl_attachment *attachment, int out) {
    const struct hl_piece_of_text *last = &attachment->piece[attachment->n_pieces - 1];
    uint64_t pages, small = 0;
    int result = ftruncate(out, (off_t)(last->offset + last->end - last->start)) == 0 ? 0 : -errno;
    for (unsigned i = 0; i < attachment->n_pieces && result == 0; i++)
        result = write_piece(attachment, &attachment->piece[i], out);
    if (result == 0 && fchmod(out, 0444) != 0)
        result = -errno;
    if (result != 0)
        return result;
    result = hl_prove_huge(&attachment->request->geometry, out, true, &pages, &small);
    return result != 0 || small > 0 ? HL_REASON_THP_UNAVAILABLE : 0;
}

/* Writes the image, of which *FILE becomes a descriptor for reading. */
static int write_image(const struct hl_attachment *attachment, int *file) {
    char *name = hl_xasprintf(HL_OWN_IMAGE "%.200s", hl_base_name(attachment->loaded->object.path));
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC), folder = -1;
    if (context >= 0 && fsconfig(context, FSCONFIG_SET_STRING, "huge", "always", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        folder = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    int out = folder >= 0 ? openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0400)
                          : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int result = out < 0 ? -errno : write_pieces(attachment, out);
    char *path = hl_xasprintf("/proc/self/fd/%d", out);
    bool is_sealed =
        folder >= 0 || fcntl(out, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    if (result == 0)
        *file = open(path, O_RDONLY | O_CLOEXEC);
    if (out >= 0)
        close(out); /* a file system with a writer cannot become read-only */
    if (folder >= 0)
        is_sealed = fsconfig(context, FSCONFIG_SET_FLAG, "ro", NULL, 0) == 0 &&
                    fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) == 0;
    if (result == 0 && (*file < 0 || !is_sealed))
        result = -EROFS;
    if (folder >= 0)
        close(folder);
    if (context >= 0)
        close(context);
    free(path);
    free(name);
    return result;
}

/* --- of all processes --- */

/* Whether OWN is to have all pieces of ATTACHMENT, at the same offsets. */
static bool has_pieces(const struct hl_own_image *own, const struct hl_attachment *attachment) {
    for (unsigned i = 0; i < own->n_pieces && own->n_pieces == attachment->n_pieces; i++)
        if (own->piece[i].offset != attachment->piece[i].offset ||
            own->piece[i].end - own->piece[i].start != attachment->piece[i].end - attachment->piece[i].start)
            return false;
    return own->n_pieces == attachment->n_pieces;
}

void hl_claim_own_image(struct hl_attachment *attachment) {
    struct hl_attach_request *request = attachment->request;
    uint64_t unit = request->geometry.huge_page_bytes;
    uint64_t load_bias = attachment->loaded->object.load_bias % unit;
    for (size_t i = 0; i < request->n_own && attachment->own == 0; i++)
        if (hl_is_same_state(&request->own[i].state, &attachment->state) &&
            request->own[i].load_bias == load_bias && has_pieces(&request->own[i], attachment))
            attachment->own = i + 1;
    if (attachment->own != 0)
        return;
    request->own = hl_xrealloc(request->own, (request->n_own + 1) * sizeof *request->own);
    struct hl_own_image *own = &request->own[request->n_own++];
    *own = (struct hl_own_image){attachment->state,    load_bias, attachment->huge_pages * unit, -1,
                                 attachment->n_pieces, {{0}}};
    memcpy(own->piece, attachment->piece, sizeof own->piece);
    attachment->own = request->n_own;
}

uint64_t hl_sum_own_images(const struct hl_attach_request *request) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < request->n_own; i++)
        bytes += request->own[i].bytes;
    return bytes;
}

int hl_check_own_images(const struct hl_attach_request *request, uint64_t *limit) {
    struct hl_status status;
    struct hl_placement placement;
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    uint64_t free_bytes = hl_read_memory_headroom(&hl_system_roots, &placement);
    *limit = request->memory_bytes != 0 ? request->memory_bytes : free_bytes / FREE_SHARE;
    *limit = *limit < free_bytes ? *limit : free_bytes;
    return hl_sum_own_images(request) <= *limit ? 0 : HL_REASON_ATTACH_MEMORY;
}

bool hl_fill_own_image(struct hl_attachment *attachment) {
    struct hl_attach_request *request = attachment->request;
    struct stat stat;
    if (attachment->reason != 0 || attachment->own == 0)
        return true;
    struct hl_own_image *own = &request->own[attachment->own - 1];
    int result = own->file >= 0 ? 0 : write_image(attachment, &own->file);
    attachment->file = own->file;
    if (result == 0)
        result = hl_compare_attached_text(attachment);
    if (result == 0 && fstat(attachment->file, &stat) == 0) {
        attachment->device = stat.st_dev;
        attachment->inode = stat.st_ino;
    }
    attachment->reason = hl_or_ended(attachment, result);
    return result != HL_REASON_NO_MEMORY && result != HL_REASON_THP_UNAVAILABLE && result != -ENOMEM &&
           result != -ENOSPC;
}

void hl_free_own_images(struct hl_attach_request *request) {
    for (size_t i = 0; i < request->n_own; i++)
        if (request->own[i].file >= 0)
            close(request->own[i].file);
    free(request->own);
    request->own = NULL;
    request->n_own = 0;
}
