/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pipeline, from the environment to the report.

       objects  ->  plan  ->  check  ->  pool check  ->  prepare  ->  commit  ->  report
       (read)      (pure)    (/proc)     (per node)     (scratch)    (swap)

   Every object is planned before anything moves, all text is prepared before any read-only data, and the
   executable before its DSOs: where the pool is short, that is the order in which it is spent. */
#include "heap.h"
#include "move.h"
#include "sys.h"
#include "text.h"

#include <linux/mman.h>

#define WORK_FIRST 8

static const char *find_variable(const char *const *envp, const char *name) {
    size_t bytes = hl_text_bytes(name);
    for (; envp != NULL && *envp != NULL; envp++)
        if (hl_text_bytes(*envp) > bytes && (*envp)[bytes] == '=' && hl_same_bytes(*envp, name, bytes))
            return *envp + bytes + 1;
    return NULL;
}

/* What the table of options has and this way in cannot do. */
static void drop_unsupported(struct hl_options *options, enum hl_way_in way_in, const char *variable) {
    if (options->backend == HL_BACKEND_FILE && way_in != HL_LINKER) {
        hl_report_mistake((void *)variable, (struct hl_string){"backend=file", 12},
                          "needs the patched linker");
        options->backend = HL_BACKEND_AUTO;
    }
}

/* Nothing is taken. */
static void clear_process(struct hl_process *process) {
    process->pagemap = -1;
    process->old_break = 0;
    process->maps.mapping = NULL;
    process->work = NULL;
    process->n_work = process->work_capacity = 0;
    process->dropped_named = false;
}

bool hl_begin_with(struct hl_process *process, const struct hl_options *options, const char *executable,
                   enum hl_way_in way_in, uint64_t page_bytes) {
    clear_process(process);
    process->way_in = way_in;
    process->kernel_is_probed = false;
    process->trace = NULL;
    process->options = *options;
    if (options->objects.bytes == 0 || !hl_match_only(options, executable))
        return false;
    hl_read_geometry(&process->geometry, &hl_system_roots, page_bytes);
    return true;
}

bool hl_begin(struct hl_process *process, const char *const *envp, const char *executable,
              enum hl_way_in way_in, uint64_t page_bytes) {
    static const char options_name[] = "LD_HUGEPAGES_OPTIONS";
    struct hl_options options;
    hl_default_options(&options);
    if (way_in == HL_LINKER)
        options.edges = HL_EDGES_BY_PLACE;
    const char *text = find_variable(envp, options_name);
    if (text != NULL) {
        const struct hl_complaints complaints = {hl_report_mistake, (void *)options_name};
        hl_parse_options(&options, text, &complaints);
    }
    drop_unsupported(&options, way_in, options_name);
    const char *objects = find_variable(envp, "LD_HUGEPAGES");
    if (objects == NULL)
        objects = way_in == HL_PRELOADER ? "main" : "";
    options.objects = (struct hl_string){objects, hl_text_bytes(objects)};
    return hl_begin_with(process, &options, executable, way_in, page_bytes);
}

/* Room for one more object, or NULL. */
static struct hl_work *grow_work(struct hl_process *process) {
    uint64_t bytes = process->work_capacity * sizeof *process->work;
    if (process->n_work < process->work_capacity)
        return &process->work[process->n_work];
    long at;
    if (bytes == 0)
        at = hl_mmap(0, WORK_FIRST * sizeof *process->work, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else
        at = HL_CALL(__NR_mremap, process->work, bytes, 2 * bytes, MREMAP_MAYMOVE, 0, 0);
    if (hl_is_error(at))
        return NULL;
    process->work = (struct hl_work *)at;
    process->work_capacity = bytes == 0 ? WORK_FIRST : 2 * process->work_capacity;
    return &process->work[process->n_work];
}

void hl_add_object(struct hl_process *process, const struct hl_object *object, const Elf64_Phdr *phdr,
                   size_t phnum) {
    enum hl_selection selection = hl_select_object(process->options.objects, object);
    if (selection == HL_NOT_SELECTED)
        return;
    struct hl_work *work = grow_work(process);
    if (work == NULL) {
        hl_report_dropped(process, object, HL_SKIP_NO_MEMORY);
        process->dropped_named = process->dropped_named || selection == HL_SELECTED_BY_NAME;
        return;
    }
    process->n_work++;
    work->selection = selection;
    work->object.path = object->path;
    work->object.soname = object->soname;
    work->object.is_main = object->is_main;
    int result = hl_read_segments(&work->object, phdr, phnum, object->load_bias, &process->geometry);
    work->object.text_relocations = object->text_relocations;
    work->object.is_new = object->is_new;
    work->object.file = object->file;
    work->object.is_placed = object->is_placed;
    if (result == 0) {
        result = hl_plan_object(&work->plan, &work->object, &process->options, &process->geometry);
    } else {
        work->object.n_segments = 0;
        work->plan.n_spans = 0;
    }
    work->skip = (enum hl_skip)result;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        move->backend = HL_NO_BACKEND;
        move->skip = move->no_hugetlb = HL_MOVED;
        move->memory = move->reserved = move->reserved_bytes = move->aside = 0;
        move->memfd = -1;
        move->placed = move->emptied = false;
    }
}

/* What every object needs to be checked against.  0 or the reason why none can move. */
static int read_process(struct hl_process *process) {
    process->has_threads = !hl_is_single_threaded();
    process->pagemap = hl_open_pagemap();
    int result = hl_read_maps(&process->maps);
    if (result != 0)
        return result;
    hl_read_heap(process);
    if (!process->kernel_is_probed)
        hl_probe_kernel(&process->kernel, &process->geometry);
    process->kernel_is_probed = true;
    hl_read_placement(&process->placement, &hl_system_roots, process->options.numa);
    return 0;
}

static void prepare_kind(struct hl_process *process, enum hl_kind kind) {
    for (size_t i = 0; i < process->n_work; i++)
        if (process->work[i].skip == HL_MOVED && process->work[i].plan.pages[kind] > 0)
            hl_prepare_spans(process, &process->work[i], kind);
}

/* Another thread could write between filling and commit; but not to an object that it does not see yet. */
static void leave_data(struct hl_process *process) {
    for (size_t i = 0; i < process->n_work; i++) {
        struct hl_work *work = &process->work[i];
        for (unsigned j = 0; j < work->plan.n_spans && !work->object.is_new; j++)
            if (hl_is_writable(&work->plan.span[j]))
                work->move[j].skip = HL_SKIP_THREADS;
    }
}

/* A span that rounds out needs the heap out of its way.  Only the executable's is followed by it. */
static void carry_break(struct hl_process *process, struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (work->plan.span[i].rounds_out && work->object.is_main && work->move[i].skip == HL_MOVED)
            work->move[i].skip = (enum hl_skip)hl_carry_break(process, work->plan.span[i].end);
}

/* Where that span did not move, the break goes back. */
static void restore_break(struct hl_process *process) {
    for (size_t i = 0; i < process->n_work; i++)
        for (unsigned j = 0; j < process->work[i].plan.n_spans; j++)
            if (process->work[i].plan.span[j].rounds_out && process->work[i].move[j].placed)
                return;
    hl_restore_break(process);
}

static bool is_anything_prepared(const struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (work->move[i].backend != HL_NO_BACKEND)
            return true;
    return false;
}

static void move_planned(struct hl_process *process) {
    int result = read_process(process);
    if (result == 0 && process->has_threads)
        leave_data(process);
    for (size_t i = 0; i < process->n_work; i++) {
        struct hl_work *work = &process->work[i];
        if (work->skip != HL_MOVED)
            continue;
        if (result == 0)
            carry_break(process, work);
        work->skip = (enum hl_skip)(result != 0 ? result : hl_check_object(process, work));
    }
    prepare_kind(process, HL_TEXT);
    prepare_kind(process, HL_RODATA);
    prepare_kind(process, HL_DATA);
    if (process->options.bss == HL_BSS_HUGETLB)
        prepare_kind(process, HL_BSS);
    for (size_t i = 0; i < process->n_work; i++) {
        struct hl_work *work = &process->work[i];
        if (work->skip == HL_MOVED && is_anything_prepared(work))
            work->skip = (enum hl_skip)hl_commit_object(process, work);
    }
    restore_break(process);
    for (size_t i = 0; i < process->n_work && process->options.backend == HL_BACKEND_FILE; i++)
        if (process->work[i].skip == HL_MOVED)
            hl_collapse_spans(process, &process->work[i]);
    if (process->options.bss == HL_BSS_THP) /* advice splits mappings, and commit compares them */
        prepare_kind(process, HL_BSS);
}

static bool is_anything_planned(const struct hl_process *process) {
    for (size_t i = 0; i < process->n_work; i++)
        if (process->work[i].skip == HL_MOVED)
            return true;
    return false;
}

/* strict=on: an object named without a wildcard that stays where its plan says it should not. */
static bool is_refused(const struct hl_process *process, const struct hl_work *work) {
    if (!process->options.strict || work->selection != HL_SELECTED_BY_NAME || work->plan.n_spans == 0)
        return false;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        bool counts = work->plan.span[i].kind == HL_TEXT || work->plan.pages[HL_TEXT] == 0;
        if (counts && work->move[i].backend == HL_NO_BACKEND && work->move[i].skip != HL_SKIP_HUGE_ALREADY)
            return true;
    }
    return false;
}

int hl_move_objects(struct hl_process *process) {
    int status = process->options.strict && process->dropped_named ? 127 : 0;
    if (is_anything_planned(process)) {
        uint64_t signals = hl_block_signals();
        move_planned(process);
        hl_restore_signals(signals);
    }
    for (size_t i = 0; i < process->n_work; i++) {
        hl_report_object(process, &process->work[i]);
        if (is_refused(process, &process->work[i])) {
            hl_report_strict(&process->work[i]);
            status = 127;
        }
    }
    return status;
}

void hl_end(struct hl_process *process) {
    if (process->work != NULL)
        hl_munmap((uint64_t)process->work, process->work_capacity * sizeof *process->work);
    if (process->pagemap >= 0)
        hl_close((int)process->pagemap);
    hl_free_maps(&process->maps);
    clear_process(process);
}
