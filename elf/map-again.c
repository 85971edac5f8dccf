/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The way back for read-only memory of an object whose file is open: one that the dynamic linker has just mapped, or any
   that is mapped over by its image.

   A call that maps over something may fail after it has unmapped that: Linux 5.10 empties the destination of mremap(2) before it
   refuses, and every kernel may lack the memory for page tables.  Nothing wrote to that memory, and the dynamic linker's calls can
   be made once more.

   But other threads may run, and one of them may have mapped something where there is a hole.  So the place is
   claimed first, by a call that replaces nothing, and the segments are mapped over the claim:

       hole        |                             |
       claim       |          PROT_NONE          |      only if nothing is there
       segments    | rrr | TTTTTTTTTTT |  | rrrr |      MAP_FIXED, from the file

   If the claim finds something, either nothing was unmapped, which maps(5) shows, or another thread was faster.  Then the object
   is lost, as it is without memory: the dynamic linker says that it cannot be loaded, and a program whose own text is lost ends. */
#include "map-again.h"
#include "check.h"
#include "mapping.h"
#include "maps.h"
#include "sys.h"

#include <linux/mman.h>

/* Claims the place of SPAN, for which the kernel may lack memory for a moment. */
static int claim(const struct hl_span *span) {
    int result = -ENOMEM;
    for (int i = 0; result != 0 && result != -EEXIST && i < HL_TRIES; i++)
        result = hl_claim_range(span->start, hl_span_bytes(span));
    return result;
}

/* Whether nothing in SPAN's place was unmapped.  If that can't be read, CLAIMED, the result of a claim that failed, has to do. */
static bool is_untouched(const struct hl_object *object, const struct hl_span *span, int claimed) {
    struct hl_maps now;
    if (hl_read_maps(&now, span->start, span->end, false) != 0)
        return claimed == -EEXIST;
    bool same = hl_is_as_mapped(&now, object, span);
    hl_free_maps(&now);
    return same;
}

/* Maps [start, end) over the claim, from OFFSET of FILE. */
static bool map_over(uint64_t start, uint64_t end, int prot, int file, uint64_t offset) {
    return !hl_is_error(hl_mmap(start, end - start, prot, MAP_PRIVATE | MAP_FIXED, file, offset));
}

/* Whether [start, end) is mapped without a gap, and with PROT, of which maps(5) shows three bits. */
static bool is_mapped_with(uint64_t start, uint64_t end, int prot) {
    int shown = prot & (PROT_READ | PROT_WRITE | PROT_EXEC);
    struct hl_maps now;
    if (hl_read_maps(&now, start, end, false) != 0)
        return false;
    for (size_t i = 0; i < now.n && now.mapping[i].start <= start && now.mapping[i].prot == shown; i++)
        start = now.mapping[i].end;
    hl_free_maps(&now);
    return start >= end;
}

/* The same over memory with PROT_BEFORE that this thread has put there, with several tries: the kernel may lack memory for a moment.
   A call that fails may have unmapped that memory, so the place is claimed again if nothing is there. */
static bool map_over_own(uint64_t start, uint64_t end, int prot_before, int prot, int file, uint64_t offset) {
    bool done = map_over(start, end, prot, file, offset);
    for (int i = 0; !done && i < HL_TRIES; i++) {
        if (hl_claim_range(start, end - start) == 0)
            prot_before = PROT_NONE;
        if (!is_mapped_with(start, end, prot_before))
            return false;
        done = map_over(start, end, prot, file, offset);
    }
    return done;
}

/* Unmaps the part of the claim in [start, end) that was free before. */
static void free_gap(const struct hl_maps *was, uint64_t start, uint64_t end) {
    for (size_t i = hl_find_mapping(was, start); start < end; i++) {
        uint64_t next = i < was->n && was->mapping[i].start < end ? was->mapping[i].start : end;
        if (start < next)
            hl_munmap(start, next - start);
        start = next < end ? was->mapping[i].end : end;
    }
}

int hl_map_again(const struct hl_object *object, int file, const struct hl_maps *was,
                 const struct hl_span *span, bool is_placed, int prot) {
    /* The dynamic linker fills the gaps like this: with the file, as far as it goes, without any access. */
    const struct hl_segment *first = &object->segment[0];
    uint64_t gap = span->start, offset = first->offset + (span->start - first->first_page);
    int beside = prot & ~(PROT_READ | PROT_WRITE | PROT_EXEC);
    int claimed = is_placed ? 0 : claim(span);
    if (claimed != 0)
        return is_untouched(object, span, claimed) ? 0 : HL_REASON_LOST;
    if (!map_over_own(span->start, span->end, is_placed ? prot : PROT_NONE, PROT_NONE, file, offset))
        return HL_REASON_LOST;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t bytes = hl_segment_overlap(segment, span->start, span->end);
        uint64_t start = segment->first_page > span->start ? segment->first_page : span->start;
        uint64_t from = segment->offset + (start - segment->first_page);
        int own = hl_protection(segment->flags) | (segment->flags & PF_X ? beside : 0);
        if (bytes == 0)
            continue;
        if (!map_over_own(start, start + bytes, PROT_NONE, own, file, from))
            return HL_REASON_LOST;
        if (was != NULL)
            free_gap(was, gap, start);
        gap = start + bytes;
    }
    if (was != NULL)
        free_gap(was, gap, span->end);
    return 0;
}
