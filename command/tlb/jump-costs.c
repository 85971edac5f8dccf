/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey --calibrate: the cost of jumps from page to page on this machine, by the amount of text that they go over.

   The chains are those of pointer-chase.c, one line for each 4 KiB, on small pages and on transparent huge pages, or on pages of
   the pool if there are no transparent ones.  Both are measured in turns, and the fastest of several rounds counts.

   The file in the cache is written anew and renamed, so a reader sees all of it or nothing.  Its contents are used only for
   arithmetic; but another user must not be able to choose even these, so file and folder must belong to this user and no other may
   write to them. */
#include "command/tlb/jump-costs.h"
#include "command/tlb/pointer-chase.h"
#include "command/base/common.h"
#include "elf/line.h"
#include "elf/mapping.h"
#include "elf/memory-limit.h"
#include "elf/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define VERSION 1
#define FILE_BYTES_MAX 65536
#define MIB ((uint64_t)1 << 20)
#define PAGES_OF_MIB 256
#define ROUNDS 5
/* The least number of jumps that are timed at once. */
#define LINES_AT_ONCE 65536
/* A size is left out if it would take more than this part (1/4) of the free memory. */
#define PART_OF_MEMORY 4

/* --- measuring --- */

/* Maps BYTES on huge pages; FIELD is to be released after false, too. */
static bool map_huge(struct hl_field *field, uint64_t bytes, const struct hl_geometry *geometry) {
    if (hl_reserve_field(field, bytes, 0, geometry)) {
        madvise(field->base, bytes, MADV_HUGEPAGE);
        if (hl_fill_field(field, geometry->huge_page_bytes) == bytes && hl_is_field_huge(field))
            return true;
        hl_release_field(field);
    }
    return hl_reserve_field(field, bytes, hl_hugetlb_flags(geometry), geometry) &&
           hl_fill_field(field, geometry->huge_page_bytes) == bytes;
}

/* Finds the fastest of ROUNDS for both fields, in turns.  False: a policy forbids executable memory. */
static bool time_point(struct hl_cost_point *point, const struct hl_field *field, unsigned mib) {
    struct hl_chain chain[2];
    uint64_t random = 0x9e3779b97f4a7c15;
    double best[2] = {0, 0};
    unsigned lines = mib * PAGES_OF_MIB, passes = (LINES_AT_ONCE + lines - 1) / lines;
    for (unsigned i = 0; i < 2; i++) {
        chain[i] = (struct hl_chain){.base = field[i].base, .lines = lines};
        if (!hl_make_chain(&chain[i], &random) || !hl_seal_field(&field[i]))
            return false;
    }
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < 2; i++) {
            hl_time_jumps(&chain[i], 1);
            double ns = hl_time_jumps(&chain[i], passes);
            best[i] = best[i] == 0 || ns < best[i] ? ns : best[i];
        }
    *point = (struct hl_cost_point){mib, best[0], best[1]};
    return true;
}

/* NULL, or why there is no point of MIB. */
static const char *measure_point(struct hl_cost_point *point, unsigned mib,
                                 const struct hl_geometry *geometry) {
    struct hl_field field[2] = {{0}, {0}};
    const char *reason = "no huge pages could be had; fix: enable transparent huge pages, or fill the pool";
    if (hl_reserve_small_field(&field[0], mib * MIB, geometry->page_bytes, geometry) &&
        map_huge(&field[1], mib * MIB, geometry))
        reason = time_point(point, field, mib) ? NULL : "a policy forbids executable memory here";
    hl_release_field(&field[0]);
    hl_release_field(&field[1]);
    return reason;
}

const char *hl_measure_jump_costs(struct hl_jump_costs *costs) {
    struct hl_geometry geometry;
    struct hl_placement placement;
    struct hl_status status;
    const char *reason = NULL;
    *costs = (struct hl_jump_costs){.calibrated = true};
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    if (geometry.page_bytes != 4096 || geometry.huge_page_bytes > 2 * MIB)
        return "only pages of 4 KiB and 2 MiB are measured";
    for (unsigned mib = 2; costs->n < HL_COST_POINTS && reason == NULL; mib *= 2) {
        if (hl_read_memory_headroom(&hl_system_roots, &placement) / PART_OF_MEMORY < 2 * MIB * mib)
            break;
        reason = measure_point(&costs->point[costs->n], mib, &geometry);
        costs->n += reason == NULL;
    }
    if (costs->n > 0)
        return NULL; /* the sizes that could be measured */
    return reason != NULL ? reason : "there is little memory left; free some";
}

void hl_derive_jump_costs(struct hl_jump_costs *costs, const struct hl_tlb *tlb) {
    const struct hl_tlb_figures *figures = tlb->figures[HL_TLB_TEXT];
    *costs = (struct hl_jump_costs){0};
    for (unsigned size = 0; size < HL_TLB_SIZES; size++)
        for (unsigned memory = HL_TLB_HUGETLB; memory < HL_TLB_MEMORIES; memory++) {
            double small = figures[HL_TLB_SMALL].size[size].ns, huge = figures[memory].size[size].ns;
            if (small == 0 || huge == 0)
                continue;
            costs->point[costs->n++] =
                (struct hl_cost_point){hl_tlb_lines[size] / (double)PAGES_OF_MIB, small, huge};
            break;
        }
}

/* --- the cache --- */

char *hl_jump_costs_path(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && cache[0] == '/')
        return hl_xasprintf("%s/hugeld/tlb.json", cache);
    if (geteuid() == 0)
        return hl_xasprintf("/var/cache/hugeld/tlb.json"); /* sudo may keep another user's HOME */
    return home != NULL && home[0] == '/' ? hl_xasprintf("%s/.cache/hugeld/tlb.json", home) : NULL;
}

json_t *hl_json_jump_costs(const struct hl_jump_costs *costs) {
    json_t *points = json_array();
    for (size_t i = 0; i < costs->n; i++)
        json_array_append_new(points,
                              json_pack("{s:f, s:f, s:f}", "mib", costs->point[i].mib, "small_ns",
                                        costs->point[i].small_ns, "huge_ns", costs->point[i].huge_ns));
    return points;
}

/* False: VALUE holds no costs of this processor. */
static bool read_costs(struct hl_jump_costs *costs, const json_t *value) {
    const json_t *points = json_object_get(value, "points"), *point;
    const char *processor = json_string_value(json_object_get(value, "processor"));
    char *own = hl_read_cpuinfo("model name");
    bool is_own = processor != NULL && own != NULL && strcmp(processor, own) == 0 &&
                  json_integer_value(json_object_get(value, "version")) == VERSION;
    size_t i;
    free(own);
    *costs = (struct hl_jump_costs){.calibrated = true};
    if (!is_own || json_array_size(points) > HL_COST_POINTS)
        return false;
    json_array_foreach((json_t *)points, i, point) costs->point[costs->n++] =
        (struct hl_cost_point){json_number_value(json_object_get(point, "mib")),
                               json_number_value(json_object_get(point, "small_ns")),
                               json_number_value(json_object_get(point, "huge_ns"))};
    return hl_are_jump_costs_sane(costs);
}

static bool is_own_alone(const struct stat *status) {
    return status->st_uid == geteuid() && (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The folder of PATH, and its last component through NAME; or a negated errno. */
static int open_folder(const char *path, const char **name) {
    struct stat status;
    const char *slash = strrchr(path, '/');
    char *folder = hl_xasprintf("%.*s", (int)(slash - path), path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = errno;
    free(folder);
    *name = slash + 1;
    if (fd < 0)
        return -error;
    if (fstat(fd, &status) == 0 && is_own_alone(&status))
        return fd;
    close(fd);
    return -EPERM;
}

/* Reads the JSON value in the file at PATH, which the caller frees: 0, or as hl_load_jump_costs. */
static int load_value(json_t **value, const char *path) {
    const char *name;
    struct stat status;
    int folder = open_folder(path, &name), result = -EINVAL;
    *value = NULL;
    if (folder < 0)
        return folder;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), error = errno;
    close(folder);
    if (file < 0)
        return -error;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || !is_own_alone(&status)) {
        result = -EPERM;
    } else if (status.st_size <= FILE_BYTES_MAX) {
        char *text = hl_xmalloc(FILE_BYTES_MAX);
        ssize_t bytes = pread(file, text, FILE_BYTES_MAX, 0);
        *value = bytes > 0 ? json_loadb(text, (size_t)bytes, 0, NULL) : NULL;
        result = *value != NULL ? 0 : -EINVAL;
        free(text);
    }
    close(file);
    return result;
}

int hl_load_jump_costs(struct hl_jump_costs *costs, const char *path) {
    json_t *value;
    int result = load_value(&value, path);
    if (result == 0 && !read_costs(costs, value))
        result = -EINVAL;
    json_decref(value);
    if (result != 0)
        *costs = (struct hl_jump_costs){0};
    return result;
}

/* The ID of this boot of the machine: a virtual machine may have been started on another host since. */
static char *read_boot(void) {
    char text[64];
    long bytes = hl_read_file("/proc/sys/kernel/random/boot_id", text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    return hl_xasprintf("%.*s", (int)strcspn(text, "\n"), text);
}

enum hl_tlb_verdict hl_load_tlb_verdict(void) {
    enum hl_tlb_verdict verdict = HL_TLB_UNKNOWN;
    struct hl_jump_costs costs;
    json_t *value = NULL;
    char *path = hl_jump_costs_path(), *boot = read_boot();
    if (path != NULL && load_value(&value, path) == 0 && read_costs(&costs, value)) {
        const char *then = json_string_value(json_object_get(value, "boot"));
        const char *name = json_string_value(json_object_get(value, "tlb"));
        for (unsigned i = HL_TLB_WHOLE; i <= HL_TLB_SOME && name != NULL; i++)
            if (strcmp(name, hl_tlb_verdict_name((enum hl_tlb_verdict)i)) == 0)
                verdict = (enum hl_tlb_verdict)i;
        if (then == NULL || boot[0] == '\0' || strcmp(then, boot) != 0)
            verdict = HL_TLB_UNKNOWN;
    }
    json_decref(value);
    free(boot);
    free(path);
    return verdict;
}

/* Makes the folder of PATH, and the one above it. */
static void make_folders(const char *path) {
    char *folder = hl_xasprintf("%.*s", (int)(strrchr(path, '/') - path), path);
    char *above = hl_xasprintf("%.*s", (int)(strrchr(folder, '/') - folder), folder);
    mkdir(above, 0700);
    mkdir(folder, geteuid() == 0 ? 0755 : 0700);
    free(above);
    free(folder);
}

int hl_save_jump_costs(const struct hl_jump_costs *costs, enum hl_tlb_verdict verdict, const char *path) {
    const char *name;
    make_folders(path);
    int folder = open_folder(path, &name), result = 0;
    if (folder < 0)
        return folder;
    char *processor = hl_read_cpuinfo("model name"), *fresh = hl_xasprintf(".%s-%d", name, getpid());
    char *boot = read_boot();
    json_t *value =
        json_pack("{s:i, s:o, s:o, s:o, s:s}", "version", VERSION, "processor",
                  hl_json_text(processor != NULL ? processor : ""), "points", hl_json_jump_costs(costs),
                  "boot", hl_json_text(boot), "tlb", hl_tlb_verdict_name(verdict));
    free(boot);
    unlinkat(folder, fresh, 0); /* left by a killed process with the same ID */
    int file = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0 || json_dumpfd(value, file, JSON_INDENT(1)) != 0 || fsync(file) != 0 ||
        renameat(folder, fresh, folder, name) != 0)
        result = errno != 0 ? -errno : -EIO;
    if (file >= 0)
        close(file);
    if (result != 0)
        unlinkat(folder, fresh, 0);
    json_decref(value);
    free(processor);
    free(fresh);
    close(folder);
    return result;
}
