/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare: a file that is not cached is read in large pieces before it is copied.

   MADV_WILLNEED asks for small pages, one allocated and mapped after the other.  A mapping that was advised
   to have huge pages is read 2 MiB at a time into folios of that size (Linux 5.18, where the file system has
   large folios): half the time for 128 MiB, and the copy that follows finds fewer pages.  The advice would
   stay on the program's own mapping, so it is given to one of our own of the same file, which goes at once.

   All of this is a hint.  What fails is left to the copy, which reads in any case. */
#include "move.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/mman.h>
#include <linux/uio.h>

/* Whether the byte at OFFSET would have to come from the disk. */
static bool is_cold(int file, uint64_t offset) {
    char byte;
    struct iovec to = {&byte, 1};
    return HL_CALL(__NR_preadv2, file, &to, 1, offset, 0, RWF_NOWAIT) == -EAGAIN;
}

/* One byte of each huge page is asked for: a file is read in larger pieces than that. */
static bool is_mostly_cold(int file, uint64_t start, uint64_t end, uint64_t huge_page_bytes) {
    unsigned asked = 0, cold = 0;
    for (uint64_t at = start; at < end; at += huge_page_bytes, asked++)
        cold += is_cold(file, at);
    return cold * 4 > asked;
}

/* Reads [start, end) of FILE, offsets that are rounded out to huge pages. */
static bool read_large(int file, uint64_t start, uint64_t end, uint64_t huge_page_bytes) {
    start = hl_round_down(start, huge_page_bytes);
    long at = hl_mmap(0, end - start, PROT_READ, MAP_PRIVATE, file, start);
    if (hl_is_error(at))
        return false;
    bool read = !hl_is_error(hl_madvise((uint64_t)at, end - start, MADV_HUGEPAGE)) &&
                !hl_is_error(hl_madvise((uint64_t)at, end - start, MADV_POPULATE_READ));
    hl_munmap((uint64_t)at, end - start);
    return read;
}

/* Of a span of the executable, whose file has a name that cannot be anybody else's.  Whether it was read, or
   is cached. */
static bool read_executable(const struct hl_process *process, const struct hl_object *object,
                            const struct hl_span *span) {
    uint64_t huge = process->geometry.huge_page_bytes;
    bool done = true;
    if (!object->is_main || hl_is_writable(span) || !process->kernel.populate)
        return false;
    long file = hl_open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (hl_is_error(file))
        return false;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        uint64_t bytes = hl_overlap(segment->first_page, segment->end_page, span->start, span->end);
        uint64_t from = segment->first_page > span->start ? segment->first_page : span->start;
        uint64_t start = segment->offset + (from - segment->first_page);
        if (bytes > 0 && is_mostly_cold((int)file, start, start + bytes, huge))
            done = read_large((int)file, start, start + bytes, huge) && done;
    }
    hl_close((int)file);
    return done;
}

void hl_read_ahead(const struct hl_process *process, const struct hl_object *object,
                   const struct hl_span *span) {
    if (!read_executable(process, object, span))
        hl_madvise(span->start, hl_span_bytes(span), MADV_WILLNEED); /* in a gap it fails */
}
