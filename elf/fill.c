/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare: what a span holds goes into its new memory.

   Two things kill a program here if a bare load or store meets them: a huge page that was promised and is not
   there, and a page of the file that cannot be read (past the end of a truncated file, a bad block, a dead
   mount).  So bytes go by calls that report both as errors.  The ladder, best first:

     UFFDIO_COPY          a huge page is allocated and copied into without being cleared first: half the cost
     process_vm_readv     the kernel clears the page, then copies; every kernel
     populate and copy    both sides are proved present by madvise(2), then copied by us

   A huge page that holds a gap between two segments is composed apart: only pages of PT_LOADs are read (an
   executable that the kernel mapped has nothing at all in its gaps), the rest becomes trap instructions, or
   zero in writable data.  The page after .bss may hold the heap's beginning, which is read like a segment. */
#include "memory.h"
#include "move.h"
#include "sys.h"

#include <linux/ioctl.h>
#include <linux/mman.h>
#include <linux/userfaultfd.h>

#define EAGAIN_RESULT (-11)
#define EFAULT_RESULT (-14)

/* UFFDIO_COPY says EAGAIN with the bytes done when a page is missing, and ENOMEM the next time.  Other
   reasons for EAGAIN pass by themselves. */
#define COPY_TRIES 100

enum way { COPY_BY_USERFAULTFD, COPY_BY_CALL, COPY_POPULATED };

struct filler {
    const struct hl_process *process;
    const struct hl_object *object;
    enum way way;       /* for whole huge pages, */
    enum way plain_way; /* and for parts of one */
    bool writable;
    int userfaultfd;
    uint64_t bounce; /* a huge page's worth of memory to compose in; 0 until needed */
};

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
        } else if (result != EAGAIN_RESULT || ++tries == COPY_TRIES) {
            return result == EFAULT_RESULT ? HL_SKIP_SOURCE_UNREADABLE : HL_SKIP_POOL_SHORT;
        }
    }
    return 0;
}

static int copy_by_call(uint64_t to, uint64_t from, uint64_t bytes) {
    while (bytes > 0) {
        /* One call copies at most MAX_RW_COUNT (2 GiB less a page). */
        size_t part = bytes < (1u << 30) ? bytes : 1u << 30;
        long done = hl_read_memory((void *)to, from, part);
        if (hl_is_error(done) || done == 0)
            return HL_SKIP_POOL_SHORT;
        to += (uint64_t)done;
        from += (uint64_t)done;
        bytes -= (uint64_t)done;
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

/* Copies whole pages of the source.  TO may be part of a huge page if WAY is not COPY_BY_USERFAULTFD. */
static int copy_pages(const struct filler *f, enum way way, uint64_t to, uint64_t from, uint64_t bytes) {
    int result = prove_source(f, from, bytes);
    if (result != 0)
        return result;
    switch (way) {
    case COPY_BY_USERFAULTFD:
        return copy_by_userfaultfd(f, to, from, bytes);
    case COPY_BY_CALL:
        return copy_by_call(to, from, bytes);
    default:
        return copy_populated(to, from, bytes, f->process->geometry.page_bytes);
    }
}

/* Fills a gap: with trap instructions where it becomes part of text or read-only data. */
static void fill_gap(const struct filler *f, uint64_t start, uint64_t end) {
#if HL_TRAP_BYTES == 1
    unsigned char value = f->writable ? 0 : HL_TRAP;
    for (unsigned char *p = (unsigned char *)start; p < (unsigned char *)end; p++)
        *(volatile unsigned char *)p = value;
#else
    uint32_t value = f->writable ? 0 : HL_TRAP;
    for (uint32_t *p = (uint32_t *)start; p < (uint32_t *)end; p++)
        *(volatile uint32_t *)p = value;
#endif
}

/* The I-th of the ranges that are copied, in ascending order: the segments' pages, then the heap behind them.
 */
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
    return i == object->n_segments && object->is_main && f->writable && range->start < range->end;
}

/* Composes the huge page at address FROM of the object at TO: its sources first (each by a call that proves
   the page at TO), then what is left. */
static int compose_page(const struct filler *f, uint64_t to, uint64_t from) {
    uint64_t end = from + f->process->geometry.huge_page_bytes, gap = from;
    struct hl_range range;
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned i = 0; source_range(f, i, &range); i++) {
            uint64_t bytes = hl_overlap(range.start, range.end, from, end);
            if (bytes == 0)
                continue;
            uint64_t start = range.start > from ? range.start : from;
            if (pass == 0) {
                int result = copy_pages(f, f->plain_way, to + (start - from), start, bytes);
                if (result != 0)
                    return result;
            } else {
                fill_gap(f, to + (gap - from), to + (start - from));
                gap = start + bytes;
            }
        }
    }
    fill_gap(f, to + (gap - from), to + (end - from));
    return 0;
}

static int fill_page_with_gap(struct filler *f, uint64_t to, uint64_t from) {
    uint64_t bytes = f->process->geometry.huge_page_bytes;
    if (f->way != COPY_BY_USERFAULTFD)
        return compose_page(f, to, from);
    if (f->bounce == 0) {
        long at = hl_mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (hl_is_error(at))
            return HL_SKIP_NO_MEMORY;
        f->bounce = (uint64_t)at;
    }
    int result = compose_page(f, f->bounce, from);
    return result != 0 ? result : copy_by_userfaultfd(f, to, f->bounce, bytes);
}

/* Whether what is copied fills the huge page at ADDRESS without a gap. */
static bool is_whole(const struct filler *f, uint64_t address) {
    uint64_t bytes = f->process->geometry.huge_page_bytes, filled = 0;
    struct hl_range range;
    for (unsigned i = 0; source_range(f, i, &range); i++)
        filled += hl_overlap(range.start, range.end, address, address + bytes);
    return filled == bytes;
}

static void choose_way(struct filler *f, const struct hl_move *move, uint64_t bytes) {
    f->way = f->plain_way = f->process->kernel.read_by_call ? COPY_BY_CALL : COPY_POPULATED;
    if (move->backend != HL_HUGETLB || !f->process->kernel.userfaultfd)
        return;
    long fd = hl_open_userfaultfd();
    if (hl_is_error(fd))
        return;
    struct uffdio_register range = {.range = {move->memory, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (hl_is_error(hl_ioctl((int)fd, UFFDIO_REGISTER, &range))) {
        hl_close((int)fd);
        return;
    }
    f->way = COPY_BY_USERFAULTFD;
    f->userfaultfd = (int)fd;
}

int hl_fill_span(struct hl_process *process, const struct hl_object *object, const struct hl_span *span,
                 struct hl_move *move) {
    struct filler f;
    f.process = process;
    f.object = object;
    f.writable = hl_is_writable(span);
    f.userfaultfd = -1;
    f.bounce = 0;
    choose_way(&f, move, span->end - span->start);

    /* Reading ahead in one piece is what makes a cold start sequential; where the file is cached already it
       costs nothing to speak of.  Only a hint: in a gap it fails. */
    hl_madvise(span->start, span->end - span->start, MADV_WILLNEED);

    uint64_t huge = process->geometry.huge_page_bytes;
    int result = 0;
    for (uint64_t at = span->start; result == 0 && at < span->end;) {
        uint64_t to = move->memory + (at - span->start), run = at;
        while (run < span->end && is_whole(&f, run))
            run += huge;
        if (run > at) {
            result = copy_pages(&f, f.way, to, at, run - at);
            at = run;
        } else {
            result = fill_page_with_gap(&f, to, at);
            at += huge;
        }
    }
    if (f.userfaultfd >= 0)
        hl_close(f.userfaultfd);
    if (f.bounce != 0)
        hl_munmap(f.bounce, huge);
    if (result == HL_SKIP_POOL_SHORT && move->backend == HL_THP)
        result = HL_SKIP_NO_MEMORY;
    return result;
}
