/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Commit: the new memory of an object comes into place, all spans or none.

   Others may share this memory: threads, children of vfork, processes made by clone(CLONE_VM).  They execute the text that moves
   and call mmap meanwhile, so there is no moment without text, and no hole in which another mapping could land:

       object      | old  | old  |old|        old text can still be read and executed: its pages come from the file again
                      |      |     |
                      v      v     v          1. mremap(MREMAP_DONTUNMAP), for each old mapping
       aside       | old  | old  |old|        its pages, wherever the kernel has room for them

       object      |    new, huge    |        2. mremap(MREMAP_FIXED) over the old text, for each span
                           ^
       scratch     |  new, filled    |

   The kernel makes each of these calls while it holds the lock of the address space, so that others see it done or not done.  The
   first step overwrites nothing, and refuses what the second one would: sealed mappings, a limit, a mapping that has
   been split since.  Between the two, and again at the end, the pages aside are looked at: a uprobe that has been set meanwhile
   is there.  A debugger's breakpoint is in the old place, which is looked at between the two.  On the way back text that
   others have changed in its place since (breakpoint, protection, seal) stays as they left it.

   The second step is the same for all objects.  The first one, the way back, has another form where the dynamic linker or the
   kernel has just mapped the object and its file is open: only a tracer or a uprobe could change what is there, so the file
   itself is what is kept, and is mapped again (map-again.c).  That cannot serve for others, because a file does not tell what
   they have changed meanwhile, data are not in it, and it may be gone or unreadable.  Nor can mappings aside serve for all:
   they have to be read first, which a filter may forbid where an object is new, and take four calls for each mapping beside
   the ballast's sixteen.

   What is aside comes back by mremap(MREMAP_FIXED), one mapping after the other: a call over several unmaps its destination
   and then fails (6.1 and 6.12), or stops half-way (6.18).  They can come back over small or transparent huge pages, but
   nothing cuts a hugetlb mapping at 4 KiB.  So hugetlb spans with several old mappings are placed last, and one that is in
   place stays there if another such span fails after it, which happens only where the kernel has no memory for page tables.
   If nothing shares the memory, it is unmapped first, and comes back as well.

   Writable data move only where nothing shares the memory (skip_data in move.c).  They leave a hole for the time, which is not seen
   then: with MREMAP_DONTUNMAP their pages would be the file's again, and the kernel would lose count of
   the memory that is committed.

   A call that maps over something unmaps that first, and may fail then, without memory for page tables.  If the place is empty
   afterwards, it is claimed by a call that replaces nothing, and the old mappings come back over the claim.  If another
   thread was faster, the text is lost, and the program ends with a line.

   At vm.max_map_count the way back would fail as well, so spare mappings, the ballast, are held during the first step.

   From the first step to the last this thread runs nothing but the core, whose own object is never moved; signals are blocked if
   other code has run before, which may have set handlers.  Another thread that forks between the steps gives its child the mappings
   that are aside, too. */
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
    uint64_t at, bytes;
    uint64_t aside; /* where its pages are kept; 0: nowhere */
    unsigned span;
    bool is_gap, is_claimed;
};

struct commit {
    struct hl_context *context;
    struct hl_work *work;
    bool is_in_file; /* the way back is the object's file, and nothing is kept aside */
    struct step *step;
    size_t n_steps;
    struct hl_area step_area;
};

static bool is_prepared(const struct hl_work *work, unsigned span) {
    const struct hl_move *move = &work->move[span];
    return move->backend != HL_NO_BACKEND && move->reason == HL_MOVED && !move->placed;
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
    step->aside = 0;
    step->span = span;
    step->is_gap = is_gap;
    step->is_claimed = false;
}

/* Lists the present mappings of a span, and claims for the gaps between them. */
static void list_span(struct commit *c, unsigned i) {
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

static int list_steps(struct commit *c) {
    uint64_t page = c->context->config->geometry.page_bytes;
    if (hl_grow_area(&c->step_area, hl_round_up(count_steps(c) * sizeof *c->step, page)) != 0)
        return HL_REASON_NO_MEMORY;
    c->step = (struct step *)c->step_area.start;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++)
        if (is_prepared(c->work, i))
            list_span(c, i);
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

/* Moves the mapping of STEP to where there is room.  If that fails, nothing has changed. */
static int move_aside(const struct commit *c, struct step *step) {
    struct hl_area room;
    if (hl_map_area(&room, step->bytes, PROT_NONE, MAP_NORESERVE) != 0)
        return HL_REASON_NO_MEMORY;
    uint64_t start = room.start;
    bool is_writable = hl_is_writable(&c->work->plan.span[step->span]);
    if (!is_writable)
        hl_free_area(&room);
    long result = is_writable ? hl_move_mapping(step->at, step->bytes, start)
                              : hl_keep_mapping(step->at, step->bytes, start);
    if (!hl_is_error(result)) {
        step->aside = (uint64_t)result;
        return 0;
    }
    hl_free_area(&room);
    return explain_error(result);
}

static int move_all_aside(struct commit *c) {
    int result = 0;
    for (size_t i = 0; result == 0 && i < c->n_steps; i++)
        if (!c->step[i].is_gap)
            result = move_aside(c, &c->step[i]);
    return result;
}

static bool is_read_only(const struct commit *c, const struct step *step) {
    return !step->is_gap && !hl_is_writable(&c->work->plan.span[step->span]);
}

static int check_pages(const struct commit *c, uint64_t at, uint64_t bytes) {
    return hl_check_unmodified((int)c->context->probed.pagemap, at, at + bytes,
                               c->context->config->geometry.page_bytes,
                               c->context->probed.status.filters == 0);
}

/* Whether nothing wrote to the read-only pages that are aside, or to those in their old place since.  A uprobe goes into all mappings of
   its file, so it is found aside whenever it was set; new memory may hold a copy of it, or lack it.  A debugger's breakpoint
   is in the old place alone. */
static int check_old_pages(const struct commit *c, bool is_aside) {
    int result = 0;
    for (size_t i = 0; result == 0 && i < c->n_steps; i++)
        if (is_read_only(c, &c->step[i]))
            result = check_pages(c, is_aside ? c->step[i].aside : c->step[i].at, c->step[i].bytes);
    return result;
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

/* The pages are the memfd's; mapped now, no thread faults later. */
static int place_file(const struct hl_context *context, struct hl_move *move, const struct hl_span *span) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    long result = hl_mmap(span->start, hl_span_bytes(span), move->prot, flags, move->memfd, 0);
    if (hl_is_error(result))
        return explain_error(result);
    move->placed = true;
    bool is_mapped = !hl_is_error(hl_madvise(span->start, hl_span_bytes(span), MADV_POPULATE_READ));
    return is_mapped || context->probed.is_shared ? 0 : HL_REASON_POOL_SHORT;
}

static int place(const struct hl_context *context, struct hl_work *work, unsigned i) {
    struct hl_move *move = &work->move[i];
    move->tried = true;
    return move->memfd < 0 ? place_memory(context, move, &work->plan.span[i])
                           : place_file(context, move, &work->plan.span[i]);
}

/* Whether the old mappings can come back over the new memory of span I, one after the other. */
static bool can_be_replaced(const struct commit *c, unsigned i) {
    unsigned n = 0;
    for (size_t j = 0; j < c->n_steps; j++)
        n += c->step[j].span == i;
    return n == 1 || c->work->move[i].backend != HL_HUGETLB;
}

static int place_all(struct commit *c) {
    for (int last = 0; last < 2; last++)
        for (unsigned i = 0; i < c->work->plan.n_spans; i++) {
            if (!is_prepared(c->work, i) || can_be_replaced(c, i) == last)
                continue;
            int result = place(c->context, c->work, i);
            if (result != 0)
                return result;
        }
    return 0;
}

/* Whether the old mappings of span I are still in their place, which other threads may have protected or cut since. */
static bool is_untouched(const struct commit *c, unsigned i, int claimed) {
    const struct hl_span *span = &c->work->plan.span[i];
    struct hl_maps now;
    if (hl_read_maps(&now, span->start, span->end, c->context->probed.status.filters == 0) != 0)
        return claimed == -EEXIST;
    bool same = true;
    for (size_t j = 0; j < c->n_steps; j++) {
        const struct step *step = &c->step[j];
        if (step->span == i && !step->is_gap)
            same = same && hl_same_files(&c->work->maps, &now, step->at, step->at + step->bytes);
    }
    hl_free_maps(&now);
    return same;
}

/* Whether others have changed what STEP left in its place: their protection, seal, or breakpoint holds. */
static bool is_changed(const struct commit *c, const struct step *step) {
    struct hl_maps now;
    uint64_t end = step->at + step->bytes;
    if (check_pages(c, step->at, step->bytes) == HL_REASON_TEXT_MODIFIED)
        return true;
    if (hl_read_maps(&now, step->at, end, c->context->probed.status.filters == 0) != 0)
        return false;
    bool changed = !hl_same_maps(&c->work->maps, &now, step->at, end);
    hl_free_maps(&now);
    return changed;
}

/* Makes the place of span I, whose new memory is there or should have come there, ready for its old mappings.  False if they
   cannot come back: the new memory stays there, or another mapping is there. */
static bool empty_place(const struct commit *c, unsigned i) {
    const struct hl_span *span = &c->work->plan.span[i];
    struct hl_move *move = &c->work->move[i];
    bool is_shared = c->context->probed.is_shared;
    if (!move->placed) {
        int claimed = hl_claim_range(span->start, hl_span_bytes(span));
        move->tried = claimed == 0 || !is_untouched(c, i, claimed);
        return claimed == 0 || !is_shared || !move->tried;
    }
    if (!can_be_replaced(c, i)) {
        if (is_shared)
            return false;
        hl_munmap(span->start, hl_span_bytes(span));
    }
    move->placed = false;
    return true;
}

/* Maps the file again in the place of span I, whose new memory is there or should have come there. */
static bool map_again(const struct commit *c, unsigned i) {
    const struct hl_span *span = &c->work->plan.span[i];
    const struct hl_object *object = &c->work->object;
    struct hl_move *move = &c->work->move[i];
    bool is_back = hl_map_again(object, object->file, NULL, span, move->placed, move->prot) == 0;
    if (!is_back && !move->placed && move->memfd < 0) /* a part may be there */
        disown_memory(move, span);
    move->placed = false;
    return is_back;
}

/* Whether the place of STEP has the old pages still: read-only ones are moved without unmapping that, and are a file's. */
static bool has_old_pages(const struct commit *c, const struct step *step) {
    return !c->work->move[step->span].tried && is_read_only(c, step);
}

/* Brings back what is aside.  0, or HL_REASON_LOST: the kernel refuses to. */
static int return_old(struct commit *c) {
    struct hl_move *move = c->work->move;
    int result = 0;
    for (size_t i = c->n_steps; i-- > 0;) {
        struct step *step = &c->step[i];
        if (step->aside == 0 || move[step->span].placed || move[step->span].reason == HL_REASON_LOST)
            continue;
        if (has_old_pages(c, step) && is_changed(c, step))
            continue;
        if (!hl_is_error(hl_return_mapping(step->aside, step->bytes, step->at)))
            step->aside = 0;
        else if (!has_old_pages(c, step))
            result = move[step->span].reason = HL_REASON_LOST;
    }
    return result;
}

/* RESULT is the reason.  Returns it, or LOST, or 0 if a span stays in place; then the others have the reason. */
static int roll_back(struct commit *c, int result) {
    struct hl_move *move = c->work->move;
    bool any = false;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++) {
        if (!move[i].tried)
            continue;
        bool is_free = c->is_in_file ? map_again(c, i) : empty_place(c, i);
        if (!is_free && !move[i].placed)
            result = move[i].reason = HL_REASON_LOST;
        any = any || move[i].placed;
    }
    if (return_old(c) != 0)
        result = HL_REASON_LOST;
    if (!any || result == HL_REASON_LOST)
        return result;
    for (unsigned i = 0; i < c->work->plan.n_spans; i++)
        if (is_prepared(c->work, i))
            move[i].reason = (enum hl_reason)result;
    return 0;
}

/* The contract: everything is as it was.  Not for what is mapped again from its file: that may be cut otherwise. */
static void compare_with_before(const struct commit *c) {
    struct hl_maps now;
    const struct hl_object *object = &c->work->object;
    uint64_t start = object->segment[0].first_page, end = object->segment[object->n_segments - 1].end_page;
    if (hl_read_maps(&now, start, end, c->context->probed.status.filters == 0) != 0)
        return;
    if (!hl_same_maps(&c->work->maps, &now, start, end))
        hl_report_broken(c->context, c->work);
    hl_free_maps(&now);
}

static void free_aside(struct commit *c) {
    for (size_t i = 0; i < c->n_steps; i++)
        if (c->step[i].aside != 0)
            hl_munmap(c->step[i].aside, c->step[i].bytes);
    hl_free_area(&c->step_area);
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

/* Whether the object's file is the way back: its mappings are certain, and nothing of it was written. */
static bool can_be_mapped_again(const struct hl_context *context, const struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (!work->object.is_new && is_prepared(work, i) && hl_is_writable(&work->plan.span[i]))
            return false;
    return hl_needs_no_maps(context, &work->object) && work->object.file >= 0;
}

/* An executable that has just begun was prepared without a look at its mappings. */
static bool are_as_mapped(const struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (is_prepared(work, i) && !hl_is_writable(&work->plan.span[i]) &&
            !hl_is_as_mapped(&work->maps, &work->object, &work->plan.span[i]))
            return false;
    return true;
}

/* Looks at the object once more: it was prepared for what it was then.  No thread knows a new one yet. */
static int look_again(const struct commit *c) {
    struct hl_context *context = c->context;
    struct hl_work *work = c->work;
    bool is_shared = context->probed.is_shared;
    if (c->is_in_file && work->object.is_new)
        return 0;
    /* Others went on, or the mappings beside the data are the image's by now. */
    if (is_shared || work->no_image == HL_MOVED)
        hl_free_maps(&work->maps);
    int result = hl_look_at_object(context, work);
    if (result == 0 && is_shared)
        result = hl_check_object(context, work);
    /* A resolver (STT_GNU_IFUNC) may have run. */
    if (result == 0 && hl_is_just_executed(context, &work->object) && !are_as_mapped(work))
        result = HL_REASON_MAPPING_CHANGED;
    if (result == 0 && c->is_in_file)
        result = hl_check_pages(context, work);
    return result;
}

/* The first step: the old mappings are kept. */
static int keep_old(struct commit *c) {
    struct hl_ballast ballast;
    int result = list_steps(c);
    hl_clear_area(&ballast.area);
    if (result == 0)
        result = hl_reserve_ballast(&ballast, c->context->config->geometry.page_bytes);
    if (result == 0)
        result = claim_gaps(c);
    if (result == 0)
        result = move_all_aside(c);
    if (result == 0)
        result = check_old_pages(c, true);
    if (result == 0)
        result = check_old_pages(c, false);
    hl_drop_ballast(&ballast);
    return result;
}

int hl_commit_object(struct hl_context *context, struct hl_work *work) {
    struct commit c;
    c.context = context;
    c.work = work;
    c.is_in_file = can_be_mapped_again(context, work);
    c.step = NULL;
    c.n_steps = 0;
    hl_clear_area(&c.step_area);
    int result = look_again(&c);
    if (result == 0 && !c.is_in_file)
        result = keep_old(&c);
    if (result == 0)
        result = place_all(&c);
    if (result == 0)
        result = check_old_pages(&c, true);
    if (result != 0)
        result = roll_back(&c, result);
    release_claims(&c);
    free_aside(&c);
    free_scratch(work);
    if (result != 0 && c.n_steps > 0 && !context->probed.is_shared)
        compare_with_before(&c);
    return result;
}
