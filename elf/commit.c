/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 5, commit: the new memory of an object comes into place, all spans or none.

   Old mappings are never overwritten, only moved, so that the way back exists until everything stands:

       object      | old | old  |old|           aside  |    PROT_NONE    |
                      \     \     \_____________________________\
                       \     \________________________\          \
       object      | hole            |          aside  | old | old  |old|
                          ^
       scratch     | new, filled     |

   One mremap per old mapping: one call over several stops half-way at a sealed one (6.18), and destroys the mappings that it does
   not move (6.12 and older).  Each step is in a list made beforehand; rolling back walks it in reverse.

   At vm.max_map_count the way back would fail as well, so spare mappings, the ballast, are taken before the
   first step and given up before rolling back.

   An object that the dynamic linker has just mapped needs none of this: no thread uses it yet, and it can be mapped again from its
   file, which is still open.  Each of its spans comes into place by one call, over the old mappings (map-again.c).

   Between the first and the last step runs nothing but this file, with every signal blocked, in the only
   thread: it calls nothing outside the core, whose own object is never moved.

   A call that fails need not have left everything as it was: Linux 5.10 unmaps the destination first, and 6.18 stops half-way where
   a mapping has been split since.  So a span's place is unmapped before its old pieces come back, and parts of a mapping that went
   aside although the call failed come back too.

   With other threads running there must never be a hole: they execute the text that is being moved, and their mmap would land in
   the hole.  Then each span is replaced by one call, which other threads see done or not done.  That call is the only thing here
   without a way back: should the kernel fail inside it, after unmapping (to allocate page tables), the text is gone, and all
   that can be done is to try again at once.  So everything that it checks first is checked before: the ability on scratch
   memory, the mappings, and room under vm.max_map_count (the ballast is held until then). */
#include "commit.h"
#include "check.h"
#include "line.h"
#include "map-again.h"
#include "mapping.h"
#include "prepare.h"
#include "report.h"
#include "sys.h"

#include <linux/mman.h>

/* One old mapping (as far as it lies inside a span), or one gap that is claimed for the time. */
struct step {
    uint64_t at, bytes, aside;
    unsigned span;
    bool is_gap, is_claimed;
    bool left; /* the mapping that was kept aside is not there any more */
};

struct commit {
    struct hl_context *context;
    struct hl_work *work;
    struct step *step;
    size_t n_steps, n_done;
    struct hl_area step_area, aside;
    struct hl_ballast ballast;
};

static bool is_prepared(const struct commit *c, unsigned span) {
    return c->work->move[span].backend != HL_NO_BACKEND && !c->work->move[span].placed;
}

static uint64_t bytes_of(const struct commit *c, unsigned span) {
    return hl_span_bytes(&c->work->plan.span[span]);
}

/* The most steps that can be needed: every mapping in the span, and a gap after each. */
static size_t count_steps(const struct commit *c) {
    const struct hl_maps *maps = &c->work->maps;
    size_t n = 0;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++) {
        const struct hl_span *span = &c->work->plan.span[i];
        size_t first = hl_find_mapping(maps, span->start);
        n += 2 * (hl_find_mapping(maps, span->end - 1) - first + 1) + 1;
    }
    return n;
}

static void add_step(struct commit *c, unsigned span, uint64_t start, uint64_t end, bool is_gap) {
    struct step *step = &c->step[c->n_steps++];
    step->at = start;
    step->bytes = end - start;
    step->aside = c->work->move[span].aside + (start - c->work->plan.span[span].start);
    step->span = span;
    step->is_gap = is_gap;
    step->is_claimed = false;
    step->left = false;
}

/* Lists the present mappings of a span, and claims for the gaps between them. */
static void list_steps(struct commit *c, unsigned i) {
    const struct hl_maps *maps = &c->work->maps;
    const struct hl_span *span = &c->work->plan.span[i];
    uint64_t at = span->start;
    for (size_t m = hl_find_mapping(maps, at); m < maps->n && maps->mapping[m].start < span->end; m++) {
        uint64_t start = maps->mapping[m].start > at ? maps->mapping[m].start : at;
        uint64_t end = maps->mapping[m].end < span->end ? maps->mapping[m].end : span->end;
        if (at < start)
            add_step(c, i, at, start, true);
        add_step(c, i, start, end, false);
        at = end;
    }
    if (at < span->end)
        add_step(c, i, at, span->end, true);
}

/* Allocates everything that needs memory, before the first step. */
static int allocate(struct commit *c) {
    uint64_t page = c->context->config->geometry.page_bytes, aside_bytes = 0;
    if (hl_grow_area(&c->step_area, hl_round_up(count_steps(c) * sizeof *c->step, page)) != 0)
        return HL_REASON_NO_MEMORY;
    c->step = (struct step *)c->step_area.start;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++)
        if (is_prepared(c, i))
            aside_bytes += bytes_of(c, i);
    if (hl_map_area(&c->aside, aside_bytes, PROT_NONE, MAP_NORESERVE) != 0)
        return HL_REASON_NO_MEMORY;
    uint64_t aside = c->aside.start;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++) {
        if (!is_prepared(c, i))
            continue;
        c->work->move[i].aside = aside;
        aside += bytes_of(c, i);
        list_steps(c, i);
    }
    return 0;
}

/* Takes the gaps, so that no other mapping is in the way: looking would not be enough. */
static int claim_gaps(struct commit *c) {
    for (size_t i = 0; i < c->n_steps; i++) {
        struct step *step = &c->step[i];
        if (!step->is_gap)
            continue;
        int result = hl_claim_range(step->at, step->bytes);
        if (result != 0)
            return result == -ENOMEM ? HL_REASON_MAP_COUNT : HL_REASON_GAP_OCCUPIED;
        step->is_claimed = true;
    }
    return 0;
}

/* Frees the claimed gaps of spans that are not in place. */
static void release_claims(struct commit *c) {
    for (size_t i = 0; i < c->n_steps; i++)
        if (c->step[i].is_claimed && !c->work->move[c->step[i].span].placed)
            hl_munmap(c->step[i].at, c->step[i].bytes);
}

/* Why mremap or a fixed mmap refused. */
static int explain_error(long result) {
    if (result == -ENOMEM)
        return HL_REASON_MAP_COUNT;
    if (result == -EACCES) /* a security module looks at a memfd only now */
        return HL_REASON_EXEC_DENIED;
    return result == -EPERM ? HL_REASON_SEALED : HL_REASON_NO_MREMAP;
}

static int move_aside(struct commit *c, unsigned span) {
    for (; c->n_done < c->n_steps && c->step[c->n_done].span == span; c->n_done++) {
        struct step *step = &c->step[c->n_done];
        long result = hl_move_mapping(step->at, step->bytes, step->aside);
        if (!hl_is_error(result))
            continue;
        hl_drop_ballast(&c->ballast);
        hl_return_pieces(step->aside, step->bytes, step->at);
        step->left = true;
        return explain_error(result);
    }
    return 0;
}

/* The span's new memory is not at its scratch address any more. */
static void disown_memory(struct hl_move *move, const struct hl_span *span) {
    hl_disown_area(&move->area, move->memory, move->memory + hl_span_bytes(span));
    move->memory = 0;
}

/* A child must have the text; one that is forked just now has this copy of it besides. */
static int place_memory(const struct hl_context *context, struct hl_move *move, const struct hl_span *span) {
    long result = 0;
    if (hl_is_kept_from_children(context, move))
        result = hl_madvise(move->memory, hl_span_bytes(span), MADV_DOFORK);
    if (!hl_is_error(result))
        result = hl_move_mapping(move->memory, hl_span_bytes(span), span->start);
    if (hl_is_error(result))
        return explain_error(result);
    move->placed = true;
    disown_memory(move, span);
    return 0;
}

/* The pages are the memfd's; mapped now, no thread faults later.  Before Linux 5.14 that can't be checked. */
static int place_file(const struct hl_context *context, struct hl_move *move, const struct hl_span *span) {
    bool can_populate = hl_can_populate();
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (can_populate ? 0 : MAP_POPULATE);
    long result = hl_mmap(span->start, hl_span_bytes(span), move->prot, flags, move->memfd, 0);
    if (hl_is_error(result))
        return explain_error(result);
    move->placed = true;
    bool is_mapped =
        !can_populate || !hl_is_error(hl_madvise(span->start, hl_span_bytes(span), MADV_POPULATE_READ));
    return is_mapped || context->probed.status.has_threads ? 0 : HL_REASON_POOL_SHORT;
}

static int place(const struct hl_context *context, struct hl_work *work, unsigned i) {
    struct hl_move *move = &work->move[i];
    return move->memfd < 0 ? place_memory(context, move, &work->plan.span[i])
                           : place_file(context, move, &work->plan.span[i]);
}

/* A uprobe may have been set since the check: it is in the old pages then, wherever they are. */
static int check_old_pages(const struct commit *c) {
    int result = 0;
    for (size_t i = 0; result == 0 && i < c->n_steps; i++)
        if (!c->step[i].is_gap && !hl_is_writable(&c->work->plan.span[c->step[i].span]))
            result = hl_check_unmodified(
                (int)c->context->probed.pagemap, c->step[i].aside, c->step[i].aside + c->step[i].bytes,
                c->context->config->geometry.page_bytes, c->context->probed.status.filters == 0);
    return result;
}

/* Whether the span's place still has its old mappings. */
static bool is_untouched(const struct commit *c, unsigned i) {
    const struct hl_span *span = &c->work->plan.span[i];
    struct hl_maps now;
    if (hl_read_maps(&now, span->start, span->end, c->context->probed.status.filters == 0) != 0)
        return true;
    bool same = hl_same_maps(&c->work->maps, &now, span->start, span->end);
    hl_free_maps(&now);
    return same;
}

/* If the kernel failed after unmapping, anything is better than leaving the hole. */
static int place_over(struct commit *c, unsigned i) {
    const struct hl_span *span = &c->work->plan.span[i];
    struct hl_move *move = &c->work->move[i];
    int result = place(c->context, c->work, i);
    if (result == 0 || move->placed || is_untouched(c, i))
        return result;
    if (move->memfd >= 0)
        return place(c->context, c->work, i);
    hl_return_pieces(move->memory, bytes_of(c, i), span->start);
    disown_memory(move, span);
    move->placed = true;
    return 0;
}

/* Other threads run: one call per span.  A span that fails stays; those before it are good. */
static int replace(struct commit *c) {
    hl_free_maps(&c->work->maps); /* the other threads went on */
    int result = hl_check_object(c->context, c->work);
    hl_drop_ballast(&c->ballast);
    bool any = false;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++) {
        if (!is_prepared(c, i))
            continue;
        if (result == 0)
            result = place_over(c, i);
        c->work->move[i].reason = (enum hl_reason)result;
        any = any || result == 0;
    }
    return any ? 0 : result;
}

/* Only this thread runs: every step can be undone. */
static int swap(struct commit *c) {
    int result = 0;
    for (unsigned i = 0; result == 0 && i < c->work->plan.n_spans; i++) {
        if (!is_prepared(c, i))
            continue;
        result = move_aside(c, i);
        c->work->move[i].emptied = result == 0;
        if (result == 0)
            result = place(c->context, c->work, i);
    }
    return result != 0 ? result : check_old_pages(c);
}

static void roll_back(struct commit *c) {
    hl_drop_ballast(&c->ballast);
    for (unsigned i = 0; i < c->work->plan.n_spans; i++)
        if (c->work->move[i].emptied) {
            hl_munmap(c->work->plan.span[i].start, bytes_of(c, i));
            c->work->move[i].placed = c->work->move[i].emptied = false;
        }
    while (c->n_done > 0) {
        struct step *step = &c->step[--c->n_done];
        hl_return_mapping(step->aside, step->bytes, step->at);
        step->left = true;
    }
}

/* The contract: everything is as it was. */
static void compare_with_before(struct commit *c) {
    struct hl_maps now;
    const struct hl_object *object = &c->work->object;
    uint64_t start = object->segment[0].first_page, end = object->segment[object->n_segments - 1].end_page;
    if (hl_read_maps(&now, start, end, c->context->probed.status.filters == 0) != 0)
        return;
    if (!hl_same_maps(&c->work->maps, &now, start, end))
        hl_report_broken(c->context, c->work);
    hl_free_maps(&now);
}

/* Frees the old mappings and the rest of the place in which they were kept. */
static void free_aside(struct commit *c) {
    uint64_t start = c->aside.start;
    for (size_t i = 0; i < c->n_steps; i++) {
        const struct step *step = &c->step[i];
        if (!step->left)
            continue;
        if (start < step->aside)
            hl_munmap(start, step->aside - start);
        start = step->aside + step->bytes;
    }
    if (start < c->aside.end)
        hl_munmap(start, c->aside.end - start);
}

/* Frees new memory that did not come into place, and the surroundings of the rest. */
static void free_scratch(struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        enum hl_backend backend = move->backend;
        hl_free_memory(move);
        if (move->placed)
            move->backend = backend;
    }
}

/* One call for each span.  A span that fails stays; those before it are good. */
static int commit_new(struct hl_context *context, struct hl_work *work) {
    int result = 0;
    bool any = false;
    for (unsigned i = 0; result != HL_REASON_LOST && i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        struct hl_move *move = &work->move[i];
        if (move->backend == HL_NO_BACKEND || move->placed)
            continue;
        result = place(context, work, i);
        if (result != 0 && !move->placed &&
            hl_map_again(&work->object, work->object.file, NULL, span, move->prot,
                         &context->config->geometry) != 0)
            result = HL_REASON_LOST;
        if (result == HL_REASON_LOST && move->memfd < 0) /* a part may have been moved away */
            disown_memory(move, span);
        move->reason = move->placed ? HL_MOVED : (enum hl_reason)result;
        any = any || move->placed;
    }
    free_scratch(work);
    return any && result != HL_REASON_LOST ? 0 : result;
}

int hl_commit_object(struct hl_context *context, struct hl_work *work) {
    struct commit c;
    if (hl_holds_its_place(&work->object))
        return commit_new(context, work);
    c.context = context;
    c.work = work;
    c.step = NULL;
    c.n_steps = c.n_done = 0;
    hl_clear_area(&c.step_area);
    hl_clear_area(&c.aside);
    hl_clear_area(&c.ballast.area);

    if (work->no_image == HL_MOVED) /* the mappings beside the data are the image's by now */
        hl_free_maps(&work->maps);
    int result = hl_look_at_object(context, work);
    if (result != 0) {
        free_scratch(work);
        return result;
    }
    result = allocate(&c);
    if (result == 0)
        result = hl_reserve_ballast(&c.ballast, context->config->geometry.page_bytes);
    if (result == 0)
        result = claim_gaps(&c);
    if (result == 0 && context->probed.status.has_threads) {
        result = replace(&c);
    } else if (result == 0) {
        result = swap(&c);
        if (result != 0)
            roll_back(&c);
    }
    hl_drop_ballast(&c.ballast);
    release_claims(&c);
    free_aside(&c);
    free_scratch(work);
    hl_free_area(&c.step_area);
    if (result != 0 && !context->probed.status.has_threads)
        compare_with_before(&c);
    return result;
}
