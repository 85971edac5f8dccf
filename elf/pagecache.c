/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Huge pages of the page cache.  The kernel maps them if address and offset in the file agree modulo the size of a huge page, and
   if the file system has large folios or the kernel makes them for read-only files (CONFIG_READ_ONLY_THP_FOR_FS).  Whether it did
   is read from the page tables.

   If it has done so before (a program that was put in place, a large library on ext4 since 6.18, tmpfs mounted huge=),
   backend=auto leaves that as it is: a copy of our own would take memory and time and gain nothing. */
#include "pagecache.h"
#include "backing-file.h"
#include "sys.h"

#include <linux/mman.h>

/* How many bytes of SPAN huge pages of the page cache are mapped to.  Where PAGEMAP_SCAN does not tell, smaps does, mapping by
   mapping, which may reach beyond SPAN; but not beside a heap, where that can take 200 ms. */
static uint64_t read_file_huge_bytes(const struct hl_context *context, const struct hl_span *span) {
    struct hl_smaps smaps;
    uint64_t bytes = 0;
    int64_t scanned = hl_measure_huge(hl_pagemap_to_scan(context), span->start, span->end);
    if (scanned >= 0 || context->has_started)
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

/* How many of the span's bytes are on huge pages of the page cache, after one read in each: one fault maps
   such a page whole, and not much where there is none (128 MiB: 64 faults, not 2048, or 18 ms). */
static uint64_t read_huge_bytes(struct hl_context *context, struct hl_work *work,
                                const struct hl_span *span) {
    const struct hl_object *object = &work->object;
    uint64_t huge = context->config->geometry.huge_page_bytes;
    if (hl_congruent_bytes(object, span, huge) < hl_span_bytes(span) / 4 * 3)
        return 0;
    hl_find_file(context, work);
    hl_read_into_cache(context, work, span);
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t bytes = hl_segment_overlap(segment, span->start, span->end);
        uint64_t start = segment->first_page > span->start ? segment->first_page : span->start;
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
