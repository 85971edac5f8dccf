/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare: what a span holds goes into its new memory.

   Two things kill a program here if a bare load or store meets them: a huge page that was promised and is not
   there, and a page of the file that cannot be read (past the end of a truncated file, a bad block, a dead
   mount).  So bytes go by calls that report both as errors.  The ladder, best first:

     UFFDIO_COPY          a huge page is allocated and copied into without being cleared first: half the cost
     process_vm_readv     the kernel clears the page, then copies; every kernel
     populate and copy    both sides are proved present by madvise(2), then copied by us
     pread                of /proc/self/mem: copied twice, but even old kernels and strict filters have it

   Read-only segments come from their file where it is at hand (source.c): by UFFDIO_COPY from a mapping of
   it, else by pread(2), which reports a missing page as well and is as fast as any call (128 MiB: 20 ms).
   Writable segments are copied from memory, since the dynamic linker has written to them.

   Huge pages that hold a gap between two segments are composed last and piece by piece: only pages of
   PT_LOADs are read (an executable that the kernel mapped has nothing at all in its gaps), the rest becomes
   trap instructions, or stays zero where nothing can be executed.  The page after .bss may hold the heap's
   beginning, which is read like a segment. */
#include "memory.h"
#include "move.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/ioctl.h>
#include <linux/mman.h>
#include <linux/userfaultfd.h>

/* UFFDIO_COPY says EAGAIN with the bytes done when a page is missing, and ENOMEM or (6.18) EEXIST the next
   time.  Other reasons for EAGAIN pass by themselves. */
#define COPY_TRIES 100

enum way { COPY_BY_USERFAULTFD, COPY_BY_CALL, COPY_POPULATED };

struct filler {
    const struct hl_process *process;
    const struct hl_object *object;
    const struct hl_span *span;
    uint64_t memory; /* the span's new memory */
    struct hl_source source;
    enum way way;
    int userfaultfd; /* or -1 */
    int memory_file; /* /proc/self/mem, where process_vm_readv and populating are both forbidden; else -1 */
};

static int copy_by_call(const struct filler *f, uint64_t to, uint64_t from, uint64_t bytes) {
    while (bytes > 0) {
        /* One call copies at most MAX_RW_COUNT (2 GiB less a page). */
        size_t part = bytes < (1u << 30) ? bytes : 1u << 30;
        long done = f->memory_file >= 0 ? hl_pread(f->memory_file, (void *)to, part, from)
                                        : hl_read_memory((void *)to, from, part);
        if (hl_is_error(done) || done == 0)
            return HL_SKIP_POOL_SHORT;
        to += (uint64_t)done;
        from += (uint64_t)done;
        bytes -= (uint64_t)done;
    }
    return 0;
}

static int copy_by_userfaultfd(const struct filler *f, uint64_t to, uint64_t from, uint64_t bytes) {
    unsigned tries = 0;
    while (bytes > 0) {
        struct uffdio_copy copy = {.dst = to, .src = from, .len = bytes};
        long result = hl_ioctl(f->userfaultfd, UFFDIO_COPY, &copy);
        if (copy.copy > 0) {
            to += (uint64_t)copy.copy;
            from += (uint64_t)copy.copy;
            bytes -= (uint64_t)copy.copy;
            tries = 0;
        } else if (result == -EEXIST) {
            /* mlockall(MCL_FUTURE) had mmap fill it; or it is missing, and then the call says so. */
            return copy_by_call(f, to, from, bytes);
        } else if (result != -EAGAIN || ++tries == COPY_TRIES) {
            return result == -EFAULT ? HL_SKIP_SOURCE_UNREADABLE : HL_SKIP_POOL_SHORT;
        }
    }
    return 0;
}

static int copy_populated(uint64_t to, uint64_t from, uint64_t bytes, uint64_t page_bytes) {
    uint64_t start = hl_round_down(to, page_bytes);
    if (hl_is_error(hl_madvise(start, hl_round_up(to + bytes, page_bytes) - start, MADV_POPULATE_WRITE)))
        return HL_SKIP_POOL_SHORT;
    hl_copy_bytes((void *)to, (const void *)from, bytes);
    return 0;
}

/* Faults the source in, as far as the kernel can by request.  It tells an unreadable file from a missing huge
   page, and UFFDIO_COPY from pages that are not there yet takes twice the time (128 MiB: 20 against 10 ms
   on 6.18). */
static int prove_source(const struct filler *f, uint64_t from, uint64_t bytes) {
    if (!f->process->kernel.populate || !hl_is_error(hl_madvise(from, bytes, MADV_POPULATE_READ)))
        return 0;
    return HL_SKIP_SOURCE_UNREADABLE;
}

/* Copies bytes that are at AT in the span.  Of a huge page only a part may be copied if the way is not
   COPY_BY_USERFAULTFD. */
static int copy_memory(const struct filler *f, uint64_t at, uint64_t bytes) {
    uint64_t to = f->memory + (at - f->span->start);
    uint64_t from = f->source.file >= 0 ? f->source.at + (at - f->span->start) : at;
    int result = prove_source(f, from, bytes);
    if (result != 0)
        return result;
    switch (f->way) {
    case COPY_BY_USERFAULTFD:
        return copy_by_userfaultfd(f, to, from, bytes);
    case COPY_BY_CALL:
        return copy_by_call(f, to, from, bytes);
    default:
        return copy_populated(to, from, bytes, f->process->geometry.page_bytes);
    }
}

/* Reads [from, from + bytes) of the segment from the file; the file may end in the last page of it. */
static int read_file(const struct filler *f, const struct hl_segment *segment, uint64_t from,
                     uint64_t bytes) {
    for (uint64_t at = from; at < from + bytes;) {
        long done = hl_pread(f->source.file, (void *)(f->memory + (at - f->span->start)), from + bytes - at,
                             segment->offset + (at - segment->first_page));
        if (done == 0 && at >= segment->file_end)
            return 0;
        if (hl_is_error(done) || done == 0)
            return done == -EFAULT ? HL_SKIP_POOL_SHORT : HL_SKIP_SOURCE_UNREADABLE;
        at += (uint64_t)done;
    }
    return 0;
}

/* Brings pages of the span at FROM to where they belong. */
static int copy_pages(const struct filler *f, uint64_t from, uint64_t bytes) {
    int result = 0;
    if (f->source.file < 0 || f->way == COPY_BY_USERFAULTFD)
        return copy_memory(f, from, bytes);
    for (unsigned i = 0; result == 0 && i < f->object->n_segments; i++) {
        const struct hl_segment *segment = &f->object->segment[i];
        uint64_t part = hl_overlap(segment->first_page, segment->end_page, from, from + bytes);
        if (part > 0)
            result = read_file(f, segment, segment->first_page > from ? segment->first_page : from, part);
    }
    return result;
}

/* Fills the gap [start, end) of the span; its huge page is there, and zero so far. */
static void fill_gap(const struct filler *f, uint64_t start, uint64_t end) {
    uint64_t to = f->memory + (start - f->span->start);
    if (f->span->flags & PF_X)
        hl_fill_with_traps((void *)to, end - start);
}

/* The I-th of the ranges that are copied, in ascending order: the segments' pages, then the heap. */
static bool source_range(const struct filler *f, unsigned i, struct hl_range *range) {
    const struct hl_object *object = f->object;
    if (i < object->n_segments) {
        *range = (struct hl_range){object->segment[i].first_page, object->segment[i].end_page};
        return true;
    }
    uint64_t object_end = object->segment[object->n_segments - 1].end_page;
    *range = (struct hl_range){f->process->heap.start,
                               hl_round_up(f->process->heap.end, f->process->geometry.page_bytes)};
    if (range->start < object_end)
        range->start = object_end;
    return i == object->n_segments && object->is_main && hl_is_writable(f->span) && range->start < range->end;
}

/* Composes the huge page at address FROM: its sources first (each by a call that proves the new page), then
   what is left. */
static int compose_page(const struct filler *f, uint64_t from) {
    uint64_t end = from + f->process->geometry.huge_page_bytes, gap = from;
    struct hl_range range;
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned i = 0; source_range(f, i, &range); i++) {
            uint64_t bytes = hl_overlap(range.start, range.end, from, end);
            uint64_t start = range.start > from ? range.start : from;
            if (bytes == 0)
                continue;
            int result = pass == 0 ? copy_pages(f, start, bytes) : 0;
            if (result != 0)
                return result;
            if (pass == 1) {
                fill_gap(f, gap, start);
                gap = start + bytes;
            }
        }
    }
    fill_gap(f, gap, end);
    return 0;
}

/* Whether what is copied fills the huge page at ADDRESS without a gap. */
static bool is_whole(const struct filler *f, uint64_t address) {
    uint64_t bytes = f->process->geometry.huge_page_bytes, filled = 0;
    struct hl_range range;
    for (unsigned i = 0; source_range(f, i, &range); i++)
        filled += hl_overlap(range.start, range.end, address, address + bytes);
    return filled == bytes;
}

static int fill_whole_pages(const struct filler *f) {
    uint64_t huge = f->process->geometry.huge_page_bytes;
    int result = 0;
    for (uint64_t at = f->span->start, run; result == 0 && at < f->span->end; at = run) {
        for (run = at; run < f->span->end && is_whole(f, run); run += huge)
            ;
        if (run > at)
            result = copy_pages(f, at, run - at);
        else
            run += huge;
    }
    return result;
}

static int fill_other_pages(const struct filler *f) {
    uint64_t huge = f->process->geometry.huge_page_bytes;
    int result = 0;
    for (uint64_t at = f->span->start; result == 0 && at < f->span->end; at += huge)
        if (!is_whole(f, at))
            result = compose_page(f, at);
    return result;
}

static void open_userfaultfd(struct filler *f) {
    long fd = hl_open_userfaultfd();
    if (hl_is_error(fd))
        return;
    struct uffdio_register range = {.range = {f->memory, f->span->end - f->span->start},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (hl_is_error(hl_ioctl((int)fd, UFFDIO_REGISTER, &range))) {
        hl_close((int)fd);
        return;
    }
    f->userfaultfd = (int)fd;
    f->way = COPY_BY_USERFAULTFD;
}

/* Closing it makes missing pages ordinary again, so that calls can fill parts of them. */
static void close_userfaultfd(struct filler *f) {
    if (f->userfaultfd >= 0)
        hl_close(f->userfaultfd);
    f->userfaultfd = -1;
    f->way = f->process->kernel.read_by_call || f->memory_file >= 0 ? COPY_BY_CALL : COPY_POPULATED;
}

int hl_fill_span(struct hl_process *process, const struct hl_object *object, const struct hl_span *span,
                 struct hl_move *move) {
    struct filler f;
    f.process = process;
    f.object = object;
    f.span = span;
    f.memory = move->memory;
    f.userfaultfd = f.memory_file = -1;
    if (!process->kernel.read_by_call && !process->kernel.populate) {
        long fd = hl_open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
        if (hl_is_error(fd))
            return HL_SKIP_NO_PROC;
        f.memory_file = (int)fd;
    }
    close_userfaultfd(&f);
    hl_open_source(&f.source, process, object, span);
    if (move->backend == HL_HUGETLB && process->kernel.userfaultfd &&
        !(f.source.file >= 0 && hl_is_cold(&f.source, process, object, span)))
        open_userfaultfd(&f);

    int result = fill_whole_pages(&f);
    close_userfaultfd(&f);
    if (result == 0)
        result = fill_other_pages(&f);
    hl_close_source(&f.source);
    if (f.memory_file >= 0)
        hl_close(f.memory_file);
    if (result == HL_SKIP_POOL_SHORT && move->backend == HL_THP)
        result = HL_SKIP_NO_MEMORY;
    return result;
}
