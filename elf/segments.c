/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Read: program headers become checked segments.

   All headers pass here before the later steps, so this is where hostile numbers end: sums that overflow,
   segments out of order or in each other's pages, a file size above the memory size.  The later steps then add
   and round addresses without looking back. */
#include "segments.h"
#include "line.h"
#include "mapping.h"
#include "sys.h"

/* A user address plus a huge page must not overflow; no machine's user addresses come near. */
#define ADDRESS_LIMIT ((uint64_t)1 << 62)

static long read_at(int file, void *to, size_t bytes, uint64_t at) {
    return file == HL_OWN_MEMORY ? hl_read_memory(to, at, bytes) : hl_pread(file, to, bytes, at);
}

int hl_read_headers(struct hl_headers *headers, int file, uint64_t at) {
    const Elf64_Ehdr *elf = &headers->file;
    long got = read_at(file, headers, sizeof *headers, at);
    if (got < (long)sizeof *elf)
        return HL_REASON_NO_PROC;
    if (!hl_same_bytes((const char *)elf->e_ident, ELFMAG, SELFMAG) ||
        elf->e_phentsize != sizeof *headers->header || elf->e_phnum > HL_HEADERS_MAX)
        return HL_REASON_MALFORMED;
    long bytes = (long)(elf->e_phnum * sizeof *headers->header);
    if (elf->e_phoff == sizeof *elf && got >= (long)sizeof *elf + bytes)
        return 0;
    return read_at(file, headers->header, (size_t)bytes, at + elf->e_phoff) == bytes ? 0 : HL_REASON_NO_PROC;
}

/* Whether SEGMENT begins in the page in which the one BEFORE it ends, and both have the same page of the file there. */
static bool shares_page(const struct hl_segment *before, const struct hl_segment *segment,
                        uint64_t page_bytes) {
    return before->end <= segment->start && before->end_page - page_bytes == segment->first_page &&
           before->file_end == before->end && segment->file_end > segment->start &&
           before->offset + (segment->first_page - before->first_page) == segment->offset;
}

/* Gives the page that SEGMENT shares with those before it in OBJECT, as in files from patchelf, to SEGMENT.  The kernel and ld.so map
 * whole pages, one segment after the other: in the end that page has SEGMENT's permissions, and the bytes of all.  A segment
 * that has no other page is dropped. */
static void take_shared_page(struct hl_object *object, struct hl_segment *segment, uint64_t page_bytes) {
    uint64_t start = segment->start;
    while (object->n_segments > 0) {
        struct hl_segment *before = &object->segment[object->n_segments - 1];
        if (!shares_page(before, segment, page_bytes))
            break;
        start = segment->first_page;
        before->end = before->file_end = before->end_page = start;
        if (before->start < start)
            break;
        object->n_segments--;
    }
    segment->start = start;
}

static int read_load(struct hl_object *object, const Elf64_Phdr *ph, const struct hl_geometry *geometry) {
    if (object->n_segments == HL_SEGMENTS_MAX)
        return HL_REASON_MANY_SEGMENTS;
    if (ph->p_filesz > ph->p_memsz || ph->p_memsz > ADDRESS_LIMIT || (ph->p_align & (ph->p_align - 1)) != 0)
        return HL_REASON_MALFORMED;
    /* The bias of an object that was linked above its load address is "negative": the sum wraps, and that is
     * right. */
    uint64_t start = object->load_bias + ph->p_vaddr;
    if (start > ADDRESS_LIMIT || start + ph->p_memsz > ADDRESS_LIMIT)
        return HL_REASON_MALFORMED;

    struct hl_segment segment;
    segment.start = start;
    segment.end = start + ph->p_memsz;
    segment.file_end = start + ph->p_filesz;
    segment.first_page = hl_round_down(segment.start, geometry->page_bytes);
    segment.end_page = hl_round_up(segment.end, geometry->page_bytes);
    segment.offset = hl_round_down(ph->p_offset, geometry->page_bytes);
    segment.flags = ph->p_flags & (PF_R | PF_W | PF_X);
    take_shared_page(object, &segment, geometry->page_bytes);
    if (object->n_segments > 0 && segment.first_page < object->segment[object->n_segments - 1].end_page)
        return HL_REASON_MALFORMED;
    if (ph->p_align < object->alignment)
        object->alignment = ph->p_align;
    object->segment[object->n_segments++] = segment;
    return 0;
}

static int read_relro(struct hl_object *object, const Elf64_Phdr *ph, const struct hl_geometry *geometry) {
    uint64_t start = object->load_bias + ph->p_vaddr;
    if (start > ADDRESS_LIMIT || ph->p_memsz > ADDRESS_LIMIT)
        return HL_REASON_MALFORMED;
    start = hl_round_down(start, geometry->page_bytes);
    uint64_t end = hl_round_up(object->load_bias + ph->p_vaddr + ph->p_memsz, geometry->page_bytes);
    if (object->relro_end == 0) {
        object->relro_start = start;
        object->relro_end = end;
    } else { /* a second one is unusual, but legal: take everything between them for RELRO */
        object->relro_start = start < object->relro_start ? start : object->relro_start;
        object->relro_end = end > object->relro_end ? end : object->relro_end;
    }
    return 0;
}

int hl_read_segments(struct hl_object *object, const Elf64_Phdr *phdr, size_t phnum, uint64_t load_bias,
                     const struct hl_geometry *geometry) {
    object->load_bias = load_bias;
    object->n_segments = 0;
    object->alignment = UINT64_MAX;
    object->dynamic = 0;
    object->relro_start = object->relro_end = 0;
    object->is_argument = object->text_relocations = object->is_new = object->has_holes = object->is_image =
        false;
    object->no_image = HL_MOVED;
    object->file = -1;
    for (size_t i = 0; i < phnum; i++) {
        int result = 0;
        if (phdr[i].p_type == PT_LOAD && (phdr[i].p_memsz > 0 || phdr[i].p_filesz > 0))
            result = read_load(object, &phdr[i], geometry);
        else if (phdr[i].p_type == PT_GNU_RELRO && phdr[i].p_memsz > 0)
            result = read_relro(object, &phdr[i], geometry);
        else if (phdr[i].p_type == PT_DYNAMIC)
            object->dynamic = load_bias + phdr[i].p_vaddr;
        if (result != 0)
            return result;
    }
    return object->n_segments > 0 ? 0 : HL_REASON_MALFORMED;
}

bool hl_read_dynamic(const Elf64_Dyn *dyn, size_t n, uint64_t *strtab, uint64_t *soname_offset) {
    uint64_t strtab_bytes = 0;
    bool has_relocations = false;
    *strtab = *soname_offset = 0;
    for (size_t i = 0; i < n && dyn[i].d_tag != DT_NULL; i++) {
        switch (dyn[i].d_tag) {
        case DT_TEXTREL:
            has_relocations = true;
            break;
        case DT_FLAGS:
            has_relocations = has_relocations || (dyn[i].d_un.d_val & DF_TEXTREL) != 0;
            break;
        case DT_STRTAB:
            *strtab = dyn[i].d_un.d_ptr;
            break;
        case DT_STRSZ:
            strtab_bytes = dyn[i].d_un.d_val;
            break;
        case DT_SONAME:
            *soname_offset = dyn[i].d_un.d_val;
            break;
        }
    }
    if (*soname_offset >= strtab_bytes)
        *soname_offset = 0;
    return has_relocations;
}
