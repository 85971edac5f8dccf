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
#include "command/image/loads.h"
#include "command/lib/basics.h"
#include "elf/image.h"
#include "elf/plan.h"

#include <string.h>

struct load {
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

/* Extends LOAD over the huge pages with text that it overlaps. */
static void widen(struct load *load, const struct hl_plan *plan, const struct hl_segment *segment) {
    for (unsigned i = 0; i < plan->n_spans; i++) {
        const struct hl_span *span = &plan->span[i];
        if (span->kind != HL_TEXT || hl_segment_overlap(segment, span->start, span->end) == 0)
            continue;
        load->start = span->start < load->start ? span->start : load->start;
        load->end = span->end > load->end ? span->end : load->end;
    }
}

/* Takes TEXT's range away from LOAD. */
static void cut(struct load *load, const struct load *text) {
    if (text->start <= load->start && text->end > load->start)
        load->start = text->end;
    if (text->end >= load->end && text->start < load->end)
        load->end = text->start;
    if (load->end < load->start)
        load->end = load->start;
}

/* Finds the new range of each segment of OBJECT. */
static void find_loads(struct load *load, const struct hl_object *object,
                       const struct hl_geometry *geometry) {
    struct hl_options options;
    struct hl_plan plan;
    hl_default_options(&options);
    hl_set_image_options(&options);
    hl_plan_object(&plan, object, &options, geometry);
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        load[i] =
            (struct load){segment->start, segment->end, is_read_only(segment) && (segment->flags & PF_X)};
        if (load[i].is_text)
            widen(&load[i], &plan, segment);
    }
    for (unsigned i = 0; i < object->n_segments; i++)
        for (unsigned j = 0; j < object->n_segments && load[i].is_text; j++) {
            if (j == i || !is_read_only(&object->segment[j]))
                continue;
            if (load[j].is_text && j > i && load[j].start < load[i].end && load[j].end > load[i].end)
                load[i].end =
                    load[j].end; /* one huge page has the end of one and the beginning of the other */
            cut(&load[j], &load[i]);
        }
}

Elf64_Phdr *hl_merge_loads(const struct hl_elf_file *file, const struct hl_geometry *geometry) {
    Elf64_Phdr *phdr = hl_xmalloc((file->phnum + 1) * sizeof *phdr);
    struct hl_object object;
    struct load load[HL_SEGMENTS_MAX] = {{0}};
    memcpy(phdr, file->phdr, file->phnum * sizeof *phdr);
    if (strcmp(hl_elf_type(file), "dso") == 0 || hl_find_trap(file->header.e_machine) == 0 ||
        hl_load_object(&object, file, "", 0, geometry) != 0 || has_zeros(&object))
        return phdr;
    find_loads(load, &object, geometry);
    unsigned number = object.n_segments;
    for (size_t i = file->phnum; i-- > 0;) {
        Elf64_Phdr *ph = &phdr[i];
        if (ph->p_type != PT_LOAD || (ph->p_memsz == 0 && ph->p_filesz == 0))
            continue;
        bool is_dropped = number < object.n_segments && ph->p_vaddr >= object.segment[number].start;
        number -= !is_dropped;
        const struct hl_segment *segment = &object.segment[number];
        const struct load *of = &load[number];
        if (is_dropped || of->start == of->end) {
            memset(ph, 0, sizeof *ph); /* PT_NULL */
            continue;
        }
        ph->p_paddr += of->start - ph->p_vaddr;
        ph->p_vaddr = of->start;
        ph->p_memsz = of->end - of->start;
        ph->p_filesz = is_read_only(segment) ? ph->p_memsz : segment->file_end - segment->start;
    }
    return phdr;
}
