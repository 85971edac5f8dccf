/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Between plan and prepare: is the object still as its program headers say? Constructors that ran earlier may have remapped it,
   reprotected it or written to it, and a uprobe puts its breakpoint into a private page of the text: copied along, that is a
   SIGTRAP without a handler. */
#include "check.h"
#include "mapping.h"
#include "sys.h"

#include <linux/mman.h>

/* Whether [start, end) has private mappings with protection PROT only, without a hole. */
static bool is_mapped_as(const struct hl_maps *maps, uint64_t start, uint64_t end, int prot) {
    for (size_t i = hl_find_mapping(maps, start); start < end; i++) {
        if (i == maps->n || maps->mapping[i].start > start)
            return false;
        if (maps->mapping[i].shared || maps->mapping[i].prot != prot)
            return false;
        start = maps->mapping[i].end;
    }
    return true;
}

/* Whether MAPPING is the one with which musl keeps an object's place: of the file, from the first segment on. */
static bool is_place_kept(const struct hl_maps *maps, const struct hl_object *object,
                          const struct hl_mapping *mapping) {
    size_t i = hl_find_mapping(maps, object->segment[0].first_page);
    const struct hl_mapping *first = &maps->mapping[i];
    return i < maps->n && mapping->inode != 0 && mapping->inode == first->inode &&
           mapping->device == first->device && mapping->prot == first->prot &&
           !(mapping->prot & PROT_WRITE) && mapping->offset - first->offset == mapping->start - first->start;
}

/* Between segments there may be nothing, or the mapping with which a dynamic linker keeps an object's place:
   glibc's is inaccessible. */
static bool is_free_gap(const struct hl_maps *maps, const struct hl_object *object, uint64_t start,
                        uint64_t end) {
    for (size_t i = hl_find_mapping(maps, start); start < end && i < maps->n && maps->mapping[i].start < end;
         i++) {
        const struct hl_mapping *mapping = &maps->mapping[i];
        if (mapping->shared || (mapping->prot != PROT_NONE && !is_place_kept(maps, object, mapping)))
            return false;
    }
    return true;
}

/* Whether the file's part of SEGMENT in [start, end) is mapped from the file, each page at its offset. */
static bool is_from_file(const struct hl_maps *maps, const struct hl_segment *segment, uint64_t start,
                         uint64_t end) {
    end = segment->file_end < end ? segment->file_end : end;
    for (size_t i = hl_find_mapping(maps, start); start < end; i++) {
        const struct hl_mapping *mapping = &maps->mapping[i];
        if (i == maps->n || mapping->start > start || mapping->inode == 0 ||
            mapping->offset - segment->offset != mapping->start - segment->first_page)
            return false;
        start = mapping->end;
    }
    return true;
}

/* Whether MAPS has in SPAN's place what OBJECT's headers say; IS_STRICT: from its file, as far as that goes. */
static int check_mappings(const struct hl_maps *maps, const struct hl_object *object,
                          const struct hl_span *span, bool is_strict) {
    uint64_t gap = span->start;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t bytes = hl_segment_overlap(segment, span->start, span->end);
        if (bytes == 0)
            continue;
        uint64_t start = segment->first_page > span->start ? segment->first_page : span->start;
        if (!is_mapped_as(maps, start, start + bytes, hl_protection(segment->flags)) ||
            (is_strict && !is_from_file(maps, segment, start, start + bytes)))
            return HL_REASON_MAPPING_CHANGED;
        if (!is_free_gap(maps, object, gap, start))
            return HL_REASON_GAP_OCCUPIED;
        gap = start + bytes;
    }
    return is_free_gap(maps, object, gap, span->end) ? 0 : HL_REASON_GAP_OCCUPIED;
}

bool hl_is_as_mapped(const struct hl_maps *maps, const struct hl_object *object, const struct hl_span *span) {
    return check_mappings(maps, object, span, true) == 0;
}

static bool is_waiting(const struct hl_work *work, unsigned i) {
    return work->move[i].reason == HL_MOVED && !work->move[i].placed;
}

/* Whether nothing wrote to any of the read-only spans, nor to the gaps between them: one call tells, and nearly always says so.
   If not, each span is asked for alone. */
static bool are_all_unmodified(const struct hl_context *context, const struct hl_work *work) {
    uint64_t start = 0, end = 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (hl_is_writable(span) || !is_waiting(work, i))
            continue;
        start = end == 0 ? span->start : start;
        end = span->end;
    }
    return context->probed.status.filters == 0 && context->probed.pagemap >= 0 && start < end &&
           hl_scan_unmodified((int)context->probed.pagemap, start, end);
}

/* Whether a span may have flags that a mapping in its place would not have: advice, a lock.  Only code that ran before can have
   set them: another constructor, or an auditor.  No code knows an object yet that comes later; whether
   it may be locked, move.c asks.  smaps is read once for all spans, and nearly always says no; if
   not, each span is asked for alone. */
static bool may_be_special(const struct hl_context *context, const struct hl_work *work) {
    const struct hl_plan *plan = &work->plan;
    bool may_be = context->others_ran || (context->probed.status.has_locked && !context->is_after_startup);
    return may_be && plan->n_spans > 0 &&
           hl_check_flags(plan->span[0].start, plan->span[plan->n_spans - 1].end) != 0;
}

static int check_source(const struct hl_context *context, const struct hl_object *object,
                        const struct hl_span *span) {
    int result = context->probed.pagemap < 0 ? HL_REASON_NO_PROC : 0;
    for (unsigned i = 0; result == 0 && i < object->n_segments;) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t start = segment->first_page > span->start ? segment->first_page : span->start, end;
        do /* adjacent segments */
            end = object->segment[i++].end_page;
        while (i < object->n_segments && object->segment[i].first_page == end);
        end = end < span->end ? end : span->end;
        if (start < end)
            result = hl_check_unmodified((int)context->probed.pagemap, start, end,
                                         context->config->geometry.page_bytes,
                                         context->probed.status.filters == 0);
        if (result == HL_REASON_TEXT_MODIFIED &&
            hl_has_guard_page((int)context->probed.pagemap, start, end, context->config->geometry.page_bytes))
            result = HL_REASON_GUARDED;
    }
    return result;
}

/* Decides the protection of the new memory.  AArch64 has text whose pages refuse indirect branches to anything but a landing pad
   (PROT_BTI).  The kernel or the dynamic linker set it after looking at the object's note, the processor, and itself; only the
   mapping tells whether they did, and its protection is kept. */
static int choose_protection(struct hl_move *move, const struct hl_span *span) {
    int extra = 0, result = 0;
    if (HL_PROT_BTI != 0 && (span->flags & PF_X))
        result = hl_read_branch_protection(span->start, span->end, &extra);
    int prot = hl_protection(span->flags) | extra;
    if (move->backend != HL_NO_BACKEND && move->prot != prot) /* it is prepared already */
        return HL_REASON_MAPPING_CHANGED;
    move->prot = prot;
    return result;
}

bool hl_is_as_loaded(const struct hl_maps *maps, const struct hl_object *object) {
    const struct hl_mapping *first = NULL;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if (segment->flags & PF_W)
            continue;
        for (size_t j = hl_find_mapping(maps, segment->first_page);
             j < maps->n && maps->mapping[j].start < segment->end_page; j++) {
            const struct hl_mapping *mapping = &maps->mapping[j];
            if (first == NULL)
                first = mapping;
            if (mapping->inode == 0 || mapping->inode != first->inode || mapping->device != first->device ||
                mapping->offset - segment->offset != mapping->start - segment->first_page)
                return false;
        }
    }
    return first != NULL;
}

bool hl_is_just_executed(const struct hl_context *context, const struct hl_object *object) {
    bool is_one_piece = true;
    for (unsigned i = 1; i < object->n_segments; i++)
        is_one_piece = is_one_piece && object->segment[i - 1].end_page == object->segment[i].first_page;
    return object->is_main && context->is_executed && !context->others_ran && !context->is_after_startup &&
           is_one_piece;
}

int hl_look_at_object(const struct hl_context *context, struct hl_work *work) {
    const struct hl_object *object = &work->object;
    if (hl_holds_its_place(object) || work->maps.n > 0)
        return 0;
    return hl_read_maps(&work->maps, object->segment[0].first_page,
                        object->segment[object->n_segments - 1].end_page,
                        context->probed.status.filters == 0 && !hl_is_just_executed(context, object));
}

bool hl_needs_no_maps(const struct hl_context *context, const struct hl_object *object) {
    return hl_holds_its_place(object) || hl_is_just_executed(context, object);
}

int hl_check_pages(const struct hl_context *context, const struct hl_work *work) {
    int result = 0;
    if (are_all_unmodified(context, work))
        return 0;
    for (unsigned i = 0; result == 0 && i < work->plan.n_spans; i++)
        if (is_waiting(work, i) && !hl_is_writable(&work->plan.span[i]))
            result = check_source(context, &work->object, &work->plan.span[i]);
    return result;
}

int hl_check_object(struct hl_context *context, struct hl_work *work) {
    bool needs_no_maps = hl_needs_no_maps(context, &work->object) && work->maps.n == 0;
    int result = needs_no_maps ? 0 : hl_look_at_object(context, work);
    if (result == 0 && context->probed.pagemap < 0)
        context->probed.pagemap = hl_open_pagemap();
    bool are_unmodified = result == 0 && are_all_unmodified(context, work);
    bool are_special = result == 0 && may_be_special(context, work);
    for (unsigned i = 0; result == 0 && i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (!is_waiting(work, i))
            continue;
        if (!needs_no_maps)
            result = check_mappings(&work->maps, &work->object, span, false);
        if (result == 0 && !are_unmodified && !hl_is_writable(span))
            result = check_source(context, &work->object, span);
        if (result == 0 && are_special)
            result = hl_check_flags(span->start, span->end);
        if (result == 0)
            result = choose_protection(&work->move[i], span);
        if (hl_is_writable(span)) { /* only this span stays */
            work->move[i].reason = (enum hl_reason)result;
            result = 0;
        }
    }
    return result;
}
