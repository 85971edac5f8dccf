/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plan: segments become spans of whole huge pages.  Pure: no system calls, no allocation.

   A stock binary is linked at 4 KiB, so text (T) begins and ends inside a huge page, and its neighbour on
   both sides is read-only data (r):

       huge pages  |         |         |         |         |         |
       object          rrrrrr TTTTTTTTTTTTTTTTTTTTTTT rrrrrrrr wwwww
       merge                 [        r-x span        ][ r-- ]
       small                  ....[    r-x span   ]....

   edges=merge lets a boundary page be read+execute with the read-only neighbour inside.  Nothing writable is
   ever taken in: a region ends at the first writable page and never passes the object's end.  edges=small
   takes only huge pages that begin inside a segment and hold nothing of another one.  A page of text must
   hold some of it, unless the caller sets sparse_text, as for images.

   Within a region which huge pages get which protection changes only where a segment begins or ends, so the
   planner cuts there and never walks page by page: a hostile p_memsz of 2^60 costs nothing more. */
#include "plan.h"
#include "options.h"

/* Each segment, and RELRO, contributes its first and last page, rounded down and up. */
#define CUTS_MAX (4 * (HL_SEGMENTS_MAX + 1))

struct planner {
    struct hl_plan *plan;
    const struct hl_object *object;
    const struct hl_options *options;
    uint64_t huge_page_bytes, least_text_bytes;
    uint64_t cut[CUTS_MAX];
    unsigned n_cuts;
};

/* A processor's first instruction TLB may have sixteen times as many entries for pages of 4 KiB as for huge
   ones (Intel's from Skylake to Ice Lake: 128, and 8 for each thread).  So an entry for a huge page has to
   stand for at least sixteen others: 64 KiB of 2 MiB, 1/32.  With less text the page of memory and the
   read-only data that becomes executable would buy nothing. */
#define PAGES_FOR_TEXT 32

uint64_t hl_least_text_bytes(const struct hl_options *options, const struct hl_geometry *geometry) {
    return options->sparse_text ? 0 : geometry->huge_page_bytes / PAGES_FOR_TEXT;
}

/* Segments that text and read-only spans are made of.  No linker makes one of them larger in memory than in the file: without
   that no span has bytes that its file lacks. */
static bool is_read_only(const struct hl_segment *segment) {
    return (segment->flags & (PF_R | PF_W)) == PF_R && segment->file_end == segment->end;
}

static void add_cut(struct planner *p, uint64_t at) {
    unsigned i = p->n_cuts++;
    for (; i > 0 && p->cut[i - 1] > at; i--)
        p->cut[i] = p->cut[i - 1];
    p->cut[i] = at;
}

/* Adds the boundaries of the whole huge pages in [start, end), and of those that it only touches. */
static void add_cuts(struct planner *p, uint64_t start, uint64_t end) {
    add_cut(p, hl_round_down(start, p->huge_page_bytes));
    add_cut(p, hl_round_up(start, p->huge_page_bytes));
    add_cut(p, hl_round_down(end, p->huge_page_bytes));
    add_cut(p, hl_round_up(end, p->huge_page_bytes));
}

/* The dynamic linker reprotects RELRO's own pages, and ends the program where it can't.  Every linker puts it
   into writable data; a file may put it anywhere. */
static bool has_relro(const struct hl_object *object, uint64_t start, uint64_t end) {
    return hl_overlap(object->relro_start, object->relro_end, start, end) > 0;
}

/* Appends [start, end), joined to the span before it if that one ends here and looks the same. */
static void add_span(struct planner *p, uint64_t start, uint64_t end, uint32_t flags, enum hl_kind kind) {
    struct hl_plan *plan = p->plan;
    struct hl_span *last = plan->n_spans > 0 ? &plan->span[plan->n_spans - 1] : NULL;
    if (last != NULL && last->end == start && last->flags == flags && last->kind == kind) {
        last->end = end;
    } else if (plan->n_spans < HL_SPANS_MAX) {
        plan->span[plan->n_spans++] = (struct hl_span){start, end, flags, kind};
    } else {
        return;
    }
    plan->pages[kind] += (end - start) / p->huge_page_bytes;
}

/* The huge page [start, end) stays.  A move of other parts of these segments overrules that
   (measure_segments). */
static void note_sparse(struct planner *p, unsigned first, unsigned last, uint64_t start, uint64_t end) {
    for (unsigned i = first; i < last; i++) {
        const struct hl_segment *segment = &p->object->segment[i];
        if (hl_segment_overlap(segment, start, end) > 0)
            p->plan->reason[i] = HL_REASON_SPARSE_TEXT;
    }
}

/* Plans [start, end), between two neighbouring cuts of the region that segments [first, last) form. */
static void plan_piece(struct planner *p, unsigned first, unsigned last, uint64_t start, uint64_t end) {
    uint32_t flags = 0;
    uint64_t text_bytes = 0;
    unsigned inside = 0;
    bool begins_inside = false;
    for (unsigned i = first; i < last; i++) {
        const struct hl_segment *segment = &p->object->segment[i];
        if (hl_segment_overlap(segment, start, end) == 0)
            continue;
        flags |= segment->flags;
        if (segment->flags & PF_X)
            text_bytes += hl_overlap(segment->start, segment->end, start, end);
        inside++;
        begins_inside = segment->first_page <= start;
    }
    if (inside == 0 || has_relro(p->object, start, end))
        return; /* nothing but a gap, or not selected */
    if (p->options->edges == HL_EDGES_SMALL && (inside > 1 || !begins_inside))
        return;
    if (p->options->segments == HL_SEGMENTS_TEXT && !(flags & PF_X))
        return;
    if ((flags & PF_X) && text_bytes < p->least_text_bytes) {
        note_sparse(p, first, last, start, end);
        return;
    }
    add_span(p, start, end, flags, flags & PF_X ? HL_TEXT : HL_RODATA);
}

/* Plans the read-only segments [first, last), which have nothing writable or unreadable between them.  The
   pages of their region reach from the first segment's to the next object byte that is none of theirs. */
static void plan_region(struct planner *p, unsigned first, unsigned last) {
    const struct hl_segment *segment = p->object->segment;
    uint64_t limit = last < p->object->n_segments ? segment[last].first_page : segment[last - 1].end_page;
    uint64_t start = hl_round_up(segment[first].first_page, p->huge_page_bytes);
    uint64_t end = hl_round_down(limit, p->huge_page_bytes);

    p->n_cuts = 0;
    for (unsigned i = first; i < last; i++)
        add_cuts(p, segment[i].first_page, segment[i].end_page);
    add_cuts(p, p->object->relro_start, p->object->relro_end);
    for (unsigned i = 0; i + 1 < p->n_cuts; i++) {
        uint64_t from = p->cut[i] > start ? p->cut[i] : start;
        uint64_t to = p->cut[i + 1] < end ? p->cut[i + 1] : end;
        if (from < to)
            plan_piece(p, first, last, from, to);
    }
}

/* Plans a writable SEGMENT.  RELRO is left out: its pages become read-only 4 KiB at a time.

       object   RELRO ddddddddddddddddddddddddd bbbbbbbbbbbbbbbbbb
       huge       |       |       |       |       |       |       |
                          [     data      ]       [     bss     ]

   The page in which initialised data ends stays, and so does the last one, which may hold the heap's
   beginning. */
static void plan_writable(struct planner *p, const struct hl_segment *segment) {
    const struct hl_object *object = p->object;
    const struct hl_options *options = p->options;
    uint64_t start = segment->first_page, huge = p->huge_page_bytes;
    if (has_relro(object, start, segment->end_page))
        start = object->relro_end;
    start = hl_round_up(start, huge);

    uint64_t data_end = hl_round_down(segment->file_end, huge), end = hl_round_down(segment->end_page, huge);
    uint64_t bss = hl_round_up(segment->file_end, huge);
    if (options->data != HL_DATA_OFF && start < data_end)
        add_span(p, start, data_end, PF_R | PF_W, HL_DATA);
    bss = bss > start ? bss : start;
    if (options->bss == HL_BSS_THP && bss < end)
        add_span(p, bss, end, PF_R | PF_W, HL_BSS);
}

/* Why a segment that no span touches stays. */
static enum hl_reason explain_segment(const struct planner *p, unsigned index) {
    const struct hl_segment *segment = &p->object->segment[index];
    const struct hl_options *options = p->options;
    if (!(segment->flags & PF_R))
        return HL_REASON_NO_READ;
    if ((segment->flags & (PF_W | PF_X)) == (PF_W | PF_X))
        return HL_REASON_WRITABLE_TEXT;
    if (segment->flags & PF_W) {
        if (segment->file_end == segment->start)
            return options->bss == HL_BSS_OFF ? HL_REASON_OPTION_BSS : HL_REASON_TOO_SMALL;
        if (options->data == HL_DATA_OFF)
            return HL_REASON_OPTION_DATA;
        if (segment->file_end <= p->object->relro_end && segment->first_page >= p->object->relro_start)
            return HL_REASON_RELRO;
        return HL_REASON_TOO_SMALL;
    }
    if (segment->file_end != segment->end)
        return HL_REASON_MALFORMED;
    if (options->segments == HL_SEGMENTS_TEXT && !(segment->flags & PF_X))
        return HL_REASON_OPTION_SEGMENTS;
    return p->plan->reason[index] != HL_MOVED ? p->plan->reason[index] : HL_REASON_TOO_SMALL;
}

static void measure_segments(struct planner *p) {
    struct hl_plan *plan = p->plan;
    for (unsigned i = 0; i < p->object->n_segments; i++) {
        const struct hl_segment *segment = &p->object->segment[i];
        for (unsigned j = 0; j < plan->n_spans; j++) {
            const struct hl_span *span = &plan->span[j];
            uint64_t bytes = hl_overlap(segment->start, segment->end, span->start, span->end);
            plan->covered_bytes[i] += bytes;
            if (span->kind == HL_TEXT && !(segment->flags & PF_X))
                plan->made_executable_bytes += bytes;
        }
        plan->reason[i] = plan->covered_bytes[i] == 0 ? explain_segment(p, i) : HL_MOVED;
        if (segment->flags & PF_X) {
            plan->text_bytes += segment->end - segment->start;
            plan->text_covered_bytes += plan->covered_bytes[i];
        }
    }
}

static void clear_plan(struct hl_plan *plan) {
    plan->n_spans = 0;
    for (unsigned i = 0; i < HL_SEGMENTS_MAX; i++) {
        plan->reason[i] = HL_MOVED;
        plan->covered_bytes[i] = 0;
    }
    for (unsigned i = 0; i < HL_KINDS; i++)
        plan->pages[i] = 0;
    plan->text_bytes = plan->text_covered_bytes = plan->made_executable_bytes = 0;
}

/* Why an object without spans stays: its text's reason says most, else the first segment's. */
static enum hl_reason explain_object(const struct hl_plan *plan, const struct hl_object *object) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (object->segment[i].flags & PF_X)
            return plan->reason[i];
    return plan->reason[0];
}

int hl_plan_object(struct hl_plan *plan, const struct hl_object *object, const struct hl_options *options,
                   const struct hl_geometry *geometry) {
    struct planner p;
    p.plan = plan;
    p.object = object;
    p.options = options;
    p.huge_page_bytes = geometry->huge_page_bytes;
    p.least_text_bytes = hl_least_text_bytes(options, geometry);

    clear_plan(plan);
    for (unsigned i = 0; i < object->n_segments && !object->text_relocations;) {
        const struct hl_segment *segment = &object->segment[i];
        unsigned first = i;
        while (i < object->n_segments && is_read_only(&object->segment[i]))
            i++;
        if (i > first) {
            plan_region(&p, first, i);
            continue;
        }
        if (segment->flags == (PF_R | PF_W))
            plan_writable(&p, segment);
        i++;
    }
    measure_segments(&p);
    if (object->text_relocations) {
        for (unsigned i = 0; i < object->n_segments; i++)
            plan->reason[i] = HL_REASON_TEXT_RELOCATIONS;
        return HL_REASON_TEXT_RELOCATIONS;
    }
    return plan->n_spans > 0 ? 0 : explain_object(plan, object);
}
