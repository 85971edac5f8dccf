/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/measure/sample-read.h"

#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

/* The record for the sample_type of sample.c. */
struct sample_record {
    struct perf_event_header header;
    uint64_t ip;
    uint32_t process, thread;
    uint64_t time;
    uint64_t page_bytes;
};

struct lost_record {
    struct perf_event_header header;
    uint64_t id, lost;
};

/* A record may go on at the beginning of the ring. */
static void copy_out(const struct hl_ring_view *ring, uint64_t at, void *to, size_t bytes) {
    uint64_t offset = at % ring->bytes;
    size_t first = bytes < ring->bytes - offset ? bytes : (size_t)(ring->bytes - offset);
    memcpy(to, ring->data + offset, first);
    memcpy((char *)to + first, ring->data, bytes - first);
}

enum hl_record hl_read_record(const struct hl_ring_view *ring, uint64_t *tail, uint64_t head,
                              struct hl_sample *sample, uint64_t *lost) {
    struct sample_record record = {0};
    struct lost_record loss;
    uint64_t at = *tail;
    *lost = 0;
    *tail = head;
    if (head - at < sizeof record.header)
        return HL_RECORD_OTHER;
    copy_out(ring, at, &record.header, sizeof record.header);
    if (record.header.size < sizeof record.header || record.header.size > head - at)
        return HL_RECORD_OTHER;
    *tail = at + record.header.size;
    switch (record.header.type) {
    case PERF_RECORD_SAMPLE:
        if (record.header.size < sizeof record)
            return HL_RECORD_OTHER;
        copy_out(ring, at, &record, sizeof record);
        *sample = (struct hl_sample){record.ip, (pid_t)record.process, record.time, record.page_bytes};
        return HL_RECORD_SAMPLE;
    case PERF_RECORD_LOST:
        if (record.header.size < sizeof loss)
            return HL_RECORD_OTHER;
        copy_out(ring, at, &loss, sizeof loss);
        *lost = loss.lost;
        return HL_RECORD_LOST;
    default:
        *lost = record.header.type == PERF_RECORD_THROTTLE; /* until the next tick: one, or more */
        return HL_RECORD_OTHER;
    }
}

void hl_parse_processors(const char *text, bool *set, size_t n, bool value) {
    while (*text >= '0' && *text <= '9') {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < n; i++)
            set[i] = value;
        text = *end == ',' ? end + 1 : "";
    }
}

double hl_estimate_seen(uint64_t seen, uint64_t once, uint64_t twice) {
    double more = once > 0 ? (double)once * (double)(once - 1) / (2 * ((double)twice + 1)) : 0;
    return (double)seen + more;
}
