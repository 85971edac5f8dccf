/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file's plan, and its changes with the load address. */
#ifndef HL_FILE_PLAN_H
#define HL_FILE_PLAN_H

#include "command/lib/elf-file.h"
#include "elf/options.h"

/* One file, and its plan at one load address. */
struct hl_file_plan {
    const char *path;
    const struct hl_elf_file *file;
    struct hl_geometry geometry;
    struct hl_object object; /* n_segments is 0 if its headers were refused */
    struct hl_plan plan;
    int reason; /* why the whole object stays, or 0 */
};

/* Over all load addresses. */
struct hl_starts {
    uint64_t starts, full_starts; /* how many addresses there are; how many of them with all text covered */
    uint64_t pages_min, pages_max, covered_min, covered_max, made_executable_max;
    uint64_t covered_sum; /* divided by STARTS it is the average */
};

/* Plans FILE at LOAD_BIAS, with its machine's page sizes.  FILE_PLAN keeps PATH and FILE. */
void hl_plan_file(struct hl_file_plan *file_plan, const char *path, const struct hl_elf_file *file,
                  const struct hl_options *options, uint64_t load_bias);

/* After hl_plan_file: plans for every load address that differs modulo the huge page; an executable that is linked to one address
   has only that. */
void hl_measure_starts(struct hl_starts *starts, const struct hl_file_plan *file_plan,
                       const struct hl_options *options);

/* Whether this kernel puts FILE, which is OBJECT, at one address modulo the huge page regardless of other mappings, as Linux 5.18
   and later do with libraries on ext4, xfs and btrfs.  Finds it by trying: FILE is mapped several times, as by a dynamic linker,
   and unmapped.  True: LOAD_BIAS is the load bias modulo the huge page.  False for all but libraries of this machine. */
bool hl_try_load_bias(uint64_t *load_bias, const struct hl_elf_file *file, const struct hl_object *object,
                      const struct hl_geometry *geometry);

/* Huge pages of all kinds. */
uint64_t hl_count_pages(const struct hl_plan *plan);

#endif
