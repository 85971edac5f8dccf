/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each option that could move a part is tried, by planning again: a part that an option would move stays because of that option; a
   part that no option would move lies outside whole huge pages. */
#include "command/ask/parts.h"
#include "command/lib/basics.h"
#include "elf/plan.h"

/* Each is for segments with that flag.  A part that VALUE of the option would move stays for REASON. */
#define OPTION(name) offsetof(struct hl_options, name)
static const struct {
    size_t option;
    unsigned value;
    uint32_t flag;
    enum hl_reason reason;
} settings[] = {
    {OPTION(sparse_text), 1, PF_X, HL_REASON_SPARSE_TEXT},
    {OPTION(segments), HL_SEGMENTS_ALL, PF_R, HL_REASON_OPTION_SEGMENTS},
    {OPTION(sparse_text), 1, PF_R, HL_REASON_SPARSE_TEXT},
    {OPTION(data), HL_DATA_THP, PF_W, HL_REASON_OPTION_DATA},
    {OPTION(bss), HL_BSS_THP, PF_W, HL_REASON_OPTION_BSS},
};
#define N_SETTINGS (sizeof settings / sizeof settings[0])

/* An object's plan, and its plans with each of the settings. */
struct alternatives {
    const struct hl_object *object;
    const struct hl_plan *plan;
    struct hl_plan with[N_SETTINGS];
};

static bool is_in_span(const struct hl_plan *plan, uint64_t at) {
    for (unsigned i = 0; i < plan->n_spans; i++)
        if (at >= plan->span[i].start && at < plan->span[i].end)
            return true;
    return false;
}

/* Whether an option alone keeps the rest of segment I from huge pages. */
static bool is_of_option(const struct hl_plan *plan, unsigned i) {
    switch (plan->reason[i]) {
    case HL_MOVED:
    case HL_REASON_TOO_SMALL:
    case HL_REASON_SPARSE_TEXT:
    case HL_REASON_OPTION_SEGMENTS:
    case HL_REASON_OPTION_DATA:
    case HL_REASON_OPTION_BSS:
        return true;
    default:
        return false;
    }
}

/* Whether any part of segment I is moved, or would be by an option. */
static bool has_whole_page(const struct alternatives *all, unsigned i) {
    bool any = all->plan->covered_bytes[i] > 0;
    for (size_t j = 0; j < N_SETTINGS; j++)
        any |= (all->object->segment[i].flags & settings[j].flag) && all->with[j].covered_bytes[i] > 0;
    return any;
}

/* Why the byte at PART's start stays. */
static void explain_part(struct hl_part *part, const struct alternatives *all) {
    const struct hl_object *object = all->object;
    bool is_open = is_of_option(all->plan, part->segment), by_option = false;
    if (is_in_span(all->plan, part->start))
        return;
    for (size_t i = 0; i < N_SETTINGS && is_open && !by_option; i++) {
        if (!(object->segment[part->segment].flags & settings[i].flag) ||
            !is_in_span(&all->with[i], part->start))
            continue;
        part->reason = settings[i].reason;
        by_option = true;
    }
    if (!is_open)
        part->reason = all->plan->reason[part->segment];
    else if (!by_option && part->start >= object->relro_start && part->start < object->relro_end)
        part->reason = HL_REASON_RELRO;
    else if (!by_option && !has_whole_page(all, part->segment))
        part->reason = HL_REASON_TOO_SMALL;
    part->sentence = part->reason == HL_MOVED ? "outside whole huge pages" : hl_reason_sentence(part->reason);
}

/* Lowers *LIMIT to CANDIDATE, if that is between AT and it. */
static void lower_to(uint64_t *limit, uint64_t candidate, uint64_t at) {
    if (candidate > at && candidate < *limit)
        *limit = candidate;
}

static void lower_to_spans(uint64_t *limit, const struct hl_plan *plan, uint64_t at) {
    for (unsigned i = 0; i < plan->n_spans; i++) {
        lower_to(limit, plan->span[i].start, at);
        lower_to(limit, plan->span[i].end, at);
    }
}

/* The next address after AT, in SEGMENT, where another part may begin. */
static uint64_t find_change(const struct alternatives *all, const struct hl_segment *segment, uint64_t at) {
    uint64_t limit = segment->end;
    lower_to(&limit, all->object->relro_start, at);
    lower_to(&limit, all->object->relro_end, at);
    lower_to_spans(&limit, all->plan, at);
    for (size_t i = 0; i < N_SETTINGS; i++)
        lower_to_spans(&limit, &all->with[i], at);
    return limit;
}

size_t hl_list_parts(struct hl_part **parts, const struct hl_object *object, const struct hl_plan *plan,
                     const struct hl_options *options, const struct hl_geometry *geometry) {
    struct alternatives all = {.object = object, .plan = plan};
    size_t n = 0;
    *parts = NULL;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        struct hl_options with = *options;
        *(unsigned *)(void *)((char *)&with + settings[i].option) = settings[i].value;
        hl_plan_object(&all.with[i], object, &with, geometry);
    }
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        for (uint64_t at = segment->start, next; at < segment->end; at = next) {
            next = find_change(&all, segment, at);
            struct hl_part part = {.start = at, .end = next, .segment = i};
            explain_part(&part, &all);
            *parts = hl_xrealloc(*parts, (n + 1) * sizeof **parts);
            (*parts)[n++] = part;
        }
    }
    return n;
}
