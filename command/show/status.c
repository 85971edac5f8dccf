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
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/file/remedy.h"
#include "command/show/draw.h"
#include "elf/context.h"
#include "elf/kernel.h"
#include "elf/maps.h"
#include "elf/pool.h"
#include "command/run/ldso.h"
#include "elf/plan.h"
#include "command/proc/process.h"
#include "elf/reason.h"
#include "command/image/in-place.h"
#include "command/image/store.h"
#include "command/inject/tracee.h"
#include "command/verdict/verdict.h"

#include <errno.h>
#include <inttypes.h>
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
struct picture {
    struct hl_process process;
    struct hl_geometry geometry;
    int pagemap; /* or negative */
    size_t n_tallies;
    struct tally *tally; /* one for each loaded object, in their order */
    uint64_t own_hugetlb_bytes, own_thp_bytes, own_file_bytes, own_shmem_bytes;
    bool moved; /* anything except zero-initialised data is on huge pages */
};

struct request {
    bool json, all;
    struct hl_list who; /* PIDs */
    struct hl_geometry geometry;
    json_t *processes;
    bool moved;
};

static const struct hl_flag command_flags[] = {
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct request, json)},
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
                      uint64_t huge_bytes, const struct picture *picture, uint64_t page_bytes) {
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
    find_runs(range, object, picture->pagemap, picture->geometry.huge_page_bytes);
    tally->text_huge_bytes += count_text(range, object);
}

static void add_region(struct tally *tally, const struct hl_region *region, const struct picture *picture) {
    uint64_t huge_page_bytes = picture->geometry.huge_page_bytes, text_huge_bytes = tally->text_huge_bytes;
    tally->private_hugetlb_bytes += region->private_hugetlb_bytes;
    tally->shared_hugetlb_bytes += region->shared_hugetlb_bytes;
    tally->anon_huge_bytes += region->anon_huge_bytes;
    uint64_t file_bytes = region->file_pmd_bytes + region->shmem_pmd_bytes; /* the latter on tmpfs */
    tally->file_pmd_bytes += file_bytes;
    if (region->of_image) {
        tally->image = region->name;
        tally->image_bytes += hl_hugetlb_bytes(region) + file_bytes;
    }
    add_range(tally, region, region->of_image ? IMAGE : HUGETLB, hl_hugetlb_bytes(region), picture,
              region->page_bytes > 0 ? region->page_bytes : huge_page_bytes);
    add_range(tally, region, THP, region->anon_huge_bytes, picture, huge_page_bytes);
    add_range(tally, region, region->of_image ? IMAGE : FILE_CACHE, file_bytes, picture, huge_page_bytes);
    if (is_rest_untouched(region))
        tally->text_untouched_bytes +=
            hl_subtract(hl_count_segment_bytes(&tally->loaded->object, region->start, region->end, PF_X),
                        tally->text_huge_bytes - text_huge_bytes);
    for (unsigned node = 0; region->node_bytes != NULL && node < HL_PROCESS_NODES; node++)
        tally->node_bytes[node] += region->node_bytes[node];
}

static void attribute_region(struct picture *picture, const struct hl_region *region) {
    if (hl_huge_bytes(region) == 0)
        return;
    for (size_t i = 0; i < picture->n_tallies; i++) {
        if (is_of_object(region, picture->tally[i].loaded)) {
            add_region(&picture->tally[i], region, picture);
            return;
        }
    }
    picture->own_hugetlb_bytes += hl_hugetlb_bytes(region);
    picture->own_thp_bytes += region->anon_huge_bytes;
    picture->own_file_bytes += region->file_pmd_bytes;
    picture->own_shmem_bytes += region->shmem_pmd_bytes;
}

/* After hl_open_process.  0, or a negated errno. */
static int read_picture(struct picture *picture, const struct hl_geometry *geometry) {
    struct hl_process *process = &picture->process;
    picture->geometry = *geometry;
    int result = hl_read_process(process);
    if (result == 0)
        result = hl_find_loaded(process, geometry);
    if (result != 0)
        return result;
    picture->pagemap = hl_open_process_file(process, "pagemap");
    picture->n_tallies = process->n_loaded;
    picture->tally = hl_xmalloc(process->n_loaded * sizeof *picture->tally);
    for (size_t i = 0; i < process->n_loaded; i++) {
        struct tally *tally = &picture->tally[i];
        tally->loaded = &process->loaded[i];
        tally->text_bytes = hl_count_segment_bytes(&tally->loaded->object, 0, UINT64_MAX, PF_X);
    }
    for (size_t i = 0; i < process->n_regions; i++)
        attribute_region(picture, &process->region[i]);
    for (size_t i = 0; i < picture->n_tallies; i++)
        for (size_t j = 0; j < picture->tally[i].n_ranges; j++)
            picture->moved |= picture->tally[i].range[j].kind != HL_BSS;
    if (picture->pagemap >= 0)
        close(picture->pagemap);
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

/* Reads the options that PROCESS was started with, which point into the result; the caller frees it.  A store named by another user
   is left out, also by a user who has started a set-user-ID program. */
static char *read_options(const struct hl_process *process, struct hl_options *options) {
    struct hl_task_status status;
    char *text = read_variable(process, "LD_HUGEPAGES_OPTIONS");
    hl_default_options(options);
    hl_parse_options(options, text != NULL ? text : "", NULL);
    hl_read_task_status(&status, process->folder, "status");
    if (status.user != geteuid())
        options->store = (struct hl_string){"", 0};
    return text;
}

/* Judges the objects of interest, as if started with the process's own options. */
static void judge(struct picture *picture) {
    struct hl_options options;
    enum hl_reason obstacle = hl_find_obstacle(&picture->process);
    char *text = read_options(&picture->process, &options);
    for (size_t i = 0; i < picture->n_tallies; i++)
        if (is_of_interest(&picture->tally[i]))
            hl_judge_loaded(&picture->tally[i].verdict, &picture->process, picture->tally[i].loaded, obstacle,
                            &options);
    free(text);
}

static void discard_picture(struct picture *picture) {
    for (size_t i = 0; i < picture->n_tallies; i++) {
        for (size_t j = 0; j < picture->tally[i].n_ranges; j++)
            free(picture->tally[i].range[j].run);
        free(picture->tally[i].range);
        hl_free_verdict(&picture->tally[i].verdict);
    }
    free(picture->tally);
    hl_close_process(&picture->process);
}

/* Text and huge text of the objects that have anything on huge pages. */
static void sum_text(const struct picture *picture, uint64_t *text_bytes, uint64_t *huge_bytes) {
    *text_bytes = *huge_bytes = 0;
    for (size_t i = 0; i < picture->n_tallies; i++) {
        if (picture->tally[i].n_ranges > 0) {
            *text_bytes += picture->tally[i].text_bytes;
            *huge_bytes += picture->tally[i].text_huge_bytes;
        }
    }
}

/* NODE_BYTES may be NULL: no node is known. */
static json_t *make_json_nodes(const uint64_t *node_bytes) {
    json_t *nodes = json_array();
    for (unsigned node = 0; node_bytes != NULL && node < HL_PROCESS_NODES; node++)
        if (node_bytes[node] > 0)
            json_array_append_new(
                nodes, json_pack("{s:i, s:I}", "node", (int)node, "bytes", (json_int_t)node_bytes[node]));
    return nodes;
}

static json_t *make_json_ranges(const struct tally *tally) {
    json_t *ranges = json_array();
    for (size_t i = 0; i < tally->n_ranges; i++) {
        const struct range *range = &tally->range[i];
        json_array_append_new(
            ranges,
            json_pack("{s:o, s:o, s:s, s:s, s:s, s:I, s:I, s:o}", "start", hl_json_hex(range->region->start),
                      "end", hl_json_hex(range->region->end), "flags", hl_flags_text(range->region->flags),
                      "kind", hl_kind_name(range->kind), "backend", backend_names[range->backend],
                      "huge_bytes", (json_int_t)range->huge_bytes, "pages", (json_int_t)range->pages, "nodes",
                      make_json_nodes(range->region->node_bytes)));
    }
    return ranges;
}

static json_t *make_json_object(const struct tally *tally) {
    const struct hl_object *object = &tally->loaded->object;
    const uint64_t *pages = tally->pages;
    uint64_t total = 0;
    for (unsigned i = 0; i < BACKENDS; i++)
        total += pages[i];
    json_t *json =
        json_pack("{s:o, s:o, s:b, s:I, s:I, s:I, s:o, s:I}", "path", hl_json_text(object->path), "load_bias",
                  hl_json_hex(object->load_bias), "is_main", object->is_main, "text_bytes",
                  (json_int_t)tally->text_bytes, "text_huge_bytes", (json_int_t)tally->text_huge_bytes,
                  "text_untouched_bytes", (json_int_t)tally->text_untouched_bytes, "text_share",
                  hl_json_share(tally->text_huge_bytes, tally->text_bytes), "pages", (json_int_t)total);
    json_t *bytes = json_pack(
        "{s:I, s:I, s:I, s:I, s:I}", "private_hugetlb_bytes", (json_int_t)tally->private_hugetlb_bytes,
        "shared_hugetlb_bytes", (json_int_t)tally->shared_hugetlb_bytes, "anon_huge_bytes",
        (json_int_t)tally->anon_huge_bytes, "file_pmd_bytes", (json_int_t)tally->file_pmd_bytes,
        "image_bytes", (json_int_t)tally->image_bytes);
    json_object_update(json, bytes);
    json_decref(bytes);
    json_object_set_new(json, "image", hl_json_text(tally->image));
    json_object_set_new(json, "backends",
                        json_pack("{s:I, s:I, s:I, s:I}", "hugetlb_pages", (json_int_t)pages[HUGETLB],
                                  "thp_pages", (json_int_t)pages[THP], "image_pages",
                                  (json_int_t)pages[IMAGE], "file_pages", (json_int_t)pages[FILE_CACHE]));
    json_object_set_new(json, "verdict",
                        is_of_interest(tally) ? hl_json_verdict(&tally->verdict) : json_null());
    json_object_set_new(json, "nodes", make_json_nodes(tally->node_bytes));
    json_object_set_new(json, "ranges", make_json_ranges(tally));
    return json;
}

static json_t *make_json(const struct picture *picture) {
    const struct hl_process *process = &picture->process;
    json_t *objects = json_array();
    uint64_t text_bytes, huge_bytes;
    sum_text(picture, &text_bytes, &huge_bytes);
    for (size_t i = 0; i < picture->n_tallies; i++)
        json_array_append_new(objects, make_json_object(&picture->tally[i]));
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I}}", "pid", (int)process->pid, "name",
                     hl_json_text(process->name), "executable", hl_json_text(process->executable),
                     "text_share", hl_json_share(huge_bytes, text_bytes), "objects", objects, "own",
                     "hugetlb_bytes", (json_int_t)picture->own_hugetlb_bytes, "thp_bytes",
                     (json_int_t)picture->own_thp_bytes, "file_bytes", (json_int_t)picture->own_file_bytes,
                     "shmem_bytes", (json_int_t)picture->own_shmem_bytes);
}

/* "node 0: 4096 KiB, node 1: 2048 KiB", or "" if no node is known.  The caller frees it. */
static char *format_nodes(const uint64_t *node_bytes) {
    char *text = hl_xasprintf("%s", "");
    for (unsigned node = 0; node_bytes != NULL && node < HL_PROCESS_NODES; node++) {
        if (node_bytes[node] == 0)
            continue;
        char *longer = hl_xasprintf("%s%snode %u: %" PRIu64 " KiB", text, text[0] != '\0' ? ", " : "", node,
                                    node_bytes[node] / 1024);
        free(text);
        text = longer;
    }
    return text;
}

static void print_range(const struct range *range) {
    const struct hl_region *region = range->region;
    char *nodes = format_nodes(region->node_bytes);
    hl_print("    0x%012" PRIx64 "-0x%012" PRIx64 " %s %-6s %-7s %6" PRIu64 " page%-1s  %s", region->start,
             region->end, hl_flags_text(region->flags), hl_kind_name(range->kind),
             backend_names[range->backend], range->pages, hl_plural(range->pages), nodes);
    free(nodes);
}

/* Draws one stretch for a range that is huge in unknown parts. */
static void draw_unknown(struct hl_drawing *drawing, const struct range *range, const struct hl_range *part) {
    char *words = hl_xasprintf("%s, %s, and small pages; where cannot be known (Linux 6.7 and later say it)",
                               hl_kind_name(range->kind), backend_names[range->backend]);
    uint64_t bytes = part->end - part->start;
    hl_add_stretch(drawing, part->start, part->end, HL_MARK_PARTS,
                   range->huge_bytes < bytes ? range->huge_bytes : bytes, words);
    free(words);
}

/* Draws the parts between the runs of huge pages, in PART. */
static void draw_rest(struct hl_drawing *drawing, const struct range *range, const struct hl_range *part) {
    bool is_untouched = is_rest_untouched(range->region);
    char *words = hl_xasprintf("%s, %s%s", hl_kind_name(range->kind), backend_names[range->backend],
                               is_untouched ? "" : ": on small pages now, or not touched yet");
    uint64_t at = part->start;
    for (size_t i = 0; i <= range->n_runs; i++) {
        hl_add_stretch(drawing, at, i < range->n_runs ? range->run[i].start : part->end,
                       is_untouched ? HL_MARK_UNTOUCHED : HL_MARK_SMALL, 0, words);
        at = i < range->n_runs ? range->run[i].end : at;
    }
    free(words);
}

static void draw_range(struct hl_drawing *drawing, const struct hl_object *object,
                       const struct range *range) {
    static const char marks[BACKENDS] = {HL_MARK_HUGETLB, HL_MARK_THP, HL_MARK_IMAGE, HL_MARK_FILE};
    struct hl_range part = clip(range, object, drawing->huge_page_bytes);
    if (!range->is_known) {
        draw_unknown(drawing, range, &part);
        return;
    }
    char *words = hl_xasprintf("%s, %s", hl_kind_name(range->kind), backend_names[range->backend]);
    for (size_t i = 0; i < range->n_runs; i++)
        hl_add_stretch(drawing, range->run[i].start, range->run[i].end, marks[range->backend],
                       range->run[i].end - range->run[i].start, words);
    draw_rest(drawing, range, &part);
    free(words);
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

/* Why the text of OBJECT, which was started as it is or whose options leave it out, is on small pages; or, if that is not known,
   HL_MOVED: the lines of hugeld in the process say it. */
static enum hl_reason find_small_reason(const struct hl_process *process, const struct hl_object *object,
                                        const struct hl_options *options, const struct tally *tally) {
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    const struct hl_verdict *verdict = &tally->verdict;
    bool preloaded = is_preloaded(process);
    if (verdict->obstacle != HL_MOVED)
        return verdict->obstacle;
    if (tally->text_huge_bytes == 0 && hl_is_kept_in_place(tally->loaded->file->fd, options))
        return hl_has_huge_text(tally->loaded->file, &geometry) ? HL_REASON_OUTSIDE_PLACE
                                                                : HL_REASON_PLACE_LOST;
    if (!preloaded && !has_patched_linker(process))
        return verdict->is_gone ? HL_REASON_FILE_GONE : verdict->reason;
    if (process->executable != NULL && !hl_acts_in(options, process->executable))
        return HL_REASON_OPTION_EXE;
    char *patterns = read_variable(process, "LD_HUGEPAGES");
    if (patterns == NULL)
        patterns = hl_xasprintf("%s", preloaded ? "main" : "");
    bool named = hl_select_object((struct hl_string){patterns, strlen(patterns)}, object) != HL_NOT_SELECTED;
    free(patterns);
    return named ? HL_REASON_UNSAID : HL_REASON_NOT_NAMED;
}

/* Why the parts of OBJECT that could move did not.  The caller frees it. */
static char *explain_not_moved(const struct hl_process *process, const struct hl_object *object,
                               const struct hl_options *options, const struct tally *tally) {
    static const enum hl_reason reasons[HL_NOWS] = {[HL_NOW_COPIED] = HL_REASON_OUTSIDE_COPY,
                                                    [HL_NOW_EXECUTED] = HL_REASON_OUTSIDE_IMAGE,
                                                    [HL_NOW_MAPPED] = HL_REASON_OUTSIDE_IMAGE,
                                                    [HL_NOW_CACHED] = HL_REASON_OUTSIDE_PLACE};
    enum hl_reason reason = reasons[tally->verdict.now];
    if (reason == HL_MOVED)
        reason = find_small_reason(process, object, options, tally);
    return hl_explain_reason(reason, object->path);
}

/* Writable data that is in the plan stays by default unless it was written to at startup; text has other reasons. */
static void explain_data(struct hl_part *parts, size_t n, const struct hl_object *object,
                         const struct hl_options *options) {
    for (size_t i = 0; i < n && options->data == HL_DATA_AUTO; i++) {
        const struct hl_segment *segment = &object->segment[parts[i].segment];
        if (parts[i].sentence == NULL && (segment->flags & PF_W) && parts[i].start < segment->file_end)
            parts[i].sentence = hl_reason_sentence(HL_REASON_DATA_AUTO);
    }
}

/* The small parts and their reasons are those of the plan with the options that the process was started with. */
static void draw_tally(const struct picture *picture, const struct tally *tally) {
    const struct hl_object *object = &tally->loaded->object;
    struct hl_options options;
    struct hl_plan plan;
    char *text = read_options(&picture->process, &options);
    char *why = explain_not_moved(&picture->process, object, &options, tally);
    struct hl_geometry geometry = picture->geometry;
    hl_fit_geometry(&geometry, &options, &hl_system_roots);
    struct hl_drawing drawing = {.huge_page_bytes = geometry.huge_page_bytes, .why_not_moved = why};
    hl_plan_object(&plan, object, &options, &geometry);
    for (size_t i = 0; i < tally->n_ranges; i++)
        draw_range(&drawing, object, &tally->range[i]);
    struct hl_part *parts;
    size_t n_parts = hl_list_parts(&parts, object, &plan, &options, &geometry);
    explain_data(parts, n_parts, object, &options);
    hl_add_small_stretches(&drawing, parts, n_parts);
    hl_finish_drawing(&drawing);
    free(parts);
    free(why);
    free(text);
}

/* Prints where the text is, and if it is on small pages, why. */
static void print_now(const struct picture *picture, const struct tally *tally) {
    const struct hl_verdict *verdict = &tally->verdict;
    struct hl_options options;
    char *text = read_options(&picture->process, &options), *now = hl_describe_now(verdict), *why = NULL;
    if (verdict->now == HL_NOW_SMALL)
        why = explain_not_moved(&picture->process, &tally->loaded->object, &options, tally);
    else if (verdict->obstacle != HL_MOVED)
        why = hl_xasprintf("%s", hl_reason_sentence(verdict->obstacle));
    else if (verdict->now == HL_NOW_EXECUTED && verdict->covered[HL_WAY_IMAGE] == 0)
        why = hl_explain_reason(HL_REASON_IMAGE_USELESS, verdict->path);
    hl_print("    now: %s%s%s", now, why != NULL ? ": " : "", why != NULL ? why : "");
    free(why);
    free(now);
    free(text);
}

static void print_tally(const struct picture *picture, const struct tally *tally) {
    unsigned share = hl_permille(tally->text_huge_bytes, tally->text_bytes);
    unsigned untouched = hl_permille(tally->text_untouched_bytes, tally->text_bytes);
    char *rest = untouched > 0 ? hl_xasprintf(", %u.%u %% not touched yet", untouched / 10, untouched % 10)
                               : hl_xasprintf("%s", "");
    hl_print("  %s: %u.%u %% of the text on huge pages%s; hugetlb %" PRIu64 ", thp %" PRIu64
             ", image %" PRIu64 ", file %" PRIu64 " pages",
             tally->loaded->object.path, share / 10, share % 10, rest, tally->pages[HUGETLB],
             tally->pages[THP], tally->pages[IMAGE], tally->pages[FILE_CACHE]);
    free(rest);
    print_now(picture, tally);
    draw_tally(picture, tally);
    if (tally->n_ranges == 0)
        return;
    hl_print("    Private_Hugetlb %" PRIu64 " KiB, Shared_Hugetlb %" PRIu64 " KiB, AnonHugePages %" PRIu64
             " KiB, FilePmdMapped %" PRIu64 " KiB",
             tally->private_hugetlb_bytes / 1024, tally->shared_hugetlb_bytes / 1024,
             tally->anon_huge_bytes / 1024, tally->file_pmd_bytes / 1024);
    if (tally->image != NULL && tally->verdict.now == HL_NOW_COPIED)
        hl_print("    %" PRIu64 " KiB of it are a copy that attach made for this process alone (%s)",
                 tally->image_bytes / 1024, tally->image);
    else if (tally->image != NULL)
        hl_print("    %" PRIu64
                 " KiB of it belong to an image, of which all processes share one copy: it is no "
                 "memory of this process (%s)",
                 tally->image_bytes / 1024, tally->image);
    char *nodes = format_nodes(tally->node_bytes);
    if (nodes[0] != '\0')
        hl_print("    %s", nodes);
    free(nodes);
    for (size_t i = 0; i < tally->n_ranges; i++)
        print_range(&tally->range[i]);
}

static void print_leftovers(const struct hl_process *process) {
    struct hl_leftovers left;
    hl_find_leftovers(&left, process);
    if (!hl_has_leftovers(&left) || hl_find_tracer(process->pid, process->pid) > 0) /* or in use */
        return;
    char *what = hl_describe_leftovers(&left);
    hl_print("  left by a killed attach or detach: %s; the next one closes them: hugeld detach %d", what,
             process->pid);
    free(what);
}

static void print_picture(const struct picture *picture) {
    hl_print("%d %s", picture->process.pid, picture->process.name);
    for (size_t i = 0; i < picture->n_tallies; i++)
        if (is_of_interest(&picture->tally[i]))
            print_tally(picture, &picture->tally[i]);
    print_leftovers(&picture->process);
    hl_print("  the program's own: hugetlb %" PRIu64 " KiB, thp %" PRIu64 " KiB, files %" PRIu64
             " KiB, shared memory %" PRIu64 " KiB",
             picture->own_hugetlb_bytes / 1024, picture->own_thp_bytes / 1024, picture->own_file_bytes / 1024,
             picture->own_shmem_bytes / 1024);
}

static void print_row(const struct picture *picture) {
    uint64_t text_bytes, huge_bytes, pages[BACKENDS] = {0};
    sum_text(picture, &text_bytes, &huge_bytes);
    unsigned share = hl_permille(huge_bytes, text_bytes);
    for (size_t i = 0; i < picture->n_tallies; i++)
        for (unsigned j = 0; j < BACKENDS; j++)
            pages[j] += picture->tally[i].pages[j];
    hl_print("%8d  %-20s %4u.%u %% %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %12" PRIu64,
             picture->process.pid, picture->process.name, share / 10, share % 10, pages[HUGETLB], pages[THP],
             pages[IMAGE], pages[FILE_CACHE],
             (picture->own_hugetlb_bytes + picture->own_thp_bytes + picture->own_file_bytes +
              picture->own_shmem_bytes) /
                 1024);
}

/* Reports an opened process, and closes it.  --all silently skips a process that can't be read. */
static void report_process(struct request *request, struct picture *picture) {
    pid_t pid = picture->process.pid;
    int result = read_picture(picture, &request->geometry);
    if (result != 0 && !request->all)
        hl_say_unreadable(pid, result);
    if (result != 0)
        goto out;
    request->moved |= picture->moved;
    if (request->json || !request->all)
        judge(picture);
    if (request->json)
        json_array_append_new(request->processes, make_json(picture));
    else if (request->all)
        print_row(picture);
    else
        print_picture(picture);
out:
    discard_picture(picture);
}

static void report_pid(struct request *request, pid_t pid) {
    struct picture picture = {0};
    int result = hl_open_process(&picture.process, pid);
    if (result == 0)
        report_process(request, &picture);
    else
        hl_say_unreadable(pid, result);
}

/* Reports every process that has huge pages. */
static int report_huge(struct request *request) {
    DIR *proc = NULL;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        struct picture picture = {0};
        if (pid == getpid() || hl_open_process(&picture.process, pid) != 0)
            continue;
        if (hl_has_huge_pages(&picture.process))
            report_process(request, &picture);
        else
            hl_close_process(&picture.process);
    }
    if (errno == 0)
        return 0;
    hl_warn("/proc cannot be read: %s; mount it", strerror(errno));
    return HL_EXIT_NO;
}

/* The exit code for wrong use, or 0. */
static int check_numbers(const struct request *request) {
    for (size_t i = 0; i < request->who.n; i++) {
        if (hl_parse_pid(request->who.word[i]) != 0)
            continue;
        hl_warn("status: '%s' is not a process ID; give a number as ps prints it, or --all",
                request->who.word[i]);
        return HL_EXIT_USAGE;
    }
    return 0;
}

/* The exit code. */
static int report_all(struct request *request) {
    int code = check_numbers(request);
    if (code != 0)
        return code;
    hl_set_geometry(&request->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    request->processes = json_array();
    if (request->all && !request->json)
        hl_print("%8s  %-20s %8s %8s %8s %8s %8s %12s", "PID", "NAME", "TEXT", "HUGETLB", "THP", "IMAGE",
                 "FILE", "OWN KiB");
    if (request->all)
        code = report_huge(request);
    for (size_t i = 0; i < request->who.n; i++)
        report_pid(request, hl_parse_pid(request->who.word[i]));
    if (request->json)
        hl_print_json(json_pack("{s:O}", "processes", request->processes));
    json_decref(request->processes);
    return code != 0 ? code : request->moved ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_show_status(int argc, char **argv) {
    static const struct hl_command command = {
        "status",
        "Shows which parts of a process are on huge pages now, as the kernel counts them.\v"
        "Exit status: 0 when something of an object is on huge pages, 1 when nothing is.",
        command_flags, false};
    struct request request = {0};
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        return HL_EXIT_USAGE;
    int code = HL_EXIT_USAGE;
    if (request.all == (request.who.n > 0))
        hl_warn("status: give PIDs, or --all");
    else
        code = report_all(&request);
    free(request.who.word);
    return code;
}
