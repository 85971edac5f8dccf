/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The reason alone does not determine the remedy for a segment: another value of an option may be set already, and would not help
   if the segment is too short.  So each remedy is tried, by planning again, and the first one that covers more of the segment is
   named.  A part that an option would move stays because of that option; a part that no option would move lies outside whole huge
   pages. */
#include "command/show/parts.h"
#include "command/base/basics.h"
#include "elf/plan.h"

#include <inttypes.h>
#include <stdlib.h>

/* Each is for segments with that flag.  A part that the option would move stays for REASON; HL_MOVED: it lies outside
   whole huge pages. */
static const struct {
    const char *option;
    uint32_t flag;
    enum hl_reason reason;
} settings[] = {
    {"edges=merge", PF_X, HL_MOVED},
    {"sparse_text=on", PF_X, HL_REASON_SPARSE_TEXT},
    {"segments=text+rodata", PF_R, HL_REASON_OPTION_SEGMENTS},
    {"sparse_text=on", PF_R, HL_REASON_SPARSE_TEXT},
    {"data=thp", PF_W, HL_REASON_OPTION_DATA},
    {"bss=thp", PF_W, HL_REASON_OPTION_BSS},
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
    bool is_open = is_of_option(all->plan, part->segment);
    if (is_in_span(all->plan, part->start))
        return;
    for (size_t i = 0; i < N_SETTINGS && is_open && part->option == NULL; i++) {
        if (!(object->segment[part->segment].flags & settings[i].flag) ||
            !is_in_span(&all->with[i], part->start))
            continue;
        part->reason = settings[i].reason;
        part->option = settings[i].option;
    }
    if (!is_open)
        part->reason = all->plan->reason[part->segment];
    else if (part->option == NULL && part->start >= object->relro_start && part->start < object->relro_end)
        part->reason = HL_REASON_RELRO;
    else if (part->option == NULL && !has_whole_page(all, part->segment))
        part->reason = HL_REASON_TOO_SMALL;
    part->sentence = part->reason == HL_MOVED ? "outside whole huge pages" : hl_reason_sentence(part->reason);
}

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
        hl_parse_options(&with, settings[i].option, NULL);
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

/* --- remedies --- */

static uint64_t count_covered(const struct hl_file_plan *file_plan, const struct hl_object *object,
                              unsigned i, const struct hl_options *options) {
    struct hl_plan plan;
    hl_plan_object(&plan, object, options, &file_plan->geometry);
    return plan.covered_bytes[i];
}

/* Whether segment I would begin on a boundary of huge pages, and so cover more of them, if it were linked for that.  This does not
   help text that does not fill a huge page: it is better off beside its neighbours. */
static bool helps_to_relink(const struct hl_file_plan *file_plan, unsigned i) {
    const struct hl_segment *segment = &file_plan->object.segment[i];
    uint64_t huge = file_plan->geometry.huge_page_bytes, bytes = segment->end - segment->start;
    bool may_move = file_plan->plan.reason[i] == HL_MOVED || file_plan->plan.reason[i] == HL_REASON_TOO_SMALL;
    return may_move && !(segment->flags & PF_W) && file_plan->object.alignment < huge &&
           file_plan->plan.covered_bytes[i] < hl_round_down(bytes, huge);
}

static char *try_remedies(const struct hl_file_plan *file_plan, unsigned i,
                          const struct hl_options *options) {
    for (size_t j = 0; j < N_SETTINGS; j++) {
        struct hl_options with = *options;
        hl_parse_options(&with, settings[j].option, NULL);
        if (file_plan->object.segment[i].flags & settings[j].flag &&
            count_covered(file_plan, &file_plan->object, i, &with) > file_plan->plan.covered_bytes[i])
            return hl_xasprintf("set %s", settings[j].option);
    }
    return helps_to_relink(file_plan, i)
               ? hl_xasprintf("link it with -z max-page-size=0x%" PRIx64, file_plan->geometry.huge_page_bytes)
               : NULL;
}

static char *copy_remedy(enum hl_reason reason) {
    const char *remedy = hl_reason_remedy(reason);
    return remedy != NULL ? hl_xasprintf("%s", remedy) : NULL;
}

char *hl_find_remedy(const struct hl_file_plan *file_plan, unsigned i, const struct hl_options *options) {
    return is_of_option(&file_plan->plan, i) ? try_remedies(file_plan, i, options)
                                             : copy_remedy(file_plan->plan.reason[i]);
}

char *hl_find_object_remedy(const struct hl_file_plan *file_plan, const struct hl_options *options) {
    for (unsigned i = 0; file_plan->reason != 0 && i < file_plan->object.n_segments; i++)
        if (file_plan->object.segment[i].flags & PF_X)
            return hl_find_remedy(file_plan, i, options);
    return copy_remedy((enum hl_reason)file_plan->reason);
}
