/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures whether huge pages reach the TLB.

   In a virtual machine a translation in the TLB is only as large as the smaller of the guest's page and the host's.  If the host
   backs the guest's memory with small pages, a huge page takes an entry for each 4 KiB: walks of the page tables get shorter, but
   the TLB reaches no further.  KVM also splits the huge pages that guests execute on some processors (CVE-2018-12207), so jumps are
   measured, not reads.  Some processors drop all pieces of huge pages when one page is invalidated (doc/limits.md).

   Each of 4096 lines jumps to another one, in random order.  Packed into 64 pages they cost no walk, on a small page each they do;
   the difference is the effect.  Whole huge pages take away all of it, pages in pieces a part: 0.26 to 0.65 on the machine where
   this was found.  No time is compared with a number of ns: a fast processor and a slow one are judged alike. */
#include "command/measure/tlb.h"
#include "command/lib/common.h"
#include "elf/kernel.h"
#include "elf/memory-limit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_PAGE ((uint64_t)4096)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define LINES 4096u
#define LINE_BYTES 64
#define BYTES (LINES * SMALL_PAGE)
/* Packed lines lie as far apart as others, so that their targets are as hard to predict.  The distance of their pages is odd, or all
   would fall into one set of a TLB. */
#define PACKED_PAGES 64
#define PACKED_STEP (127 * SMALL_PAGE)
/* The fastest of these rounds counts; the distance of the third fastest is the noise. */
#define ROUNDS 9
#define PASSES 4
/* Smaller effects, as a part of the packed time, say nothing, nor does more noise, as a part of the effect. */
#define EFFECT_MIN 0.15
#define NOISE_MAX 0.33
/* Parts of the effect that are gone.  Between the first two there is no answer. */
#define WHOLE_MIN 0.85
#define PIECES_MAX 0.7
#define PIECES_MIN 0.1

enum hl_tlb_answer hl_judge_tlb(const struct hl_tlb *tlb) {
    double packed = tlb->ns[HL_TLB_PACKED], small = tlb->ns[HL_TLB_SMALL], huge = tlb->ns[HL_TLB_HUGE];
    double effect = small - packed, gone = (small - huge) / effect;
    if (!(packed > 0) || !(huge > 0) || !(effect >= packed * EFFECT_MIN) ||
        !(tlb->noise_ns <= effect * NOISE_MAX) || (gone > PIECES_MAX && gone < WHOLE_MIN))
        return HL_TLB_UNKNOWN;
    return gone >= WHOLE_MIN ? HL_TLB_YES : gone >= PIECES_MIN ? HL_TLB_PIECES : HL_TLB_NO;
}

/* --- memory --- */

struct field {
    char *map, *base; /* BASE is on a boundary of huge pages */
    uint64_t map_bytes;
};

static bool reserve(struct field *field, uint64_t bytes) {
    void *map = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return false;
    uint64_t at = hl_round_up((uint64_t)(uintptr_t)map, HUGE_PAGE);
    *field = (struct field){map, (char *)map + (at - (uint64_t)(uintptr_t)map), bytes + HUGE_PAGE};
    return true;
}

/* Reports missing pages, where touching one would raise SIGBUS. */
static bool fill(char *at, uint64_t bytes) { return madvise(at, bytes, MADV_POPULATE_WRITE) == 0; }

static bool map_small(struct field *field, uint64_t bytes) {
    return reserve(field, bytes) && madvise(field->base, bytes, MADV_NOHUGEPAGE) == 0 &&
           fill(field->base, bytes);
}

/* Works whatever the policy for transparent huge pages is, since the kernel is asked for these.  MADV_COLLAPSE (Linux 6.1) succeeds
   only if all of the memory is on huge pages then. */
static bool map_huge(struct field *field) {
    return reserve(field, BYTES) && madvise(field->base, BYTES, MADV_HUGEPAGE) == 0 &&
           fill(field->base, BYTES) && madvise(field->base, BYTES, MADV_COLLAPSE) == 0;
}

/* NULL, or why not all of the memory is there. */
static const char *map_memories(struct field field[HL_TLB_MEMORIES]) {
    struct hl_geometry geometry = hl_read_geometry();
    struct hl_placement placement;
    struct hl_status status;
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    if (geometry.page_bytes != SMALL_PAGE || geometry.huge_page_bytes != HUGE_PAGE)
        return "only pages of 4 KiB and 2 MiB are measured";
    if (hl_read_memory_headroom(&hl_system_roots, &placement) < 8 * BYTES ||
        !map_small(&field[HL_TLB_PACKED], PACKED_PAGES * PACKED_STEP) ||
        !map_small(&field[HL_TLB_SMALL], BYTES))
        return "there is little memory left";
    return map_huge(&field[HL_TLB_HUGE]) ? NULL : "the kernel gave no transparent huge pages";
}

/* --- jumps --- */

/* The beginning of the line I.  A line's place in its page differs from page to page, or all lines would share a few sets of the
   caches. */
static char *find_line(const char *base, bool packed, uint64_t i) {
    uint64_t page = packed ? i % PACKED_PAGES : i;
    uint64_t within = packed ? (i / PACKED_PAGES + 2 * page) % (SMALL_PAGE / LINE_BYTES) : i * 7 % 61 + 1;
    return (char *)(uintptr_t)base + page * (packed ? PACKED_STEP : SMALL_PAGE) + within * LINE_BYTES;
}

/* Writes a jump at AT to TO, or a return if TO is NULL. */
static void put_jump(char *at, const char *to) {
#if defined __x86_64__
    int32_t distance = to != NULL ? (int32_t)(to - (at + 5)) : 0;
    at[0] = (char)(to != NULL ? 0xe9 : 0xc3);
    memcpy(at + 1, &distance, sizeof distance);
#else
    uint32_t code = to != NULL ? 0x14000000 | ((uint32_t)((to - at) >> 2) & 0x03ffffff) : 0xd65f03c0;
    memcpy(at, &code, sizeof code);
#endif
}

/* Writes the jumps of FIELD, and makes it executable.  The first line; NULL: a policy forbids executable memory. */
static char *make_chain(const struct field *field, bool packed, uint64_t *random) {
    uint32_t order[LINES] = {0};
    uint64_t bytes = packed ? PACKED_PAGES * PACKED_STEP : BYTES;
    for (uint32_t i = 0; i < LINES; i++) { /* Fisher and Yates, inside out */
        uint32_t j = (uint32_t)((hl_draw(random) >> 32) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < LINES; i++)
        put_jump(find_line(field->base, packed, order[i]),
                 i + 1 < LINES ? find_line(field->base, packed, order[i + 1]) : NULL);
    __builtin___clear_cache(field->base, field->base + bytes);
    return mprotect(field->base, bytes, PROT_READ | PROT_EXEC) == 0 ? find_line(field->base, packed, order[0])
                                                                    : NULL;
}

/* The ns for a jump of the chain that begins at LINE. */
static double time_chain(const char *line) {
    void (*enter)(void) = (void (*)(void))(uintptr_t)line;
    enter(); /* the code before has filled the caches with other lines */
    double start = hl_now_ms();
    for (unsigned i = 0; i < PASSES; i++)
        enter();
    return 1e6 * (hl_now_ms() - start) / (LINES * PASSES);
}

/* The chains take turns, so that other load on the machine falls on all of them. */
static const char *measure(struct hl_tlb *tlb, const struct field field[HL_TLB_MEMORIES]) {
    double sample[HL_TLB_MEMORIES][ROUNDS];
    const char *line[HL_TLB_MEMORIES];
    uint64_t random = 0x9e3779b97f4a7c15;
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++) {
        line[i] = make_chain(&field[i], i == HL_TLB_PACKED, &random);
        if (line[i] == NULL)
            return "a policy forbids executable memory here";
    }
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < HL_TLB_MEMORIES; i++)
            sample[i][round] = time_chain(line[i]);
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++) {
        qsort(sample[i], ROUNDS, sizeof sample[i][0], hl_compare_doubles);
        tlb->ns[i] = sample[i][0];
        double noise = sample[i][2] - sample[i][0];
        tlb->noise_ns = noise > tlb->noise_ns ? noise : tlb->noise_ns;
    }
    return NULL;
}

void hl_check_tlb(struct hl_tlb *tlb) {
    struct field field[HL_TLB_MEMORIES] = {{0}};
    *tlb = (struct hl_tlb){.reason = map_memories(field)};
    if (tlb->reason == NULL)
        tlb->reason = measure(tlb, field);
    tlb->answer = hl_judge_tlb(tlb);
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++)
        if (field[i].map != NULL)
            munmap(field[i].map, field[i].map_bytes);
}

char *hl_describe_tlb(const struct hl_tlb *tlb) {
    static const char *const answers[] = {
        "whether huge pages reach the TLB could not be measured", "huge pages reach the TLB",
        "this VM's host uses 4 KiB pages, so an entry of the TLB holds no more than that",
        "huge pages do not reach the TLB"};
    if (tlb->reason != NULL)
        return hl_xasprintf("%s: %s", answers[HL_TLB_UNKNOWN], tlb->reason);
    return hl_xasprintf(
        "%s: a jump to another page takes %.1f ns on huge pages, %.1f on small ones, %.1f without a walk",
        answers[tlb->answer], tlb->ns[HL_TLB_HUGE], tlb->ns[HL_TLB_SMALL], tlb->ns[HL_TLB_PACKED]);
}

const char *hl_note_on_tlb(const struct hl_tlb *tlb) {
    return tlb->answer == HL_TLB_PIECES || tlb->answer == HL_TLB_NO
               ? "this VM's host uses 4 KiB pages; gains are limited (hugeld doctor)"
               : NULL;
}

json_t *hl_json_tlb(const struct hl_tlb *tlb) {
    static const char *const names[] = {NULL, "yes", "in pieces", "no"};
    return names[tlb->answer] != NULL ? json_string(names[tlb->answer]) : json_null();
}
