/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prepare: new memory at a scratch address, filled, with its final protection.  The program has not
   been touched yet; any failure frees the scratch and nothing happened.

   Read-only hugetlb spans are mapped MAP_NORESERVE.  A private mapping that owns a reservation can later take a page away from a
   forked child and kill it (a debugger's write into the parent is enough); one that owns none gives the debugger an error.  Filling
   proves the pages that a reservation would promise.

   Until it is placed, new memory is not given to children (MADV_DONTFORK): a fork in another thread would
   make its pages shared ones, for which a write needs new pages, and would hold them as long as the child
   lives.  Linux 7 has no way back from that for hugetlb pages; there a fork at the wrong moment costs the
   move (fill.c), and the child holds the pages.

   Transparent huge pages are taken only if they are certain not to hurt: allowed by the administrator, under
   no memory limit unless the user asked for them, and proved to be huge.  A span on anonymous 4 KiB pages is
   a pure loss. */
#include "prepare.h"
#include "backing-file.h"
#include "check.h"
#include "fill.h"
#include "line.h"
#include "mapping.h"
#include "memory-limit.h"
#include "pagecache.h"
#include "report.h"
#include "rewrites.h"
#include "sys.h"
#include "thp.h"

#include <linux/mman.h>
#include <linux/resource.h>

void hl_free_memory(struct hl_move *move) {
    hl_free_area(&move->area);
    if (move->memfd >= 0)
        hl_close(move->memfd);
    move->memory = 0;
    move->memfd = -1;
    move->backend = HL_NO_BACKEND;
}

/* The kernel's hugetlb features for this process. */
static const struct hl_kernel *find_hugetlb(struct hl_context *context) {
    if (!context->probed.knows_hugetlb) {
        hl_probe_hugetlb(&context->probed.kernel, &context->config->geometry, context->probed.is_shared);
        context->probed.knows_execution = context->probed.kernel.executable_memory;
    }
    context->probed.knows_hugetlb = true;
    return &context->probed.kernel;
}

/* Whether anonymous memory that was written may become executable.  UNUSED: a page of such memory that nothing needs, which tells
   by one call, since the policies that forbid it look at what a mapping is and was; or 0.  At vm.max_map_count, where that page
   cannot be cut off, the memory itself has to tell. */
static bool may_execute_written(struct hl_context *context, uint64_t unused) {
    uint64_t page = context->config->geometry.page_bytes;
    if (context->probed.knows_execution)
        return context->probed.kernel.executable_memory;
    long result = unused != 0 ? hl_mprotect(unused, page, PROT_READ | PROT_EXEC) : 0;
    if (result == -ENOMEM)
        return true;
    context->probed.kernel.executable_memory =
        unused != 0 ? !hl_is_error(result) : hl_may_execute_written(page);
    context->probed.knows_execution = true;
    return context->probed.kernel.executable_memory;
}

/* Whether spans of KIND could be committed: else their copies would be made in vain.  A filter may forbid mremap(2). */
static bool may_commit(struct hl_context *context, struct hl_work *work, enum hl_kind kind) {
    bool has_file = kind != HL_DATA && hl_find_file(context, work) >= 0;
    if (kind == HL_DATA || hl_holds_its_place(&work->object) ||
        (context->probed.status.filters == 0 && hl_is_just_executed(context, &work->object) && has_file))
        return true;
    if (!context->probed.knows_keeping)
        context->probed.may_keep_mapping = hl_may_keep_mapping(context->config->geometry.page_bytes);
    context->probed.knows_keeping = true;
    return context->probed.may_keep_mapping;
}

/* Where the process may take memory from, for callers that count it. */
static const struct hl_placement *find_placement(struct hl_context *context) {
    if (!context->probed.knows_placement)
        hl_read_placement(&context->probed.placement, &context->probed.status, context->config->options.numa);
    context->probed.knows_placement = true;
    return &context->probed.placement;
}

void hl_clear_moves(struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        move->backend = HL_NO_BACKEND;
        move->reason = move->no_hugetlb = HL_MOVED;
        hl_clear_area(&move->area);
        move->memory = 0;
        move->memfd = -1;
        move->placed = move->tried = false;
    }
}

/* Gives MOVE a memfd of BYTES, of its backend's pages.  A filter that was there at the start may be one that kills, and programs do not
   usually call memfd_create; but a user who names hugetlb wants that tried, too.  Beyond RLIMIT_FSIZE the kernel ends the
   program with SIGXFSZ, for a memfd, too. */
static bool open_memfd(const struct hl_context *context, struct hl_move *move, uint64_t bytes) {
    struct rlimit64 limit;
    if (context->probed.status.filters != 0 && context->config->options.backend != HL_BACKEND_HUGETLB)
        return false;
    if (hl_is_error(HL_CALL(__NR_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit, 0, 0)) || limit.rlim_cur < bytes)
        return false;
    move->memfd = (int)hl_create_memfd(&context->config->geometry, move->backend == HL_HUGETLB);
    return move->memfd >= 0 && !hl_is_error(HL_CALL(__NR_ftruncate, move->memfd, bytes, 0, 0, 0, 0));
}

/* Maps room for hugetlb pages: anonymous, which mremap brings into place, or a memfd's, which mmap does. */
static int map_hugetlb(struct hl_context *context, struct hl_move *move, const struct hl_span *span) {
    const struct hl_kernel *kernel = &context->probed.kernel;
    bool by_mremap = kernel->hugetlb_mremap && (!(span->flags & PF_X) || may_execute_written(context, 0));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | hl_hugetlb_flags(&context->config->geometry);
    if (!by_mremap) {
        if (!open_memfd(context, move, hl_span_bytes(span)))
            return kernel->hugetlb_mremap ? HL_REASON_EXEC_DENIED : HL_REASON_NO_MREMAP;
        flags = MAP_SHARED | MAP_NORESERVE;
    }
    if (hl_map_file_area(&move->area, hl_span_bytes(span), PROT_READ | PROT_WRITE, flags, move->memfd, 0) !=
        0)
        return HL_REASON_NO_MEMORY;
    move->memory = move->area.start;
    return 0;
}

/* Maps room for transparent huge pages: aligned, with address space behind it that is not used, so that no memory that is like it
   follows, and smaps says something about it alone.  Anonymous, or a memfd's for text that may be moved away from its place. */
static int map_thp(struct hl_context *context, const struct hl_object *object, struct hl_move *move,
                   const struct hl_span *span) {
    uint64_t huge = context->config->geometry.huge_page_bytes, bytes = hl_span_bytes(span);
    int moves = span->flags & PF_X ? hl_moves_text(object, context->config->geometry.page_bytes) : 0;
    if (moves < 0)
        return HL_REASON_SOURCE_UNREADABLE;
    if (moves && !open_memfd(context, move, bytes))
        return HL_REASON_MOVES_TEXT;
    int prot = PROT_READ | PROT_WRITE;
    if (hl_map_area(&move->area, bytes + huge, moves ? PROT_NONE : prot, MAP_NORESERVE) != 0)
        return HL_REASON_NO_MEMORY;
    if ((span->flags & PF_X) &&
        !may_execute_written(context, move->area.end - context->config->geometry.page_bytes))
        return HL_REASON_EXEC_DENIED;
    move->memory = hl_round_up(move->area.start, huge);
    if (moves && hl_is_error(hl_mmap(move->memory, bytes, prot, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                                     move->memfd, 0)))
        return HL_REASON_NO_MEMORY;
    if (hl_is_error(hl_madvise(move->memory, bytes, MADV_HUGEPAGE)))
        return HL_REASON_THP_UNAVAILABLE;
    /* Under PR_SET_MEMORY_MERGE (systemd's MemoryKSM=) all new memory is mergeable, and ksmd would split its huge pages.  A kernel
       without KSM says EINVAL, which does not matter. */
    hl_madvise(move->memory, bytes, MADV_UNMERGEABLE);
    return 0;
}

/* The huge pages of the mapping that begins at ADDRESS, in bytes; 0 if that can't be told.  The kernel walks the page tables of all
   that lies below ADDRESS, so this is for kernels without PAGEMAP_SCAN (before Linux 6.7), and under filters. */
static uint64_t read_thp_bytes(uint64_t address) {
    struct hl_smaps smaps;
    uint64_t found = 0;
    hl_open_smaps(&smaps);
    while (found == 0 && hl_next_smaps(&smaps) && smaps.mapping.start <= address)
        if (smaps.mapping.start == address)
            found = smaps.thp_bytes + smaps.file_huge_bytes;
    hl_close_smaps(&smaps);
    return found;
}

/* madvise(2) says of EAGAIN that another try may help; on a busy machine one was too few (6.1). */
#define COLLAPSE_TRIES 3

/* Whether the first BYTES of MOVE's memory are huge, and no other ones are there yet. */
static bool is_huge(const struct hl_context *context, const struct hl_move *move, uint64_t bytes) {
    int result = hl_check_huge(hl_pagemap_to_scan(context), move->memory, move->memory + bytes);
    return result >= 0 ? result == 0 : read_thp_bytes(move->memory) == bytes;
}

static int prove_thp(const struct hl_context *context, const struct hl_move *move, uint64_t bytes) {
    if (is_huge(context, move, bytes))
        return 0;
    /* They may be switched off; and MADV_COLLAPSE gives huge pages although the administrator allows none. */
    int policy = hl_check_thp_policy(&hl_system_roots, &context->config->geometry, &context->probed.status);
    if (policy != 0)
        return policy;
    for (unsigned i = 0; i < COLLAPSE_TRIES; i++) {
        long result = hl_madvise(move->memory, bytes, MADV_COLLAPSE);
        if (!hl_is_error(result) && is_huge(context, move, bytes))
            return 0;
        if (result != -EAGAIN)
            break;
    }
    return HL_REASON_THP_UNAVAILABLE;
}

/* Has the kernel fill MOVE's first huge page with zeros, and proves that it is huge: where the kernel gives small pages, nothing has
   been copied yet.  A memfd gets huge pages only where MADV_COLLAPSE finds a small one, so each does that.  The proof of the
   filled span has to suffice for dlopen(3) where only smaps tells, because reading it a second time would take as long as the heap is
   large; the settings are read first, then. */
static int prove_first_page(const struct hl_context *context, const struct hl_move *move,
                            const struct hl_span *span) {
    uint64_t huge = context->config->geometry.huge_page_bytes;
    uint64_t bytes = move->memfd < 0 ? huge : hl_span_bytes(span);
    for (uint64_t at = 0; at < bytes; at += huge) {
        long result =
            hl_madvise(move->memory + at, context->config->geometry.page_bytes, MADV_POPULATE_WRITE);
        if (hl_is_error(result))
            return HL_REASON_NO_MEMORY;
    }
    if (context->is_after_startup &&
        hl_check_huge(hl_pagemap_to_scan(context), move->memory, move->memory + bytes) < 0)
        return hl_check_thp_policy(&hl_system_roots, &context->config->geometry, &context->probed.status);
    return prove_thp(context, move, bytes);
}

/* Instructions were written as data.  They are flushed here and not in their place, because other threads
   execute them as soon as they are there; and after prove_thp, which may have copied them.  The scratch
   address serves: data caches go by physical address, and an instruction cache that is indexed by virtual
   address has index bits below the size of a huge page, in which scratch and place agree.  Threads that run
   meanwhile need no ISB: what they have fetched from the old pages are the same instructions, and where the
   gaps are, none. */
static void flush_text(uint64_t memory, uint64_t bytes) { hl_flush_icache(memory, memory + bytes); }

static int prepare_span(struct hl_context *context, const struct hl_object *object, struct hl_move *move,
                        const struct hl_span *span) {
    int result =
        move->backend == HL_HUGETLB ? map_hugetlb(context, move, span) : map_thp(context, object, move, span);
    if (result == 0 && hl_is_kept_from_children(context, move) &&
        hl_is_error(hl_madvise(move->memory, hl_span_bytes(span), MADV_DONTFORK)))
        result = HL_REASON_NO_MEMORY;
    if (result != 0)
        return result;
    if (context->config->options.numa != HL_NUMA_ANY)
        result = hl_bind_memory(find_placement(context), move->memory, hl_span_bytes(span));
    if (result == 0 && move->backend == HL_THP)
        result = prove_first_page(context, move, span);
    if (result == 0)
        result = hl_fill_span(context, object, span, move);
    if (result == HL_REASON_SOURCE_UNREADABLE &&
        hl_has_guard_page((int)context->probed.pagemap, span->start, span->end,
                          context->config->geometry.page_bytes))
        result = HL_REASON_GUARDED;
    bool is_proved = /* by prove_first_page: it is the only one */
        !context->is_after_startup && hl_span_bytes(span) == context->config->geometry.huge_page_bytes;
    if (result == 0 && move->backend == HL_THP && !is_proved)
        result = prove_thp(context, move, hl_span_bytes(span));
    if (result != 0)
        return result;
    /* A child that another thread forks meanwhile has the descriptor, and may have fewer rights than this process one day. */
    if (move->memfd >= 0 && context->probed.status.filters == 0)
        hl_seal_memfd(move->memfd);
    /* A memfd's pages are executed in another mapping, and may be written to in none then. */
    int prot = move->memfd < 0 ? move->prot : PROT_READ;
    long protected = hl_mprotect(move->memory, hl_span_bytes(span), prot);
    if (hl_is_error(protected))
        return protected == -ENOMEM ? HL_REASON_MAP_COUNT
               : prot & PROT_EXEC   ? HL_REASON_EXEC_DENIED
                                    : HL_REASON_NO_MEMORY;
    if (span->flags & PF_X)
        flush_text(move->memory, hl_span_bytes(span));
    return 0;
}

/* Whether span I is of KIND and no reason keeps it yet. */
static bool is_of_kind(const struct hl_work *work, unsigned i, enum hl_kind kind) {
    return work->plan.span[i].kind == kind && work->move[i].reason == HL_MOVED;
}

static uint64_t bytes_of_kind(const struct hl_work *work, enum hl_kind kind) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (is_of_kind(work, i, kind))
            bytes += hl_span_bytes(&work->plan.span[i]);
    return bytes;
}

static void free_kind(struct hl_work *work, enum hl_kind kind) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (is_of_kind(work, i, kind))
            hl_free_memory(&work->move[i]);
}

/* Whether the kernel itself is asked for NEEDED pages: it answers at once, where otherwise ten files are read.  It is not asked
   if particular nodes are wanted, if the numbers are printed, or if pages are to be left to others, whom it would deprive of
   them for a moment. */
static bool is_kernel_asked(const struct hl_context *context) {
    return context->config->options.numa == HL_NUMA_ANY && context->config->options.reserve_pages == 0 &&
           !hl_is_wanted(context, 3);
}

/* The pool check for the pages of one kind.  If the kernel says no, the files say why; and they may know better, because only
   reserving is forbidden (a control group), or pages can be added on other nodes.  MACHINE, which is read for that, says whether
   there is any pool: the kernel has just tried to add pages. */
static int check_pool(struct hl_context *context, struct hl_work *work, enum hl_kind kind,
                      struct hl_machine *machine) {
    struct hl_pool pool;
    uint64_t needed = bytes_of_kind(work, kind) / context->config->geometry.huge_page_bytes;
    bool is_asked = is_kernel_asked(context);
    bool is_granted = is_asked && hl_grants_pages(&context->config->geometry, needed);
    if (is_asked && !is_granted)
        hl_read_machine(machine, &hl_system_roots);
    if (machine->total > 0 && machine->pools == 0)
        return HL_REASON_POOL_SHORT;
    const struct hl_kernel *kernel = find_hugetlb(context);
    if (kernel->hugetlb_denied)
        return HL_REASON_HUGETLB_DENIED;
    if (is_granted)
        return 0;
    if (!kernel->hugetlb ||
        hl_read_pool(&pool, &hl_system_roots, &context->config->geometry, find_placement(context)) != 0)
        return HL_REASON_NO_HUGETLB;
    uint64_t available = hl_pool_available(&pool, context->config->options.reserve_pages);
    hl_report_pool(context, work, kind, needed, available);
    return needed <= available ? 0 : HL_REASON_POOL_SHORT;
}

/* Whether new memory has flags that the old did not have: after mlockall(MCL_FUTURE) in another constructor the kernel would lock it,
   which uses RLIMIT_MEMLOCK up.  It never locks hugetlb memory. */
static int check_new_memory(const struct hl_context *context) {
    struct hl_area page;
    if (!context->others_ran)
        return 0;
    if (hl_map_area(&page, context->config->geometry.page_bytes, PROT_NONE, 0) != 0)
        return HL_REASON_NO_MEMORY;
    int result = hl_check_flags(page.start, page.end);
    hl_free_area(&page);
    return result;
}

/* Whether there is memory for transparent huge pages; the first page shows whether the administrator allows them.  Only backend=thp
   asks for them under a memory limit; data=thp does not.  MACHINE is read if it was not. */
static int check_thp(struct hl_context *context, const struct hl_work *work, enum hl_kind kind,
                     struct hl_machine *machine) {
    uint64_t bytes = bytes_of_kind(work, kind);
    bool is_wanted = context->config->options.backend == HL_BACKEND_THP;
    int result = context->probed.status.thp_disabled ? HL_REASON_THP_DISABLED : check_new_memory(context);
    if (result != 0)
        return result;
    if (!is_wanted && machine->total == 0)
        hl_read_machine(machine, &hl_system_roots);
    if (!is_wanted)
        return hl_check_memory_limit(&hl_system_roots, find_placement(context), machine, bytes);
    uint64_t headroom = hl_read_memory_headroom(&hl_system_roots, find_placement(context));
    if (headroom == UINT64_MAX && hl_has_no_descriptor())
        return HL_REASON_MEMORY_UNKNOWN;
    return 2 * bytes <= headroom ? 0 : HL_REASON_MEMORY_FULL;
}

bool hl_may_be_copied(struct hl_context *context, const struct hl_work *work, enum hl_kind kind) {
    const struct hl_options *options = &context->config->options;
    uint64_t needed = bytes_of_kind(work, kind) / context->config->geometry.huge_page_bytes;
    struct hl_pool pool;
    struct hl_machine machine;
    machine.total = 0;
    if (options->backend == HL_BACKEND_IMAGE)
        return false;
    bool has_pages =
        hl_read_pool(&pool, &hl_system_roots, &context->config->geometry, find_placement(context)) == 0 &&
        needed <= hl_pool_available(&pool, options->reserve_pages);
    return has_pages ||
           (hl_check_thp_policy(&hl_system_roots, &context->config->geometry, &context->probed.status) == 0 &&
            check_thp(context, work, kind, &machine) == 0);
}

static int prepare_on(struct hl_context *context, struct hl_work *work, enum hl_kind kind,
                      enum hl_backend backend, struct hl_machine *machine) {
    int result = backend == HL_HUGETLB ? check_pool(context, work, kind, machine)
                                       : check_thp(context, work, kind, machine);
    if (result == 0 && backend == HL_HUGETLB && kind == HL_TEXT && hl_rewrites_text(context, work))
        result = HL_REASON_REWRITES_TEXT;
    for (unsigned i = 0; result == 0 && i < work->plan.n_spans; i++) {
        if (!is_of_kind(work, i, kind))
            continue;
        work->move[i].backend = backend;
        result = prepare_span(context, &work->object, &work->move[i], &work->plan.span[i]);
    }
    if (result != 0)
        free_kind(work, kind);
    if (result == HL_REASON_POOL_SHORT)
        find_placement(context); /* the report counts the free pages for this process */
    return result;
}

/* bss=thp: the kernel gives huge pages as the program touches them. */
static int advise_spans(const struct hl_context *context, struct hl_work *work, enum hl_kind kind) {
    int result = hl_check_thp_policy(&hl_system_roots, &context->config->geometry, &context->probed.status);
    for (unsigned i = 0; result == 0 && i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (!is_of_kind(work, i, kind))
            continue;
        if (hl_is_error(hl_madvise(span->start, hl_span_bytes(span), MADV_HUGEPAGE)))
            result = HL_REASON_THP_UNAVAILABLE;
        else
            work->move[i].backend = HL_ADVISED;
    }
    return result;
}

/* Whether KIND stays because the page cache has it on huge pages.  Read-only data follows the text beside it: in an object that
   is linked for huge pages it is mostly gap. */
static bool is_left_to_cache(struct hl_context *context, struct hl_work *work, enum hl_kind kind,
                             unsigned wanted) {
    bool is_told = hl_is_wanted(context, 1) || context->config->options.strict;
    if ((kind != HL_TEXT && kind != HL_RODATA) || !hl_uses_images(wanted))
        return false;
    if (wanted == HL_BACKEND_IMAGE && !is_told) /* it stays anyway */
        return false;
    if (context->probed.pagemap < 0)
        context->probed.pagemap = hl_open_pagemap();
    for (unsigned i = 0; kind == HL_RODATA && i < work->plan.n_spans; i++)
        if (work->plan.span[i].kind == HL_TEXT)
            return work->move[i].reason == HL_REASON_HUGE_ALREADY;
    return hl_is_huge_already(context, work, kind);
}

/* backend=auto got neither: whether the obstacle to thp is reported rather than HUGETLB's reason, whose remedy is backend=thp.
   A memory limit is no obstacle to a user who says that. */
static bool depends_on_thp(enum hl_reason hugetlb, enum hl_reason thp) {
    bool leads_to_thp = hugetlb == HL_REASON_NO_HUGETLB || hugetlb == HL_REASON_HUGETLB_DENIED ||
                        hugetlb == HL_REASON_NO_MREMAP || hugetlb == HL_REASON_REWRITES_TEXT ||
                        hugetlb == HL_REASON_DEBUGGER;
    bool is_limit =
        thp == HL_REASON_MEMORY_LIMIT || thp == HL_REASON_MEMORY_UNKNOWN || thp == HL_REASON_MEMORY_SHORT;
    return leads_to_thp && !is_limit;
}

/* Whether a span of KIND fills a gap of the object's: these addresses count against RLIMIT_AS afterwards, too. */
static bool fills_gaps(const struct hl_work *work, enum hl_kind kind) {
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        uint64_t mapped = 0;
        for (unsigned j = 0; j < work->object.n_segments; j++)
            mapped += hl_segment_overlap(&work->object.segment[j], span->start, span->end);
        if (is_of_kind(work, i, kind) && mapped < hl_span_bytes(span))
            return true;
    }
    return false;
}

/* Tries hugetlb and thp as far as they are WANTED. */
static int prepare_wanted(struct hl_context *context, struct hl_work *work, enum hl_kind kind,
                          unsigned wanted) {
    struct hl_machine machine;
    int result = HL_REASON_NO_HUGETLB;
    machine.total = 0;
    if (is_left_to_cache(context, work, kind, wanted))
        return HL_REASON_HUGE_ALREADY;
    if (wanted == HL_BACKEND_IMAGE)
        return work->no_image;
    if (!may_commit(context, work, kind))
        return HL_REASON_NO_MREMAP;
    if (wanted == HL_BACKEND_AUTO && fills_gaps(work, kind) && hl_check_address_limit() != 0)
        return HL_REASON_MEMORY_LIMIT;
    /* Threads could miss what a copy takes before it is in place, on hugetlb as well.  A backend that was asked for may take it. */
    if ((wanted == HL_BACKEND_AUTO || wanted != context->config->options.backend) &&
        context->probed.is_shared && hl_check_resource_limits() != 0)
        return HL_REASON_MEMORY_LIMIT;
    if (wanted == HL_BACKEND_AUTO && kind == HL_TEXT && context->probed.status.is_traced)
        result = HL_REASON_DEBUGGER;
    else if (wanted != HL_BACKEND_THP)
        result = prepare_on(context, work, kind, HL_HUGETLB, &machine);
    if (result == 0 || wanted == HL_BACKEND_HUGETLB)
        return result;
    int instead = prepare_on(context, work, kind, HL_THP, &machine);
    for (unsigned i = 0; instead == 0 && wanted == HL_BACKEND_AUTO && i < work->plan.n_spans; i++)
        if (is_of_kind(work, i, kind))
            work->move[i].no_hugetlb = (enum hl_reason)result;
    if (instead == 0 || wanted == HL_BACKEND_THP ||
        depends_on_thp((enum hl_reason)result, (enum hl_reason)instead))
        return instead;
    return result; /* the user can do something about a short pool */
}

int hl_prepare_spans(struct hl_context *context, struct hl_work *work, enum hl_kind kind) {
    const struct hl_options *options = &context->config->options;
    int result;
    bool is_read_only = kind == HL_TEXT || kind == HL_RODATA;
    if (is_read_only && work->no_image == HL_MOVED)
        return 0;
    if (kind == HL_BSS) /* a copy would fill memory that the program never touches */
        result = advise_spans(context, work, kind);
    else /* after a fork, hugetlb pages can be written only while the pool has others for the child */
        result = prepare_wanted(context, work, kind, kind == HL_DATA ? HL_BACKEND_THP : options->backend);
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (is_of_kind(work, i, kind) && work->move[i].backend == HL_NO_BACKEND)
            work->move[i].reason = (enum hl_reason)result;
    return result;
}
