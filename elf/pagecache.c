/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Huge pages of the page cache.  The kernel maps them if address and offset in the file agree modulo the size of a huge page, and
   if the file system has large folios or the kernel makes them for read-only files (CONFIG_READ_ONLY_THP_FOR_FS).  Whether it did
   is read from the page tables.

   If it has done so before (a program that was put in place, a large library on ext4 since 6.18, tmpfs mounted huge=),
   backend=auto leaves that as it is: a copy of our own would take memory and time and gain nothing. */
#include "pagecache.h"
#include "backing-file.h"
#include "prepare.h"
#include "sys.h"

#include <linux/fs.h>
#include <linux/mman.h>
#include <linux/uio.h>

/* How many bytes of SPAN huge pages of the page cache are mapped to.  Where PAGEMAP_SCAN does not tell, smaps does, mapping by
   mapping, which may reach beyond SPAN; but not beside a heap, where that can take 200 ms. */
static uint64_t read_file_huge_bytes(const struct hl_context *context, const struct hl_span *span) {
    struct hl_smaps smaps;
    uint64_t bytes = 0;
    int64_t scanned = hl_measure_huge(hl_pagemap_to_scan(context), span->start, span->end);
    if (scanned >= 0 || context->is_after_startup)
        return scanned >= 0 ? (uint64_t)scanned : 0;
    hl_open_smaps(&smaps);
    while (hl_next_smaps(&smaps) && smaps.mapping.start < span->end)
        if (smaps.mapping.end > span->start)
            bytes += smaps.file_huge_bytes;
    hl_close_smaps(&smaps);
    return bytes;
}

uint64_t hl_congruent_bytes(const struct hl_object *object, const struct hl_span *span,
                            uint64_t huge_page_bytes) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if ((segment->first_page - segment->offset) % huge_page_bytes == 0)
            bytes += hl_segment_overlap(segment, span->start, span->end);
    }
    return bytes;
}

/* Whether none of the BYTES of FILE from OFFSET on would have to come from the disk: one byte in each huge page is asked for.
   Asking makes the kernel read a little of it. */
static bool is_cached(int file, uint64_t offset, uint64_t bytes, uint64_t huge) {
    char byte;
    struct iovec to = {&byte, 1};
    for (uint64_t at = 0; at < bytes; at += huge)
        if (HL_CALL(__NR_preadv2, file, &to, 1, offset + at, 0, RWF_NOWAIT) == -EAGAIN)
            return false;
    return true;
}

/* Reads the BYTES of FILE from OFFSET on into huge pages of the page cache, as far as the file system has any.  Only a hint. */
static void read_into_cache(int file, uint64_t offset, uint64_t bytes, uint64_t huge) {
    struct hl_area area;
    if (hl_map_file_area(&area, bytes, PROT_READ, MAP_PRIVATE, file, offset) != 0)
        return;
    hl_madvise(area.start, bytes, MADV_HUGEPAGE);
    for (uint64_t at = area.start; at < area.end; at += huge)
        hl_madvise(at, area.end - at < huge ? area.end - at : huge, MADV_POPULATE_READ);
    hl_free_area(&area);
}

/* Whether WORK's file may be read into the page cache: what is linked at small pages only where it would be read for a copy as well. */
static bool may_be_read(struct hl_context *context, const struct hl_work *work, enum hl_kind kind) {
    return work->object.alignment >= context->config->geometry.huge_page_bytes ||
           hl_may_be_copied(context, work, kind);
}

/* How many of the span's bytes are on huge pages of the page cache, after one read in each: one fault maps
   such a page whole, and not much where there is none (128 MiB: 64 faults, not 2048, or 18 ms). */
static uint64_t read_huge_bytes(struct hl_context *context, struct hl_work *work,
                                const struct hl_span *span) {
    const struct hl_object *object = &work->object;
    uint64_t huge = context->config->geometry.huge_page_bytes;
    if (hl_congruent_bytes(object, span, huge) < hl_span_bytes(span) / 4 * 3)
        return 0;
    bool has_file = hl_find_file(context, work) >= 0 && context->probed.status.filters == 0;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t bytes = hl_segment_overlap(segment, span->start, span->end);
        uint64_t start = segment->first_page > span->start ? segment->first_page : span->start;
        uint64_t offset = segment->offset + (start - segment->first_page);
        if (has_file && !is_cached(object->file, offset, bytes, huge) &&
            may_be_read(context, work, span->kind))
            read_into_cache(object->file, offset, bytes, huge);
        for (uint64_t at = start; at < start + bytes; at += huge)
            if (hl_is_error(hl_madvise(at, context->config->geometry.page_bytes, MADV_POPULATE_READ)))
                return 0;
    }
    uint64_t huge_bytes = read_file_huge_bytes(context, span);
    return huge_bytes < hl_span_bytes(span) ? huge_bytes : hl_span_bytes(span);
}

bool hl_is_huge_already(struct hl_context *context, struct hl_work *work, enum hl_kind kind) {
    uint64_t bytes = 0, huge_bytes = 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (span->kind != kind || work->move[i].reason != HL_MOVED)
            continue;
        bytes += hl_span_bytes(span);
        huge_bytes += read_huge_bytes(context, work, span);
    }
    return bytes > 0 && huge_bytes >= bytes / 4 * 3;
}
