/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where an object should go, for a dynamic linker that may choose: its load bias modulo the size of a huge
   page decides how much of the text whole huge pages cover.  Pure.

       huge pages  |         |         |         |
       keep      rrTTTTTTTTTTTTTTTTTTTTTTTTTTrrr        text begins on a boundary
       merge     rrTTTTTTTTTTTTTTTTTTTTTTTTTTrrrrrrr    the same, where enough follows to fill its last page;
                 rrrrrrTTTTTTTTTTTTTTTTTTTTTTTTrrrr     else it begins as much later as is missing

   Where its first or last page would have too little text to be planned (sparse_text=), the text begins
   later, too, until the last one has enough.

   No other address covers more of the text, so the patched linker never gives less than the preloader,
   which takes an object where it lies. backend=file maps nothing anew: there addresses and file offsets
   have to be equal modulo a huge page. */
#include "load-address.h"
#include "plan.h"

static bool is_read_only(const struct hl_segment *segment) {
    return (segment->flags & (PF_R | PF_W)) == PF_R;
}

static uint64_t bytes_of(const struct hl_segment *segment) { return segment->end_page - segment->first_page; }

/* The largest text segment's index; n_segments if there is none. */
static unsigned find_text(const struct hl_object *object) {
    const struct hl_segment *segment = object->segment;
    unsigned found = object->n_segments;
    for (unsigned i = 0; i < object->n_segments; i++)
        if (is_read_only(&segment[i]) && (segment[i].flags & PF_X) &&
            (found == object->n_segments || bytes_of(&segment[i]) > bytes_of(&segment[found])))
            found = i;
    return found;
}

/* How far behind a boundary the text has to begin so that the segments behind it fill up its last page and
   those before it its first one, and both have enough text.  False if that is impossible. */
static bool find_shift(const struct hl_object *object, unsigned text, uint64_t huge,
                       uint64_t least_text_bytes, uint64_t alignment, uint64_t *shift) {
    const struct hl_segment *segment = object->segment;
    unsigned first = text, next = text + 1;
    while (first > 0 && is_read_only(&segment[first - 1]))
        first--;
    while (next < object->n_segments && is_read_only(&segment[next]))
        next++;
    uint64_t limit = next < object->n_segments ? segment[next].first_page : segment[next - 1].end_page;
    uint64_t start = segment[text].first_page, before = start - segment[first].first_page;
    uint64_t after = limit - segment[text].end_page, bytes = bytes_of(&segment[text]);
    uint64_t rest = hl_round_up(bytes, huge) - bytes;
    uint64_t text_in_last = huge - rest - (segment[text].end_page - segment[text].end);
    uint64_t for_neighbours = hl_subtract(rest, after),
             for_text = hl_subtract(least_text_bytes, text_in_last);
    *shift = for_neighbours > for_text ? for_neighbours : for_text;
    *shift += (start - *shift) & (alignment - 1);
    if (bytes < huge && for_text > 0)
        return false; /* in one page or two, it is too little */
    return *shift <= before && *shift <= rest && *shift <= huge - least_text_bytes;
}

bool hl_choose_load_bias(uint64_t *bias, const struct hl_object *object, const struct hl_options *options,
                         const struct hl_geometry *geometry, uint64_t alignment) {
    uint64_t huge = geometry->huge_page_bytes, shift;
    unsigned text = find_text(object);
    if (text == object->n_segments || alignment >= huge)
        return false;
    const struct hl_segment *segment = &object->segment[text];
    bool by_file = options->backend == HL_BACKEND_FILE;
    bool fills = options->edges == HL_EDGES_MERGE && !by_file &&
                 find_shift(object, text, huge, hl_least_text_bytes(options, geometry), alignment, &shift);
    if (bytes_of(segment) < huge && !fills)
        return false;
    uint64_t boundary = hl_round_up(segment->first_page, alignment);
    if (fills)
        boundary = segment->first_page - shift;
    else if (by_file)
        boundary = segment->first_page - segment->offset;
    *bias = -boundary & (huge - 1);
    return true;
}
