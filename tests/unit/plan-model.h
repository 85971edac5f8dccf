/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A second, slower planner, and the rules for every plan.  Shared by test-plan.c and tests/fuzz, which bring
   assert_true, assert_int_equal, assert_memory_equal and fail_msg. */
#ifndef T_PLAN_MODEL_H
#define T_PLAN_MODEL_H

#define R PF_R
#define RX (PF_R | PF_X)
#define RW (PF_R | PF_W)
#define RWX (PF_R | PF_W | PF_X)

/* --- the model --- */

static bool touches(const struct hl_segment *segment, uint64_t page) {
    return hl_overlap(segment->first_page, segment->end_page, page, page + T_HUGE) > 0;
}

static bool may_share(const struct hl_segment *segment) {
    return (segment->flags & R) && !(segment->flags & PF_W) && segment->file_end == segment->end;
}

/* No object's span. */
#define STAYS HL_KINDS

/* The kind that the huge page at PAGE, which touches only SEGMENT, a writable one, should become. */
static enum hl_kind model_writable(const struct hl_object *object, unsigned index,
                                   const struct hl_options *options, uint64_t page) {
    const struct hl_segment *segment = &object->segment[index];
    uint64_t end = page + T_HUGE, start = segment->first_page;
    if (hl_overlap(object->relro_start, object->relro_end, segment->first_page, segment->end_page) > 0)
        start = object->relro_end; /* RELRO's own pages, and all pages before them */
    if (page < start)
        return STAYS;
    if (end <= segment->file_end)
        return options->data != HL_DATA_OFF ? HL_DATA : STAYS;
    if (options->bss == HL_BSS_OFF)
        return STAYS;
    return page >= segment->file_end && end <= segment->end_page ? HL_BSS : STAYS;
}

/* The kind of span that the huge page at PAGE should become, or STAYS. */
static enum hl_kind model_page(const struct hl_object *object, const struct hl_options *options,
                               uint64_t page) {
    unsigned first = 0, last = 0, n = object->n_segments;
    uint32_t flags = 0;
    uint64_t text = 0;
    while (first < n && !touches(&object->segment[first], page))
        first++;
    for (last = first; last < n && touches(&object->segment[last], page); last++)
        flags |= object->segment[last].flags;
    if (first == n || hl_overlap(object->relro_start, object->relro_end, page, page + T_HUGE) > 0)
        return STAYS;
    const struct hl_segment *segment = &object->segment[first];
    if (last == first + 1 && segment->flags == RW)
        return model_writable(object, first, options, page);
    for (unsigned i = first; i < last; i++)
        if (!may_share(&object->segment[i]))
            return STAYS;
    /* From the object's first mapping, or from the beginning of the read-only neighbours before this page ... */
    unsigned run = first;
    while (run > 0 && may_share(&object->segment[run - 1]))
        run--;
    if (page < object->segment[run].first_page)
        return STAYS;
    /* ... and never past the object's end. */
    if (page + T_HUGE > object->segment[n - 1].end_page)
        return STAYS;
    if (options->edges == HL_EDGES_SMALL && (last != first + 1 || page < segment->first_page))
        return STAYS;
    if (options->segments == HL_SEGMENTS_TEXT && !(flags & PF_X))
        return STAYS;
    for (unsigned i = first; i < last; i++)
        if (object->segment[i].flags & PF_X)
            text += hl_overlap(object->segment[i].start, object->segment[i].end, page, page + T_HUGE);
    if ((flags & PF_X) && !options->sparse_text && text < T_HUGE / 32)
        return STAYS;
    return flags & PF_X ? HL_TEXT : HL_RODATA;
}

/* --- rules for every plan --- */

static uint32_t flags_of(enum hl_kind kind) { return kind == HL_TEXT ? RX : kind == HL_RODATA ? R : RW; }

static void check_spans(const struct hl_plan *plan, const struct hl_object *object) {
    uint64_t begin = object->segment[0].first_page, end = object->segment[object->n_segments - 1].end_page;
    uint64_t pages[HL_KINDS] = {0};
    uint64_t before = 0;
    for (unsigned i = 0; i < plan->n_spans; i++) {
        const struct hl_span *span = &plan->span[i];
        assert_int_equal(span->start % T_HUGE, 0);
        assert_int_equal(span->end % T_HUGE, 0);
        assert_true(span->start < span->end);
        assert_true(span->start >= before);
        before = span->end;
        assert_true(span->start >= begin && span->end <= end);
        assert_int_equal(span->flags, flags_of(span->kind));
        pages[span->kind] += (span->end - span->start) / T_HUGE;
        assert_int_equal(hl_overlap(span->start, span->end, object->relro_start, object->relro_end), 0);
        for (unsigned j = 0; j < object->n_segments; j++) {
            const struct hl_segment *segment = &object->segment[j];
            if (hl_overlap(span->start, span->end, segment->first_page, segment->end_page) == 0)
                continue;
            assert_true(segment->flags & PF_R);
            assert_int_equal(segment->flags & PF_W, span->flags & PF_W);
            assert_true((span->flags & PF_W) || segment->file_end == segment->end);
        }
    }
    assert_memory_equal(pages, plan->pages, sizeof pages);
}

static void check_numbers(const struct hl_plan *plan, const struct hl_object *object) {
    uint64_t text = 0, covered_text = 0, made_executable = 0;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t covered = 0;
        for (unsigned j = 0; j < plan->n_spans; j++) {
            const struct hl_span *span = &plan->span[j];
            uint64_t bytes = hl_overlap(segment->start, segment->end, span->start, span->end);
            covered += bytes;
            if ((span->flags & PF_X) && !(segment->flags & PF_X))
                made_executable += bytes;
        }
        assert_int_equal(plan->covered_bytes[i], covered);
        assert_int_equal(plan->reason[i] == HL_MOVED, covered > 0);
        if (segment->flags & PF_X) {
            text += segment->end - segment->start;
            covered_text += covered;
        }
    }
    assert_int_equal(plan->text_bytes, text);
    assert_int_equal(plan->text_covered_bytes, covered_text);
    assert_int_equal(plan->made_executable_bytes, made_executable);
}

static enum hl_kind planned_kind(const struct hl_plan *plan, uint64_t page) {
    for (unsigned i = 0; i < plan->n_spans; i++)
        if (page >= plan->span[i].start && page < plan->span[i].end)
            return plan->span[i].kind;
    return STAYS;
}

__attribute__((unused)) static void check_against_model(const struct hl_plan *plan,
                                                        const struct hl_object *object,
                                                        const struct hl_options *options) {
    uint64_t page = hl_round_down(object->segment[0].first_page, T_HUGE);
    for (; page < object->segment[object->n_segments - 1].end_page; page += T_HUGE) {
        enum hl_kind wanted = model_page(object, options, page), planned = planned_kind(plan, page);
        if (wanted != planned)
            fail_msg(
                "%s: bias %#jx, page %#jx: kind %d planned, %d wanted (edges %u segments %u data %u bss %u)",
                object->path, (uintmax_t)object->load_bias, (uintmax_t)page, planned, wanted, options->edges,
                options->segments, options->data, options->bss);
    }
}

#endif
