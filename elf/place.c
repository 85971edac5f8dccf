/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where an object should go, for a dynamic linker that may choose: its load bias modulo the size of a huge
   page decides how much of the text whole huge pages cover.  Pure.

       huge pages  |         |         |         |
       keep      rrTTTTTTTTTTTTTTTTTTTTTTTTTTrrr        text begins on a boundary
       merge     rrTTTTTTTTTTTTTTTTTTTTTTTTTTrrrrrrr    the same, where enough follows to fill its last page;
                 rrrrrrTTTTTTTTTTTTTTTTTTTTTTTTrrrr     else it begins as much later as is missing

   No other address covers more of the text, so this way in never gives less than the preloader, which takes
   an object where it lies.  backend=file maps nothing anew: there addresses have to go with the offsets in
   the file. */
#include "place.h"

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

/* How far behind a boundary the text has to begin, so that its last page is filled up by what follows and its
   first one by what is before.  False where these are too short for that. */
static bool find_shift(const struct hl_object *object, unsigned text, uint64_t huge, uint64_t alignment,
                       uint64_t *shift) {
    const struct hl_segment *segment = object->segment;
    unsigned first = text, next = text + 1;
    while (first > 0 && is_read_only(&segment[first - 1]))
        first--;
    while (next < object->n_segments && is_read_only(&segment[next]))
        next++;
    uint64_t limit = next < object->n_segments ? segment[next].first_page : segment[next - 1].end_page;
    uint64_t start = segment[text].first_page, before = start - segment[first].first_page;
    uint64_t after = limit - segment[text].end_page, bytes = bytes_of(&segment[text]);
    *shift = hl_subtract(hl_round_up(bytes, huge) - bytes, after);
    *shift += (start - *shift) & (alignment - 1);
    return *shift <= before;
}

bool hl_choose_place(uint64_t *bias, const struct hl_object *object, const struct hl_options *options,
                     const struct hl_geometry *geometry, uint64_t alignment) {
    uint64_t huge = geometry->huge_page_bytes, shift;
    unsigned text = find_text(object);
    if (text == object->n_segments || alignment >= huge)
        return false;
    const struct hl_segment *segment = &object->segment[text];
    bool by_file = options->backend == HL_BACKEND_FILE;
    bool fills =
        options->edges == HL_EDGES_MERGE && !by_file && find_shift(object, text, huge, alignment, &shift);
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
