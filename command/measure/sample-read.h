/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the kernel's answers for sample.c: records in rings, and lists of processors.  Pure functions. */
#ifndef HL_SAMPLE_READ_H
#define HL_SAMPLE_READ_H

#include "command/measure/sample.h"

/* BYTES is a power of two. */
struct hl_ring_view {
    const char *data;
    uint64_t bytes;
};

enum hl_record { HL_RECORD_OTHER, HL_RECORD_SAMPLE, HL_RECORD_LOST };

/* Reads the record at *TAIL of RING, which is written up to HEAD, and sets *TAIL behind it, or to HEAD if it is malformed.
   *LOST: how many samples the record says are missing. */
enum hl_record hl_read_record(const struct hl_ring_view *ring, uint64_t *tail, uint64_t head,
                              struct hl_sample *sample, uint64_t *lost);

/* Sets SET[i] to VALUE for each processor i of TEXT, "0-3,8", and leaves the others as they are.  Text that is no list, such as
   "(null)", has no processors; numbers from N on are not kept. */
void hl_parse_processors(const char *text, bool *set, size_t n, bool value);

/* How many pages are executed if samples fell into SEEN of them, once into ONCE of these and twice into TWICE: a lower bound (Chao
   1984, without bias), since rare pages leave no trace.  Never less than SEEN. */
double hl_estimate_seen(uint64_t seen, uint64_t once, uint64_t twice);

#endif
