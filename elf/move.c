/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pipeline, from the environment to the report.

       objects  ->  plan  ->  check  ->  pool check  ->  prepare  ->  commit  ->  report
       (read)      (pure)    (/proc)     (per node)     (scratch)    (swap)

   Every object is planned before anything moves, all text is prepared before any read-only data, and the
   executable before its DSOs: where the pool is short, that is the order in which it is spent. */
#include "move.h"
#include "check.h"
#include "commit.h"
#include "image.h"
#include "line.h"
#include "plan.h"
#include "prepare.h"
#include "report.h"
#include "segments.h"
#include "stack.h"
#include "sys.h"

#include <linux/mman.h>
#include <linux/sched.h>

#define WORKS_FIRST 4

/* A smaller object has no whole huge page.  Kernels with THP have none that is smaller. */
#define LEAST_HUGE_PAGE ((uint64_t)2 << 20)

static const char *find_variable(const char *const *envp, const char *name) {
    for (; envp != NULL && *envp != NULL; envp++) {
        size_t same = 0;
        while (name[same] != '\0' && (*envp)[same] == name[same])
            same++;
        if (name[same] == '\0' && (*envp)[same] == '=')
            return *envp + same + 1;
    }
    return NULL;
}

static const char options_name[] = "LD_HUGEPAGES_OPTIONS";

/* LD_HUGEPAGES, or NULL: empty means the same as unset. */
static const char *find_patterns(const char *const *envp) {
    const char *objects = find_variable(envp, "LD_HUGEPAGES");
    return objects != NULL && objects[0] != '\0' ? objects : NULL;
}

/* Before the first line: the present filters decide how hl_write_line writes. */
static void expect_lines(struct hl_context *context) {
    hl_read_process_status(context);
    hl_note_stderr(context);
}

static void tell_mistake(void *context, struct hl_string option, const char *what) {
    expect_lines(context);
    hl_report_mistake(context, options_name, option, what);
}

/* Notes that nothing was taken. */
static void clear_process(struct hl_context *context) {
    context->probed.pagemap = -1;
    context->work = NULL;
    context->n_to_close = 0;
    context->n_work = context->n_room = 0;
    hl_clear_area(&context->room);
    hl_clear_area(&context->work_area);
    context->dropped_named = false;
}

void hl_copy_context(struct hl_context *to, struct hl_config *config, const struct hl_context *from) {
    hl_copy_bytes(config, from->config, sizeof *config);
    hl_copy_bytes(to, from, sizeof *to);
    to->config = config;
    clear_process(to);
}

void hl_forget_process(struct hl_context *context) {
    context->probed.status_holds = context->probed.knows_hugetlb = context->probed.knows_execution =
        context->probed.knows_keeping = context->probed.knows_sharing = context->probed.knows_placement =
            false;
    context->probed.has_no_store = false;
}

static void clear_context(struct hl_context *context, const struct hl_config *config) {
    context->config = config;
    context->probed.standard_error = (struct hl_descriptor_id){0, 0};
    context->probed.filters_are_known = context->is_after_startup = context->others_ran = context->is_busy =
        false;
    context->is_executed = false;
    context->matched = context->n_small = 0;
    clear_process(context);
    hl_forget_process(context);
}

/* Reads the settings in ENVP. */
static void read_config(struct hl_context *context, struct hl_config *config, const char *const *envp) {
    struct hl_options *options = &config->options;
    hl_default_options(options);
    const char *text = find_variable(envp, options_name);
    if (text != NULL) {
        const struct hl_complaints complaints = {tell_mistake, context};
        hl_parse_options(options, text, &complaints);
    }
    const char *objects = find_patterns(envp);
    if (objects == NULL)
        objects = config->loader == HL_PRELOADER ? "main" : "";
    options->objects = (struct hl_string){objects, hl_strlen(objects)};
}

bool hl_begin(struct hl_context *context, struct hl_config *config, const char *const *envp,
              const char *executable, enum hl_loader loader, uint64_t page_bytes) {
    const struct hl_options *options = &config->options;
    config->loader = loader;
    config->is_traced = false;
    clear_context(context, config);
    read_config(context, config, envp);
    if (options->verbose >= 1 || options->strict)
        expect_lines(context);
    if (options->objects.bytes == 0 || !hl_acts_in(options, executable)) {
        hl_end(context);
        return false;
    }
    hl_set_geometry(&config->geometry, page_bytes);
    hl_fit_geometry(&config->geometry, options, &hl_system_roots);
    return true;
}

/* The bytes from the first to the last address of an object with headers PHDR. */
static uint64_t measure_extent(const Elf64_Phdr *phdr, size_t phnum) {
    uint64_t start = UINT64_MAX, end = 0;
    for (size_t i = 0; i < phnum; i++) {
        if (phdr[i].p_type != PT_LOAD)
            continue;
        if (phdr[i].p_memsz >= LEAST_HUGE_PAGE)
            return UINT64_MAX;
        start = phdr[i].p_vaddr < start ? phdr[i].p_vaddr : start;
        end = phdr[i].p_vaddr + phdr[i].p_memsz > end ? phdr[i].p_vaddr + phdr[i].p_memsz : end;
    }
    return start < end ? end - start : UINT64_MAX;
}

bool hl_has_nothing_to_do(const char *const *envp, const Elf64_Phdr *phdr, size_t phnum) {
    struct hl_options options;
    if (measure_extent(phdr, phnum) >= LEAST_HUGE_PAGE)
        return false;
    const char *objects = find_patterns(envp), *text = find_variable(envp, options_name);
    if (objects != NULL && hl_selects_other_objects((struct hl_string){objects, hl_strlen(objects)}))
        return false;
    if (text == NULL)
        return true;
    hl_default_options(&options);
    return hl_parse_options(&options, text, NULL) == 0 && options.verbose == 0 && !options.strict &&
           !options.perf_map;
}

bool hl_needs_path(const char *const *envp) {
    struct hl_options options;
    const char *objects = find_patterns(envp), *text = find_variable(envp, options_name);
    if (objects != NULL && hl_may_name_executable((struct hl_string){objects, hl_strlen(objects)}))
        return true;
    hl_default_options(&options);
    hl_parse_options(&options, text != NULL ? text : "", NULL);
    return !hl_acts_in(&options, "") || options.verbose > 0 || options.strict || options.perf_map;
}

void hl_use_room(struct hl_context *context, struct hl_work *work, size_t n) {
    context->work = work;
    context->n_room = n;
}

void *hl_make_room(struct hl_context *context) {
    uint64_t page = context->config->geometry.page_bytes;
    uint64_t bytes = hl_round_up(WORKS_FIRST * sizeof *context->work, page) + HL_STACK_BYTES;
    if (hl_map_area(&context->room, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE) != 0)
        return NULL;
    if (context->n_room == 0)
        hl_use_room(context, (struct hl_work *)context->room.start, WORKS_FIRST);
    return (void *)context->room.end;
}

/* Room for one more object, or NULL. */
static struct hl_work *grow_work(struct hl_context *context) {
    bool is_first = context->work_area.start == context->work_area.end;
    size_t n = context->n_room > 0 ? 2 * context->n_room : WORKS_FIRST;
    if (context->n_work == context->n_room) {
        if (hl_grow_area(&context->work_area, n * sizeof *context->work) != 0)
            return NULL;
        if (is_first)
            hl_copy_bytes((void *)context->work_area.start, context->work,
                          context->n_work * sizeof *context->work);
        hl_use_room(context, (struct hl_work *)context->work_area.start, n);
    }
    return &context->work[context->n_work];
}

void hl_add_object(struct hl_context *context, const struct hl_object *object, const Elf64_Phdr *phdr,
                   size_t phnum) {
    enum hl_selection selection = hl_select_object(context->config->options.objects, object);
    if (selection == HL_NOT_SELECTED)
        return;
    struct hl_work *work = grow_work(context);
    if (work == NULL) {
        hl_report_dropped(context, object->path, HL_REASON_NO_MEMORY);
        context->dropped_named = context->dropped_named || selection == HL_SELECTED_BY_NAME;
        return;
    }
    context->n_work++;
    work->selection = selection;
    int result = hl_read_segments(&work->object, phdr, phnum, object->load_bias, &context->config->geometry);
    hl_copy_bytes(&work->object, object, offsetof(struct hl_object, load_bias)); /* what they do not tell */
    if (result == 0 && !object->is_image) {
        result =
            hl_plan_object(&work->plan, &work->object, &context->config->options, &context->config->geometry);
    } else {
        work->object.n_segments = result == 0 ? work->object.n_segments : 0;
        work->plan.n_spans = 0;
    }
    work->reason = (enum hl_reason)result;
    work->no_image = HL_REASON_NO_IMAGE;
    hl_clear_maps(&work->maps);
    hl_clear_moves(work);
    if (result == 0 && object->is_image)
        hl_adopt_image(context, work);
}

static int read_status(struct hl_context *context) {
    bool was_known = context->probed.filters_are_known && context->probed.filters != HL_FILTERS_UNKNOWN;
    if (context->probed.filters_are_known || context->is_after_startup ||
        context->config->loader == HL_LINKER)
        hl_read_status(&context->probed.status, &hl_system_roots);
    else /* this is it, and hl_end comes soon */
        hl_close_later(context, hl_read_first_status(&context->probed.status, &hl_system_roots));
    if (!context->probed.filters_are_known)
        context->probed.filters = context->probed.status.filters;
    context->probed.filters_are_known = true;
    if (context->probed.status.filters == HL_FILTERS_UNKNOWN)
        return was_known ? HL_REASON_RESTRICTED : HL_REASON_NO_PROC;
    bool same = context->probed.status.filters == context->probed.filters;
    return same || context->probed.status.filters == 0 ? 0 : HL_REASON_RESTRICTED;
}

int hl_read_process_status(struct hl_context *context) {
    if (!context->probed.status_holds)
        context->probed.status_result = read_status(context);
    context->probed.status_holds = true;
    return context->probed.status_result;
}

/* Whether a span of KIND waits for new memory. */
static bool needs_memory(const struct hl_work *work, enum hl_kind kind) {
    for (unsigned i = 0; i < work->plan.n_spans && work->reason == HL_MOVED; i++)
        if (work->plan.span[i].kind == kind && work->move[i].reason == HL_MOVED &&
            work->move[i].backend == HL_NO_BACKEND)
            return true;
    return false;
}

static void prepare_kind(struct hl_context *context, enum hl_kind kind) {
    for (size_t i = 0; i < context->n_work; i++)
        if (needs_memory(&context->work[i], kind))
            hl_prepare_spans(context, &context->work[i], kind);
}

/* Whether others may use this memory.  unshare(2) says no (EINVAL) while a thread or another process does, and otherwise changes
   nothing; but a filter may kill for it. */
static bool is_memory_shared(const struct hl_status *status) {
    return status->has_threads || status->filters != 0 ||
           hl_is_error(HL_CALL(__NR_unshare, CLONE_VM, 0, 0, 0, 0, 0));
}

/* What the dynamic linker holds itself is mapped again where it cannot move, so it is enough to know of threads; and nothing can share
   the memory of a program that has just been executed. */
static void find_sharing(struct hl_context *context, const struct hl_object *object) {
    struct hl_probed *probed = &context->probed;
    if (probed->knows_sharing)
        return;
    probed->knows_sharing =
        !hl_holds_its_place(object) && !(hl_is_just_executed(context, object) && probed->status.filters == 0);
    probed->is_shared =
        probed->knows_sharing ? is_memory_shared(&probed->status) : probed->status.has_threads;
}

/* Others could write between filling and commit; but not to an object that they do not see yet, nor is bss copied. */
static void skip_data(const struct hl_context *context, struct hl_work *work) {
    enum hl_reason reason = context->probed.status.has_threads ? HL_REASON_THREADS : HL_REASON_SHARED;
    for (unsigned i = 0; i < work->plan.n_spans && context->probed.is_shared && !work->object.is_new; i++)
        if (work->plan.span[i].kind == HL_DATA)
            work->move[i].reason = reason;
}

/* Whether most of SPAN, data of a file, has been written to, as by relocation, and is in memory. */
static bool is_mostly_written(const struct hl_context *context, const struct hl_span *span) {
    int64_t written =
        hl_measure_written((int)context->probed.pagemap, span->start, span->end,
                           context->config->geometry.page_bytes, context->probed.status.filters == 0);
    return written > (int64_t)hl_span_bytes(span) / 2;
}

/* data=auto: a copy of data that the program may never touch would take memory, and an object on its image takes none.  That holds
   whether others share the memory or not, so it is the reason that is reported. */
static void skip_unwritten_data(const struct hl_context *context, struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans && context->config->options.data == HL_DATA_AUTO; i++) {
        const struct hl_span *span = &work->plan.span[i];
        enum hl_reason reason = work->move[i].reason;
        bool may_stay = reason == HL_MOVED || reason == HL_REASON_THREADS || reason == HL_REASON_SHARED;
        if (span->kind == HL_DATA && may_stay &&
            (work->no_image == HL_MOVED || !is_mostly_written(context, span)))
            work->move[i].reason = HL_REASON_DATA_AUTO;
    }
}

static bool has_data(const struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (hl_is_writable(&work->plan.span[i]))
            return true;
    return false;
}

/* Whether OBJECT comes later and may be locked, as all that comes is after mlockall(2): commit would unlock its edges.  smaps tells, but
   it may take 200 ms. */
static bool may_be_locked(const struct hl_context *context, const struct hl_object *object) {
    return context->is_after_startup && context->probed.status.has_locked && !hl_holds_its_place(object);
}

/* The image first, because it costs nothing.  If only an image is wanted and there is none, only data could move. */
static void check_work(struct hl_context *context, struct hl_work *work) {
    unsigned backend = context->config->options.backend;
    bool is_mapped = hl_uses_images(backend) && !work->object.is_image && hl_use_image(context, work) == 0;
    bool may_copy = !is_mapped && backend != HL_BACKEND_IMAGE;
    if (may_copy || has_data(work))
        find_sharing(context, &work->object);
    skip_data(context, work);
    if (!is_mapped && (may_copy || has_data(work)))
        work->reason = (enum hl_reason)hl_check_object(context, work);
    if (!is_mapped && work->reason == HL_MOVED && may_be_locked(context, &work->object))
        work->reason = HL_REASON_MAPPED_SPECIALLY;
    if (work->reason == HL_MOVED)
        skip_unwritten_data(context, work);
}

static bool is_anything_prepared(const struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (work->move[i].backend != HL_NO_BACKEND && !work->move[i].placed)
            return true;
    return false;
}

static void move_planned(struct hl_context *context) {
    int result = hl_read_process_status(context);
    for (size_t i = 0; i < context->n_work; i++) {
        struct hl_work *work = &context->work[i];
        if (work->reason == HL_MOVED && result != 0)
            work->reason = (enum hl_reason)result;
        else if (work->reason == HL_MOVED)
            check_work(context, work);
    }
    prepare_kind(context, HL_TEXT);
    prepare_kind(context, HL_RODATA);
    prepare_kind(context, HL_DATA);
    for (size_t i = 0; i < context->n_work; i++) {
        struct hl_work *work = &context->work[i];
        if (work->reason == HL_MOVED && is_anything_prepared(work))
            work->reason = (enum hl_reason)hl_commit_object(context, work);
    }
    prepare_kind(context, HL_BSS); /* last: advice splits mappings, and commit compares them */
}

#define PATTERNS_MAX 64

static bool speaks_of_names(const struct hl_context *context) {
    return context->config->options.verbose >= 1 || hl_is_strict(context);
}

void hl_note_object(struct hl_context *context, const struct hl_names *names) {
    struct hl_string patterns = context->config->options.objects;
    struct hl_pattern pattern;
    if (!speaks_of_names(context))
        return;
    for (unsigned i = 0; i < PATTERNS_MAX && hl_next_pattern(&patterns, &pattern); i++)
        if (hl_match_pattern(&pattern, names))
            context->matched |= (uint64_t)1 << i;
}

/* A pattern with a comma is more likely meant as several names than as one. */
static int check_names(const struct hl_context *context) {
    struct hl_string patterns = context->config->options.objects;
    struct hl_pattern pattern;
    int status = 0;
    if (!speaks_of_names(context))
        return 0;
    for (unsigned i = 0; i < PATTERNS_MAX && hl_next_pattern(&patterns, &pattern); i++) {
        bool is_meant = hl_is_name(&pattern) || hl_has_comma(&pattern);
        if (pattern.excludes || !is_meant || (context->matched >> i & 1) != 0)
            continue;
        hl_report_name(context, &pattern);
        status = hl_is_strict(context) ? 127 : 0;
    }
    if (hl_next_pattern(&patterns, &pattern))
        hl_report_unchecked(context, PATTERNS_MAX);
    return status;
}

int hl_end_startup(const struct hl_context *context) {
    hl_report_small(context);
    return check_names(context);
}

/* Whether a span is not in place yet; those from an image are. */
static bool is_anything_planned(const struct hl_context *context) {
    for (size_t i = 0; i < context->n_work; i++) {
        const struct hl_work *work = &context->work[i];
        for (unsigned j = 0; j < work->plan.n_spans && work->reason == HL_MOVED; j++)
            if (!work->move[j].placed)
                return true;
    }
    return false;
}

/* An image fits only where the object lies on a boundary. */
static bool is_out_of_reach(const struct hl_context *context, const struct hl_work *work,
                            const struct hl_span *span) {
    return context->config->options.backend == HL_BACKEND_IMAGE &&
           (span->kind == HL_TEXT || span->kind == HL_RODATA) &&
           work->object.load_bias % context->config->geometry.huge_page_bytes != 0;
}

bool hl_is_anything_to_do(const struct hl_context *context) {
    if (hl_is_wanted(context, 1) || context->config->options.strict || context->config->options.perf_map)
        return true;
    for (size_t i = 0; i < context->n_work; i++) {
        const struct hl_work *work = &context->work[i];
        for (unsigned j = 0; j < work->plan.n_spans && work->reason == HL_MOVED; j++)
            if (!is_out_of_reach(context, work, &work->plan.span[j]))
                return true;
    }
    return false;
}

static bool is_new_one_lost(const struct hl_context *context) {
    for (size_t i = 0; i < context->n_work; i++)
        if (context->work[i].reason == HL_REASON_LOST && context->work[i].object.is_new)
            return true;
    return false;
}

/* Last, because until then mappings are compared with what the program headers say. */
static void join_images(struct hl_context *context) {
    for (size_t i = 0; i < context->n_work; i++)
        if (context->work[i].object.is_image)
            hl_join_image(context, &context->work[i]);
}

/* strict=on: an object named without a wildcard that stays where its plan says it should not. */
static bool is_refused(const struct hl_context *context, const struct hl_work *work) {
    if (!hl_is_strict(context) || work->selection != HL_SELECTED_BY_NAME || work->plan.n_spans == 0)
        return false;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        bool counts = work->plan.span[i].kind == HL_TEXT || work->plan.pages[HL_TEXT] == 0;
        if (counts && work->move[i].backend == HL_NO_BACKEND && !hl_is_better_off(work->move[i].reason))
            return true;
    }
    return false;
}

int hl_move_objects(struct hl_context *context) {
    int status = hl_is_strict(context) && context->dropped_named ? 127 : 0;
    if (is_anything_planned(context))
        move_planned(context);
    join_images(context);
    for (size_t i = 0; i < context->n_work; i++) {
        hl_report_object(context, &context->work[i]);
        context->n_small += hl_is_just_small(&context->work[i]);
        if (context->work[i].reason == HL_REASON_LOST && !context->work[i].object.is_new) {
            hl_report_lost(context, &context->work[i]);
            status = 127;
        }
        if (is_refused(context, &context->work[i])) {
            hl_report_strict(context, &context->work[i]);
            status = 127;
        }
    }
    return is_new_one_lost(context) ? HL_LOST : status;
}

static void unmap_rest_of(const struct hl_work *work) {
    const struct hl_object *object = &work->object;
    uint64_t start = object->segment[0].first_page, end = object->segment[object->n_segments - 1].end_page;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (work->move[i].reason != HL_REASON_LOST)
            continue;
        if (start < span->start)
            hl_munmap(start, span->start - start);
        start = span->end;
    }
    if (start < end)
        hl_munmap(start, end - start);
}

void hl_unmap_rest(const struct hl_context *context) {
    for (size_t i = 0; i < context->n_work; i++)
        if (context->work[i].reason == HL_REASON_LOST && context->work[i].object.is_new)
            unmap_rest_of(&context->work[i]);
}

void hl_close_later(struct hl_context *context, long file) {
    if (file >= 0 && context->n_to_close < HL_CLOSE_MAX)
        context->to_close[context->n_to_close++] = file;
    else if (file >= 0)
        hl_close((int)file);
}

/* By one call where the numbers of the N FILEs follow each other in any order, and no filter can kill for it (Linux 5.9). */
static void close_all(const struct hl_context *context, const long *file, unsigned n) {
    long first = file[0], last = file[0];
    for (unsigned i = 1; i < n; i++) {
        first = file[i] < first ? file[i] : first;
        last = file[i] > last ? file[i] : last;
    }
    if (n > 1 && last - first == n - 1 && context->probed.status_holds &&
        context->probed.status.filters == 0 &&
        !hl_is_error(HL_CALL(__NR_close_range, first, last, 0, 0, 0, 0)))
        return;
    for (unsigned i = 0; i < n; i++)
        hl_close((int)file[i]);
}

void hl_close_files(struct hl_context *context) {
    hl_close_later(context, context->probed.pagemap);
    if (context->n_to_close > 0)
        close_all(context, context->to_close, context->n_to_close);
    context->probed.pagemap = -1;
    context->n_to_close = 0;
}

void hl_end(struct hl_context *context) {
    for (size_t i = 0; i < context->n_work; i++)
        hl_free_maps(&context->work[i].maps);
    hl_free_area(&context->room);
    hl_free_area(&context->work_area);
    hl_close_files(context);
    clear_process(context);
}
