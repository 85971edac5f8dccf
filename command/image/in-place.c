/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Puts a file's text on huge pages of its own page cache, for every process that maps it.

   Address and offset must agree modulo a huge page, and only whole huge pages inside an executable segment count:

       file         r r T T T T T T T T r w
       huge pages  |     |chunk|chunk|     |

   There are two ways.  Collapse: MADV_COLLAPSE of a mapping of our own joins the cached pages, even while processes run them (ext4
   and xfs since Linux 7.2).  Read anew: the cached pages are dropped and read again with MADV_HUGEPAGE, which takes large folios at
   once (xfs; ext4 since 6.16); this is for files that no process maps.  The ways of a file system are found by trying, the latter
   with one chunk, and never guessed from a version.

   Every user who may read a file may do either to it, with effect for all users, so these limits protect the others:

   - A collapse stalls all processes that map the chunk, in proportion to their number.  Each has a budget, and a rest
     before the next one.
   - After pages are dropped, their users wait for the disk.  Mapped pages stay anyway, but then nothing is gained.
   - Only root outside of containers sees every process.  And root does it only to files that root alone can write: no user
     makes root drop the pages of a database's file.

   mincore(2) tells which pages are cached: the truth to the owner of the file, and "all" to other users.  preadv2(RWF_NOWAIT) tells
   all users, but begins to read missing pages, as small ones in the middle of a future huge page (seen on 6.18). */
#include "command/image/in-place.h"
#include "command/base/common.h"
#include "command/base/subprocess.h"
#include "command/image/eligible.h"
#include "command/proc/process.h"
#include "elf/kernel.h"
#include "elf/maps.h"
#include "elf/memory-limit.h"
#include "command/file/file-plan.h"
#include "command/file/remedy.h"
#include "elf/reason.h"
#include "command/image/store.h"
#include "elf/thp.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <linux/magic.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Each further process that maps the file makes a collapse stall all of them this much longer (6.18, 4 KiB folios). */
#define MICROSECONDS_PER_MAPPER 170
#define PAUSE_BUDGET_MICROSECONDS 2000
/* If processes map the file, the rest after each collapse is REST times the collapse's own time, and at most REST_MAX_MS. */
#define REST 20
#define REST_MAX_MS 1000
/* These processes are counted again after COUNTED_MS, or at once after a collapse that took longer than SLOW_MS. */
#define COUNTED_MS 1000
/* Counting them takes no longer than that. */
#define COUNT_MS_MAX 2000.0
#define SLOW_MS 10
#define TRIES_TO_COLLAPSE 3
#define TRIES_TO_READ 2
#define TRIES_TO_COUNT 5
/* Percent of the last ten seconds in which something waited. */
#define PRESSURE_MAX 5.0
/* For this long the disks are watched for waiting processes. */
#define WATCH_MS 300
/* The inode number of the first user namespace (include/uapi/linux/nsfs.h). */
#define FIRST_USER_NAMESPACE 0xeffffffdu

enum { UNTRIED, CAN, CANNOT };

/* Findings about a mounted file system. */
struct hl_superblock {
    dev_t device;
    int reads_anew; /* UNTRIED, CAN, CANNOT */
};

/* In an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define PRESENT (UINT64_C(1) << 63)
#define FRAME_NUMBER ((UINT64_C(1) << 55) - 1)

/* One file being looked at or made huge. */
struct work {
    struct hl_place *place;
    int file;
    char *room, *window; /* a huge page of addresses, inside the larger room */
    int pagemap;
    int joined_prot; /* the protection with which a mapping of the file can be collapsed, or PROT_NONE */
    uint64_t page_bytes;
    size_t pages;      /* number of page_bytes (4 KiB, say) in a chunk */
    double rested;     /* hl_now_ms: no collapse before that */
    double next_count; /* the processes that map the file are known until then */
};

void hl_free_placer(struct hl_placer *placer) {
    free(placer->superblock);
    memset(placer, 0, sizeof *placer);
}

void hl_free_place(struct hl_place *place) {
    free(place->chunk);
    memset(place, 0, sizeof *place);
}

uint64_t hl_huge_text_bytes(const struct hl_place *place) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < place->n_chunks; i++)
        bytes += place->chunk[i].is_huge ? place->chunk_bytes : 0;
    return bytes;
}

bool hl_is_place_enough(uint64_t place_bytes, uint64_t text_bytes) {
    return place_bytes > 0 && place_bytes >= text_bytes / 4 * 3;
}

/* --- chunks --- */

static void add_chunks(struct hl_place *place, const struct hl_segment *segment, uint64_t bias,
                       uint64_t page) {
    uint64_t huge = place->chunk_bytes, first = segment->first_page + bias,
             end = hl_round_up(segment->file_end + bias, page);
    if ((first - segment->offset) % huge != 0)
        return;
    for (uint64_t at = hl_round_up(first, huge); at + huge <= end; at += huge) {
        place->chunk = hl_xrealloc(place->chunk, (place->n_chunks + 1) * sizeof *place->chunk);
        place->chunk[place->n_chunks++] = (struct hl_chunk){.offset = segment->offset + (at - first)};
    }
}

static bool is_executable(const struct hl_segment *segment) {
    return (segment->flags & (PF_X | PF_W)) == PF_X && segment->file_end > segment->start;
}

/* Whether a chunk of the size of a huge page would fit into OBJECT's text. */
static bool has_large_text(const struct hl_object *object, uint64_t huge) {
    bool found = false;
    for (unsigned i = 0; i < object->n_segments; i++)
        found |= is_executable(&object->segment[i]) &&
                 object->segment[i].file_end - object->segment[i].first_page >= huge;
    return found;
}

static int find_chunks(struct hl_place *place, const struct hl_elf_file *file,
                       const struct hl_geometry *geometry) {
    struct hl_object object;
    uint64_t bias = 0;
    *place = (struct hl_place){.chunk_bytes = geometry->huge_page_bytes};
    int result = hl_load_object(&object, file, "", 0, geometry);
    if (result != 0)
        return result;
    for (unsigned i = 0; i < object.n_segments; i++)
        if (is_executable(&object.segment[i]))
            place->text_bytes += object.segment[i].file_end - object.segment[i].start;
    if (!has_large_text(&object, geometry->huge_page_bytes))
        return HL_REASON_TOO_SMALL;
    if (hl_gets_any_address(file, geometry) && !hl_try_load_bias(&bias, file, &object, geometry))
        return HL_REASON_FILE_PLACE;
    for (unsigned i = 0; i < object.n_segments; i++)
        if (is_executable(&object.segment[i]))
            add_chunks(place, &object.segment[i], bias, geometry->page_bytes);
    return place->n_chunks > 0 ? 0 : HL_REASON_FILE_PLACE;
}

/* --- looking --- */

static int begin_work(struct work *work, struct hl_place *place, int file) {
    uint64_t huge = place->chunk_bytes;
    *work = (struct work){.place = place, .file = file, .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    work->pages = huge / work->page_bytes;
    work->room = mmap(NULL, 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (work->room == MAP_FAILED)
        return -errno;
    work->window = (char *)hl_round_up((uint64_t)work->room, huge);
    work->pagemap = (int)hl_open_pagemap();
    return 0;
}

static void end_work(struct work *work) {
    munmap(work->room, 2 * work->place->chunk_bytes);
    if (work->pagemap >= 0)
        close(work->pagemap);
}

/* Maps CHUNK into the window, in the place of anything older.  With PROT from the start: a service may be forbidden to change
   it. */
static bool map_with(const struct work *work, const struct hl_chunk *chunk, int prot) {
    return mmap(work->window, work->place->chunk_bytes, prot, MAP_PRIVATE | MAP_FIXED, work->file,
                (off_t)chunk->offset) == work->window;
}

/* Takes this process's own mapping of the file away. */
static bool drop_window(const struct work *work) {
    return mmap(work->window, work->place->chunk_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == work->window;
}

static bool map_chunk(const struct work *work, const struct hl_chunk *chunk) {
    return map_with(work, chunk, PROT_READ);
}

/* Lists which pages of the mapped chunk are cached: the lowest bit of one byte for each; the caller frees the bytes. */
static unsigned char *list_cached(const struct work *work) {
    unsigned char *state = hl_xmalloc(work->pages);
    if (mincore(work->window, work->place->chunk_bytes, state) != 0)
        memset(state, 0, work->pages);
    return state;
}

static size_t count_cached(const struct work *work) {
    unsigned char *state = list_cached(work);
    size_t n = 0;
    for (size_t i = 0; i < work->pages; i++)
        n += state[i] & 1;
    free(state);
    return n;
}

/* Whether one entry maps all of the window. */
static bool is_mapped_huge(const struct work *work) {
    uint64_t start = (uint64_t)work->window, end = start + work->place->chunk_bytes;
    int result = work->pagemap >= 0 ? hl_check_huge(work->pagemap, start, end) : -1;
    return result >= 0 ? result == 0 : hl_read_huge_bytes(start, end) == (int64_t)work->place->chunk_bytes;
}

/* Finds whether CHUNK is huge, by touching one page of it. */
static bool look_at(const struct work *work, struct hl_chunk *chunk) {
    chunk->is_huge = map_chunk(work, chunk) && count_cached(work) == work->pages &&
                     madvise(work->window, work->page_bytes, MADV_POPULATE_READ) == 0 && is_mapped_huge(work);
    return chunk->is_huge;
}

/* Whether the kernel has a huge page to give.  The next mapping in the window gives it back. */
static bool has_huge_page(const struct work *work) {
    uint64_t bytes = work->place->chunk_bytes;
    if (mmap(work->window, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            work->window ||
        madvise(work->window, bytes, MADV_HUGEPAGE) != 0)
        return false;
    *(volatile char *)work->window = 1;
    return is_mapped_huge(work);
}

static bool is_first_user_namespace(void) {
    struct stat space;
    return stat("/proc/self/ns/user", &space) == 0 && space.st_ino == FIRST_USER_NAMESPACE;
}

/* Whether this is root outside of containers, with a /proc of all processes; without CAP_SYS_PTRACE some may be hidden (hidepid of
   proc(5)). */
static bool is_real_root(void) {
    return geteuid() == 0 && hl_has_capability(CAP_SYS_PTRACE) && is_first_user_namespace() &&
           hl_is_outermost();
}

/* Whether mincore tells this process the truth about the file of STAT. */
static bool is_told(const struct stat *stat) { return stat->st_uid == geteuid() || is_real_root(); }

int hl_look_in_place(struct hl_place *place, const struct hl_elf_file *file,
                     const struct hl_geometry *geometry) {
    struct work work;
    int result = find_chunks(place, file, geometry);
    if (result != 0) {
        hl_free_place(place);
        return result;
    }
    if (!is_told(&file->stat))
        return -EPERM;
    result = begin_work(&work, place, file->fd);
    if (result != 0) {
        hl_free_place(place);
        return result;
    }
    for (size_t i = 0; i < place->n_chunks; i++)
        look_at(&work, &place->chunk[i]);
    end_work(&work);
    return 0;
}

bool hl_has_huge_text(const struct hl_elf_file *file, const struct hl_geometry *geometry) {
    struct hl_place place;
    struct work work;
    bool has = false;
    if (find_chunks(&place, file, geometry) == 0 && begin_work(&work, &place, file->fd) == 0) {
        for (size_t i = 0; i < place.n_chunks && !has; i++)
            has = map_chunk(&work, &place.chunk[i]) &&
                  madvise(work.window, work.page_bytes, MADV_POPULATE_READ) == 0 && is_mapped_huge(&work);
        end_work(&work);
    }
    hl_free_place(&place);
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

/* Reads the line of maps for the window's file, whose device and inode differ from stat's on some file systems; the name is part of
   *TEXT, which the caller frees. */
static bool find_own_line(const struct work *work, struct hl_region *own, char **text) {
    FILE *maps = fopen("/proc/self/maps", "re");
    size_t size = 0;
    bool found = false;
    while (maps != NULL && !found && hl_next_region(own, maps, text, &size))
        found = own->start == (uint64_t)work->window && own->inode != 0;
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* Notes which chunks are mapped by the process with these MAPS. */
static void count_process(struct hl_place *place, FILE *maps, const struct hl_region *own) {
    bool *seen = hl_xmalloc(place->n_chunks * sizeof *seen);
    char *text = NULL;
    size_t size = 0;
    struct hl_region line;
    while (hl_next_region(&line, maps, &text, &size)) {
        if (!may_be_same(&line, own))
            continue;
        for (size_t i = 0; i < place->n_chunks; i++)
            seen[i] |= hl_overlap(line.offset, line.offset + (line.end - line.start), place->chunk[i].offset,
                                  place->chunk[i].offset + place->chunk_bytes) > 0;
    }
    for (size_t i = 0; i < place->n_chunks; i++)
        place->chunk[i].mappers += seen[i];
    free(text);
    free(seen);
}

/* Makes this process map the cached pages of CHUNK, and no others, and reads their entries in pagemap. */
static bool read_entries(const struct work *work, const struct hl_chunk *chunk, uint64_t *entry) {
    if (work->pagemap < 0 || !map_chunk(work, chunk))
        return false;
    unsigned char *state = list_cached(work);
    for (size_t i = 0, end; i < work->pages; i = end + 1) {
        for (end = i; end < work->pages && (state[end] & 1); end++)
            ;
        if (end > i)
            madvise(work->window + i * work->page_bytes, (end - i) * work->page_bytes, MADV_POPULATE_READ);
    }
    free(state);
    size_t bytes = work->pages * sizeof *entry;
    return pread(work->pagemap, entry, bytes,
                 (off_t)((uint64_t)work->window / work->page_bytes * sizeof *entry)) == (ssize_t)bytes;
}

/* The frame of PAGE's page, which is cached; 0: it is not. */
static uint64_t find_frame(const uint64_t *entry, size_t page) {
    return entry[page] & PRESENT ? entry[page] & FRAME_NUMBER : 0;
}

/* The first page of CHUNK that another process maps, by the frames in ENTRY; as many as there are pages: there is none.  Negative: the
   kernel does not tell. */
static ssize_t find_mapped_page(const struct work *work, int counts, const uint64_t *entry) {
    uint64_t mapped;
    for (size_t i = 0; i < work->pages; i++) {
        uint64_t frame = find_frame(entry, i);
        if (!(entry[i] & PRESENT))
            continue;
        if (frame == 0 ||
            pread(counts, &mapped, sizeof mapped, (off_t)(frame * sizeof mapped)) != sizeof mapped)
            return -1;
        if (mapped > 0)
            return (ssize_t)i;
    }
    return (ssize_t)work->pages;
}

/* Whether another process maps a cached page of CHUNK: 1 or 0.  /proc/kpagecount tells how many do, whoever they are: in another
   namespace, through another file system, guarded by a security module.  It counts our own mapping, which is dropped first; and if the
   kernel has moved the page meanwhile, its frame may be another process's, so that is tried again.  Negative: the kernel does not
   tell. */
static int is_mapped_by_others(const struct work *work, const struct hl_chunk *chunk) {
    uint64_t *entry = hl_xmalloc(2 * work->pages * sizeof *entry), *again = entry + work->pages;
    int counts = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC), result = counts >= 0 ? 1 : -1;
    for (unsigned try = 0; try < TRIES_TO_COUNT && result == 1; try++) {
        bool is_read = read_entries(work, chunk, entry) && drop_window(work);
        ssize_t page = is_read ? find_mapped_page(work, counts, entry) : -1;
        if (page < 0 || page == (ssize_t)work->pages)
            result = page < 0 ? -1 : 0;
        else if (read_entries(work, chunk, again) &&
                 find_frame(again, (size_t)page) == find_frame(entry, (size_t)page))
            break;
    }
    if (counts >= 0)
        close(counts);
    free(entry);
    return result;
}

/* A count in a child's memory that this process shares: a process can keep its own memory map locked, and whoever reads that waits. */
struct count {
    struct work *work;
    const struct hl_region *own;
    unsigned mappers[];
};

/* Counts the processes that map each chunk, from their maps.  False: they cannot be known, or not in time: any user can have processes
   with any number of mappings. */
static bool count_in_maps(void *count_) {
    struct count *count = count_;
    struct hl_place *place = count->work->place;
    bool is_whole = true, found = false;
    DIR *proc = NULL;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        if (pid == getpid() || pid == getppid())
            continue;
        char *path = hl_xasprintf("/proc/%d/maps", pid);
        FILE *maps = fopen(path, "re");
        is_whole &= maps != NULL || errno == ENOENT || errno == ESRCH;
        free(path);
        if (maps != NULL) {
            count_process(place, maps, count->own);
            fclose(maps);
        }
    }
    for (size_t i = 0; i < place->n_chunks; i++) {
        count->mappers[i] = place->chunk[i].mappers;
        found |= place->chunk[i].mappers > 0;
    }
    return is_whole && found; /* some process maps it */
}

/* Finds whether others map the file, and how many map each chunk where that can be joined nevertheless.  False: it cannot be known. */
static bool count_mappers(struct work *work) {
    struct hl_place *place = work->place;
    struct hl_region own;
    char *own_line = NULL;
    int mapped = 0;
    for (size_t i = 0; i < place->n_chunks; i++)
        place->chunk[i].mappers = 0;
    for (size_t i = 0; i < place->n_chunks && mapped == 0; i++)
        mapped = is_mapped_by_others(work, &place->chunk[i]);
    place->is_mapped = mapped != 0;
    if (mapped <= 0 || work->joined_prot == PROT_NONE)
        return mapped >= 0;
    size_t bytes = sizeof(struct count) + place->n_chunks * sizeof(unsigned);
    struct count *count = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool is_known =
        count != MAP_FAILED && map_chunk(work, &place->chunk[0]) && find_own_line(work, &own, &own_line);
    if (is_known) {
        count->work = work;
        count->own = &own;
        is_known = hl_call_in_child(count_in_maps, count, COUNT_MS_MAX);
        for (size_t i = 0; i < place->n_chunks; i++)
            place->chunk[i].mappers = count->mappers[i];
    }
    if (count != MAP_FAILED)
        munmap(count, bytes);
    free(own_line);
    return is_known;
}

/* Counts them unless that was done just now.  NULL, or why it is impossible. */
static char *explain_mappers(struct work *work) {
    if (hl_now_ms() < work->next_count)
        return NULL;
    double used = hl_processor_ms();
    bool is_known = count_mappers(work);
    work->next_count = hl_now_ms() + fmax(COUNTED_MS, REST * (hl_processor_ms() - used));
    return is_known ? NULL
                    : hl_xasprintf(
                          "it cannot be known which processes map the file, or to look takes too long; run "
                          "hugeld as root with all capabilities");
}

/* --- pressure --- */

struct pressure {
    double percent;        /* of the last ten seconds in which something waited */
    uint64_t microseconds; /* in which something waited since the machine was started */
};

/* False: the kernel does not tell. */
static bool read_pressure(struct pressure *pressure, const char *what) {
    char *path = hl_xasprintf("/proc/pressure/%s", what);
    FILE *file = fopen(path, "re");
    bool known = file != NULL && fscanf(file, "some avg10=%lf avg60=%*f avg300=%*f total=%" SCNu64,
                                        &pressure->percent, &pressure->microseconds) == 2;
    if (file != NULL)
        fclose(file);
    free(path);
    return known;
}

/* Whether any process waits for the disks now.  The average of ten seconds still includes our own reading of the previous file. */
static bool is_waited_for(const struct pressure *before) {
    const struct timespec pause = {0, WATCH_MS * 1000000L};
    struct pressure now;
    double began = hl_now_ms();
    nanosleep(&pause, NULL);
    double most = (hl_now_ms() - began) * 1000 * PRESSURE_MAX / 100;
    return !read_pressure(&now, "io") || (double)(now.microseconds - before->microseconds) > most;
}

/* The shortage of the machine; NULL: none, or it is not known.  Our own reading is I/O, too, so the pressure on disks counts only
   WITH_IO. */
static char *explain_pressure(struct hl_placer *placer, bool with_io) {
    static const char *const resources[] = {"memory", "io"};
    for (unsigned i = 0; i < 1u + with_io; i++) {
        struct pressure pressure = {0};
        placer->is_pressure_unknown |= !read_pressure(&pressure, resources[i]);
        if (pressure.percent > PRESSURE_MAX && (i == 0 || is_waited_for(&pressure)))
            return hl_xasprintf(
                "programs have waited for %s in %.0f %% of the last ten seconds; try again later",
                i == 0 ? "memory" : "disks", pressure.percent);
    }
    return NULL;
}

bool hl_leaves_margin(uint64_t bytes) {
    char meminfo[8192];
    uint64_t total, pool = 0, available;
    if (hl_read_file("/proc/meminfo", meminfo, sizeof meminfo) <= 0 ||
        !hl_find_number(meminfo, "MemTotal:", &total) ||
        !hl_find_number(meminfo, "MemAvailable:", &available))
        return false;
    hl_find_number(meminfo, "Hugetlb:", &pool);
    return available >= hl_subtract(total, pool) / 100 * HL_AVAILABLE_MIN + bytes / 1024;
}

/* --- the two ways --- */

static struct hl_superblock *find_superblock(struct hl_placer *placer, dev_t device) {
    for (size_t i = 0; i < placer->n_superblocks; i++)
        if (placer->superblock[i].device == device)
            return &placer->superblock[i];
    placer->superblock =
        hl_xrealloc(placer->superblock, (placer->n_superblocks + 1) * sizeof *placer->superblock);
    struct hl_superblock *superblock = &placer->superblock[placer->n_superblocks++];
    *superblock = (struct hl_superblock){.device = device};
    return superblock;
}

/* The protection with which the kernel joins pages of the file.  It is tried with less than a huge page, in which nothing can be
   joined, but the kernel checks the mapping first.  Older kernels want it to be executable.  Such mappings are refused on noexec,
   and IMA logs them. */
static int find_joined_prot(const struct work *work) {
    static const int prots[] = {PROT_READ, PROT_READ | PROT_EXEC};
    for (unsigned i = 0; i < 2; i++)
        if (map_with(work, &work->place->chunk[0], prots[i]) &&
            madvise(work->window, work->page_bytes, MADV_COLLAPSE) == 0)
            return prots[i];
    return PROT_NONE;
}

/* Waits until the processes that were stalled by the last collapse have had their rest. */
static void rest(const struct work *work) {
    double left = work->rested - hl_now_ms();
    if (left > 0)
        nanosleep(&(struct timespec){(time_t)(left / 1e3), (long)(fmod(left, 1e3) * 1e6)}, NULL);
}

/* Joins the pages of CHUNK, if it can. */
static void collapse(struct hl_placer *placer, struct work *work, const struct hl_chunk *chunk) {
    int result = -EAGAIN;
    if (!map_with(work, chunk, work->joined_prot))
        return;
    for (unsigned try = 0; try < TRIES_TO_COLLAPSE && (result == -EAGAIN || result == -EBUSY); try++) {
        rest(work);
        double began = hl_now_ms();
        result = madvise(work->window, work->place->chunk_bytes, MADV_COLLAPSE) == 0 ? 0 : -errno;
        double now = hl_now_ms();
        if (now - began > SLOW_MS)
            work->next_count = 0; /* more processes map it than were counted */
        if (chunk->mappers > 0)
            placer->pause_us = (now - began) * 1e3 / chunk->mappers;
        work->rested = chunk->mappers > 0 ? now + fmin(REST_MAX_MS, REST * (now - began)) : now;
    }
}

/* Reads CHUNK into the page cache, in folios as large as the kernel makes them. */
static void read_chunk(const struct work *work, const struct hl_chunk *chunk) {
    char buffer[1 << 16];
    madvise(work->window, work->place->chunk_bytes, MADV_HUGEPAGE);
    if (madvise(work->window, work->place->chunk_bytes, MADV_POPULATE_READ) == 0)
        return;
    for (uint64_t at = 0; at < work->place->chunk_bytes; at += sizeof buffer)
        if (pread(work->file, buffer, sizeof buffer, (off_t)(chunk->offset + at)) <= 0)
            return;
}

/* Why a chunk did not become huge. */
enum obstacle { NONE, IN_USE, TOO_MANY, NO_PAGE, FILE_SYSTEM };

static const struct {
    const char *word; /* of what only the moment forbids */
    const char *sentence;
} obstacles[] = {
    [IN_USE] = {"in-use", "processes map the file, and this kernel makes its text huge only while none does; "
                          "reboot, or ask for an image: way=image"},
    [TOO_MANY] = {"in-use", "so many processes map the file that they would all wait for more than 2 ms; "
                            "wait until there are fewer, or ask for an image: way=image"},
    [NO_PAGE] = {"no-huge-page", "the kernel had no huge page for it; free or compact memory: echo 1 > "
                                 "/proc/sys/vm/compact_memory"},
    [FILE_SYSTEM] = {NULL,
                     "its file system keeps files on small pages; make an image: hugeld enable --way=image"},
};

/* Whether the file system of the open FILE has large folios, by its kind and the kernel's version: what a file system can do is found
   by trying, but that cannot be tried while processes map the file. */
static bool may_read_huge(int file) {
    static const struct {
        unsigned type, version, patch_level;
    } known[] = {{EXT4_SUPER_MAGIC, 6, 16}, {XFS_SUPER_MAGIC, 6, 1}};
    struct utsname name;
    struct statfs fs;
    unsigned version = 0, patch_level = 0;
    if (fstatfs(file, &fs) != 0 || uname(&name) != 0 ||
        sscanf(name.release, "%u.%u", &version, &patch_level) != 2)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if ((unsigned)fs.f_type == known[i].type)
            return version > known[i].version ||
                   (version == known[i].version && patch_level >= known[i].patch_level);
    return false;
}

/* NONE if the kernel can join the pages of CHUNK and not too many processes would wait for it. */
static enum obstacle check_joined(const struct hl_placer *placer, const struct work *work,
                                  const struct hl_chunk *chunk) {
    double each = placer->pause_us > 0 ? placer->pause_us : MICROSECONDS_PER_MAPPER;
    if (work->joined_prot == PROT_NONE)
        return IN_USE;
    return chunk->mappers * each > PAUSE_BUDGET_MICROSECONDS ? TOO_MANY : NONE;
}

static enum obstacle try_collapse(struct hl_placer *placer, struct work *work, struct hl_chunk *chunk) {
    enum obstacle obstacle = check_joined(placer, work, chunk);
    if (obstacle != NONE)
        return obstacle;
    collapse(placer, work, chunk);
    return look_at(work, chunk) ? NONE : NO_PAGE;
}

/* Drops the cached pages of CHUNK.  False: some stayed, because a process uses them. */
static bool drop(const struct work *work, const struct hl_chunk *chunk) {
    fdatasync(work->file);
    posix_fadvise(work->file, (off_t)chunk->offset, (off_t)work->place->chunk_bytes, POSIX_FADV_DONTNEED);
    return count_cached(work) == 0;
}

/* Drops the cached pages of CHUNK and reads it again.  It is cached afterwards, huge or not, if it can be read. */
static enum obstacle read_anew(const struct work *work, struct hl_chunk *chunk) {
    enum obstacle obstacle = NO_PAGE;
    for (unsigned try = 0; try < TRIES_TO_READ && obstacle != NONE && map_chunk(work, chunk); try++) {
        bool is_dropped = drop(work, chunk);
        read_chunk(work, chunk);
        obstacle = look_at(work, chunk) ? NONE : is_dropped ? NO_PAGE : IN_USE;
    }
    return obstacle;
}

/* The first chunk of a SUPERBLOCK for which there was a huge page decides whether the file system has large folios at all. */
static enum obstacle try_reading(const struct work *work, struct hl_superblock *superblock,
                                 struct hl_chunk *chunk) {
    if (superblock->reads_anew == CANNOT)
        return FILE_SYSTEM;
    enum obstacle obstacle = read_anew(work, chunk);
    if (obstacle == NO_PAGE && superblock->reads_anew == UNTRIED && has_huge_page(work)) {
        obstacle = read_anew(work, chunk);
        if (obstacle == NO_PAGE) {
            superblock->reads_anew = CANNOT;
            return FILE_SYSTEM;
        }
    }
    if (obstacle == NONE)
        superblock->reads_anew = CAN;
    return obstacle;
}

static enum obstacle make_huge(struct hl_placer *placer, struct work *work, struct hl_superblock *superblock,
                               struct hl_chunk *chunk) {
    enum obstacle obstacle =
        placer->only_looks ? check_joined(placer, work, chunk) : try_collapse(placer, work, chunk);
    bool can_read =
        superblock->reads_anew == UNTRIED ? may_read_huge(work->file) : superblock->reads_anew == CAN;
    if (obstacle == NONE || placer->only_joins)
        return obstacle;
    if (work->place->is_mapped || placer->only_looks)
        return !can_read && work->joined_prot == PROT_NONE ? FILE_SYSTEM
               : work->place->is_mapped                    ? obstacle
                                                           : NONE;
    return try_reading(work, superblock, chunk);
}

/* Says that processors are isolated; NULL: none are.  To join pages, the kernel waits for all processors, and would wait endlessly for
   one that never enters the kernel. */
static const char *explain_isolated(void) {
    for (size_t i = 0; i < HL_ISOLATED_LISTS; i++) {
        char text[4096];
        long bytes = hl_read_file(hl_isolated_lists[i], text, sizeof text);
        if (bytes == -EFBIG || (bytes > 0 && text[0] >= '0' && text[0] <= '9'))
            return "processors are isolated (isolcpus, nohz_full, cpusets), and joining pages would wait for "
                   "these";
    }
    return NULL;
}

char *hl_explain_not_in_place(const struct hl_elf_file *file, const char *path) {
    struct hl_status status;
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    hl_read_status(&status, &hl_system_roots);
    int policy = hl_check_thp_policy(&hl_system_roots, &geometry, &status);
    if (policy != 0)
        return hl_explain_reason((enum hl_reason)policy, path);
    if (!is_real_root())
        return hl_xasprintf("only root outside of containers and of services that are shut in sees which "
                            "processes map the file; run it there");
    const char *isolated = explain_isolated();
    if (isolated != NULL)
        return hl_xasprintf("%s; make an image: hugeld enable --way=image", isolated);
    char *sentence = hl_explain_unsteady(file->fd, true);
    char *problem = sentence == NULL ? hl_explain_exposed(file->fd, path, false, NULL) : NULL;
    if (problem != NULL)
        sentence = hl_xasprintf("%s; keep the file where only root can write", problem);
    free(problem);
    return sentence;
}

/* Whether the machine has no memory for BYTES more, in the margin or in this process's limit. */
static char *explain_memory(uint64_t bytes) {
    struct hl_status status;
    struct hl_placement placement;
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    bool has_room = bytes <= hl_read_memory_headroom(&hl_system_roots, &placement);
    return has_room
               ? NULL
               : hl_xasprintf("the machine or a memory limit has no room for it; free memory, or raise the "
                              "limit");
}

char *hl_make_huge_in_place(struct hl_placer *placer, struct hl_place *place, const struct hl_elf_file *file,
                            const char *path) {
    struct work work;
    enum obstacle obstacle = NONE;
    uint64_t bytes = place->n_chunks * place->chunk_bytes;
    place->obstacle = NULL;
    if (hl_huge_text_bytes(place) == bytes)
        return NULL;
    char *sentence = hl_explain_not_in_place(file, path);
    if (sentence != NULL)
        return sentence;
    if (begin_work(&work, place, file->fd) != 0)
        return hl_xasprintf("there is no room for a mapping; raise RLIMIT_AS");
    work.joined_prot = find_joined_prot(&work);
    if (placer->only_joins && work.joined_prot == PROT_NONE) {
        end_work(&work);
        return hl_xasprintf("%s", obstacles[IN_USE].sentence);
    }
    struct hl_superblock *superblock = find_superblock(placer, file->stat.st_dev);
    if ((sentence = explain_memory(bytes)) != NULL)
        place->obstacle = "memory";
    for (size_t i = 0; i < place->n_chunks && sentence == NULL; i++) {
        if (look_at(&work, &place->chunk[i])) /* already huge, or read ahead with the chunk before */
            continue;
        if ((sentence = explain_mappers(&work)) != NULL)
            place->obstacle = "unknown";
        /* Where processes map the file, and it cannot be joined, the machine's load does not matter. */
        bool waits = place->is_mapped ? work.joined_prot != PROT_NONE : !placer->is_at_boot;
        if (sentence == NULL && waits && (sentence = explain_pressure(placer, i == 0)) != NULL)
            place->obstacle = "pressure";
        enum obstacle found =
            sentence == NULL ? make_huge(placer, &work, superblock, &place->chunk[i]) : NONE;
        place->chunk[i].is_huge |= sentence == NULL && placer->only_looks && found == NONE;
        obstacle = obstacle == NONE || found == FILE_SYSTEM ? found : obstacle;
    }
    /* Pages that were read while a process began to map them stay as that process found them. */
    if (obstacle == NO_PAGE && !place->is_mapped && count_mappers(&work) && place->is_mapped)
        obstacle = IN_USE;
    end_work(&work);
    if (sentence != NULL || obstacle == NONE)
        return sentence;
    place->obstacle = obstacles[obstacle].word;
    return hl_xasprintf("%s", obstacles[obstacle].sentence);
}
