/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prepare: copies the contents of a span into its new memory.

   Two things kill a program here if a bare load or store meets them: a huge page that was promised and is not
   there, and a page of the file that cannot be read (past the end of a truncated file, a bad block, a dead
   mount).  So bytes go by calls that report both as errors.  The ladder, best first:

     pread                of the object's file, where that is at hand (backing-file.c)
     process_vm_readv     of the process itself
     pread                of /proc/self/mem: copied twice, but even strict filters allow it

   Nothing else writes to new memory, not even to a page that is there: where another thread forks meanwhile,
   the page could become one that the child shares, and a store would need one more.  (Children don't get
   new memory, prepare.c; but a fork may come before the kernel was told.)

   Writable segments are copied from memory, since the dynamic linker has written to them.

   Huge pages that hold a gap between two segments are composed piece by piece: only pages of
   PT_LOADs are read (an executable that the kernel mapped has nothing at all in its gaps), the rest becomes
   trap instructions, or stays zero where nothing can be executed. */
#include "fill.h"
#include "mapping.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>

/* The trap that is repeated in gaps. */
#define TRAP_BYTES ((size_t)16384)

struct filler {
    const struct hl_context *context;
    const struct hl_object *object;
    const struct hl_span *span;
    uint64_t memory;    /* the span's new memory */
    int file;           /* the object's, which has all of the span; or negative: there is only the memory */
    bool reads_by_call; /* process_vm_readv; it may be forbidden: */
    int memory_file;    /* then /proc/self/mem; else -1 */
};

/* RESULT is process_vm_readv's: whether the kernel does not let us use it. */
static bool is_forbidden(long result) { return result == -ENOSYS || result == -EPERM; }

/* Goes on without process_vm_readv. */
static int open_memory_file(struct filler *f) {
    f->reads_by_call = false;
    long fd = hl_open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (hl_is_error(fd))
        return HL_REASON_NO_PROC;
    f->memory_file = (int)fd;
    return 0;
}

static int copy_by_call(struct filler *f, uint64_t to, uint64_t from, uint64_t bytes) {
    while (bytes > 0) {
        /* One call copies at most MAX_RW_COUNT (2 GiB less a page). */
        size_t part = bytes < (1u << 30) ? bytes : 1u << 30;
        long done = f->reads_by_call ? hl_read_memory((void *)to, from, part) : -ENOSYS;
        if (is_forbidden(done) && f->memory_file < 0 && open_memory_file(f) != 0)
            return HL_REASON_NO_PROC;
        if (!f->reads_by_call)
            done = hl_pread(f->memory_file, (void *)to, part, from);
        if (hl_is_error(done) || done == 0)
            return HL_REASON_POOL_SHORT;
        to += (uint64_t)done;
        from += (uint64_t)done;
        bytes -= (uint64_t)done;
    }
    return 0;
}

/* Copies bytes that are at AT in the span.  They are faulted in first: that tells an unreadable file from a missing huge page. */
static int copy_memory(struct filler *f, uint64_t at, uint64_t bytes) {
    if (hl_is_error(hl_madvise(at, bytes, MADV_POPULATE_READ)))
        return HL_REASON_SOURCE_UNREADABLE;
    return copy_by_call(f, f->memory + (at - f->span->start), at, bytes);
}

/* Reads [at, end) of SEGMENT, and of those behind it that follow it in the file, up to LAST, in whose last page the file may end. */
static int read_file(const struct filler *f, const struct hl_segment *segment, const struct hl_segment *last,
                     uint64_t at, uint64_t end) {
    while (at < end) {
        long done = hl_pread(f->file, (void *)(f->memory + (at - f->span->start)), end - at,
                             segment->offset + (at - segment->first_page));
        if (done == 0 && at >= last->file_end)
            return 0;
        if (hl_is_error(done) || done == 0)
            return done == -EFAULT ? HL_REASON_POOL_SHORT : HL_REASON_SOURCE_UNREADABLE;
        at += (uint64_t)done;
    }
    return 0;
}

/* Whether the segment behind SEGMENT follows it in memory and in the file. */
static bool follows_in_file(const struct hl_segment *segment) {
    return segment[1].first_page == segment->end_page &&
           segment[1].offset - segment->offset == segment[1].first_page - segment->first_page;
}

/* Copies pages of the span at FROM to their place. */
static int copy_pages(struct filler *f, uint64_t from, uint64_t bytes) {
    int result = 0;
    if (f->file < 0)
        return copy_memory(f, from, bytes);
    uint64_t stop = from + bytes;
    for (unsigned i = 0; result == 0 && i < f->object->n_segments; i++) {
        const struct hl_segment *segment = &f->object->segment[i];
        if (hl_segment_overlap(segment, from, stop) == 0)
            continue;
        while (f->object->segment[i].end_page < stop && i + 1 < f->object->n_segments &&
               follows_in_file(&f->object->segment[i]))
            i++;
        const struct hl_segment *last = &f->object->segment[i];
        result = read_file(f, segment, last, segment->first_page > from ? segment->first_page : from,
                           last->end_page < stop ? last->end_page : stop);
    }
    return result;
}

/* Fills the gap [start, end) of the span. */
static int fill_gap(struct filler *f, uint64_t start, uint64_t end) {
    char traps[TRAP_BYTES] __attribute__((aligned(16)));
    int result = 0;
    if (start == end || !(f->span->flags & PF_X))
        return 0;
    hl_fill_with_traps(traps, end - start < sizeof traps ? end - start : sizeof traps);
    for (uint64_t at = start, bytes; result == 0 && at < end; at += bytes) {
        uint64_t to = f->memory + (at - f->span->start), most = f->reads_by_call ? HL_REPEATS_MAX : 1;
        bytes = end - at < most * sizeof traps ? end - at : most * sizeof traps;
        long done = f->reads_by_call ? hl_repeat_memory((void *)to, bytes, traps, sizeof traps) : -ENOSYS;
        if (is_forbidden(done)) {
            bytes = bytes < sizeof traps ? bytes : sizeof traps;
            result = copy_by_call(f, to, (uint64_t)traps, bytes);
        } else if (done != (long)bytes) {
            result = HL_REASON_POOL_SHORT;
        }
    }
    return result;
}

/* Composes the huge page at address FROM: segments' pages, and the gaps between them. */
static int compose_page(struct filler *f, uint64_t from) {
    uint64_t end = from + f->context->config->geometry.huge_page_bytes, gap = from;
    int result = 0;
    for (unsigned i = 0; result == 0 && i < f->object->n_segments; i++) {
        const struct hl_segment *segment = &f->object->segment[i];
        uint64_t bytes = hl_segment_overlap(segment, from, end);
        uint64_t start = segment->first_page > from ? segment->first_page : from;
        if (bytes == 0)
            continue;
        result = copy_pages(f, start, bytes);
        if (result == 0)
            result = fill_gap(f, gap, start);
        gap = start + bytes;
    }
    return result == 0 ? fill_gap(f, gap, end) : result;
}

/* Whether the segments fill the huge page at ADDRESS without a gap. */
static bool is_whole(const struct filler *f, uint64_t address) {
    uint64_t bytes = f->context->config->geometry.huge_page_bytes, filled = 0;
    for (unsigned i = 0; i < f->object->n_segments; i++)
        filled += hl_segment_overlap(&f->object->segment[i], address, address + bytes);
    return filled == bytes;
}

static int fill_pages(struct filler *f) {
    uint64_t huge = f->context->config->geometry.huge_page_bytes;
    int result = 0;
    for (uint64_t at = f->span->start, end; result == 0 && at < f->span->end; at = end) {
        for (end = at; end < f->span->end && is_whole(f, end); end += huge)
            ;
        if (end > at) {
            result = copy_pages(f, at, end - at);
        } else {
            result = compose_page(f, at);
            end += huge;
        }
    }
    return result;
}

int hl_fill_span(const struct hl_context *context, const struct hl_object *object, const struct hl_span *span,
                 struct hl_move *move) {
    struct filler f;
    f.context = context;
    f.object = object;
    f.span = span;
    f.memory = move->memory;
    f.memory_file = -1;
    f.file = hl_is_writable(span) ? -1 : object->file;
    f.reads_by_call = context->probed.status.filters == 0;
    int result = fill_pages(&f);
    if (f.memory_file >= 0)
        hl_close(f.memory_file);
    if (result == HL_REASON_POOL_SHORT && move->backend == HL_THP)
        result = HL_REASON_NO_MEMORY;
    return result;
}
