/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checks whether an image is as it should be: on huge pages, and equal to its original. */
#include "command/lib/common.h"
#include "command/lib/local.h"
#include "command/image/eligible.h"
#include "command/image/image.h"
#include "command/image/in-place.h"
#include "command/lib/process.h"
#include "elf/maps.h"
#include "elf/reason.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define COLLAPSE_TRIES 20

int64_t hl_read_huge_bytes(uint64_t start, uint64_t end) {
    int pagemap = (int)hl_open_pagemap();
    int64_t scanned = pagemap >= 0 ? hl_measure_huge(pagemap, start, end) : -1; /* Linux 6.7 */
    if (pagemap >= 0)
        close(pagemap);
    if (scanned >= 0)
        return scanned;
    struct hl_process process;
    int64_t bytes = 0;
    int result = hl_open_process(&process, getpid());
    if (result != 0)
        return result;
    result = hl_read_process(&process);
    for (size_t i = 0; result == 0 && i < process.n_regions; i++) {
        const struct hl_region *region = &process.region[i];
        if (region->start >= start && region->end <= end)
            bytes += (int64_t)(region->shmem_pmd_bytes + region->file_pmd_bytes + region->anon_huge_bytes);
    }
    hl_close_process(&process);
    return result != 0 ? result : bytes;
}

/* Collapses the small pages at AT into one huge page.  0, or a negated errno. */
static int collapse(char *at, uint64_t bytes) {
    for (unsigned try = 0; try < COLLAPSE_TRIES; try++) {
        if (madvise(at, bytes, MADV_COLLAPSE) == 0)
            return 0;
        if (errno != EAGAIN && errno != EBUSY)
            return errno == EINVAL ? -EOPNOTSUPP : -errno;
        nanosleep(
            &(struct timespec) { 0, 1000000L << (try < 6 ? try : 6) }, NULL);
    }
    return -ENOMEM;
}

/* Touches each huge page of FILE, which is mapped at AT, that holds anything, and makes it huge if COLLAPSES; sets *PAGES to their
   number.  0, or the first negated errno. */
static int visit_pages(int file, char *at, uint64_t bytes, uint64_t unit, bool collapses, uint64_t *pages) {
    int first = 0;
    off_t data = 0;
    *pages = 0;
    errno = 0;
    while ((uint64_t)data < bytes && (data = lseek(file, data, SEEK_DATA)) >= 0) {
        off_t page = (off_t)hl_round_down((uint64_t)data, unit);
        int result = collapses ? collapse(at + page, unit) : 0;
        first = first != 0 ? first : result;
        (void)*(volatile char *)(at + page);
        ++*pages;
        data = page + (off_t)unit;
    }
    return data < 0 && errno != ENXIO ? -errno : first; /* ENXIO: there is no more */
}

int hl_prove_huge(const struct hl_geometry *geometry, int file, bool collapses, uint64_t *pages,
                  uint64_t *small) {
    uint64_t unit = geometry->huge_page_bytes;
    struct stat stat;
    if (fstat(file, &stat) != 0)
        return -errno;
    if (unit == 0)
        return -EINVAL;
    uint64_t mapped_bytes = hl_round_up((uint64_t)stat.st_size, unit);
    *small = *pages = 0;
    char *reserved =
        mmap(NULL, mapped_bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return -errno;
    char *at = (char *)hl_round_up((uint64_t)reserved, unit);
    int64_t huge;
    int result = 0;
    if (mmap(at, mapped_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == at) {
        result = visit_pages(file, at, mapped_bytes, unit, false, pages);
        huge = result != 0 ? result : hl_read_huge_bytes((uint64_t)at, (uint64_t)at + mapped_bytes);
        if (huge >= 0 && (uint64_t)huge < *pages * unit && collapses) {
            result = visit_pages(file, at, mapped_bytes, unit, true, pages);
            huge = hl_read_huge_bytes((uint64_t)at, (uint64_t)at + mapped_bytes);
        }
    } else {
        huge = -errno;
    }
    munmap(reserved, mapped_bytes + unit);
    if (huge < 0)
        return (int)huge;
    *small = hl_subtract(*pages * unit, (uint64_t)huge) / unit;
    return *small > 0 ? result : 0;
}

/* Checks the image of ITEM, which is read in full as FILE is: it should be as EXPECTED.  NULL, or the problem. */
static char *check_image(const struct hl_store *store, const struct hl_store_item *item,
                         const struct hl_image *expected, const struct hl_elf_file *file) {
    char *path = hl_xasprintf("%s/" HL_IMAGE_LINK, item->key), *problem = NULL, digest[HL_DIGEST_TEXT];
    uint64_t pages = 0, small = 0;
    int image = openat(store->folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (image < 0)
        return hl_xasprintf("it cannot be opened: %s", strerror(errno));
    int result = hl_digest_image(digest, image);
    if (result == 0 && strcmp(digest, item->digest) != 0)
        problem = hl_xasprintf("it is damaged: its bytes have changed since it was made");
    if (result == 0 && problem == NULL)
        result = hl_compare_written(expected, file, image);
    if (result == 0 && problem == NULL)
        result = hl_prove_huge(&store->geometry, image, false, &pages, &small);
    else if (result == HL_REASON_IMAGE_MISMATCH)
        problem = hl_xasprintf("it differs from the file");
    if (problem == NULL && small > 0)
        problem = hl_xasprintf("%" PRIu64 " of its %" PRIu64 " pages are not huge any more", small, pages);
    else if (problem == NULL && result != 0)
        problem = hl_xasprintf("it cannot be read: %s",
                               result < 0 ? strerror(-result) : hl_reason_sentence((enum hl_reason)result));
    close(image);
    return problem;
}

/* Whether the file at the path of ITEM has another key by now, so that a starting program does not find the record. */
static bool has_new_key(const struct hl_store_item *item) {
    struct stat status;
    int file = hl_open_local_path(item->origin, &status);
    struct hl_file_state state;
    struct hl_line key;
    bool is_known = file >= 0 && hl_read_file_state(&state, file) == 0;
    if (is_known)
        hl_set_image_key(&key, &state);
    if (file >= 0)
        close(file);
    return is_known && strcmp(key.at, item->key) != 0;
}

/* Says how many pages of a file in place are not huge, or that the present version of the file can never be in place.  The kernel
   tells only the file's owner which pages are cached. */
static char *check_in_place(const struct hl_store_item *item) {
    if (item->not_in_place != HL_MOVED)
        return hl_xasprintf("the file that is there now cannot be in place: %s",
                            hl_reason_sentence(item->not_in_place));
    if (has_new_key(item))
        return hl_xasprintf(
            "the file or its attributes have changed since, so no start finds that it is in place");
    return item->huge_pages < item->pages
               ? hl_xasprintf("%" PRIu64 " of its %" PRIu64 " pages are not huge any more",
                              item->pages - item->huge_pages, item->pages)
               : NULL;
}

void hl_measure_store_item(const struct hl_store *store, struct hl_store_item *item) {
    struct hl_elf_file file;
    struct hl_coverage coverage;
    bool is_there = item->state == HL_ITEM_FRESH || item->state == HL_ITEM_TOUCHED;
    if (!is_there || hl_open_elf_soon(&file, item->origin) != HL_ELF_FINE)
        return;
    struct hl_chunks chunks;
    int result = item->is_in_place ? hl_examine_chunks(&chunks, &file, &store->geometry) : 0;
    if (item->is_in_place) {
        item->not_in_place = result > 0 ? (enum hl_reason)result : HL_MOVED;
        if (result == 0) {
            item->pages = chunks.n_chunks;
            item->text_bytes = chunks.text_bytes;
            item->text_huge_bytes = hl_huge_text_bytes(&chunks);
            item->huge_pages = item->text_huge_bytes / chunks.chunk_bytes;
        }
        if (result == 0 || result == -EPERM)
            hl_free_chunks(&chunks);
    } else if (hl_find_coverage(&coverage, &file, &store->geometry) == 0) {
        item->pages = item->huge_pages;
        item->text_bytes = coverage.text_bytes;
        item->text_huge_bytes =
            coverage.mapped_bytes > coverage.executed_bytes ? coverage.mapped_bytes : coverage.executed_bytes;
    }
    hl_close_elf(&file);
}

char *hl_check_store_item(const struct hl_store *store, const struct hl_store_item *item) {
    static const char *const sentences[] = {
        [HL_ITEM_CHANGED] = "the file has changed since",
        [HL_ITEM_TOUCHED] =
            "the file's attributes have changed since (a hard link, chmod), so no process uses it",
        [HL_ITEM_GONE] = "the file is gone",
        [HL_ITEM_BROKEN] = "it is incomplete, or another user could write to it",
        [HL_ITEM_UNREADABLE] = "the file, or its folder in the store, cannot be read now",
        [HL_ITEM_REMOTE] =
            ("the file's path leads to a file system that may not answer; unmount that, or remove the file "
             "from the store")};
    struct hl_elf_file file;
    struct hl_image expected;
    if (item->state != HL_ITEM_FRESH)
        return hl_xasprintf("%s", sentences[item->state]);
    if (item->is_in_place)
        return check_in_place(item);
    enum hl_elf_problem elf_problem = hl_open_elf_soon(&file, item->origin);
    if (elf_problem != HL_ELF_FINE)
        return hl_xasprintf("the file: %s", hl_elf_problem_sentence(elf_problem));
    /* In another PID namespace, the file system of the machine's / is unknown. */
    char *problem = hl_explain_unsteady(file.fd, (item->marks & HL_ADD_ANY_DISK) || !hl_is_outermost());
    if (problem == NULL && store->for_all)
        problem = hl_explain_private(file.fd, item->origin, &(int){0});
    if (problem != NULL) {
        hl_close_elf(&file);
        return problem;
    }
    int result = hl_plan_image(&expected, &file, &store->geometry);
    if (result == 0) {
        problem = check_image(store, item, &expected, &file);
        hl_free_image(&expected);
    } else {
        problem = hl_xasprintf("it cannot be made again: %s", hl_reason_sentence((enum hl_reason)result));
    }
    hl_close_elf(&file);
    return problem;
}
