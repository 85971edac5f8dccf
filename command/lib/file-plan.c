/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plans a file for the addresses that it may get.

   A position-independent object gets another address in every start, and how much of it whole huge pages
   cover depends on that address modulo the huge page.  So the planner, the same that decides at run time,
   runs once for each such offset: 512 of them for an object linked at 4 KiB, one for one linked at 2 MiB.

   Kernels that put a library on a boundary of huge pages leave one of them.  Whether a kernel does depends on its version, the file
   system and the file's size, so it is tried. */
#include "command/lib/file-plan.h"
#include "command/lib/basics.h"
#include "elf/kernel.h"
#include "elf/plan.h"
#include "elf/pool.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Without such a rule the second or third attempt gets another address. */
#define ATTEMPTS 4

uint64_t hl_count_pages(const struct hl_plan *plan) {
    uint64_t pages = 0;
    for (unsigned i = 0; i < HL_KINDS; i++)
        pages += plan->pages[i];
    return pages;
}

static void plan_at(struct hl_file_plan *file_plan, const struct hl_options *options, uint64_t load_bias) {
    file_plan->reason =
        hl_load_object(&file_plan->object, file_plan->file, file_plan->path, load_bias, &file_plan->geometry);
    if (file_plan->reason != 0) {
        memset(&file_plan->plan, 0, sizeof file_plan->plan);
        file_plan->object.n_segments = 0;
        return;
    }
    file_plan->reason = hl_plan_object(&file_plan->plan, &file_plan->object, options, &file_plan->geometry);
}

void hl_plan_file(struct hl_file_plan *file_plan, const char *path, const struct hl_elf_file *file,
                  const struct hl_options *options, uint64_t load_bias) {
    file_plan->path = path;
    file_plan->file = file;
    /* Another machine's page sizes are not known; these are the common ones. */
    file_plan->geometry = (struct hl_geometry){4096, (uint64_t)2 << 20};
    if (hl_is_native(file)) {
        file_plan->geometry = hl_read_geometry();
        hl_fit_geometry(&file_plan->geometry, options, &hl_system_roots);
    }
    plan_at(file_plan, options, load_bias);
}

void hl_measure_starts(struct hl_starts *starts, const struct hl_file_plan *file_plan,
                       const struct hl_options *options) {
    struct hl_file_plan at = *file_plan;
    uint64_t step = hl_load_alignment(file_plan->file, file_plan->geometry.page_bytes);
    uint64_t end = hl_is_position_independent(file_plan->file) ? file_plan->geometry.huge_page_bytes : 1;
    *starts = (struct hl_starts){.pages_min = UINT64_MAX, .covered_min = UINT64_MAX};
    for (uint64_t bias = 0; bias < end; bias += step) {
        plan_at(&at, options, bias);
        uint64_t pages = hl_count_pages(&at.plan), covered = at.plan.text_covered_bytes;
        starts->starts++;
        starts->full_starts += covered > 0 && covered == at.plan.text_bytes;
        starts->pages_min = pages < starts->pages_min ? pages : starts->pages_min;
        starts->pages_max = pages > starts->pages_max ? pages : starts->pages_max;
        starts->covered_sum += covered;
        starts->covered_min = covered < starts->covered_min ? covered : starts->covered_min;
        starts->covered_max = covered > starts->covered_max ? covered : starts->covered_max;
        if (at.plan.made_executable_bytes > starts->made_executable_max)
            starts->made_executable_max = at.plan.made_executable_bytes;
    }
}

bool hl_try_load_bias(uint64_t *load_bias, const struct hl_elf_file *file, const struct hl_object *object,
                      const struct hl_geometry *geometry) {
    struct {
        void *at;
        uint64_t bytes;
    } mapped[2 * ATTEMPTS];
    unsigned n = 0;
    /* The kernel puts a PIE at any multiple of its alignment, and glibc a library whose alignment is more than a page. */
    if (strcmp(hl_elf_type(file), "dso") != 0 || !hl_is_native(file) || object->n_segments == 0 ||
        hl_load_alignment(file, geometry->page_bytes) != geometry->page_bytes)
        return false;
    const struct hl_segment *first = &object->segment[0];
    uint64_t bytes = object->segment[object->n_segments - 1].end_page - first->first_page;
    bool same = true;
    /* Between two attempts the file is mapped in another length each time, so that only a rule can make their
       addresses agree. */
    while (same && n < 2 * ATTEMPTS) {
        mapped[n].bytes = n % 2 == 0 ? bytes : bytes + n * geometry->page_bytes;
        mapped[n].at = mmap(NULL, mapped[n].bytes, PROT_READ, MAP_PRIVATE, file->fd, (off_t)first->offset);
        if (mapped[n].at == MAP_FAILED)
            break;
        uint64_t bias = ((uint64_t)(uintptr_t)mapped[n].at - (first->first_page - object->load_bias)) %
                        geometry->huge_page_bytes;
        if (n == 0)
            *load_bias = bias;
        same = n % 2 != 0 || bias == *load_bias;
        n++;
    }
    bool tried = n == 2 * ATTEMPTS;
    while (n-- > 0)
        munmap(mapped[n].at, mapped[n].bytes);
    return tried && same;
}
