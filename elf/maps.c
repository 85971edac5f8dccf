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
    if ((maps->n + 1) * sizeof *maps->mapping <= bytes)
        return 0;
    if (hl_grow_area(&maps->area, bytes == 0 ? MAPPINGS_FIRST * sizeof *maps->mapping : 2 * bytes) != 0)
        return HL_SKIP_NO_MEMORY;
    maps->mapping = (struct hl_mapping *)maps->area.start;
    return 0;
}

int hl_read_maps(struct hl_maps *maps) {
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    const char *at, *end;
    int result = 0;
    maps->mapping = NULL;
    maps->n = 0;
    hl_clear_area(&maps->area);
    hl_open_lines(&lines, "/proc/self/maps", buffer, sizeof buffer);
    while (result == 0 && hl_next_line(&lines, &at, &end)) {
        result = grow_maps(maps);
        if (result == 0 && parse_line(&maps->mapping[maps->n], at, end))
            maps->n++;
        else if (result == 0)
            result = HL_SKIP_NO_PROC;
    }
    hl_close_lines(&lines);
    if (result == 0 && (lines.failed || maps->n == 0))
        result = HL_SKIP_NO_PROC;
    if (result != 0)
        hl_free_maps(maps);
    return result;
}

void hl_free_maps(struct hl_maps *maps) {
    hl_free_area(&maps->area);
    maps->mapping = NULL;
    maps->n = 0;
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

/* MAPPING as far as it lies in [start, end).  Beyond, anonymous memory may grow together with a neighbour. */
static struct hl_mapping clip_mapping(const struct hl_mapping *mapping, uint64_t start, uint64_t end) {
    struct hl_mapping clipped = *mapping;
    if (mapping->start < start) {
        clipped.start = start;
        clipped.offset += mapping->inode != 0 ? start - mapping->start : 0;
    }
    clipped.end = mapping->end < end ? mapping->end : end;
    return clipped;
}

/* Nothing is allocated: it could come to lie in what was emptied. */
void hl_return_pieces(uint64_t from, uint64_t bytes, uint64_t to) {
    struct hl_lines lines;
    char buffer[HL_LINES_BYTES];
    struct hl_mapping mapping;
    const char *at, *end;
    hl_open_lines(&lines, "/proc/self/maps", buffer, sizeof buffer);
    while (hl_next_line(&lines, &at, &end)) {
        if (!parse_line(&mapping, at, end) || mapping.end <= from || mapping.start >= from + bytes)
            continue;
        struct hl_mapping piece = clip_mapping(&mapping, from, from + bytes);
        if (piece.prot != PROT_NONE || piece.inode != 0)
            hl_return_mapping(piece.start, piece.end - piece.start, to + (piece.start - from));
        else
            hl_munmap(piece.start, piece.end - piece.start);
    }
    hl_close_lines(&lines);
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

void hl_open_smaps(struct hl_smaps *smaps) {
    hl_open_lines(&smaps->lines, "/proc/self/smaps", smaps->buffer, sizeof smaps->buffer);
}

void hl_close_smaps(struct hl_smaps *smaps) { hl_close_lines(&smaps->lines); }

/* Moves AT behind KEY, if the line begins with it. */
static bool skip_key(const char **at, const char *end, const char *key) {
    size_t bytes = hl_strlen(key);
    if ((size_t)(end - *at) < bytes || !hl_same_bytes(*at, key, bytes))
        return false;
    *at += bytes;
    return true;
}

/* Whether a line of two-letter flags has FLAG. */
static bool has_flag(const char *at, const char *end, const char *flag) {
    for (; end - at >= 2; at++)
        if (hl_same_bytes(at, flag, 2) && at[-1] == ' ')
            return true;
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
    while (hl_next_line(&smaps->lines, &at, &end)) {
        if (skip_key(&at, end, "VmFlags:")) {
            smaps->is_guarded = has_flag(at, end, "bt");
            return true;
        }
        if (skip_key(&at, end, "AnonHugePages:")) {
            smaps->thp_bytes = read_kilobytes(at, end);
        } else if (skip_key(&at, end, "FilePmdMapped:") || skip_key(&at, end, "ShmemPmdMapped:")) {
            smaps->file_huge_bytes += read_kilobytes(at, end);
        } else if (parse_line(&mapping, at, end)) {
            smaps->mapping = mapping;
        }
    }
    return false;
}

int hl_read_branch_protection(uint64_t start, uint64_t end, int *extra) {
    struct hl_smaps smaps;
    unsigned with = 0, without = 0;
    hl_open_smaps(&smaps);
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
        return HL_SKIP_NO_PROC;
    return with > 0 && without > 0 ? HL_SKIP_MAPPING_CHANGED : 0;
}

long hl_open_pagemap(void) { return hl_open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC); }

/* Lets the kernel look for pages of [start, end) that have all of ALL_OF and any of ANY_OF, where those of INVERTED
   count if they are missing; whole tables that are empty cost nothing then, where reading takes 20 us for 8 MiB.
   0: there are none, 1, or -1: it cannot. */
static int scan_pages(int pagemap, uint64_t start, uint64_t end, uint64_t inverted, uint64_t all_of,
                      uint64_t any_of) {
    struct scan_region region;
    struct scan scan;
    scan.size = sizeof scan;
    scan.flags = scan.walk_end = 0;
    scan.start = start;
    scan.end = end;
    scan.found = (uint64_t)(uintptr_t)&region;
    scan.found_length = scan.found_max = 1;
    scan.inverted = inverted;
    scan.all_of = scan.returned = all_of;
    scan.any_of = any_of;
    long n = hl_ioctl(pagemap, SCAN_REQUEST, &scan);
    if (n == 1)
        return 1;
    return n == 0 && scan.walk_end == end ? 0 : -1; /* a filter may say 0 and have done nothing */
}

int hl_check_huge(int pagemap, uint64_t start, uint64_t end) {
    int small = scan_pages(pagemap, start, end, SCAN_HUGE, SCAN_HUGE, 0);
    return small > 0 ? HL_SKIP_THP_UNAVAILABLE : small;
}

int hl_check_unmodified(int pagemap, uint64_t start, uint64_t end, uint64_t page_bytes, bool may_scan) {
    uint64_t entry[2048];
    int modified =
        may_scan ? scan_pages(pagemap, start, end, SCAN_FILE, SCAN_FILE, SCAN_PRESENT | SCAN_SWAPPED) : -1;
    if (modified >= 0)
        return modified > 0 ? HL_SKIP_TEXT_MODIFIED : 0;
    for (uint64_t at = start; at < end;) {
        size_t n = (size_t)((end - at) / page_bytes);
        if (n > sizeof entry / sizeof entry[0])
            n = sizeof entry / sizeof entry[0];
        if (hl_pread(pagemap, entry, n * sizeof entry[0], at / page_bytes * sizeof entry[0]) !=
            (long)(n * sizeof entry[0]))
            return HL_SKIP_NO_PROC;
        for (size_t i = 0; i < n; i++)
            if ((entry[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) != 0 && !(entry[i] & PAGEMAP_FILE))
                return HL_SKIP_TEXT_MODIFIED;
        at += n * page_bytes;
    }
    return 0;
}
