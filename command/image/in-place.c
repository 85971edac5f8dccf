/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Puts a file's text on huge pages of its own page cache, for every process that maps it.

   Address and offset must agree modulo a huge page, and only whole huge pages inside an executable segment count:

       file         r r T T T T T T T T r w
       huge pages  |     |chunk|chunk|     |

   There are two ways.  Collapse: MADV_COLLAPSE of a mapping of our own joins the cached pages, even while processes run them (ext4
   and xfs since Linux 7.2).  Read anew: the cached pages are dropped and read again with MADV_HUGEPAGE, which takes large folios at
   once (xfs since 6.1, ext4 since 6.16); this is for files that no process maps.  The former is found by trying.  The latter cannot be
   tried while processes map the file, so a table knows the file systems, and a chunk for which there was a huge page proves it.

   Every user who may read a file may do either to it, with effect for all users, so these limits protect the others:

   - A collapse stalls all processes that map the chunk, in proportion to their number.  Each has a budget, and a rest
     before the next one.
   - After pages are dropped, their users wait for the disk.  Mapped pages stay anyway, but then nothing is gained.
   - Only root outside of containers sees every process.  And root does it only to files that root alone can write: no user
     makes root drop the pages of a database's file.

   mincore(2) tells which pages are cached: the truth to the owner of the file, and "all" to other users.  preadv2(RWF_NOWAIT) tells
   all users, but begins to read missing pages, as small ones in the middle of a future huge page (seen on 6.18). */
#include "command/image/in-place.h"
#include "command/lib/common.h"
#include "command/lib/subprocess.h"
#include "command/image/eligible.h"
#include "command/image/layout.h"
#include "command/lib/process.h"
#include "elf/kernel.h"
#include "elf/maps.h"
#include "elf/memory-limit.h"
#include "command/lib/file-plan.h"
#include "command/lib/remedy.h"
#include "elf/reason.h"
#include "command/image/store.h"
#include "elf/thp.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <linux/magic.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Each further process that maps the file makes a collapse stall all of them this much longer (6.18, 4 KiB folios). */
#define MICROSECONDS_PER_MAPPER 170
#define PAUSE_BUDGET_MICROSECONDS 2000
/* If processes map the file, the rest after each collapse is REST times the collapse's own time, and at most REST_MAX_MS. */
#define REST 20
#define REST_MAX_MS 1000
/* These processes are counted again after COUNTED_MS. */
#define COUNTED_MS 1000
/* Counting them takes no longer than that. */
#define COUNT_MS_MAX 2000.0
/* 16 GiB of text; a sparse file can claim to have terabytes. */
#define CHUNKS_MAX 8192
#define TRIES_TO_COLLAPSE 3
#define TRIES_TO_READ 2
#define TRIES_TO_COUNT 2
/* Percent of the last ten seconds in which something waited. */
#define PRESSURE_MAX 5.0
/* For this long the disks are watched for waiting processes. */
#define WATCH_MS 300
/* The inode number of the first user namespace (include/uapi/linux/nsfs.h). */
#define FIRST_USER_NAMESPACE 0xeffffffdu

/* One file being looked at or made huge. */
struct work {
    struct hl_chunks *chunks;
    int file;
    char *reserved, *window; /* reserved addresses, and an aligned huge page of them */
    int pagemap;
    bool joins; /* the kernel joins pages of the file */
    uint64_t page_bytes;
    size_t pages;         /* number of page_bytes (4 KiB, say) in a chunk */
    unsigned char *state; /* of each page, as mincore(2) tells */
    bool has_read;        /* a chunk was read in a huge page */
    double rested;        /* hl_now_ms: no collapse before that */
    double next_count;    /* the processes that map the file are known until then */
};

void hl_free_chunks(struct hl_chunks *chunks) {
    free(chunks->chunk);
    memset(chunks, 0, sizeof *chunks);
}

uint64_t hl_huge_text_bytes(const struct hl_chunks *chunks) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < chunks->n_chunks; i++)
        bytes += chunks->chunk[i].is_huge ? chunks->chunk_bytes : 0;
    return bytes;
}

bool hl_covers_enough(uint64_t covered_bytes, uint64_t text_bytes) {
    return covered_bytes > 0 && covered_bytes >= text_bytes / 4 * 3;
}

/* --- chunks --- */

static bool is_executable(const struct hl_segment *segment) {
    return (segment->flags & (PF_X | PF_W)) == PF_X && segment->file_end > segment->start;
}

static void add_chunks(struct hl_chunks *chunks, const struct hl_segment *segment, uint64_t bias,
                       uint64_t page) {
    uint64_t huge = chunks->chunk_bytes, first = segment->first_page + bias,
             end = hl_round_up(segment->file_end + bias, page);
    if (!is_executable(segment) || (first - segment->offset) % huge != 0)
        return;
    for (uint64_t at = hl_round_up(first, huge); at + huge <= end && chunks->n_chunks < CHUNKS_MAX;
         at += huge) {
        chunks->chunk = hl_xrealloc(chunks->chunk, (chunks->n_chunks + 1) * sizeof *chunks->chunk);
        chunks->chunk[chunks->n_chunks++] = (struct hl_chunk){.offset = segment->offset + (at - first)};
    }
}

static int find_chunks(struct hl_chunks *chunks, const struct hl_elf_file *file,
                       const struct hl_geometry *geometry) {
    struct hl_object object;
    uint64_t bias = 0, largest = 0;
    *chunks = (struct hl_chunks){.chunk_bytes = geometry->huge_page_bytes};
    int result = hl_load_object(&object, file, "", 0, geometry);
    if (result != 0)
        return result;
    for (unsigned i = 0; i < object.n_segments; i++) {
        const struct hl_segment *segment = &object.segment[i];
        uint64_t bytes = is_executable(segment) ? segment->file_end - segment->first_page : 0;
        chunks->text_bytes += bytes > 0 ? segment->file_end - segment->start : 0;
        largest = bytes > largest ? bytes : largest;
    }
    if (largest < geometry->huge_page_bytes)
        return HL_REASON_TOO_SMALL;
    if (hl_gets_any_address(file, geometry) && !hl_try_load_bias(&bias, file, &object, geometry))
        return HL_REASON_FILE_PLACE;
    for (unsigned i = 0; i < object.n_segments; i++)
        add_chunks(chunks, &object.segment[i], bias, geometry->page_bytes);
    return chunks->n_chunks > 0 ? 0 : HL_REASON_FILE_PLACE;
}

/* --- looking --- */

static int begin_work(struct work *work, struct hl_chunks *chunks, int file) {
    uint64_t huge = chunks->chunk_bytes;
    *work = (struct work){.chunks = chunks, .file = file, .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    work->pages = huge / work->page_bytes;
    work->reserved = mmap(NULL, 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (work->reserved == MAP_FAILED)
        return -errno;
    work->window = (char *)hl_round_up((uint64_t)work->reserved, huge);
    work->pagemap = (int)hl_open_pagemap();
    work->state = hl_xmalloc(work->pages);
    return 0;
}

static void end_work(struct work *work) {
    munmap(work->reserved, 2 * work->chunks->chunk_bytes);
    free(work->state);
    if (work->pagemap >= 0)
        close(work->pagemap);
}

/* Maps CHUNK into the window, in the place of anything older.  With PROT from the start: a service may be forbidden to change
   it. */
static bool map_chunk(const struct work *work, const struct hl_chunk *chunk, int prot) {
    return mmap(work->window, work->chunks->chunk_bytes, prot, MAP_PRIVATE | MAP_FIXED, work->file,
                (off_t)chunk->offset) == work->window;
}

/* Takes this process's own mapping of the file away. */
static bool drop_window(const struct work *work) {
    return mmap(work->window, work->chunks->chunk_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == work->window;
}

/* Counts the cached pages of the mapped chunk; the lowest bit of each byte of work->state is a page's. */
static size_t count_cached(const struct work *work) {
    size_t n = 0;
    if (mincore(work->window, work->chunks->chunk_bytes, work->state) != 0)
        memset(work->state, 0, work->pages);
    for (size_t i = 0; i < work->pages; i++)
        n += work->state[i] & 1;
    return n;
}

/* Whether one entry maps all of the window. */
static bool is_mapped_huge(const struct work *work) {
    uint64_t start = (uint64_t)work->window, end = start + work->chunks->chunk_bytes;
    int result = work->pagemap >= 0 ? hl_check_huge(work->pagemap, start, end) : -1;
    return result >= 0 ? result == 0 : hl_read_huge_bytes(start, end) == (int64_t)work->chunks->chunk_bytes;
}

/* Finds whether CHUNK is huge, by touching one page of it. */
static bool examine_chunk(const struct work *work, struct hl_chunk *chunk) {
    chunk->is_huge = map_chunk(work, chunk, PROT_READ) && count_cached(work) == work->pages &&
                     madvise(work->window, work->page_bytes, MADV_POPULATE_READ) == 0 && is_mapped_huge(work);
    return chunk->is_huge;
}

/* Whether the kernel has a huge page to give.  The next mapping in the window gives it back. */
static bool has_huge_page(const struct work *work) {
    uint64_t bytes = work->chunks->chunk_bytes;
    if (mmap(work->window, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            work->window ||
        madvise(work->window, bytes, MADV_HUGEPAGE) != 0)
        return false;
    *(volatile char *)work->window = 1;
    return is_mapped_huge(work);
}

/* Whether this is root outside of containers, with a /proc of all processes; without CAP_SYS_PTRACE some may be hidden (hidepid of
   proc(5)). */
static bool is_real_root(void) {
    struct stat space;
    return geteuid() == 0 && hl_has_capability(CAP_SYS_PTRACE) && hl_is_outermost() &&
           stat("/proc/self/ns/user", &space) == 0 && space.st_ino == FIRST_USER_NAMESPACE;
}

/* Finds the chunks of FILE, and if LOOKS which of them are huge. */
static int look(struct hl_chunks *chunks, const struct hl_elf_file *file, const struct hl_geometry *geometry,
                bool looks) {
    struct work work;
    int result = find_chunks(chunks, file, geometry);
    if (result == 0 && looks && (result = begin_work(&work, chunks, file->fd)) == 0) {
        for (size_t i = 0; i < chunks->n_chunks; i++)
            examine_chunk(&work, &chunks->chunk[i]);
        end_work(&work);
    }
    if (result != 0)
        hl_free_chunks(chunks);
    return result;
}

int hl_examine_chunks(struct hl_chunks *chunks, const struct hl_elf_file *file,
                      const struct hl_geometry *geometry) {
    bool told = file->stat.st_uid == geteuid() || is_real_root(); /* the truth, by mincore(2) */
    int result = look(chunks, file, geometry, told);
    return result == 0 && !told ? -EPERM : result;
}

bool hl_has_huge_text(const struct hl_elf_file *file, const struct hl_geometry *geometry) {
    struct hl_chunks chunks;
    bool has = look(&chunks, file, geometry, true) == 0 && hl_huge_text_bytes(&chunks) > 0;
    hl_free_chunks(&chunks);
    return has;
}

/* --- processes that map the file --- */

/* Whether LINE may be a mapping of OWN's file.  Since Linux 6.7 a file mapped through overlayfs appears with the device of the
   overlayfs and the inode of the layer's file, if all layers are on one file system. */
static bool may_be_same(const struct hl_region *line, const struct hl_region *own) {
    return line->inode == own->inode &&
           (line->device == own->device ||
            (major(line->device) == 0 && strcmp(hl_base_name(line->name), hl_base_name(own->name)) == 0));
}

/* Makes this process map the cached pages of CHUNK, and no others, and reads their entries in pagemap. */
static bool read_entries(const struct work *work, const struct hl_chunk *chunk, uint64_t *entry) {
    if (work->pagemap < 0 || !map_chunk(work, chunk, PROT_READ))
        return false;
    count_cached(work);
    hl_map_cached(work->window, work->pages, work->page_bytes, work->state);
    size_t bytes = work->pages * sizeof *entry;
    return pread(work->pagemap, entry, bytes,
                 (off_t)((uint64_t)work->window / work->page_bytes * sizeof *entry)) == (ssize_t)bytes;
}

/* Whether another process maps one of the cached pages with these ENTRIES of pagemap: 1 or 0; negative: the kernel does not tell. */
static int find_mapped_page(const struct work *work, int counts, const uint64_t *entry) {
    uint64_t mapped = 0;
    for (size_t i = 0; i < work->pages && mapped == 0; i++) {
        uint64_t frame = hl_page_frame(entry[i]);
        if (!(entry[i] & HL_PAGE_PRESENT))
            continue;
        if (frame == 0 ||
            pread(counts, &mapped, sizeof mapped, (off_t)(frame * sizeof mapped)) != sizeof mapped)
            return -1;
    }
    return mapped > 0;
}

/* Whether another process maps a cached page of CHUNK: 1 or 0.  /proc/kpagecount tells how many do, whoever they are: in another
   namespace, through another file system, guarded by a security module.  It counts our own mapping, which is dropped first; and if the
   kernel has moved a page meanwhile, its frame may be another process's, so that is tried again.  Negative: the kernel does not
   tell. */
static int is_mapped_by_others(const struct work *work, const struct hl_chunk *chunk) {
    uint64_t *entry = hl_xmalloc(work->pages * sizeof *entry);
    int counts = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC), result = counts >= 0 ? 1 : -1;
    for (unsigned try = 0; try < TRIES_TO_COUNT && result == 1; try++)
        result = read_entries(work, chunk, entry) && drop_window(work) ? find_mapped_page(work, counts, entry)
                                                                       : -1;
    if (counts >= 0)
        close(counts);
    free(entry);
    return result;
}

/* A count in a child's memory that this process shares: a process can keep its own memory map locked, and whoever reads that waits. */
struct count {
    const struct hl_chunks *chunks;
    const struct hl_region *own;
    unsigned mappers[];
};

/* Counts the mappings of each chunk in the maps of all processes.  0; or else they cannot be known, or not in time: any user can have
   processes with any number of mappings. */
static int count_in_maps(void *count_) {
    struct count *count = count_;
    const struct hl_chunks *chunks = count->chunks;
    struct hl_region line;
    char *text = NULL;
    size_t size = 0;
    bool is_whole = true;
    DIR *proc = NULL;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        if (pid == getpid() || pid == getppid())
            continue;
        char *path = hl_xasprintf("/proc/%d/maps", pid);
        FILE *maps = fopen(path, "re");
        is_whole &= maps != NULL || errno == ENOENT || errno == ESRCH;
        free(path);
        while (maps != NULL && hl_next_region(&line, maps, &text, &size))
            for (size_t i = 0; i < chunks->n_chunks && may_be_same(&line, count->own); i++)
                count->mappers[i] +=
                    hl_overlap(line.offset, line.offset + (line.end - line.start), chunks->chunk[i].offset,
                               chunks->chunk[i].offset + chunks->chunk_bytes) > 0;
        if (maps != NULL)
            fclose(maps);
    }
    free(text);
    return is_whole ? 0 : 1;
}

/* Finds whether others map the file, and how many mappings each chunk has where that can be joined nevertheless.  False: it cannot be known. */
static bool count_mappers(struct work *work) {
    struct hl_chunks *chunks = work->chunks;
    struct hl_region own;
    char *own_line = NULL;
    int mapped = 0;
    for (size_t i = 0; i < chunks->n_chunks && mapped == 0; i++)
        mapped = is_mapped_by_others(work, &chunks->chunk[i]);
    chunks->is_mapped = mapped != 0;
    if (mapped <= 0 || !work->joins)
        return mapped >= 0;
    size_t bytes = sizeof(struct count) + chunks->n_chunks * sizeof(unsigned);
    struct count *count = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (count == MAP_FAILED)
        return false;
    bool found = false, is_known = map_chunk(work, &chunks->chunk[0], PROT_READ) &&
                                   hl_find_own_region(&own, work->window, &own_line);
    if (is_known) {
        count->chunks = chunks;
        count->own = &own;
        is_known = hl_call_in_child(count_in_maps, count, COUNT_MS_MAX) == 0;
    }
    for (size_t i = 0; i < chunks->n_chunks; i++)
        found |= (chunks->chunk[i].mappers = count->mappers[i]) > 0;
    munmap(count, bytes);
    free(own_line);
    return is_known && found; /* some process maps it */
}

/* Counts them unless that was done just now.  False: it is impossible. */
static bool count_again(struct work *work) {
    if (hl_now_ms() < work->next_count)
        return true;
    clock_t used = clock();
    bool is_known = count_mappers(work);
    work->next_count = hl_now_ms() + fmax(COUNTED_MS, REST * 1e3 * (double)(clock() - used) / CLOCKS_PER_SEC);
    return is_known;
}

/* --- pressure --- */

/* Reads in how many percent of the last ten seconds something waited for WHAT, and in how many microseconds since boot.  False: the
   kernel does not tell. */
static bool read_pressure(const char *what, double *percent, uint64_t *microseconds) {
    char *path = hl_xasprintf("/proc/pressure/%s", what), text[256];
    bool known =
        hl_read_file(path, text, sizeof text) > 0 &&
        sscanf(text, "some avg10=%lf avg60=%*f avg300=%*f total=%" SCNu64, percent, microseconds) == 2;
    free(path);
    return known;
}

/* Whether programs wait for memory or the disks, if the kernel tells.  Our own reading is I/O, too: the pressure on disks counts only
   WITH_IO, and as the average of ten seconds still includes the previous file, if a process waits for more than a moment of the next
   WATCH_MS. */
static bool is_busy(bool with_io) {
    double percent = 0;
    uint64_t waited, now = 0;
    if (read_pressure("memory", &percent, &waited) && percent > PRESSURE_MAX)
        return true;
    if (!with_io || !read_pressure("io", &percent, &waited) || percent <= PRESSURE_MAX)
        return false;
    double began = hl_now_ms();
    nanosleep(&(struct timespec){0, WATCH_MS * 1000000L}, NULL);
    double most = (hl_now_ms() - began) * 1000 * PRESSURE_MAX / 100;
    return !read_pressure("io", &percent, &now) || (double)(now - waited) > most;
}

/* --- the two ways --- */

/* Whether the kernel joins pages of the file.  It is tried with less than a huge page, in which nothing can be joined, but the kernel
   checks the mapping first.  Older kernels want it to be executable. */
static bool can_join(const struct work *work) {
    return map_chunk(work, &work->chunks->chunk[0], PROT_READ | PROT_EXEC) &&
           madvise(work->window, work->page_bytes, MADV_COLLAPSE) == 0;
}

/* Joins the pages of CHUNK, if it can, when the processes that the last one stalled have had their rest. */
static void collapse(struct hl_collapser *collapser, struct work *work, const struct hl_chunk *chunk) {
    int result = -EAGAIN;
    if (!map_chunk(work, chunk, PROT_READ | PROT_EXEC))
        return;
    for (unsigned try = 0; try < TRIES_TO_COLLAPSE && (result == -EAGAIN || result == -EBUSY); try++) {
        double left = work->rested - hl_now_ms();
        if (left > 0)
            nanosleep(&(struct timespec){(time_t)(left / 1e3), (long)(fmod(left, 1e3) * 1e6)}, NULL);
        double began = hl_now_ms();
        result = madvise(work->window, work->chunks->chunk_bytes, MADV_COLLAPSE) == 0 ? 0 : -errno;
        double now = hl_now_ms();
        if (chunk->mappers > 0)
            collapser->pause_us = (now - began) * 1e3 / chunk->mappers;
        work->rested = chunk->mappers > 0 ? now + fmin(REST_MAX_MS, REST * (now - began)) : now;
    }
}

/* Why a chunk did not become huge. */
enum obstacle { NONE, IN_USE, TOO_MANY, NO_PAGE, FILE_SYSTEM, MEMORY, UNKNOWN, BUSY };

static const struct {
    const char *word; /* of what only the moment forbids */
    const char *sentence;
} obstacles[] = {
    [IN_USE] = {"in-use", "processes map the file, and this kernel makes its text huge only while none does; "
                          "end them and enable it again, or reboot"},
    [TOO_MANY] = {"in-use", "so many processes map the file that they would all wait for more than 2 ms; "
                            "wait until there are fewer"},
    [NO_PAGE] =
        {"no-huge-page",
         "the kernel had no huge page for it; free or compact memory: echo 1 > /proc/sys/vm/compact_memory"},
    [FILE_SYSTEM] = {NULL, "its file system keeps files on small pages"},
    [MEMORY] =
        {"memory",
         "the machine or a memory limit has too little memory left for it; free memory, or raise the limit"},
    [UNKNOWN] = {"unknown", "which processes map the file cannot be read, or takes too long; run hugeld as "
                            "root with all capabilities"},
    [BUSY] = {"pressure", "programs have waited for memory or disks in more than 5 % of the last ten seconds "
                          "(/proc/pressure); try again later"},
};

/* Whether the file system of the open FILE has large folios. */
static bool may_read_huge(int file) {
    struct statfs fs;
    if (fstatfs(file, &fs) != 0)
        return false;
    return fs.f_type == EXT4_SUPER_MAGIC  ? hl_is_kernel(6, 16)
           : fs.f_type == XFS_SUPER_MAGIC ? hl_is_kernel(6, 1)
                                          : false;
}

/* NONE if the kernel can join the pages of CHUNK and not too many processes would wait for it. */
static enum obstacle check_joined(const struct hl_collapser *collapser, const struct work *work,
                                  const struct hl_chunk *chunk) {
    double each = collapser->pause_us > 0 ? collapser->pause_us : MICROSECONDS_PER_MAPPER;
    if (!work->joins)
        return IN_USE;
    return chunk->mappers * each > PAUSE_BUDGET_MICROSECONDS ? TOO_MANY : NONE;
}

/* Drops the cached pages of CHUNK and reads it again, in folios as large as the kernel makes them.  It is cached afterwards, huge or
   not, if it can be read. */
static enum obstacle read_anew(const struct work *work, struct hl_chunk *chunk) {
    off_t bytes = (off_t)work->chunks->chunk_bytes;
    enum obstacle obstacle = NO_PAGE;
    for (unsigned try = 0; try < TRIES_TO_READ && obstacle != NONE && map_chunk(work, chunk, PROT_READ);
         try++) {
        fdatasync(work->file);
        posix_fadvise(work->file, (off_t)chunk->offset, bytes, POSIX_FADV_DONTNEED);
        bool is_dropped = count_cached(work) == 0; /* else a process uses some */
        madvise(work->window, (size_t)bytes, MADV_HUGEPAGE);
        if (madvise(work->window, (size_t)bytes, MADV_POPULATE_READ) != 0)
            readahead(work->file, (off_t)chunk->offset, (size_t)bytes);
        obstacle = examine_chunk(work, chunk) ? NONE : is_dropped ? NO_PAGE : IN_USE;
    }
    return obstacle;
}

/* What keeps CHUNK from being huge; with only_looks nothing is changed, and the answer is the expected result. */
static enum obstacle make_huge(struct hl_collapser *collapser, struct work *work, struct hl_chunk *chunk) {
    enum obstacle obstacle = check_joined(collapser, work, chunk);
    if (obstacle == NONE && !collapser->only_looks) {
        collapse(collapser, work, chunk);
        obstacle = examine_chunk(work, chunk) ? NONE : NO_PAGE;
    }
    if (obstacle == NONE)
        return obstacle;
    bool can_read = may_read_huge(work->file);
    if (!can_read && !work->joins)
        return FILE_SYSTEM;
    if (work->chunks->is_mapped || !can_read)
        return obstacle;
    if (collapser->only_looks)
        return NONE;
    obstacle = read_anew(work, chunk);
    /* If there was a huge page, this file cannot have any: ext4 with encryption or a journal of data. */
    if (obstacle == NO_PAGE && !work->joins && !work->has_read && has_huge_page(work)) {
        obstacle = read_anew(work, chunk);
        obstacle = obstacle == NO_PAGE ? FILE_SYSTEM : obstacle;
    }
    work->has_read |= obstacle == NONE;
    return obstacle;
}

/* Whether processors are isolated.  To join pages, the kernel waits for all processors, and would wait endlessly for one that never
   enters the kernel. */
static bool has_isolated(void) {
    char text[4096];
    bool has = false;
    for (size_t i = 0; i < HL_ISOLATED_LISTS; i++) {
        long bytes = hl_read_file(hl_isolated_lists[i], text, sizeof text);
        has |= bytes == -EFBIG || (bytes > 0 && text[0] >= '0' && text[0] <= '9');
    }
    return has;
}

char *hl_explain_not_in_place(const struct hl_elf_file *file, const char *path) {
    struct hl_status status;
    struct hl_geometry geometry = hl_read_geometry();
    hl_read_status(&status, &hl_system_roots);
    int policy = hl_check_thp_policy(&hl_system_roots, &geometry, &status);
    if (policy != 0)
        return hl_explain_reason((enum hl_reason)policy, path);
    if (!is_real_root())
        return hl_xasprintf("only root, outside of containers and sandboxed services, sees which processes "
                            "map the file; run it there");
    if (has_isolated())
        return hl_xasprintf("processors are isolated (isolcpus, nohz_full, cpusets), and joining pages would "
                            "wait for these; make an image: hugeld enable --way=image FILE");
    char *sentence = hl_explain_unsteady(file->fd, true);
    char *problem = sentence == NULL ? hl_explain_exposed(file->fd, path, false, NULL) : NULL;
    if (problem != NULL)
        sentence = hl_xasprintf("%s; keep the file where only root can write", problem);
    free(problem);
    return sentence;
}

char *hl_make_huge_in_place(struct hl_collapser *collapser, struct hl_chunks *chunks,
                            const struct hl_elf_file *file, const char *path) {
    struct work work;
    enum obstacle obstacle = NONE;
    uint64_t bytes = chunks->n_chunks * chunks->chunk_bytes;
    chunks->obstacle = NULL;
    if (hl_huge_text_bytes(chunks) == bytes)
        return NULL;
    char *sentence = hl_explain_not_in_place(file, path);
    if (sentence != NULL)
        return sentence;
    if (begin_work(&work, chunks, file->fd) != 0)
        return hl_xasprintf("its pages cannot be mapped for lack of address space; raise RLIMIT_AS");
    work.joins = can_join(&work);
    if (bytes > hl_free_memory_bytes())
        obstacle = MEMORY;
    for (size_t i = 0; i < chunks->n_chunks && obstacle < FILE_SYSTEM; i++) {
        if (examine_chunk(&work, &chunks->chunk[i])) /* already huge, or read ahead with the chunk before */
            continue;
        /* Where processes map the file, and it cannot be joined, the machine's load does not matter. */
        bool is_first = work.next_count == 0, is_known = count_again(&work);
        bool waits = chunks->is_mapped ? work.joins : !collapser->is_at_boot;
        enum obstacle found = !is_known                    ? UNKNOWN
                              : waits && is_busy(is_first) ? BUSY
                                                           : make_huge(collapser, &work, &chunks->chunk[i]);
        chunks->chunk[i].is_huge |= collapser->only_looks && found == NONE;
        obstacle = obstacle == NONE || found >= FILE_SYSTEM ? found : obstacle;
    }
    end_work(&work);
    if (obstacle == NONE)
        return NULL;
    chunks->obstacle = obstacles[obstacle].word;
    struct hl_image image;
    struct hl_geometry geometry = hl_read_geometry();
    sentence = hl_xasprintf("%s", obstacles[obstacle].sentence);
    bool helps = obstacle == IN_USE || obstacle == TOO_MANY || obstacle == FILE_SYSTEM;
    if (!helps || hl_plan_image(&image, file, &geometry) != 0)
        return sentence;
    hl_free_image(&image);
    hl_append(&sentence, "; or make an image: hugeld enable --way=image");
    hl_add_word(&sentence, path);
    return sentence;
}
