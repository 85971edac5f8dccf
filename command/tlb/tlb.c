/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures whether huge pages reach the TLB whole.

   In a virtual machine a translation in the processor's TLB is only as large as the smaller of the guest's page and the host's: if
   the host backs the guest's memory with small pages, a huge page of the guest is held in pieces of 4 KiB.  Then walks get shorter,
   but reach does not grow.  This is visible without a counter: lines that lie 4 KiB apart on huge pages are as fast as packed ones,
   or as slow as lines on small pages (tlb/judge.c).

   Text is measured as well as data, since processors have a separate TLB for it, and several pages of each kind of memory, since a
   host may back only some of them with huge pages.  All ways take turns, and the fastest of several rounds counts. */
#include "command/tlb/tlb.h"
#include "command/tlb/pointer-chase.h"
#include "command/base/common.h"
#include "elf/mapping.h"
#include "elf/memory-limit.h"
#include "elf/pool.h"
#include "command/image/store.h"
#include "elf/thp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 9
/* The distance of the third fastest from the fastest is the noise. */
#define THIRD 2
#define ROUNDS_MIN 3
/* Reads or jumps that are timed at once: some 0.1 ms. */
#define LINES_AT_ONCE 16384
/* No kind of memory is taken after TAKING_MS of processor time, which a busy machine does not use up; and no round is begun after
   MEASURING_MS. */
#define TAKING_MS 150
#define MEASURING_MS 350
#define SMALL_PAGE 4096
/* The pages of packed lines in the longest chain.  Other chains have half as many: fewer than any first-level TLB has entries. */
#define PACKED_PAGES 64
#define PLACES 512 /* 4 KiB each in a huge page */

/* The chains of one memory: one for each huge page, and two longer ones. */
enum { CHAIN_TWO_PAGES = HL_TLB_PAGES, CHAIN_ALL, CHAINS };

struct memory {
    struct hl_field field;
    unsigned pages; /* how many huge pages there are */
    bool is_sealed; /* jumps can be timed */
    struct hl_chain chain[CHAINS];
    double sample[HL_TLB_SIDES][CHAINS][ROUNDS];
};

struct session {
    struct hl_tlb *tlb;
    struct hl_geometry geometry;
    struct hl_status status;
    double started_ms, started_processor_ms;
    uint64_t random;
    struct memory memory[HL_TLB_MEMORIES];
};

static double elapsed_ms(const struct session *session) { return hl_now_ms() - session->started_ms; }

/* --- the memory --- */

/* Each of these takes at most BYTES.  Returns NULL, or why it has none. */

/* A page of 4 KiB at each STEP. */
static const char *map_small(struct session *session, struct memory *memory, uint64_t bytes, uint64_t step) {
    return hl_reserve_small_field(&memory->field, bytes, step, &session->geometry)
               ? NULL
               : "there is no memory for it";
}

/* Takes half of the pages that are not reserved: another process that looks for pages meanwhile finds some. */
static const char *map_hugetlb(struct session *session, struct memory *memory, uint64_t bytes) {
    struct hl_placement placement;
    struct hl_pool pool;
    uint64_t huge = session->geometry.huge_page_bytes;
    hl_read_placement(&placement, &session->status, HL_NUMA_ANY);
    int reason = hl_read_pool(&pool, &hl_system_roots, &session->geometry, &placement);
    uint64_t free_pages = reason == 0 ? hl_subtract(hl_pool_available(&pool, 0), hl_pool_growth(&pool)) : 0;
    bytes = bytes < free_pages / 2 * huge ? bytes : free_pages / 2 * huge;
    if (bytes == 0)
        return "the pool has no two pages to spare";
    if (!hl_reserve_field(&memory->field, bytes, hl_hugetlb_flags(&session->geometry), &session->geometry))
        return "huge pages cannot be mapped";
    /* Pages that could not be had are left out. */
    memory->field.bytes = hl_fill_field(&memory->field, huge);
    return memory->field.bytes > 0 ? NULL : "the pool gave none";
}

static const char *map_thp(struct session *session, struct memory *memory, uint64_t bytes) {
    struct hl_placement placement;
    hl_read_placement(&placement, &session->status, HL_NUMA_ANY);
    if (hl_check_thp_policy(&hl_system_roots, &session->geometry, &session->status) != 0)
        return "transparent huge pages are switched off";
    if (hl_read_memory_headroom(&hl_system_roots, &placement) < 8 * bytes)
        return "there is little memory left";
    if (!hl_reserve_field(&memory->field, bytes, 0, &session->geometry))
        return "there is no memory for it";
    madvise(memory->field.base, bytes, MADV_HUGEPAGE);
    if (hl_fill_field(&memory->field, session->geometry.huge_page_bytes) < bytes ||
        !hl_is_field_huge(&memory->field))
        return "the kernel had no huge page at hand";
    return NULL;
}

/* A file without a name in the folder of a store, which disappears when it is closed; or -1. */
static int open_scratch(const char **reason) {
    char *path = hl_default_store();
    long store = path != NULL ? hl_open_store(path, hl_find_store_owner()) : -ENOENT;
    int file = -1;
    free(path);
    *reason = "there is no store of images that this user may write to";
    if (store < 0)
        return -1;
    file = openat((int)store, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    close((int)store);
    return file;
}

/* Everything is allocated before it is touched, since a full file system would raise SIGBUS. */
static const char *map_image(struct session *session, struct memory *memory, uint64_t bytes) {
    const char *reason;
    struct hl_placement placement;
    hl_read_placement(&placement, &session->status, HL_NUMA_ANY);
    if (hl_read_memory_headroom(&hl_system_roots, &placement) < 8 * bytes)
        return "there is little memory left";
    int file = open_scratch(&reason);
    if (file < 0)
        return reason;
    reason = "the store has no room for it";
    if (fallocate(file, 0, 0, (off_t)bytes) == 0 &&
        hl_reserve_field(&memory->field, bytes, 0, &session->geometry)) {
        void *at = mmap(memory->field.base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
        reason = at != MAP_FAILED && hl_fill_field(&memory->field, SMALL_PAGE) == bytes &&
                         hl_is_field_huge(&memory->field)
                     ? NULL
                     : "the kernel had no huge page at hand for the store";
    }
    close(file);
    return reason;
}

/* --- the chains --- */

static unsigned count_lines(const struct memory *memory, unsigned chain, bool packed) {
    if (chain < HL_TLB_PAGES)
        return chain < (packed ? 1 : memory->pages) ? hl_tlb_lines[0] : 0;
    unsigned lines = hl_tlb_lines[chain == CHAIN_TWO_PAGES ? 1 : 2];
    return memory->pages * PLACES >= lines ? lines : 0;
}

static bool make_chains(struct session *session, struct memory *memory, bool packed) {
    for (unsigned i = 0; i < CHAINS; i++) {
        struct hl_chain *chain = &memory->chain[i];
        uint64_t first = i < HL_TLB_PAGES ? i * PLACES : 0;
        *chain = (struct hl_chain){.base = memory->field.base + first * SMALL_PAGE,
                                   .slot = i < HL_TLB_PAGES ? 0 : i - HL_TLB_PAGES + 1,
                                   .lines = count_lines(memory, i, packed),
                                   .pages = !packed          ? 0
                                            : i == CHAIN_ALL ? PACKED_PAGES
                                                             : PACKED_PAGES / 2};
        if (chain->lines > 0 && !hl_make_chain(chain, &session->random))
            return false;
    }
    return true;
}

static const char *map_memory(struct session *session, enum hl_tlb_memory which) {
    struct memory *memory = &session->memory[which];
    uint64_t bytes = HL_TLB_PAGES * session->geometry.huge_page_bytes;
    const char *reason = NULL;
    if (which >= HL_TLB_HUGETLB && hl_processor_ms() - session->started_processor_ms > TAKING_MS)
        return "taking the other memory took too long";
    switch (which) {
    case HL_TLB_PACKED:
        reason = map_small(session, memory, PACKED_PAGES * HL_PACKED_STEP, HL_PACKED_STEP);
        break;
    case HL_TLB_HUGETLB:
        reason = map_hugetlb(session, memory, bytes);
        break;
    case HL_TLB_THP:
        reason = map_thp(session, memory, bytes);
        break;
    case HL_TLB_IMAGE:
        reason = map_image(session, memory, bytes);
        break;
    default:
        reason = map_small(session, memory, bytes, SMALL_PAGE);
    }
    if (reason != NULL)
        return reason;
    memory->pages = which == HL_TLB_PACKED
                        ? HL_TLB_PAGES
                        : (unsigned)(memory->field.bytes / session->geometry.huge_page_bytes);
    if (!make_chains(session, memory, which == HL_TLB_PACKED))
        return "there is no memory for it";
    memory->is_sealed = hl_seal_field(&memory->field);
    return NULL;
}

/* --- measuring --- */

static void time_chain(struct memory *memory, unsigned i, unsigned round) {
    const struct hl_chain *chain = &memory->chain[i];
    if (chain->lines == 0)
        return;
    unsigned passes = LINES_AT_ONCE / chain->lines;
    hl_time_reads(chain, 1); /* the code before has filled the caches with other lines */
    memory->sample[HL_TLB_DATA][i][round] = hl_time_reads(chain, passes);
    if (!memory->is_sealed)
        return;
    hl_time_jumps(chain, 1);
    memory->sample[HL_TLB_TEXT][i][round] = hl_time_jumps(chain, passes);
}

/* Returns the number of rounds. */
static unsigned time_rounds(struct session *session) {
    unsigned round = 0;
    while (round < ROUNDS && (round < ROUNDS_MIN || elapsed_ms(session) < MEASURING_MS)) {
        for (unsigned chain = 0; chain < CHAINS; chain++)
            for (unsigned i = 0; i < HL_TLB_MEMORIES; i++)
                time_chain(&session->memory[i], chain, round);
        round++;
    }
    return round;
}

static struct hl_tlb_time sum_up(double *sample, unsigned rounds) {
    qsort(sample, rounds, sizeof *sample, hl_compare_doubles);
    return (struct hl_tlb_time){sample[0], sample[THIRD] - sample[0]};
}

static void sum_up_memory(struct hl_tlb_figures *figures, struct memory *memory, enum hl_tlb_side side,
                          unsigned rounds) {
    if (side == HL_TLB_TEXT && !memory->is_sealed)
        return;
    for (unsigned i = 0; i < CHAINS; i++) {
        if (memory->chain[i].lines == 0)
            continue;
        struct hl_tlb_time time = sum_up(memory->sample[side][i], rounds);
        if (i >= HL_TLB_PAGES)
            figures->size[i - HL_TLB_PAGES + 1] = time;
        else
            figures->page[i] = time;
        /* The fastest of the pages, as each figure is the fastest of its rounds. */
        if (i < HL_TLB_PAGES && (figures->size[0].ns == 0 || time.ns < figures->size[0].ns))
            figures->size[0] = time;
    }
}

static void measure(struct session *session) {
    struct hl_tlb *tlb = session->tlb;
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++) {
        struct memory *memory = &session->memory[i];
        const char *reason = map_memory(session, (enum hl_tlb_memory)i);
        if (reason != NULL) {
            hl_release_field(&memory->field);
            *memory = (struct memory){0};
        }
        tlb->reason[HL_TLB_DATA][i] = reason;
        tlb->reason[HL_TLB_TEXT][i] =
            reason == NULL && !memory->is_sealed ? "a policy forbids executable memory here" : reason;
    }
    unsigned rounds = time_rounds(session);
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++)
        for (unsigned side = 0; side < HL_TLB_SIDES; side++)
            sum_up_memory(&tlb->figures[side][i], &session->memory[i], (enum hl_tlb_side)side, rounds);
}

void hl_measure_tlb(struct hl_tlb *tlb) {
    struct session *session = hl_xmalloc(sizeof *session);
    *tlb = (struct hl_tlb){0};
    session->tlb = tlb;
    session->started_ms = hl_now_ms();
    session->started_processor_ms = hl_processor_ms();
    session->random = 0x9e3779b97f4a7c15;
    hl_set_geometry(&session->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    hl_read_status(&session->status, &hl_system_roots);
    bool usual = session->geometry.page_bytes == SMALL_PAGE &&
                 session->geometry.huge_page_bytes == (uint64_t)SMALL_PAGE * PLACES;
    if (usual)
        measure(session);
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++) {
        hl_release_field(&session->memory[i].field);
        for (unsigned side = 0; side < HL_TLB_SIDES && !usual; side++)
            tlb->reason[side][i] = "only pages of 4 KiB and 2 MiB are measured";
    }
    tlb->ms = elapsed_ms(session);
    free(session);
}

/* --- the answer --- */

/* The huge memory whose figures are shown: the first one with this verdict. */
static int choose_memory(const struct hl_tlb *tlb, enum hl_tlb_side side, unsigned size,
                         enum hl_tlb_verdict verdict) {
    const struct hl_tlb_figures *figures = tlb->figures[side];
    int any = -1;
    for (int i = HL_TLB_MEMORIES; i-- > HL_TLB_HUGETLB;) {
        if (figures[i].size[size].ns == 0)
            continue;
        if (any < 0 || hl_judge_memory(&figures[HL_TLB_PACKED], &figures[HL_TLB_SMALL], &figures[i], NULL,
                                       NULL) == verdict)
            any = i;
    }
    return any;
}

/* "a read from each of 4096 pages takes 14.1 ns on hugetlb, 17.6 on small pages, 4.3 packed"; NULL if nothing was
   measured. */
static char *describe_side(const struct hl_tlb *tlb, enum hl_tlb_side side, enum hl_tlb_verdict verdict) {
    const struct hl_tlb_figures *figures = tlb->figures[side];
    for (unsigned size = HL_TLB_SIZES; size-- > 0;) {
        int memory = choose_memory(tlb, side, size, verdict);
        if (memory >= 0)
            return hl_xasprintf("%s each of %u pages takes %.1f ns on %s, %.1f on small pages, %.1f packed",
                                side == HL_TLB_DATA ? "a read from" : "a jump to", hl_tlb_lines[size],
                                figures[memory].size[size].ns, hl_tlb_memory_name((enum hl_tlb_memory)memory),
                                figures[HL_TLB_SMALL].size[size].ns, figures[HL_TLB_PACKED].size[size].ns);
    }
    return NULL;
}

char *hl_describe_tlb(const struct hl_tlb *tlb) {
    static const char *const means[] = {
        [HL_TLB_UNKNOWN] = "the machine is too restless, or has too little to measure",
        [HL_TLB_WHOLE] = "one entry holds 2 MiB",
        [HL_TLB_PIECES] =
            "the host backs this memory with small pages, so walks get shorter and reach does not grow",
        [HL_TLB_SOME] = "the host backs only a part of this memory with huge pages",
    };
    enum hl_tlb_verdict verdict = hl_judge_tlb(tlb);
    char *data = describe_side(tlb, HL_TLB_DATA, verdict), *text = describe_side(tlb, HL_TLB_TEXT, verdict);
    const char *reason = tlb->reason[HL_TLB_DATA][HL_TLB_HUGETLB];
    char *sentence = hl_xasprintf("%s: %s%s%s; %s", hl_tlb_verdict_words(verdict),
                                  data != NULL     ? data
                                  : reason != NULL ? reason
                                                   : "nothing",
                                  text != NULL ? ", " : "", text != NULL ? text : "", means[verdict]);
    free(data);
    free(text);
    return sentence;
}

const char *hl_find_tlb_remedy(const struct hl_tlb *tlb) {
    enum hl_tlb_verdict verdict = hl_judge_tlb(tlb);
    return verdict == HL_TLB_PIECES || verdict == HL_TLB_SOME
               ? "on the host, back the guest's memory with hugetlbfs or transparent huge pages (man hugeld)"
               : NULL;
}

static void add_time(json_t *figures, enum hl_tlb_side side, enum hl_tlb_memory memory, unsigned lines,
                     unsigned pages, struct hl_tlb_time time) {
    if (time.ns > 0)
        json_array_append_new(figures,
                              json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "side", hl_tlb_side_name(side),
                                        "memory", hl_tlb_memory_name(memory), "lines", (int)lines, "page",
                                        (int)pages, "ns", time.ns, "noise_ns", time.noise_ns));
}

/* Adds the pages one by one, counted from 1; 0 stands for the lines of all. */
static void add_figures(json_t *array, const struct hl_tlb *tlb, enum hl_tlb_side side,
                        enum hl_tlb_memory memory) {
    const struct hl_tlb_figures *figures = &tlb->figures[side][memory];
    for (unsigned i = 0; i < HL_TLB_SIZES; i++)
        add_time(array, side, memory, hl_tlb_lines[i], 0, figures->size[i]);
    for (unsigned i = 0; memory >= HL_TLB_HUGETLB && i < HL_TLB_PAGES; i++)
        add_time(array, side, memory, hl_tlb_lines[0], i + 1, figures->page[i]);
}

static json_t *make_json_memory(const struct hl_tlb *tlb, enum hl_tlb_side side, enum hl_tlb_memory memory) {
    const struct hl_tlb_figures *figures = tlb->figures[side];
    unsigned whole, pages;
    enum hl_tlb_verdict verdict =
        hl_judge_memory(&figures[HL_TLB_PACKED], &figures[HL_TLB_SMALL], &figures[memory], &whole, &pages);
    const char *reason = tlb->reason[side][memory];
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "side", hl_tlb_side_name(side), "memory",
                     hl_tlb_memory_name(memory), "verdict", hl_tlb_verdict_name(verdict), "pages", (int)pages,
                     "whole_pages", (int)whole, "reason", hl_json_text(reason));
}

json_t *hl_json_tlb_verdict(const struct hl_tlb *tlb) {
    char *sentence = hl_describe_tlb(tlb);
    json_t *json =
        json_pack("{s:s, s:s}", "verdict", hl_tlb_verdict_name(hl_judge_tlb(tlb)), "sentence", sentence);
    free(sentence);
    return json;
}

json_t *hl_json_tlb(const struct hl_tlb *tlb) {
    json_t *memories = json_array(), *figures = json_array();
    for (unsigned side = 0; side < HL_TLB_SIDES; side++)
        for (unsigned memory = 0; memory < HL_TLB_MEMORIES; memory++) {
            if (memory >= HL_TLB_HUGETLB)
                json_array_append_new(
                    memories, make_json_memory(tlb, (enum hl_tlb_side)side, (enum hl_tlb_memory)memory));
            add_figures(figures, tlb, (enum hl_tlb_side)side, (enum hl_tlb_memory)memory);
        }
    const char *remedy = hl_find_tlb_remedy(tlb);
    json_t *json = hl_json_tlb_verdict(tlb);
    json_t *more = json_pack("{s:s, s:s, s:o, s:f, s:o, s:o}", "data",
                             hl_tlb_verdict_name(hl_judge_side(tlb, HL_TLB_DATA)), "text",
                             hl_tlb_verdict_name(hl_judge_side(tlb, HL_TLB_TEXT)), "remedy",
                             hl_json_text(remedy), "ms", tlb->ms, "memories", memories, "figures", figures);
    json_object_update(json, more);
    json_decref(more);
    return json;
}
