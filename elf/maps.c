/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/self/maps, smaps and pagemap. */
#include "maps.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>

/* Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_PRESENT ((uint64_t)1 << 63)
#define PAGEMAP_SWAPPED ((uint64_t)1 << 62) /* or migrating; bit 61 is right then too */
#define PAGEMAP_FILE ((uint64_t)1 << 61)
#define PAGEMAP_GUARD ((uint64_t)1 << 58) /* Linux 6.15 */

/* PAGEMAP_SCAN of <linux/fs.h>, Linux 6.7: older headers have none. */
struct scan {
    uint64_t size, flags, start, end, walk_end, found, found_length, found_max;
    uint64_t inverted, all_of, any_of, returned;
};
struct scan_region {
    uint64_t start, end, categories;
};
#define SCAN_REQUEST 0xc0606610 /* _IOWR('f', 16, struct scan) */
#define SCAN_FILE 4
#define SCAN_PRESENT 8
#define SCAN_SWAPPED 16
#define SCAN_HUGE 64
_Static_assert(sizeof(struct scan) == 0x60, "its size is in the request");

_Static_assert(sizeof(struct hl_mapping_query) == 0x68, "its size is in the request");

/* A longer name is read from maps. */
#define NAME_BYTES 512

#define MAPPINGS_FIRST 1024

/* Skips one character C. */
static bool skip_char(const char **at, const char *end, char c) {
    if (*at >= end || **at != c)
        return false;
    ++*at;
    return true;
}

/* FNV-1a. */
static uint64_t hash_bytes(const char *at, const char *end) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; at < end; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
    return hash;
}

/* "start-end perm offset MM:mm inode  name" */
static bool parse_line(struct hl_mapping *m, const char *at, const char *end) {
    uint64_t major, minor;
    if (!hl_scan_number(&at, end, 16, &m->start) || !skip_char(&at, end, '-') ||
        !hl_scan_number(&at, end, 16, &m->end) || !skip_char(&at, end, ' ') || end - at < 5)
        return false;
    m->prot =
        (at[0] == 'r' ? PROT_READ : 0) | (at[1] == 'w' ? PROT_WRITE : 0) | (at[2] == 'x' ? PROT_EXEC : 0);
    m->shared = at[3] == 's';
    at += 5;
    if (!hl_scan_number(&at, end, 16, &m->offset) || !skip_char(&at, end, ' ') ||
        !hl_scan_number(&at, end, 16, &major) || !skip_char(&at, end, ':') ||
        !hl_scan_number(&at, end, 16, &minor) || !skip_char(&at, end, ' ') ||
        !hl_scan_number(&at, end, 10, &m->inode))
        return false;
    m->device = major << 32 | minor;
    while (skip_char(&at, end, ' ')) /* as many as make a column of the names */
        ;
    m->name = hash_bytes(at, end);
    return true;
}

/* Makes room for one more mapping. */
static int grow_maps(struct hl_maps *maps) {
    uint64_t bytes = maps->area.end - maps->area.start;
    bool is_few = maps->mapping == maps->few;
    if (is_few ? maps->n < HL_MAPPINGS_FEW : (maps->n + 1) * sizeof *maps->mapping <= bytes)
        return 0;
    if (hl_grow_area(&maps->area, is_few ? MAPPINGS_FIRST * sizeof *maps->mapping : 2 * bytes) != 0)
        return HL_REASON_NO_MEMORY;
    maps->mapping = (struct hl_mapping *)maps->area.start;
    if (is_few)
        hl_copy_bytes(maps->mapping, maps->few, sizeof maps->few);
    return 0;
}

void hl_clear_maps(struct hl_maps *maps) {
    maps->mapping = maps->few;
    maps->n = 0;
    hl_clear_area(&maps->area);
}

static void note_answer(struct hl_mapping *m, const struct hl_mapping_query *query, const char *name) {
    m->start = query->start;
    m->end = query->end;
    m->offset = query->offset;
    m->device = (uint64_t)query->major << 32 | query->minor;
    m->inode = query->inode;
    m->prot = (query->flags & HL_QUERY_READABLE ? PROT_READ : 0) |
              (query->flags & HL_QUERY_WRITABLE ? PROT_WRITE : 0) |
              (query->flags & HL_QUERY_EXECUTABLE ? PROT_EXEC : 0);
    m->shared = (query->flags & HL_QUERY_SHARED) != 0;
    m->name =
        hash_bytes(name, name + (query->name_bytes > 0 ? query->name_bytes - 1 : 0)); /* it is terminated */
}

/* Asks the kernel for each mapping of [start, end) through the open FILE, maps.  0; a reason; or a negated errno if the kernel
   does not tell.  It cannot be that nothing is mapped at START or above (ENOENT): the stack is. */
static int query_maps(struct hl_maps *maps, int file, uint64_t start, uint64_t end) {
    struct hl_mapping_query query = {0};
    char name[NAME_BYTES];
    for (unsigned i = 0; i < sizeof name; i++)
        name[i] = '\0'; /* valgrind does not know of this call's writes */
    for (; start < end; start = query.end) {
        query.size = sizeof query;
        query.query_flags = HL_QUERY_OR_NEXT;
        query.address = start;
        query.name = (uint64_t)(uintptr_t)name;
        query.name_bytes = sizeof name;
        query.build_id = query.build_id_bytes = 0;
        long result = hl_ioctl(file, HL_MAPPING_QUERY, &query);
        if (result != 0 || query.end <= start)
            return result < 0 ? (int)result : -EINVAL;
        if (query.start >= end)
            return 0;
        if (grow_maps(maps) != 0)
            return HL_REASON_NO_MEMORY;
        note_answer(&maps->mapping[maps->n++], &query, name);
    }
    return 0;
}

/* Reads the mappings of [start, end) from the open FILE, maps, and nothing behind them. */
static int read_lines(struct hl_maps *maps, long file, uint64_t start, uint64_t end) {
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    const char *at, *line_end;
    uint64_t last = 0;
    int result = 0;
    hl_begin_lines(&lines, file, buffer, sizeof buffer);
    while (result == 0 && last < end && hl_next_line(&lines, &at, &line_end)) {
        result = grow_maps(maps);
        struct hl_mapping *mapping = &maps->mapping[maps->n];
        if (result == 0 && !parse_line(mapping, at, line_end))
            result = HL_REASON_NO_PROC;
        if (result == 0)
            last = mapping->end;
        if (result == 0 && mapping->end > start && mapping->start < end)
            maps->n++;
    }
    return result == 0 && (lines.failed || last == 0) ? HL_REASON_NO_PROC : result;
}

int hl_read_maps(struct hl_maps *maps, uint64_t start, uint64_t end, bool may_query) {
    hl_clear_maps(maps);
    long file = hl_open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    int result = -ENOTTY;
    if (hl_is_error(file))
        return HL_REASON_NO_PROC;
    if (may_query)
        result = query_maps(maps, (int)file, start, end);
    if (result < 0) {
        maps->n = 0;
        result = read_lines(maps, file, start, end);
    }
    hl_close((int)file);
    if (result != 0)
        hl_free_maps(maps);
    return result;
}

void hl_free_maps(struct hl_maps *maps) {
    hl_free_area(&maps->area);
    hl_clear_maps(maps);
}

size_t hl_find_mapping(const struct hl_maps *maps, uint64_t address) {
    size_t low = 0, high = maps->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (maps->mapping[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The part of MAPPING that lies in [start, end).  Beyond, anonymous memory may merge with a neighbour. */
static struct hl_mapping clip_mapping(const struct hl_mapping *mapping, uint64_t start, uint64_t end) {
    struct hl_mapping clipped = *mapping;
    if (mapping->start < start) {
        clipped.start = start;
        clipped.offset += mapping->inode != 0 ? start - mapping->start : 0;
    }
    clipped.end = mapping->end < end ? mapping->end : end;
    return clipped;
}

static bool same_mapping(const struct hl_mapping *a, const struct hl_mapping *b) {
    return a->start == b->start && a->end == b->end && a->offset == b->offset && a->device == b->device &&
           a->inode == b->inode && a->prot == b->prot && a->shared == b->shared;
}

bool hl_same_maps(const struct hl_maps *a, const struct hl_maps *b, uint64_t start, uint64_t end) {
    size_t i = hl_find_mapping(a, start), j = hl_find_mapping(b, start);
    for (; i < a->n && j < b->n && a->mapping[i].start < end && b->mapping[j].start < end; i++, j++) {
        struct hl_mapping in_a = clip_mapping(&a->mapping[i], start, end);
        struct hl_mapping in_b = clip_mapping(&b->mapping[j], start, end);
        if (!same_mapping(&in_a, &in_b))
            return false;
    }
    return (i == a->n || a->mapping[i].start >= end) && (j == b->n || b->mapping[j].start >= end);
}

bool hl_same_files(const struct hl_maps *a, const struct hl_maps *b, uint64_t start, uint64_t end) {
    while (start < end) {
        size_t i = hl_find_mapping(a, start), j = hl_find_mapping(b, start);
        if (i == a->n || j == b->n || a->mapping[i].start > start || b->mapping[j].start > start)
            return false;
        uint64_t next = a->mapping[i].end < b->mapping[j].end ? a->mapping[i].end : b->mapping[j].end;
        struct hl_mapping in_a = clip_mapping(&a->mapping[i], start, next);
        struct hl_mapping in_b = clip_mapping(&b->mapping[j], start, next);
        in_b.prot = in_a.prot;
        if (!same_mapping(&in_a, &in_b))
            return false;
        start = next;
    }
    return true;
}

void hl_open_smaps(struct hl_smaps *smaps) {
    hl_open_lines(&smaps->lines, "/proc/self/smaps", smaps->buffer, sizeof smaps->buffer);
}

void hl_close_smaps(struct hl_smaps *smaps) { hl_close_lines(&smaps->lines); }

/* Whether a line of two-letter flags has FLAG. */
static bool has_flag(const char *at, const char *end, const char *flag) {
    for (; end - at >= 2; at++)
        if (hl_same_bytes(at, flag, 2) && at[-1] == ' ')
            return true;
    return false;
}

/* The usual flags are left out: bt and ac follow the protection that it has and had, nr comes from MAP_NORESERVE; sd and dw
   (Linux 3.9, before 5.15) are the kernel's own.  Huge pages it has anyway (hg).  PR_SET_MEMORY_MERGE, which a process inherits,
   sets mg everywhere; a file's text is never merged.  A sealed mapping (sl) refuses to move by itself. */
bool hl_has_special_flags(const char *at, const char *end) {
    static const char usual[] = " rd wr ex mr mw me ac bt dw hg mg nr sd sl";
    for (; end - at >= 2; at++) {
        if (*at == ' ')
            continue;
        bool is_usual = false;
        for (const char *flag = usual; !is_usual && flag[0] != '\0'; flag += 3)
            is_usual = hl_same_bytes(at, flag + 1, 2);
        if (!is_usual)
            return true;
        at++;
    }
    return false;
}

/* The number of kB at AT, in bytes; 0 if there is none. */
static uint64_t read_kilobytes(const char *at, const char *end) {
    uint64_t number = 0;
    while (skip_char(&at, end, ' '))
        ;
    return hl_scan_number(&at, end, 10, &number) ? number * 1024 : 0;
}

/* A mapping begins with its line of maps and ends with its VmFlags (proc(5), since Linux 3.8). */
bool hl_next_smaps(struct hl_smaps *smaps) {
    struct hl_mapping mapping;
    const char *at, *end;
    smaps->thp_bytes = smaps->file_huge_bytes = 0;
    smaps->is_special = false;
    while (hl_next_line(&smaps->lines, &at, &end)) {
        if (hl_skip_key(&at, end, "VmFlags:")) {
            smaps->is_guarded = has_flag(at, end, "bt");
            smaps->is_special = smaps->is_special || hl_has_special_flags(at, end);
            return true;
        }
        if (hl_skip_key(&at, end, "ProtectionKey:")) {
            while (skip_char(&at, end, ' '))
                ;
            smaps->is_special = !skip_char(&at, end, '0');
            continue;
        }
        if (hl_skip_key(&at, end, "AnonHugePages:")) {
            smaps->thp_bytes = read_kilobytes(at, end);
        } else if (hl_skip_key(&at, end, "FilePmdMapped:") || hl_skip_key(&at, end, "ShmemPmdMapped:")) {
            smaps->file_huge_bytes += read_kilobytes(at, end);
        } else if (parse_line(&mapping, at, end)) {
            smaps->mapping = mapping;
        }
    }
    return false;
}

int hl_read_branch_protection(uint64_t start, uint64_t end, int *extra) {
    return hl_read_branch_protection_in(hl_open("/proc/self/smaps", O_RDONLY | O_CLOEXEC), start, end, extra);
}

int hl_read_branch_protection_in(long file, uint64_t start, uint64_t end, int *extra) {
    struct hl_smaps smaps;
    unsigned with = 0, without = 0;
    hl_begin_lines(&smaps.lines, file, smaps.buffer, sizeof smaps.buffer);
    while (hl_next_smaps(&smaps) && smaps.mapping.start < end) {
        if (smaps.mapping.end <= start || !(smaps.mapping.prot & PROT_EXEC))
            continue;
        if (smaps.is_guarded)
            with++;
        else
            without++;
    }
    hl_close_smaps(&smaps);
    *extra = 0;
    if (with > 0)
        *extra = HL_PROT_BTI;
    if (with + without == 0)
        return HL_REASON_NO_PROC;
    return with > 0 && without > 0 ? HL_REASON_MAPPING_CHANGED : 0;
}

int hl_check_flags(uint64_t start, uint64_t end) {
    struct hl_smaps smaps;
    bool is_special = false, is_any = false;
    hl_open_smaps(&smaps);
    while (!is_special && hl_next_smaps(&smaps) && smaps.mapping.start < end) {
        if (smaps.mapping.end <= start)
            continue;
        is_any = true;
        is_special = smaps.is_special;
    }
    hl_close_smaps(&smaps);
    return is_special ? HL_REASON_MAPPED_SPECIALLY : is_any ? 0 : HL_REASON_NO_PROC;
}

long hl_open_pagemap(void) { return hl_open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC); }

/* Regions of neighbouring pages that one call of PAGEMAP_SCAN returns at most. */
#define SCAN_REGIONS 64

/* Lets the kernel count the bytes of the pages of [start, end) that have all of ALL_OF and any of ANY_OF, where flags in INVERTED
   count if they are missing; empty page tables cost nothing then, while reading takes 20 us for 8 MiB.  With MOST it stops at the
   first call that finds any, after so many pages.  -1: it cannot. */
static int64_t scan_pages(int pagemap, uint64_t start, uint64_t end, uint64_t inverted, uint64_t all_of,
                          uint64_t any_of, uint64_t most) {
    struct scan_region region[SCAN_REGIONS];
    struct scan scan;
    int64_t bytes = 0;
    for (unsigned i = 0; i < SCAN_REGIONS; i++) /* valgrind does not know of this call's writes */
        region[i].start = region[i].end = 0;
    scan.size = sizeof scan;
    scan.flags = 0;
    scan.found = (uint64_t)(uintptr_t)region;
    scan.found_length = SCAN_REGIONS;
    scan.found_max = most;
    scan.inverted = inverted;
    scan.all_of = scan.returned = all_of;
    scan.any_of = any_of;
    for (scan.end = end; pagemap >= 0 && start < end; start = scan.walk_end) {
        scan.start = start;
        scan.walk_end = 0;
        long n = hl_ioctl(pagemap, SCAN_REQUEST, &scan);
        if (n < 0 || n > SCAN_REGIONS || scan.walk_end <= start)
            return -1; /* a filter may say 0 and have done nothing */
        for (long i = 0; i < n; i++)
            bytes += (int64_t)(region[i].end - region[i].start);
        if (most > 0 && bytes > 0)
            return bytes;
    }
    return pagemap >= 0 ? bytes : -1;
}

int hl_check_huge(int pagemap, uint64_t start, uint64_t end) {
    int64_t small = scan_pages(pagemap, start, end, SCAN_HUGE, SCAN_HUGE, 0, 1);
    return small > 0 ? HL_REASON_THP_UNAVAILABLE : (int)small;
}

int64_t hl_measure_huge(int pagemap, uint64_t start, uint64_t end) {
    return scan_pages(pagemap, start, end, 0, SCAN_HUGE, 0, 0);
}

bool hl_scan_unmodified(int pagemap, uint64_t start, uint64_t end) {
    return scan_pages(pagemap, start, end, SCAN_FILE, SCAN_FILE, SCAN_PRESENT | SCAN_SWAPPED, 1) == 0;
}

/* Reads the entries of [start, end) in pagemap, and counts the bytes of those pages that are in any of STATES and are not a
   file's.  -1: they cannot be read. */
static int64_t read_entries(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, uint64_t states) {
    uint64_t entry[2048];
    int64_t bytes = 0;
    for (uint64_t at = start; at < end;) {
        size_t n = (size_t)((end - at) / page_bytes);
        if (n > sizeof entry / sizeof entry[0])
            n = sizeof entry / sizeof entry[0];
        if (hl_pread(pagemap, entry, n * sizeof entry[0], at / page_bytes * sizeof entry[0]) !=
            (long)(n * sizeof entry[0]))
            return -1;
        for (size_t i = 0; i < n; i++)
            if ((entry[i] & states) != 0 && !(entry[i] & PAGEMAP_FILE))
                bytes += (int64_t)page_bytes;
        at += n * page_bytes;
    }
    return bytes;
}

int hl_check_unmodified(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, bool may_scan) {
    int64_t modified = -1;
    if (may_scan)
        modified = scan_pages(pagemap, start, end, SCAN_FILE, SCAN_FILE, SCAN_PRESENT | SCAN_SWAPPED, 1);
    if (modified < 0)
        modified = read_entries(pagemap, start, end, page_bytes, PAGEMAP_PRESENT | PAGEMAP_SWAPPED);
    if (modified < 0)
        return HL_REASON_NO_PROC;
    return modified > 0 ? HL_REASON_TEXT_MODIFIED : 0;
}

bool hl_has_guard_page(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes) {
    return read_entries(pagemap, start, end, page_bytes, PAGEMAP_GUARD) > 0;
}

int64_t hl_measure_written(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, bool may_scan) {
    int64_t written = -1;
    if (may_scan)
        written = scan_pages(pagemap, start, end, SCAN_FILE, SCAN_FILE, SCAN_PRESENT, 0);
    return written >= 0 ? written : read_entries(pagemap, start, end, page_bytes, PAGEMAP_PRESENT);
}
