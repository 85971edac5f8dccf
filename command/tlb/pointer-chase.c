/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pointer chasing: each line of a chain leads to the next one, in random order, so that only the result of a read tells the next
   line, and no prefetcher can guess it:

       0       8       16      24      32      40      48
       pointer of slot 0, 1, 2 | jump of slot 0, 1, 2  |

   Reads go from pointer to pointer.  Jumps are direct, like most of a program's; the last line returns.  A line's place in its page
   differs from page to page, or all of them would share a few sets of the caches. */
#include "command/tlb/pointer-chase.h"
#include "command/base/common.h"
#include "elf/maps.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define LINE_BYTES 64
#define PAGE_BYTES ((uint64_t)4096)
#define JUMPS_AT ((uint64_t)8 * HL_CHAIN_SLOTS)

bool hl_reserve_field(struct hl_field *field, uint64_t bytes, int flags, const struct hl_geometry *geometry) {
    uint64_t huge = geometry->huge_page_bytes;
    /* hugetlb always begins on a boundary. */
    uint64_t all = flags & MAP_HUGETLB ? bytes : bytes + huge;
    void *map =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    if (map == MAP_FAILED)
        return false;
    char *base = (char *)map + (hl_round_up((uint64_t)(uintptr_t)map, huge) - (uint64_t)(uintptr_t)map);
    *field = (struct hl_field){base, bytes, map, all};
    return true;
}

void hl_release_field(struct hl_field *field) {
    if (field->map != NULL)
        munmap(field->map, field->map_bytes);
    *field = (struct hl_field){0};
}

uint64_t hl_fill_field(const struct hl_field *field, uint64_t step) {
    uint64_t done = 0;
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    while (zero >= 0 && done < field->bytes && pread(zero, field->base + done, 1, 0) == 1)
        done += step;
    if (zero >= 0)
        close(zero);
    return done;
}

bool hl_reserve_small_field(struct hl_field *field, uint64_t bytes, uint64_t step,
                            const struct hl_geometry *geometry) {
    if (!hl_reserve_field(field, bytes, 0, geometry))
        return false;
    madvise(field->base, bytes, MADV_NOHUGEPAGE);
    return hl_fill_field(field, step) == bytes;
}

/* The beginning of the I-th line. */
static char *place_line(const struct hl_chain *chain, uint64_t i) {
    uint64_t page = chain->pages > 0 ? i % chain->pages : i;
    uint64_t within =
        chain->pages > 0 ? (i / chain->pages + 2 * page) % (PAGE_BYTES / LINE_BYTES) : i * 7 % 61 + 1;
    return chain->base + page * (chain->pages > 0 ? HL_PACKED_STEP : PAGE_BYTES) + within * LINE_BYTES;
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

bool hl_make_chain(struct hl_chain *chain, uint64_t *state) {
    uint32_t *order = calloc(chain->lines, sizeof *order);
    uint64_t pointers = 8 * (uint64_t)chain->slot, jumps = JUMPS_AT + 8 * (uint64_t)chain->slot;
    if (order == NULL)
        return false;
    for (uint32_t i = 0; i < chain->lines; i++) { /* Fisher and Yates, inside out */
        uint32_t j = (uint32_t)((hl_draw(state) >> 32) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < chain->lines; i++) {
        char *line = place_line(chain, order[i]), *next = place_line(chain, order[(i + 1) % chain->lines]);
        char *pointer = next + pointers;
        memcpy(line + pointers, &pointer, sizeof pointer);
        put_jump(line + jumps, i + 1 < chain->lines ? next + jumps : NULL);
    }
    char *first = place_line(chain, order[0]);
    chain->first = first + pointers;
    chain->enter = (uint64_t(*)(void))(uintptr_t)(first + jumps);
    free(order);
    return true;
}

bool hl_seal_field(const struct hl_field *field) {
    __builtin___clear_cache(field->base, field->base + field->bytes);
    return mprotect(field->base, field->bytes, PROT_READ | PROT_EXEC) == 0;
}

double hl_time_reads(const struct hl_chain *chain, unsigned passes) {
    const char *at = chain->first;
    uint64_t lines = (uint64_t)chain->lines * passes;
    double start = hl_now_ms();
    for (uint64_t i = 0; i < lines; i++)
        at = *(const char *const volatile *)(const void *)at;
    return 1e6 * (hl_now_ms() - start) / (double)lines;
}

double hl_time_jumps(const struct hl_chain *chain, unsigned passes) {
    double start = hl_now_ms();
    for (unsigned i = 0; i < passes; i++)
        chain->enter();
    return 1e6 * (hl_now_ms() - start) / ((double)chain->lines * passes);
}

static uint64_t count_huge_bytes(const struct hl_field *field) {
    static struct hl_smaps smaps;
    uint64_t at = (uint64_t)(uintptr_t)field->base, bytes = 0;
    hl_open_smaps(&smaps);
    while (hl_next_smaps(&smaps) && smaps.mapping.start <= at)
        if (smaps.mapping.end > at)
            bytes = smaps.thp_bytes + smaps.file_huge_bytes;
    hl_close_smaps(&smaps);
    return bytes;
}

bool hl_is_field_huge(const struct hl_field *field) {
    if (count_huge_bytes(field) >= field->bytes)
        return true;
    madvise(field->base, field->bytes, MADV_COLLAPSE);
    return count_huge_bytes(field) >= field->bytes;
}
