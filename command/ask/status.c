/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld status: the memory on huge pages now, per object, per backend, per NUMA node.

   The numbers are the kernel's (smaps and numa_maps), never a plan's.  A moved range has lost its file's name, so it is attributed
   by address: a huge mapping inside a PT_LOAD of an object is that object's; every other huge page (heap, shared memory, JIT) is
   the program's own.  If only a part of a mapping is on huge pages (THP may be split, an image's come as they are touched), smaps
   doesn't tell which: pagemap does since Linux 6.7.  Without pagemap the same share is assumed for the text in the mapping.

   Mappings of an image (elf/image.c) are a backend of their own, for any kind of pages in the store: all processes share one copy,
   so it is no memory of this one.

   The exit code is 0 if text, read-only data or initialised data of an object is on huge pages in a process. */
#include "command/command.h"
#include "command/inject/leftovers.h"
#include "command/lib/common.h"
#include "command/lib/flags.h"
#include "command/lib/remedy.h"
#include "command/ask/parts.h"
#include "elf/context.h"
#include "elf/maps.h"
#include "elf/pool.h"
#include "command/run/ldso.h"
#include "elf/plan.h"
#include "command/lib/process.h"
#include "elf/reason.h"
#include "command/image/in-place.h"
#include "command/image/store.h"
#include "command/inject/tracee.h"
#include "command/image/verdict.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The most huge pages of a mapping that are looked at one by one. */
#define LOOKED_AT_MAX 4096

enum backend { HUGETLB, THP, IMAGE, FILE_CACHE, BACKENDS };
static const char *const backend_names[BACKENDS] = {"hugetlb", "thp", "image", "file"};

/* One mapping of an object with huge pages in it. */
struct range {
    const struct hl_region *region;
    enum hl_kind kind;
    enum backend backend;
    uint64_t huge_bytes, pages;
    bool is_known; /* the huge parts of it are known, in RUN */
    size_t n_runs;
    struct hl_range *run; /* ascending; whole huge pages, within the object */
};

/* One object's share. */
struct tally {
    const struct hl_loaded *loaded;
    struct hl_verdict verdict; /* of an object with anything on huge pages, and of the executable */
    char *why;                 /* why its text is where it is, and not on other huge pages; or NULL */
    char *why_small;           /* why parts that could move did not */
    uint64_t text_bytes, text_huge_bytes, text_untouched_bytes;
    uint64_t private_hugetlb_bytes, shared_hugetlb_bytes, anon_huge_bytes, file_pmd_bytes;
    uint64_t image_bytes; /* of the same: those of an image */
    const char *image;    /* the name of the mapped image, or NULL */
    uint64_t pages[BACKENDS];
    uint64_t node_bytes[HL_PROCESS_NODES];
    size_t n_ranges;
    struct range *range;
};

/* One process, with the shares of its objects. */
struct snapshot {
    struct hl_process process;
    struct hl_geometry geometry;
    int pagemap; /* or negative */
    size_t n_tallies;
    struct tally *tally; /* one for each loaded object, in their order */
    uint64_t own_hugetlb_bytes, own_thp_bytes, own_file_bytes, own_shmem_bytes;
    bool moved; /* anything except zero-initialised data is on huge pages */
    char *options_text;
    struct hl_options options; /* with which the process was started, in OPTIONS_TEXT */
};

struct request {
    bool all;
    struct hl_list who; /* PIDs */
    struct hl_geometry geometry;
    json_t *processes;
    bool moved;
};

static const struct hl_flag command_flags[] = {
    {"all", 'a', NULL, "A row for every process that has huge pages and may be read",
     HL_SWITCH(struct request, all)},
    {NULL, 0, "PID...", NULL, HL_LIST(struct request, who)},
};

/* Whether the huge pages of REGION can belong to LOADED: no page cache of another file except its image, and neither heap nor
   stack. */
static bool is_of_object(const struct hl_region *region, const struct hl_loaded *loaded) {
    if (region->name[0] == '[')
        return false;
    if (hl_hugetlb_bytes(region) == 0 && region->inode != 0 && !region->of_image &&
        (region->inode != loaded->inode || region->device != loaded->device))
        return false;
    return hl_count_segment_bytes(&loaded->object, region->start, region->end, 0) > 0;
}

static enum hl_kind find_kind(const struct hl_region *region, const struct hl_object *object) {
    if (region->flags & PF_X)
        return HL_TEXT;
    if (!(region->flags & PF_W))
        return HL_RODATA;
    for (unsigned i = 0; i < object->n_segments; i++)
        if (object->segment[i].flags & PF_W &&
            hl_overlap(region->start, region->end, object->segment[i].start, object->segment[i].file_end) > 0)
            return HL_DATA;
    return HL_BSS;
}

/* Whether the rest of REGION, which is not huge, has no pages yet. */
static bool is_rest_untouched(const struct hl_region *region) {
    return hl_hugetlb_bytes(region) > 0 || region->resident_bytes <= hl_huge_bytes(region);
}

static void add_run(struct range *range, uint64_t start, uint64_t end) {
    struct hl_range *last = range->n_runs > 0 ? &range->run[range->n_runs - 1] : NULL;
    if (last != NULL && last->end == start) {
        last->end = end;
        return;
    }
    range->run = hl_xrealloc(range->run, (range->n_runs + 1) * sizeof *range->run);
    range->run[range->n_runs++] = (struct hl_range){start, end};
}

/* The part of RANGE that is OBJECT's, in whole huge pages around it: a mapping may hold the heap, or another object, too. */
static struct hl_range clip(const struct range *range, const struct hl_object *object, uint64_t page) {
    uint64_t first = hl_round_down(object->segment[0].first_page, page),
             last = hl_round_up(object->segment[object->n_segments - 1].end_page, page);
    const struct hl_region *region = range->region;
    return (struct hl_range){region->start > first ? region->start : first,
                             region->end < last ? region->end : last};
}

/* Finds the huge parts of RANGE. */
static void find_runs(struct range *range, const struct hl_object *object, int pagemap, uint64_t page) {
    struct hl_range part = clip(range, object, page);
    range->is_known = true;
    if (range->huge_bytes >= range->region->end - range->region->start) {
        add_run(range, part.start, part.end);
        return;
    }
    range->is_known = pagemap >= 0 && range->huge_bytes == hl_huge_bytes(range->region) &&
                      (part.end - part.start) / page <= LOOKED_AT_MAX;
    for (uint64_t at = hl_round_up(part.start, page); range->is_known && at + page <= part.end; at += page) {
        int result = hl_check_huge(pagemap, at, at + page);
        range->is_known = result >= 0;
        if (result == 0)
            add_run(range, at, at + page);
    }
}

/* Bytes of the text that are huge in RANGE. */
static uint64_t count_text(const struct range *range, const struct hl_object *object) {
    const struct hl_region *region = range->region;
    uint64_t bytes = 0, size = region->end - region->start;
    for (size_t i = 0; range->is_known && i < range->n_runs; i++)
        bytes += hl_count_segment_bytes(object, range->run[i].start, range->run[i].end, PF_X);
    if (!range->is_known)
        bytes = (uint64_t)((long double)hl_count_segment_bytes(object, region->start, region->end, PF_X) *
                           (long double)range->huge_bytes / (long double)size);
    return bytes;
}

static void add_range(struct tally *tally, const struct hl_region *region, enum backend backend,
                      uint64_t huge_bytes, const struct snapshot *snapshot, uint64_t page_bytes) {
    if (huge_bytes == 0)
        return;
    const struct hl_object *object = &tally->loaded->object;
    uint64_t pages = huge_bytes / page_bytes;
    tally->pages[backend] += pages;
    tally->range = hl_xrealloc(tally->range, (tally->n_ranges + 1) * sizeof *tally->range);
    struct range *range = &tally->range[tally->n_ranges++];
    *range = (struct range){.region = region,
                            .kind = find_kind(region, object),
                            .backend = backend,
                            .huge_bytes = huge_bytes,
                            .pages = pages};
    find_runs(range, object, snapshot->pagemap, snapshot->geometry.huge_page_bytes);
    tally->text_huge_bytes += count_text(range, object);
}

static void add_region(struct tally *tally, const struct hl_region *region, const struct snapshot *snapshot) {
    uint64_t huge_page_bytes = snapshot->geometry.huge_page_bytes, text_huge_bytes = tally->text_huge_bytes;
    tally->private_hugetlb_bytes += region->private_hugetlb_bytes;
    tally->shared_hugetlb_bytes += region->shared_hugetlb_bytes;
    tally->anon_huge_bytes += region->anon_huge_bytes;
    uint64_t file_bytes = region->file_pmd_bytes + region->shmem_pmd_bytes; /* the latter on tmpfs */
    tally->file_pmd_bytes += file_bytes;
    if (region->of_image) {
        tally->image = region->name;
        tally->image_bytes += hl_hugetlb_bytes(region) + file_bytes;
    }
    add_range(tally, region, region->of_image ? IMAGE : HUGETLB, hl_hugetlb_bytes(region), snapshot,
              region->page_bytes > 0 ? region->page_bytes : huge_page_bytes);
    add_range(tally, region, THP, region->anon_huge_bytes, snapshot, huge_page_bytes);
    add_range(tally, region, region->of_image ? IMAGE : FILE_CACHE, file_bytes, snapshot, huge_page_bytes);
    if (is_rest_untouched(region))
        tally->text_untouched_bytes +=
            hl_subtract(hl_count_segment_bytes(&tally->loaded->object, region->start, region->end, PF_X),
                        tally->text_huge_bytes - text_huge_bytes);
    for (unsigned node = 0; region->node_bytes != NULL && node < HL_PROCESS_NODES; node++)
        tally->node_bytes[node] += region->node_bytes[node];
}

static void attribute_region(struct snapshot *snapshot, const struct hl_region *region) {
    if (hl_huge_bytes(region) == 0)
        return;
    for (size_t i = 0; i < snapshot->n_tallies; i++) {
        if (is_of_object(region, snapshot->tally[i].loaded)) {
            add_region(&snapshot->tally[i], region, snapshot);
            return;
        }
    }
    snapshot->own_hugetlb_bytes += hl_hugetlb_bytes(region);
    snapshot->own_thp_bytes += region->anon_huge_bytes;
    snapshot->own_file_bytes += region->file_pmd_bytes;
    snapshot->own_shmem_bytes += region->shmem_pmd_bytes;
}

/* After hl_open_process.  0, or a negated errno. */
static int take_snapshot(struct snapshot *snapshot, const struct hl_geometry *geometry) {
    struct hl_process *process = &snapshot->process;
    snapshot->geometry = *geometry;
    int result = hl_read_process(process);
    if (result == 0)
        result = hl_find_loaded(process, geometry);
    if (result != 0)
        return result;
    snapshot->pagemap = hl_open_process_file(process, "pagemap");
    snapshot->n_tallies = process->n_loaded;
    snapshot->tally = hl_xmalloc(process->n_loaded * sizeof *snapshot->tally);
    for (size_t i = 0; i < process->n_loaded; i++) {
        struct tally *tally = &snapshot->tally[i];
        tally->loaded = &process->loaded[i];
        tally->text_bytes = hl_count_segment_bytes(&tally->loaded->object, 0, UINT64_MAX, PF_X);
    }
    for (size_t i = 0; i < process->n_regions; i++)
        attribute_region(snapshot, &process->region[i]);
    for (size_t i = 0; i < snapshot->n_tallies; i++)
        for (size_t j = 0; j < snapshot->tally[i].n_ranges; j++)
            snapshot->moved |= snapshot->tally[i].range[j].kind != HL_BSS;
    if (snapshot->pagemap >= 0)
        close(snapshot->pagemap);
    return 0;
}

static bool is_of_interest(const struct tally *tally) {
    return tally->n_ranges > 0 || tally->loaded->object.is_main;
}

/* The value of the variable NAME in the environment that PROCESS was started with; NULL if there is none or it may not be read. */
static char *read_variable(const struct hl_process *process, const char *name) {
    FILE *text = hl_open_text(process->folder, "environ");
    char *line = NULL, *value = NULL;
    size_t size = 0, length = strlen(name);
    while (text != NULL && value == NULL && getdelim(&line, &size, '\0', text) > 0)
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            value = hl_xasprintf("%s", line + length + 1);
    free(line);
    if (text != NULL)
        fclose(text);
    return value;
}

static bool is_preloaded(const struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions; i++)
        if (process->region[i].inode != 0 &&
            strncmp(hl_base_name(process->region[i].name), "libhugeld.so", strlen("libhugeld.so")) == 0)
            return true;
    return false;
}

static bool has_patched_linker(const struct hl_process *process) {
    bool found = false;
    for (size_t i = 0; i < process->n_loaded && !found; i++) {
        char *origin = hl_read_origin(process->loaded[i].file);
        found = origin != NULL;
        free(origin);
    }
    return found;
}

/* Why the parts of TALLY's object that could move did not.  Where it was started as it is, or the options leave it out, we know the
   reason; else only the lines of hugeld in the process say it. */
static enum hl_reason find_small_reason(const struct snapshot *snapshot, const struct tally *tally) {
    static const enum hl_reason reasons[HL_NOWS] = {[HL_NOW_COPIED] = HL_REASON_OUTSIDE_COPY,
                                                    [HL_NOW_EXECUTED] = HL_REASON_OUTSIDE_IMAGE,
                                                    [HL_NOW_MAPPED] = HL_REASON_OUTSIDE_IMAGE,
                                                    [HL_NOW_CACHED] = HL_REASON_OUTSIDE_PLACE};
    const struct hl_process *process = &snapshot->process;
    const struct hl_verdict *verdict = &tally->verdict;
    bool preloaded = is_preloaded(process);
    if (reasons[verdict->now] != HL_MOVED)
        return reasons[verdict->now];
    if (verdict->obstacle != HL_MOVED)
        return verdict->obstacle;
    if (tally->text_huge_bytes == 0 && hl_is_in_place(tally->loaded->file->fd, &snapshot->options))
        return hl_has_huge_text(tally->loaded->file, &snapshot->geometry) ? HL_REASON_OUTSIDE_PLACE
                                                                          : HL_REASON_PLACE_LOST;
    if (!preloaded && !has_patched_linker(process))
        return verdict->is_gone ? HL_REASON_FILE_GONE : verdict->reason;
    if (process->executable != NULL && !hl_acts_in(&snapshot->options, process->executable))
        return HL_REASON_OPTION_EXE;
    char *patterns = read_variable(process, "LD_HUGEPAGES");
    if (patterns == NULL)
        patterns = hl_xasprintf("%s", preloaded ? "main" : "");
    const struct hl_string names = {patterns, strlen(patterns)};
    bool named = hl_select_object(names, &tally->loaded->object) != HL_NOT_SELECTED;
    free(patterns);
    if (named && verdict->best == HL_WAY_NOTHING)
        return verdict->reason;
    return named ? HL_REASON_UNSAID : HL_REASON_NOT_NAMED;
}

/* Judges the objects of interest, as if started with the process's own options.  A store named by another user is left out, also by
   a user who has started a set-user-ID program. */
static void judge(struct snapshot *snapshot) {
    struct hl_task_status status;
    const struct hl_process *process = &snapshot->process;
    enum hl_reason obstacle = hl_find_obstacle(process);
    snapshot->options_text = read_variable(process, "LD_HUGEPAGES_OPTIONS");
    hl_default_options(&snapshot->options);
    hl_parse_options(&snapshot->options, snapshot->options_text != NULL ? snapshot->options_text : "", NULL);
    hl_read_task_status(&status, process->folder, "status");
    if (status.user != geteuid())
        snapshot->options.store = (struct hl_string){"", 0};
    for (size_t i = 0; i < snapshot->n_tallies; i++) {
        struct tally *tally = &snapshot->tally[i];
        const struct hl_verdict *verdict = &tally->verdict;
        if (!is_of_interest(tally))
            continue;
        hl_judge_loaded(&tally->verdict, process, tally->loaded, obstacle, &snapshot->options);
        const char *path = tally->loaded->object.path;
        tally->why_small = hl_explain_reason(find_small_reason(snapshot, tally), path);
        if (verdict->now == HL_NOW_SMALL)
            tally->why = hl_xasprintf("%s", tally->why_small);
        else if (verdict->obstacle != HL_MOVED)
            tally->why = hl_xasprintf("%s", hl_reason_sentence(verdict->obstacle));
        else if (verdict->now == HL_NOW_EXECUTED && verdict->covered[HL_WAY_IMAGE] == 0)
            tally->why = hl_explain_reason(HL_REASON_IMAGE_USELESS, verdict->path);
    }
}

static void discard_snapshot(struct snapshot *snapshot) {
    for (size_t i = 0; i < snapshot->n_tallies; i++) {
        struct tally *tally = &snapshot->tally[i];
        for (size_t j = 0; j < tally->n_ranges; j++)
            free(tally->range[j].run);
        free(tally->range);
        free(tally->why_small);
        free(tally->why);
        hl_free_verdict(&tally->verdict);
    }
    free(snapshot->tally);
    free(snapshot->options_text);
    hl_close_process(&snapshot->process);
}

/* --- the answer --- */

/* NODE_BYTES may be NULL: no node is known. */
static json_t *make_nodes(const uint64_t *node_bytes) {
    json_t *nodes = json_array();
    for (unsigned node = 0; node_bytes != NULL && node < HL_PROCESS_NODES; node++)
        if (node_bytes[node] > 0)
            json_array_append_new(
                nodes, json_pack("{s:i, s:I}", "node", (int)node, "bytes", (json_int_t)node_bytes[node]));
    return nodes;
}

static json_t *make_ranges(const struct tally *tally) {
    json_t *ranges = json_array();
    for (size_t i = 0; i < tally->n_ranges; i++) {
        const struct range *range = &tally->range[i];
        json_array_append_new(
            ranges,
            json_pack("{s:o, s:o, s:s, s:s, s:s, s:I, s:I, s:o}", "start", hl_json_hex(range->region->start),
                      "end", hl_json_hex(range->region->end), "flags", hl_flags_text(range->region->flags),
                      "kind", hl_kind_name(range->kind), "backend", backend_names[range->backend],
                      "huge_bytes", (json_int_t)range->huge_bytes, "pages", (json_int_t)range->pages, "nodes",
                      make_nodes(range->region->node_bytes)));
    }
    return ranges;
}

static json_t *make_pages(const uint64_t pages[BACKENDS]) {
    return json_pack("{s:I, s:I, s:I, s:I}", "hugetlb_pages", (json_int_t)pages[HUGETLB], "thp_pages",
                     (json_int_t)pages[THP], "image_pages", (json_int_t)pages[IMAGE], "file_pages",
                     (json_int_t)pages[FILE_CACHE]);
}

/* Bytes of a tally, by their names in JSON. */
#define FIELD(name)                                                                                          \
    { #name, offsetof(struct tally, name) }
static const struct {
    const char *name;
    size_t offset;
} byte_fields[] = {
    FIELD(text_bytes),           FIELD(text_huge_bytes),
    FIELD(text_untouched_bytes), FIELD(private_hugetlb_bytes),
    FIELD(shared_hugetlb_bytes), FIELD(anon_huge_bytes),
    FIELD(file_pmd_bytes),       FIELD(image_bytes),
};

static json_t *make_object(const struct tally *tally) {
    const struct hl_object *object = &tally->loaded->object;
    uint64_t pages = 0;
    for (unsigned i = 0; i < BACKENDS; i++)
        pages += tally->pages[i];
    json_t *json = json_pack(
        "{s:o, s:o, s:b, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "path", hl_json_text(object->path),
        "load_bias", hl_json_hex(object->load_bias), "is_main", object->is_main, "text_share",
        hl_json_share(tally->text_huge_bytes, tally->text_bytes), "pages", (json_int_t)pages, "image",
        hl_json_text(tally->image), "backends", make_pages(tally->pages), "verdict",
        tally->verdict.path != NULL ? hl_json_verdict(&tally->verdict) : json_null(), "why",
        hl_json_text(tally->why), "nodes", make_nodes(tally->node_bytes), "ranges", make_ranges(tally));
    for (size_t i = 0; i < sizeof byte_fields / sizeof byte_fields[0]; i++) {
        uint64_t bytes;
        memcpy(&bytes, (const char *)tally + byte_fields[i].offset, sizeof bytes);
        json_object_set_new(json, byte_fields[i].name, json_integer((json_int_t)bytes));
    }
    return json;
}

static json_t *make_process(const struct snapshot *snapshot) {
    const struct hl_process *process = &snapshot->process;
    uint64_t text_bytes = 0, huge_bytes = 0, pages[BACKENDS] = {0};
    json_t *objects = json_array();
    for (size_t i = 0; i < snapshot->n_tallies; i++) {
        const struct tally *tally = &snapshot->tally[i];
        json_array_append_new(objects, make_object(tally));
        text_bytes += tally->n_ranges > 0 ? tally->text_bytes : 0;
        huge_bytes += tally->n_ranges > 0 ? tally->text_huge_bytes : 0;
        for (unsigned j = 0; j < BACKENDS; j++)
            pages[j] += tally->pages[j];
    }
    uint64_t own_bytes = snapshot->own_hugetlb_bytes + snapshot->own_thp_bytes + snapshot->own_file_bytes +
                         snapshot->own_shmem_bytes;
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I}}", "pid", (int)process->pid,
                     "name", hl_json_text(process->name), "executable", hl_json_text(process->executable),
                     "text_share", hl_json_share(huge_bytes, text_bytes), "backends", make_pages(pages),
                     "objects", objects, "own", "bytes", (json_int_t)own_bytes, "hugetlb_bytes",
                     (json_int_t)snapshot->own_hugetlb_bytes, "thp_bytes",
                     (json_int_t)snapshot->own_thp_bytes, "file_bytes", (json_int_t)snapshot->own_file_bytes,
                     "shmem_bytes", (json_int_t)snapshot->own_shmem_bytes);
}

/* --- in text --- */

/* The bytes of PART that are huge; *IS_MOVED: it lies in memory with huge pages. */
static uint64_t count_huge(const struct tally *tally, const struct hl_part *part, uint64_t page,
                           bool *is_moved) {
    uint64_t bytes = 0;
    *is_moved = false;
    for (size_t i = 0; i < tally->n_ranges; i++) {
        const struct range *range = &tally->range[i];
        struct hl_range own = clip(range, &tally->loaded->object, page);
        uint64_t both = hl_overlap(own.start, own.end, part->start, part->end);
        *is_moved = *is_moved || both > 0;
        for (size_t j = 0; range->is_known && j < range->n_runs; j++)
            bytes += hl_overlap(range->run[j].start, range->run[j].end, part->start, part->end);
        if (!range->is_known) /* where they are cannot be known before Linux 6.7 */
            bytes += range->huge_bytes < both ? range->huge_bytes : both;
    }
    return bytes;
}

/* What is on small pages, a line for each reason: those of the plan with the options that the process was started with.  Writable
   data that is in the plan stays by default unless it was written to at startup; text has other reasons. */
static void print_small(const struct snapshot *snapshot, const struct tally *tally) {
    const struct hl_object *object = &tally->loaded->object;
    struct hl_geometry geometry = snapshot->geometry;
    struct hl_plan plan;
    struct hl_part *part;
    json_t *bytes = json_object(), *sum;
    const char *why;
    hl_fit_geometry(&geometry, &snapshot->options, &hl_system_roots);
    hl_plan_object(&plan, object, &snapshot->options, &geometry);
    size_t n = hl_list_parts(&part, object, &plan, &snapshot->options, &geometry);
    for (size_t i = 0; i < n; i++) {
        const struct hl_segment *segment = &object->segment[part[i].segment];
        bool is_moved, is_data = segment->flags & PF_W && part[i].start < segment->file_end;
        uint64_t small = part[i].end - part[i].start;
        small = hl_subtract(small, count_huge(tally, &part[i], geometry.huge_page_bytes, &is_moved));
        why = is_moved                                            ? "not huge now, or not touched yet"
              : part[i].sentence != NULL                          ? part[i].sentence
              : is_data && snapshot->options.data == HL_DATA_AUTO ? hl_reason_sentence(HL_REASON_DATA_AUTO)
                                                                  : tally->why_small;
        if (small > 0)
            json_object_set_new(
                bytes, why,
                json_integer(json_integer_value(json_object_get(bytes, why)) + (json_int_t)small));
    }
    json_object_foreach(bytes, why, sum)
        hl_print("    %lld KiB on small pages: %s", (json_integer_value(sum) + 1023) / 1024, why);
    json_decref(bytes);
    free(part);
}

/* "node 0: 4096 KiB, node 1: 2048 KiB", or "" if no node is known.  The caller frees it. */
static char *format_nodes(const json_t *nodes) {
    char *text = hl_xasprintf("%s", "");
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        char *node = hl_format_fields(json_array_get(nodes, i), "node {node}: {bytes:KiB}");
        hl_append(&text, "%s%s", i > 0 ? ", " : "", node);
        free(node);
    }
    return text;
}

static void print_object(const struct snapshot *snapshot, const struct tally *tally, const json_t *object) {
    hl_print_fields(object, "  {path}: {text_share:%} of the text on huge pages");
    char *now = hl_describe_now(&tally->verdict);
    hl_print("    now: %s%s%s", now, tally->why != NULL ? ": " : "", tally->why != NULL ? tally->why : "");
    free(now);
    if (tally->text_untouched_bytes > 0)
        hl_print_fields(object, "    {text_untouched_bytes:KiB} of the text are not touched yet");
    print_small(snapshot, tally);
    if (tally->n_ranges == 0)
        return;
    hl_print_fields(object,
                    "    Private_Hugetlb {private_hugetlb_bytes:KiB}, Shared_Hugetlb "
                    "{shared_hugetlb_bytes:KiB}, AnonHugePages {anon_huge_bytes:KiB}, FilePmdMapped and "
                    "ShmemPmdMapped {file_pmd_bytes:KiB}");
    if (tally->image != NULL)
        hl_print_fields(
            object, tally->verdict.now == HL_NOW_COPIED
                        ? "    {image_bytes:KiB} of it are a copy that attach made for this process alone "
                          "({image})"
                        : "    {image_bytes:KiB} of it belong to an image, of which all processes share one "
                          "copy: it is no memory of this process ({image})");
    char *nodes = format_nodes(json_object_get(object, "nodes"));
    if (nodes[0] != '\0')
        hl_print("    %s", nodes);
    free(nodes);
    size_t i;
    json_t *range;
    json_array_foreach(json_object_get(object, "ranges"), i, range) {
        char *line = hl_format_fields(
            range, "    {start:x}-{end:x} {flags} {kind:-6} {backend:-7} {pages:6} page{pages:-1s}");
        nodes = format_nodes(json_object_get(range, "nodes"));
        hl_print("%s  %s", line, nodes);
        free(nodes);
        free(line);
    }
}

static void print_process(const struct snapshot *snapshot, const json_t *answer) {
    const struct hl_process *process = &snapshot->process;
    struct hl_leftovers left;
    hl_print_fields(answer, "{pid} {name}");
    for (size_t i = 0; i < snapshot->n_tallies; i++)
        if (is_of_interest(&snapshot->tally[i]))
            print_object(snapshot, &snapshot->tally[i],
                         json_array_get(json_object_get(answer, "objects"), i));
    hl_find_leftovers(&left, process);
    if (hl_has_leftovers(&left) && hl_find_tracer(process->pid, process->pid) == 0) { /* else in use */
        char *what = hl_describe_leftovers(&left);
        hl_print("  left by a killed attach or detach: %s; the next one closes them: hugeld detach %d", what,
                 process->pid);
        free(what);
    }
    if (json_integer_value(json_object_get(json_object_get(answer, "own"), "bytes")) > 0)
        hl_print_fields(
            answer, "  its own huge pages: hugetlb {own.hugetlb_bytes:KiB}, transparent {own.thp_bytes:KiB}, "
                    "files {own.file_bytes:KiB}, shared memory {own.shmem_bytes:KiB}");
}

/* Reports the opened process, and closes it.  --all silently skips a process that can't be read. */
static void report_process(struct request *request, struct snapshot *snapshot) {
    pid_t pid = snapshot->process.pid;
    int result = take_snapshot(snapshot, &request->geometry);
    if (result != 0 && !request->all)
        hl_say_unreadable(pid, result);
    if (result == 0 && (hl_output.is_json || !request->all))
        judge(snapshot);
    json_t *answer = result == 0 ? make_process(snapshot) : NULL;
    request->moved |= snapshot->moved;
    if (answer != NULL && !request->all)
        print_process(snapshot, answer);
    if (answer != NULL && request->all)
        hl_print_fields(answer, "{pid:8}  {name:-15} {text_share:8%} {backends.hugetlb_pages:7} "
                                "{backends.thp_pages:7} {backends.image_pages:7} {backends.file_pages:7} "
                                "{own.bytes:12KiB}");
    json_array_append_new(request->processes, answer); /* which adds nothing if that is NULL */
    discard_snapshot(snapshot);
}

int hl_show_status(int argc, char **argv) {
    static const struct hl_command command = {
        "status",
        "Shows which parts of a process are on huge pages now, as the kernel counts them.\v"
        "Exit status: 0 when something of an object is on huge pages, 1 when nothing is.",
        command_flags, false};
    struct request request = {0};
    DIR *proc = NULL;
    bool failed = false;
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        return HL_EXIT_USAGE;
    if (request.all == (request.who.n > 0)) {
        hl_warn("status: give PIDs, or --all");
        return HL_EXIT_USAGE;
    }
    for (size_t i = 0; i < request.who.n; i++)
        if (hl_parse_pid(request.who.word[i]) == 0) {
            hl_warn("status: '%s' is not a process ID; give a number as ps prints it, or --all",
                    request.who.word[i]);
            return HL_EXIT_USAGE;
        }
    request.geometry = hl_read_geometry();
    request.processes = json_array();
    if (request.all)
        hl_print("%8s  %-15s %8s %7s %7s %7s %7s %12s", "PID", "NAME", "TEXT", "HUGETLB", "THP", "IMAGE",
                 "FILE", "OWN");
    for (pid_t pid; request.all && (pid = hl_next_process(&proc)) != 0;) {
        struct snapshot snapshot = {0};
        if (pid == getpid() || hl_open_process(&snapshot.process, pid) != 0)
            continue;
        if (hl_has_huge_pages(&snapshot.process))
            report_process(&request, &snapshot);
        else
            hl_close_process(&snapshot.process);
    }
    if (request.all && errno != 0) {
        hl_warn("/proc cannot be read: %s; mount it", strerror(errno));
        failed = true;
    }
    for (size_t i = 0; i < request.who.n; i++) {
        struct snapshot snapshot = {0};
        pid_t pid = hl_parse_pid(request.who.word[i]);
        int result = hl_open_process(&snapshot.process, pid);
        if (result == 0)
            report_process(&request, &snapshot);
        else
            hl_say_unreadable(pid, result);
    }
    hl_print_answer(json_pack("{s:o}", "processes", request.processes), hl_last_warning()[0] != '\0');
    free(request.who.word);
    return request.moved && !failed ? HL_EXIT_DONE : HL_EXIT_NO;
}
