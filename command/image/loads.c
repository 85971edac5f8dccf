/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Moves the borders between text and read-only data to the borders of huge pages.

   If an image is executed, the kernel maps its PT_LOADs, and no code of ours runs after that.  So the PT_LOADs themselves must have
   the layout of edges=merge:

       huge pages  |         |         |         |         |         |
       original          rrrrrr TTTTTTTTTTTTTTTTTTTTTTT rrrrrrrr wwwww
       executed          rrr[        text                 ]rrrrr wwwww

   PT_LOADs that share a page (patchelf) get the borders that hl_read_segments gives them.  A PT_LOAD that text replaces as a whole
   becomes PT_NULL.  It may not be empty instead: the kernel maps a static PIE at address 0
   if its first PT_LOAD is empty. */
#include "command/image/rows.h"
#include "elf/image.h"
#include "elf/plan.h"

#include <string.h>

struct row {
    uint64_t start, end; /* it is empty if they are the same */
    bool is_text;
};

uint32_t hl_find_trap(unsigned machine) {
    if (machine == EM_X86_64)
        return 0xcccccccc;                         /* int3 */
    return machine == EM_AARCH64 ? 0xd4200000 : 0; /* brk #0 */
}

static bool is_read_only(const struct hl_segment *segment) {
    return (segment->flags & (PF_R | PF_W)) == PF_R;
}

static bool has_zeros(const struct hl_object *object) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (is_read_only(&object->segment[i]) && object->segment[i].file_end != object->segment[i].end)
            return true;
    return false;
}

/* Extends ROW over the huge pages with text that it overlaps. */
static void widen(struct row *row, const struct hl_plan *plan, const struct hl_segment *segment) {
    for (unsigned i = 0; i < plan->n_spans; i++) {
        const struct hl_span *span = &plan->span[i];
        if (span->kind != HL_TEXT || hl_segment_overlap(segment, span->start, span->end) == 0)
            continue;
        row->start = span->start < row->start ? span->start : row->start;
        row->end = span->end > row->end ? span->end : row->end;
    }
}

/* Takes TEXT's range away from ROW. */
static void cut(struct row *row, const struct row *text) {
    if (text->start <= row->start && text->end > row->start)
        row->start = text->end;
    if (text->end >= row->end && text->start < row->end)
        row->end = text->start;
    if (row->end < row->start)
        row->end = row->start;
}

/* Finds the new range of each segment of OBJECT. */
static void find_rows(struct row *row, const struct hl_object *object, const struct hl_geometry *geometry) {
    struct hl_options options;
    struct hl_plan plan;
    hl_default_options(&options);
    hl_set_image_options(&options);
    hl_plan_object(&plan, object, &options, geometry);
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        row[i] = (struct row){segment->start, segment->end, is_read_only(segment) && (segment->flags & PF_X)};
        if (row[i].is_text)
            widen(&row[i], &plan, segment);
    }
    for (unsigned i = 0; i < object->n_segments; i++)
        for (unsigned j = 0; j < object->n_segments && row[i].is_text; j++) {
            if (j == i || !is_read_only(&object->segment[j]))
                continue;
            if (row[j].is_text && j > i && row[j].start < row[i].end && row[j].end > row[i].end)
                row[i].end = row[j].end; /* one huge page has the end of one and the beginning of the other */
            cut(&row[j], &row[i]);
        }
}

void hl_join_rows(Elf64_Phdr *phdr, const struct hl_elf_file *file, const struct hl_geometry *geometry) {
    struct hl_object object;
    struct row row[HL_SEGMENTS_MAX] = {{0}};
    if (strcmp(hl_elf_type(file), "dso") == 0 || hl_find_trap(file->header.e_machine) == 0 ||
        hl_load_object(&object, file, "", 0, geometry) != 0 || has_zeros(&object))
        return;
    find_rows(row, &object, geometry);
    unsigned number = object.n_segments;
    for (size_t i = file->phnum; i-- > 0;) {
        Elf64_Phdr *ph = &phdr[i];
        if (ph->p_type != PT_LOAD || (ph->p_memsz == 0 && ph->p_filesz == 0))
            continue;
        bool is_dropped = number < object.n_segments && ph->p_vaddr >= object.segment[number].start;
        number -= !is_dropped;
        const struct hl_segment *segment = &object.segment[number];
        const struct row *of = &row[number];
        if (is_dropped || of->start == of->end) {
            memset(ph, 0, sizeof *ph); /* PT_NULL */
            continue;
        }
        ph->p_paddr += of->start - ph->p_vaddr;
        ph->p_vaddr = of->start;
        ph->p_memsz = of->end - of->start;
        ph->p_filesz = is_read_only(segment) ? ph->p_memsz : segment->file_end - segment->start;
    }
}
