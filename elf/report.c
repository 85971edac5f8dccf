/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Report: lines for people, each written with one write(2) to standard error.

       hugeld: cc1plus: text 10 pages hugetlb, rodata 5 pages hugetlb    verbose=2: each object
       hugeld: bash: text stays: no whole huge page lies inside          verbose=2
       hugeld: 75 objects stay: no whole huge page lies inside; ...      verbose=2: chosen by a wildcard
       hugeld: cc1plus: text is on thp: the huge page pool ...           verbose=2: backend=auto
       hugeld: cc1plus: text stays: the huge page pool ...; remedy       verbose=1: planned, and stays
       hugeld: cc1plus: 0x600000-0x1a00000 r-x text 10 pages hugetlb     verbose=3: each span and segment */
#include "report.h"
#include "line.h"
#include "reason.h"
#include "store.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/signal.h>
#include <linux/time_types.h>

static void begin_line(struct hl_line *line, const char *path) {
    const char *name = hl_base_name(path);
    hl_set_line(line, "hugeld: ");
    hl_add_foreign(line, (struct hl_string){name, hl_strlen(name)});
    hl_add_text(line, ": ");
}

/* Identifies the file at descriptor 2.  A program that has closed it, as daemons do, may have a data file there. */
static struct hl_descriptor_id find_stderr(void) {
    struct hl_file_state state;
    if (hl_read_file_state(&state, 2) != 0)
        return (struct hl_descriptor_id){0, 0};
    return (struct hl_descriptor_id){state.device, state.inode};
}

void hl_note_stderr(struct hl_context *context) {
    if (context->probed.standard_error.inode == 0)
        context->probed.standard_error = find_stderr();
}

static uint64_t signal_bit(int number) { return (uint64_t)1 << (number - 1); }

/* Writes LINE to standard error, without causing a signal: SIGPIPE if no process reads any more, SIGXFSZ beyond RLIMIT_FSIZE,
   and SIGTTOU of a terminal, which lets a thread write that has it blocked.  The former two are sent to this thread, and stay
   until it takes them.  A filter that came later may kill for any call but write(2). */
static void write_quietly(const struct hl_context *context, const struct hl_line *line) {
    const uint64_t blocked = signal_bit(SIGPIPE) | signal_bit(SIGXFSZ) | signal_bit(SIGTTOU);
    const struct __kernel_timespec now = {0, 0};
    uint64_t before;
    bool is_blocked = context->probed.filters_are_known && context->probed.status_result == 0 &&
                      !hl_is_error(HL_CALL(__NR_rt_sigprocmask, 0 /* SIG_BLOCK */, &blocked, &before,
                                           sizeof blocked, 0, 0));
    long result = hl_write(2, line->at, line->bytes);
    uint64_t sent = result == -EPIPE ? signal_bit(SIGPIPE) : signal_bit(SIGXFSZ);
    if (is_blocked && (result == -EPIPE || result == -EFBIG))
        HL_CALL(__NR_rt_sigtimedwait, &sent, NULL, &now, sizeof sent, 0, 0);
    if (is_blocked)
        hl_restore_signals(before);
}

void hl_write_line(const struct hl_context *context, struct hl_line *line) {
    if (context->probed.standard_error.inode == 0)
        return;
    struct hl_descriptor_id now = find_stderr();
    if (now.inode != context->probed.standard_error.inode ||
        now.device != context->probed.standard_error.device)
        return;
    hl_add_text(line, "\n");
    line->at[line->bytes - 1] = '\n'; /* also where the line was too long */
    write_quietly(context, line);
}

bool hl_is_wanted(const struct hl_context *context, unsigned verbose) {
    return context->config->options.verbose >= verbose || context->config->is_traced;
}

/* For programs in which no other object defines it. */
__attribute__((weak)) void hl_trace_line(const char *line) { (void)line; }

/* Writes a line that belongs to verbose=VERBOSE if it is wanted. */
static void tell(const struct hl_context *context, unsigned verbose, struct hl_line *line) {
    if (context->config->is_traced)
        hl_trace_line(line->at);
    if (context->config->options.verbose >= verbose)
        hl_write_line(context, line);
}

static const char *backend_name(enum hl_backend backend) {
    static const char *const names[HL_BACKENDS] = {"", "hugetlb", "thp", "thp (advised)", "image"};
    return names[backend];
}

static void add_pages(struct hl_line *line, uint64_t pages) {
    hl_add_number(line, pages);
    hl_add_text(line, pages == 1 ? " page" : " pages");
}

static void add_range(struct hl_line *line, uint64_t start, uint64_t end, uint32_t flags) {
    hl_add_hex(line, start);
    hl_add_text(line, "-");
    hl_add_hex(line, end);
    hl_add_text(line, flags & PF_R ? " r" : " -");
    hl_add_text(line, flags & PF_W ? "w" : "-");
    hl_add_text(line, flags & PF_X ? "x" : "-");
}

bool hl_has_no_descriptor(void) {
    long file = hl_open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (!hl_is_error(file))
        hl_close((int)file);
    return file == -EMFILE || file == -ENFILE;
}

/* What stays because something could not be read, or is not there, may stay because no file can be opened at all. */
static enum hl_reason explain(enum hl_reason reason) {
    if (reason != HL_REASON_THP_NEVER && reason != HL_REASON_NO_PROC && reason != HL_REASON_NO_HUGETLB &&
        reason != HL_REASON_RESTRICTED && reason != HL_REASON_MEMORY_UNKNOWN &&
        reason != HL_REASON_MEM_DENIED)
        return reason;
    return hl_has_no_descriptor() ? HL_REASON_NO_DESCRIPTOR : reason;
}

static void add_reason(struct hl_line *line, enum hl_reason reason) {
    hl_add_text(line, " stays: ");
    hl_add_text(line, hl_reason_sentence(reason));
}

/* REMEDY may be NULL. */
static void add_remedy(struct hl_line *line, const char *remedy) {
    if (remedy == NULL)
        return;
    hl_add_text(line, "; ");
    hl_add_text(line, remedy);
}

/* Pages of all objects that the pool could not serve. */
static uint64_t count_short_pages(const struct hl_context *context) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < context->n_work; i++)
        for (unsigned j = 0; j < context->work[i].plan.n_spans; j++)
            if (context->work[i].move[j].reason == HL_REASON_POOL_SHORT)
                bytes += hl_span_bytes(&context->work[i].plan.span[j]);
    return bytes / context->config->geometry.huge_page_bytes;
}

/* How many pages are missing, and the command that adds them: enough for every object of this process. */
static void add_pool_remedy(struct hl_line *line, const struct hl_context *context, uint64_t needed) {
    struct hl_pool pool;
    if (!context->probed.knows_placement ||
        hl_read_pool(&pool, &hl_system_roots, &context->config->geometry, &context->probed.placement) != 0)
        return;
    uint64_t available = hl_pool_available(&pool, context->config->options.reserve_pages);
    hl_add_text(line, "; ");
    if (available >= needed) {
        hl_add_number(line, available);
        hl_add_text(line,
                    " free, but not for this process: check its cpuset, memory policy and hugetlb cgroup");
        return;
    }
    hl_add_number(line, needed - available);
    hl_add_text(line, " of ");
    add_pages(line, needed);
    uint64_t more = count_short_pages(context) - available;
    const struct hl_pool_node *node = hl_find_node_to_fill(&pool);
    if (node == NULL) {
        hl_add_text(line, " missing: sysctl vm.nr_hugepages=");
        hl_add_number(line, hl_subtract(pool.total_pages, pool.surplus_pages) + more);
        return;
    }
    hl_add_text(line, " missing: echo ");
    hl_add_number(line, hl_subtract(node->total_pages, node->surplus_pages) + more);
    hl_add_text(line, " > /sys/devices/system/node/node");
    hl_add_number(line, node->node);
    hl_add_text(line, "/hugepages/hugepages-");
    hl_add_number(line, context->config->geometry.huge_page_bytes / 1024);
    hl_add_text(line, "kB/nr_hugepages");
}

void hl_report_pool(const struct hl_context *context, const struct hl_work *work, enum hl_kind kind,
                    uint64_t needed, uint64_t available) {
    struct hl_line line;
    if (!hl_is_wanted(context, 3))
        return;
    begin_line(&line, work->object.path);
    hl_add_text(&line, hl_kind_name(kind));
    hl_add_text(&line, " needs ");
    add_pages(&line, needed);
    hl_add_text(&line, ", ");
    hl_add_number(&line, available);
    hl_add_text(&line, " available");
    tell(context, 3, &line);
}

static void report_failure(const struct hl_context *context, const struct hl_work *work, enum hl_kind kind,
                           enum hl_reason reason) {
    struct hl_line line;
    reason = explain(reason);
    begin_line(&line, work->object.path);
    hl_add_text(&line, hl_kind_name(kind));
    add_reason(&line, reason);
    if (reason == HL_REASON_POOL_SHORT)
        add_pool_remedy(&line, context, work->plan.pages[kind]);
    else
        add_remedy(&line, hl_reason_remedy(reason));
    tell(context, hl_is_better_off(reason) ? 2 : 1, &line);
}

/* Reports every kind that was planned and stays: the promise that was not kept. */
static void report_failures(const struct hl_context *context, const struct hl_work *work) {
    bool told[HL_KINDS];
    for (unsigned kind = 0; kind < HL_KINDS; kind++)
        told[kind] = false;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        enum hl_kind kind = work->plan.span[i].kind;
        enum hl_reason reason = work->reason != HL_MOVED ? work->reason : work->move[i].reason;
        if (work->move[i].backend != HL_NO_BACKEND || told[kind])
            continue;
        report_failure(context, work, kind, reason);
        told[kind] = true;
    }
}

/* Reports why backend=auto took thp. */
static void report_stand_ins(const struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    enum hl_reason told[HL_KINDS];
    for (unsigned kind = 0; kind < HL_KINDS; kind++)
        told[kind] = HL_MOVED;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        enum hl_kind kind = work->plan.span[i].kind;
        enum hl_reason reason = work->move[i].no_hugetlb;
        if (work->move[i].backend != HL_THP || reason == told[kind])
            continue;
        told[kind] = reason;
        begin_line(&line, work->object.path);
        hl_add_text(&line, hl_kind_name(kind));
        hl_add_text(&line, " is on thp: ");
        hl_add_text(&line, hl_reason_sentence(reason));
        tell(context, 2, &line);
    }
}

/* Reports for backend=auto why an image that exists is of no use; with verbose=3 also that there is none, or that the address
   does not fit. */
static void report_no_image(const struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    bool is_usual = work->no_image == HL_REASON_NO_IMAGE || work->no_image == HL_REASON_IMAGE_PLACE;
    if (context->config->options.backend != HL_BACKEND_AUTO || work->plan.n_spans == 0 ||
        context->probed.has_no_store || work->no_image == HL_MOVED)
        return;
    begin_line(&line, work->object.path);
    hl_add_text(&line, "not mapped from an image: ");
    hl_add_text(&line, hl_reason_sentence(work->no_image));
    add_remedy(&line, hl_reason_remedy(work->no_image));
    tell(context, is_usual ? 3 : 1, &line);
}

static uint64_t pages_moved(const struct hl_context *context, const struct hl_work *work, enum hl_kind kind,
                            enum hl_backend backend) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (work->plan.span[i].kind == kind && work->move[i].backend == backend)
            bytes += hl_span_bytes(&work->plan.span[i]);
    return bytes / context->config->geometry.huge_page_bytes;
}

static void report_summary(const struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    bool any = false;
    begin_line(&line, work->object.path);
    for (unsigned kind = 0; kind < HL_KINDS; kind++) {
        for (unsigned backend = HL_HUGETLB; backend < HL_BACKENDS; backend++) {
            uint64_t pages = pages_moved(context, work, (enum hl_kind)kind, (enum hl_backend)backend);
            if (pages == 0)
                continue;
            hl_add_text(&line, any ? ", " : "");
            hl_add_text(&line, hl_kind_name((enum hl_kind)kind));
            hl_add_text(&line, " ");
            add_pages(&line, pages);
            hl_add_text(&line, " ");
            hl_add_text(&line, backend_name((enum hl_backend)backend));
            any = true;
        }
    }
    if (!any && work->plan.n_spans > 0)
        return; /* reported with its failures */
    if (!any) {
        hl_add_text(&line, "text");
        add_reason(&line, work->reason);
    }
    tell(context, hl_is_just_small(work) ? 3 : 2, &line);
}

static void report_details(const struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (work->move[i].backend == HL_NO_BACKEND)
            continue;
        begin_line(&line, work->object.path);
        add_range(&line, span->start, span->end, span->flags);
        hl_add_text(&line, " ");
        hl_add_text(&line, hl_kind_name(span->kind));
        hl_add_text(&line, " ");
        add_pages(&line, hl_span_bytes(span) / context->config->geometry.huge_page_bytes);
        hl_add_text(&line, " ");
        hl_add_text(&line, backend_name(work->move[i].backend));
        tell(context, 3, &line);
    }
    for (unsigned i = 0; i < work->object.n_segments; i++) {
        const struct hl_segment *segment = &work->object.segment[i];
        if (work->plan.reason[i] == HL_MOVED)
            continue;
        begin_line(&line, work->object.path);
        add_range(&line, segment->start, segment->end, segment->flags);
        add_reason(&line, work->plan.reason[i]);
        tell(context, 3, &line);
    }
}

void hl_report_object(const struct hl_context *context, const struct hl_work *work) {
    if (hl_is_wanted(context, 1)) {
        report_failures(context, work);
        report_no_image(context, work);
    }
    if (hl_is_wanted(context, 2)) {
        report_summary(context, work);
        report_stand_ins(context, work);
    }
    if (hl_is_wanted(context, 3))
        report_details(context, work);
}

void hl_report_small(const struct hl_context *context) {
    struct hl_line line;
    if (context->n_small == 0 || context->config->options.verbose != 2)
        return;
    hl_set_line(&line, "hugeld: ");
    hl_add_number(&line, context->n_small);
    hl_add_text(&line, context->n_small == 1 ? " object stays: " : " objects stay: ");
    hl_add_text(&line, hl_reason_sentence(HL_REASON_TOO_SMALL));
    hl_add_text(&line, "; verbose=3 names each");
    hl_write_line(context, &line);
}

void hl_report_dropped(const struct hl_context *context, const char *path, enum hl_reason reason) {
    struct hl_line line;
    if (context->config->options.verbose == 0 && !hl_is_strict(context))
        return;
    reason = explain(reason);
    begin_line(&line, path);
    hl_add_text(&line, "text");
    add_reason(&line, reason);
    if (reason == HL_REASON_RESTRICTED || reason == HL_REASON_NO_DESCRIPTOR)
        add_remedy(&line, hl_reason_remedy(reason));
    hl_write_line(context, &line);
}

void hl_report_mistake(const struct hl_context *context, const char *variable, struct hl_string option,
                       const char *what) {
    struct hl_line line;
    hl_set_line(&line, "hugeld: ");
    hl_add_text(&line, variable);
    hl_add_text(&line, ": ");
    hl_add_foreign(&line, option);
    hl_add_text(&line, ": ");
    hl_add_text(&line, what);
    hl_add_text(&line, "; ignored");
    hl_write_line(context, &line);
}

void hl_report_name(const struct hl_context *context, const struct hl_pattern *name) {
    struct hl_line line;
    hl_set_line(&line, "hugeld: LD_HUGEPAGES: ");
    hl_add_foreign(&line, name->text);
    hl_add_text(&line, ": no object that is loaded at startup has this name");
    if (hl_has_comma(name))
        hl_add_text(&line, "; names are separated by colons");
    else if (!hl_is_strict(context))
        hl_add_text(&line, "; objects that are opened later are still looked at");
    if (hl_is_strict(context))
        hl_add_text(&line, "; strict=on ends the program");
    hl_write_line(context, &line);
}

void hl_report_unchecked(const struct hl_context *context, unsigned checked) {
    struct hl_line line;
    hl_set_line(&line, "hugeld: LD_HUGEPAGES: whether objects have these names is checked for the first ");
    hl_add_number(&line, checked);
    hl_add_text(&line, " only");
    hl_write_line(context, &line);
}

void hl_report_unwatched(const struct hl_context *context, enum hl_reason reason) {
    struct hl_line line;
    reason = explain(reason);
    hl_set_line(&line, "hugeld: everything that dlopen loads");
    add_reason(&line, reason);
    add_remedy(&line, hl_reason_remedy(reason));
    hl_write_line(context, &line);
}

void hl_report_strict(const struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    begin_line(&line, work->object.path);
    hl_add_text(&line, "text");
    enum hl_reason reason = work->reason;
    for (unsigned i = 0; reason == HL_MOVED && i < work->plan.n_spans; i++)
        reason = work->move[i].reason;
    add_reason(&line, explain(reason));
    hl_add_text(&line, "; strict=on ends the program");
    hl_write_line(context, &line);
}

/* Begins a line that is always printed, if the file of standard error is known. */
static void begin_urgent(struct hl_context *context, struct hl_line *line, const struct hl_work *work) {
    if (!context->is_after_startup)
        hl_note_stderr(context);
    begin_line(line, work->object.path);
}

void hl_report_lost(struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    begin_urgent(context, &line, work);
    hl_add_text(&line, hl_reason_sentence(HL_REASON_LOST));
    hl_add_text(&line, ", so the program ends");
    add_remedy(&line, hl_reason_remedy(HL_REASON_LOST));
    hl_write_line(context, &line);
}

void hl_report_broken(struct hl_context *context, const struct hl_work *work) {
    struct hl_line line;
    begin_urgent(context, &line, work);
    hl_add_text(
        &line,
        "rolled back, but its mappings are not what they were before; please report this bug of hugeld");
    hl_write_line(context, &line);
}
