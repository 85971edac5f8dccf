/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* itlb PLAN < TRACE: counts a trace's misses in the instruction TLBs of some processors, in the layouts of a plan
   (itlb.h).  A line of the trace is "PATH" for the object that the next lines belong to, or "ADDRESS INSTRUCTIONS", the former in
   hexadecimal and as it was linked.

   Modelled: one thread on one core, true LRU in each set (no manual names the replacement), an entry that is
   brought into both levels by a miss, and addresses modulo the number of sets as the index.  Not modelled: data that takes entries
   of a second level which both share (so its misses are a lower bound), other processes and the kernel, speculation and prefetch,
   cached upper levels of the page tables, nested tables of a virtual machine. */
#include "itlb.h"

#include <errno.h>
#include <error.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* An array of entries, each for one page; as many ways where it is fully associative.  The sets are a power of two. */
struct array {
    unsigned entries, ways;
};

/* The processors: entries and ways.  Huge pages have an array of their own in the first level where huge.entries is not
   0, otherwise small and huge ones share.  The second level holds both.  coalesced_first and _second are the log2 of how
   many small pages take one entry, if they lie side by side in memory and begin at a multiple of that.

   Where a manual is named as "not read", the figure is given as it is quoted from there, and was not compared with it.

   zen4: CPUID 8000_0005h EAX and 8000_0006h EAX, EBX, as read on one: 64 entries, fully associative, for 4 KiB and for
       2 MiB; second level 512 for 4 KiB, 4 ways, and 512 for 2 MiB, 2 ways.  AMD 57647 (its optimization guide, not
       read): the first level is one array for all sizes.  That the second is one as well, with 4 ways for both, is an
       assumption.  AMD coalesces neighbours "at 16KB or 32KB level" (linux-mm, on exec_folio_order, 2025); that it is
       16 KiB, in both levels, is an assumption too.
   skylake: Intel 248966-045, table 2-15 (not read): 4 KiB 128 entries, 8 ways; 2 and 4 MiB 8 for each thread, fully
       associative by CPUID descriptor 76h; second level 1536 for both sizes, 12 ways.
   golden-cove: Intel 248966, its chapter (not read): 256 entries for 4 KiB, 32 for 2 and 4 MiB, second level 2048 for
       both.  The ways (8, 8 and 16) have no source here: they follow reports of CPUID leaf 18h, and are an assumption.
   neoverse-n1: Arm 100616 (not read), like 100798, A5.2 (read), of Cortex-A76, from which the core derives: 48 entries
       for 4 KiB to 32 MiB, fully associative; second level 1280 for all sizes, 5 ways, where a bit says that an entry
       has four contiguous pages (100798, table A6-31).
   neoverse-v2: Arm 102375 (not read): 48 entries, fully associative; second level 2048, 8 ways.  Whether it coalesces
       was not found, so it does not here. */
static const struct processor {
    const char *name;
    struct array small, huge, second;
    unsigned coalesced_first, coalesced_second;
} processors[] = {
    /* clang-format off */
    {"zen4", {64, 64}, {0, 0}, {512, 4}, 2, 2},
    {"skylake", {128, 8}, {8, 8}, {1536, 12}, 0, 0},
    {"golden-cove", {256, 8}, {32, 8}, {2048, 16}, 0, 0},
    {"neoverse-n1", {48, 48}, {0, 0}, {1280, 5}, 0, 2},
    {"neoverse-v2", {48, 48}, {0, 0}, {2048, 8}, 0, 0},
    /* clang-format on */
};

enum {
    PROCESSORS = sizeof processors / sizeof processors[0],
    LAYOUTS_MAX = 16,
    PAGE_SHIFT = 12,
    HUGE_SHIFT = 21,
};

static const uint64_t HUGE_BYTES = UINT64_C(1) << HUGE_SHIFT, ANONYMOUS = UINT64_C(1) << 56,
                      NOWHERE = UINT64_MAX;

/* --- layouts of pages --- */

struct layout {
    char name[64];
    bool contiguous;
};

struct range {
    unsigned layout;
    char *path;
    uint64_t start, end;
};

struct object {
    char *path;
    uint64_t base;
};

struct model {
    struct layout layouts[LAYOUTS_MAX];
    struct range *ranges;
    struct object *objects;
    unsigned layouts_count, ranges_count, objects_count;
    uint64_t next; /* where the next object goes */
};

/* One element more: ARRAY has COUNT, and room for the next power of two. */
static void *grow(void *array, unsigned count, size_t size) {
    if ((count & (count - 1)) == 0)
        array = realloc(array, (count ? 2 * (size_t)count : 1) * size);
    if (array == NULL)
        error(1, ENOMEM, "itlb");
    return array;
}

static char *copy_string(const char *string) {
    char *copy = strdup(string);
    if (copy == NULL)
        error(1, ENOMEM, "itlb");
    return copy;
}

static unsigned find_layout(const struct model *model, const char *name) {
    unsigned i = 0;
    while (i < model->layouts_count && strcmp(model->layouts[i].name, name) != 0)
        i++;
    return i;
}

static bool read_layout(struct model *model, const char *line) {
    struct layout *layout = &model->layouts[model->layouts_count];
    char how[16];
    if (model->layouts_count == LAYOUTS_MAX || sscanf(line, "layout %63s %15s", layout->name, how) != 2)
        return false;
    layout->contiguous = strcmp(how, "contiguous") == 0;
    model->layouts_count++;
    return layout->contiguous || strcmp(how, "separate") == 0;
}

static bool read_range(struct model *model, const char *line) {
    struct range range;
    char name[64], path[4096];
    if (sscanf(line, "huge %63s %4095s %" SCNx64 " %" SCNx64, name, path, &range.start, &range.end) != 4)
        return false;
    range.layout = find_layout(model, name);
    range.path = copy_string(path);
    model->ranges = grow(model->ranges, model->ranges_count, sizeof range);
    model->ranges[model->ranges_count++] = range;
    return range.layout < model->layouts_count;
}

struct model *model_read(const char *plan) {
    struct model *model = calloc(1, sizeof *model);
    FILE *file = fopen(plan, "re");
    char line[8192];
    if (model == NULL || file == NULL)
        error(1, errno, "itlb: %s", plan);
    while (fgets(line, sizeof line, file) != NULL)
        if (!read_layout(model, line) && !read_range(model, line))
            error(1, 0, "itlb: %s: this is no line of a plan: %s", plan, line);
    fclose(file);
    return model;
}

static unsigned add_object(struct model *model, const char *path, uint64_t base) {
    model->objects = grow(model->objects, model->objects_count, sizeof model->objects[0]);
    model->objects[model->objects_count] = (struct object){.path = copy_string(path), .base = base};
    return model->objects_count++;
}

static unsigned find_object(const struct model *model, const char *path) {
    unsigned i = 0;
    while (i < model->objects_count && strcmp(model->objects[i].path, path) != 0)
        i++;
    return i;
}

unsigned model_object(struct model *model, const char *path, uint64_t end) {
    unsigned found = find_object(model, path);
    if (found < model->objects_count)
        return found;
    found = add_object(model, path, model->next);
    model->next += (end + HUGE_BYTES - 1) & -HUGE_BYTES;
    return found;
}

unsigned model_anonymous(struct model *model) {
    unsigned found = find_object(model, "");
    return found < model->objects_count ? found : add_object(model, "", ANONYMOUS);
}

struct place model_place(const struct model *model, unsigned object, uint64_t address) {
    const struct object *in = &model->objects[object];
    struct place place = {.page = (in->base + address) >> PAGE_SHIFT};
    for (unsigned i = 0; i < model->ranges_count; i++) {
        const struct range *range = &model->ranges[i];
        if (address >= range->start && address < range->end && strcmp(range->path, in->path) == 0)
            place.huge |= UINT32_C(1) << range->layout;
    }
    return place;
}

/* --- the TLBs --- */

/* The kind of an entry: the two low bits of a tag, so that no tag is 0, which an empty entry has. */
enum kind { SMALL = 1, COALESCED, HUGE };

struct tlb {
    unsigned ways;
    uint64_t set_mask;
    uint64_t *tags; /* of each set, the one used last first; NULL where there is no such array */
};

struct tlbs {
    struct tlb small, huge, second;
    unsigned coalesced_first, coalesced_second;
    uint64_t missed_first, missed_second;
};

struct core {
    uint64_t instructions, page;
    unsigned layouts_count;
    struct tlbs tlbs[LAYOUTS_MAX][PROCESSORS];
};

static struct tlb make_tlb(struct array array) {
    if (array.entries == 0)
        return (struct tlb){0};
    struct tlb tlb = {
        .ways = array.ways,
        .set_mask = array.entries / array.ways - 1,
        .tags = calloc(array.entries, sizeof tlb.tags[0]),
    };
    if (tlb.tags == NULL)
        error(1, ENOMEM, "itlb");
    return tlb;
}

struct core *core_new(const struct model *model) {
    struct core *core = calloc(1, sizeof *core);
    if (core == NULL)
        error(1, ENOMEM, "itlb");
    core->page = NOWHERE;
    core->layouts_count = model->layouts_count;
    for (unsigned i = 0; i < model->layouts_count; i++)
        for (unsigned j = 0; j < PROCESSORS; j++) {
            const struct processor *is = &processors[j];
            bool contiguous = model->layouts[i].contiguous;
            core->tlbs[i][j] = (struct tlbs){
                .small = make_tlb(is->small),
                .huge = make_tlb(is->huge),
                .second = make_tlb(is->second),
                .coalesced_first = contiguous ? is->coalesced_first : 0,
                .coalesced_second = contiguous ? is->coalesced_second : 0,
            };
        }
    return core;
}

/* Whether the page NUMBER of this KIND has an entry; it has afterwards. */
static bool look_up(struct tlb *tlb, uint64_t number, enum kind kind) {
    unsigned found = 0;
    uint64_t tag = number << 2 | kind, *tags = &tlb->tags[(number & tlb->set_mask) * tlb->ways];
    while (found < tlb->ways - 1 && tags[found] != tag)
        found++;
    bool hit = tags[found] == tag;
    for (; found > 0; found--)
        tags[found] = tags[found - 1];
    tags[0] = tag;
    return hit;
}

static bool look_up_small(struct tlb *tlb, uint64_t page, unsigned coalesced) {
    return look_up(tlb, page >> coalesced, coalesced ? COALESCED : SMALL);
}

static void touch(struct tlbs *tlbs, uint64_t page, bool is_huge) {
    uint64_t huge = page >> (HUGE_SHIFT - PAGE_SHIFT);
    if (is_huge ? look_up(tlbs->huge.tags != NULL ? &tlbs->huge : &tlbs->small, huge, HUGE)
                : look_up_small(&tlbs->small, page, tlbs->coalesced_first))
        return;
    tlbs->missed_first++;
    tlbs->missed_second += is_huge ? !look_up(&tlbs->second, huge, HUGE)
                                   : !look_up_small(&tlbs->second, page, tlbs->coalesced_second);
}

void core_execute(struct core *core, uint64_t instructions) { core->instructions += instructions; }

void core_touch(struct core *core, struct place place) {
    if (core->page == place.page)
        return; /* its entries are the ones used last in every TLB */
    core->page = place.page;
    for (unsigned i = 0; i < core->layouts_count; i++)
        for (unsigned j = 0; j < PROCESSORS; j++)
            touch(&core->tlbs[i][j], place.page, place.huge >> i & 1);
}

void model_print(FILE *out, const struct model *model, struct core *const *cores, unsigned count) {
    uint64_t instructions = 0;
    for (unsigned c = 0; c < count; c++)
        instructions += cores[c] != NULL ? cores[c]->instructions : 0;
    fprintf(out, "{\"instructions\": %" PRIu64 ", \"misses\": {", instructions);
    for (unsigned i = 0; i < model->layouts_count; i++) {
        fprintf(out, "%s\"%s\": {", i ? ", " : "", model->layouts[i].name);
        for (unsigned j = 0; j < PROCESSORS; j++) {
            uint64_t first = 0, second = 0;
            for (unsigned c = 0; c < count; c++)
                if (cores[c] != NULL) {
                    first += cores[c]->tlbs[i][j].missed_first;
                    second += cores[c]->tlbs[i][j].missed_second;
                }
            fprintf(out, "%s\"%s\": [%" PRIu64 ", %" PRIu64 "]", j ? ", " : "", processors[j].name, first,
                    second);
        }
        fputs("}", out);
    }
    fputs("}}\n", out);
}

int main(int argc, char *argv[]) {
    if (argc != 2)
        error(2, 0, "usage: itlb PLAN < TRACE");
    struct model *model = model_read(argv[1]);
    struct core *core = core_new(model);
    unsigned object = model_anonymous(model);
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t address, instructions;
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '/') {
            object = model_object(model, line, UINT64_C(1) << 32);
        } else if (sscanf(line, "%" SCNx64 " %" SCNu64, &address, &instructions) == 2) {
            core_touch(core, model_place(model, object, address));
            core_execute(core, instructions);
        } else {
            error(1, 0, "itlb: this is no line of a trace: %s", line);
        }
    }
    model_print(stdout, model, &core, 1);
    return 0;
}
