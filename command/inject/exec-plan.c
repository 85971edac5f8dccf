/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plans the work at the exec stop: before the program is executed, from its file, so that little is left to do while it waits. */
#include "command/inject/exec-stop.h"
#include "command/lib/basics.h"
#include "elf/image.h"
#include "command/image/find.h"
#include "elf/plan.h"
#include "command/inject/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- instructions --- */

#if defined __x86_64__

static bool find_codes(struct hl_exec_plan *plan, const char *text, size_t bytes, uint64_t address,
                       enum hl_exec_owner owner) {
    const char *call, *back;
    const struct hl_code *code;
    if (!hl_find_codes(text, bytes, &call, &back, &code))
        return false;
    plan->back = (struct hl_exec_code){address + (uint64_t)(back - text), owner, code};
    plan->call = (struct hl_exec_code){address + (uint64_t)(call - text), owner, &hl_call_code};
    return true;
}

#elif defined __aarch64__

/* Finds it in the vdso, which is the same in every process and the only place that has it. */
static bool find_back(struct hl_exec_plan *plan) {
    const char *vdso = (const char *)getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)vdso;
    const struct hl_code *code;
    for (unsigned i = 0; vdso != NULL && i < header->e_phnum; i++) {
        const Elf64_Phdr *ph = (const Elf64_Phdr *)(vdso + header->e_phoff) + i;
        if (ph->p_type != PT_LOAD || !(ph->p_flags & PF_X))
            continue;
        const char *found = hl_find_code(vdso + ph->p_offset, ph->p_filesz, hl_back_codes, 1, &code);
        if (found == NULL)
            continue;
        plan->back = (struct hl_exec_code){(uint64_t)(found - vdso), HL_EXEC_VDSO, &hl_back_codes[0]};
        return true;
    }
    return false;
}

static bool find_codes(struct hl_exec_plan *plan, const char *text, size_t bytes, uint64_t address,
                       enum hl_exec_owner owner) {
    const struct hl_code *code;
    const char *call = address % 4 == 0 ? hl_find_code(text, bytes, &hl_call_code, 1, &code) : NULL;
    if (call == NULL || !find_back(plan))
        return false;
    plan->call = (struct hl_exec_code){address + (uint64_t)(call - text), owner, &hl_call_code};
    return true;
}

#endif

/* Searches [offset, offset + bytes) of FILE.  It stays mapped, like all memory of this process, until the program is executed:
   to unmap it would interrupt the helper on its processor. */
static bool find_codes_in_file(struct hl_exec_plan *plan, int file, uint64_t offset, uint64_t bytes,
                               uint64_t address, enum hl_exec_owner owner) {
    uint64_t skew = offset % plan->geometry.page_bytes;
    const char *text = mmap(NULL, bytes + skew, PROT_READ, MAP_PRIVATE, file, (off_t)(offset - skew));
    return text != MAP_FAILED && find_codes(plan, text + skew, bytes, address, owner);
}

/* Searches the executable's text in its image, which is on huge pages. */
static bool find_codes_in_image(struct hl_exec_plan *plan) {
    uint64_t base = hl_find_image_base(&plan->object, &plan->geometry);
    for (unsigned i = 0; i < plan->object.n_segments; i++) {
        const struct hl_segment *segment = &plan->object.segment[i];
        if ((segment->flags & PF_X) && !(segment->flags & PF_W) &&
            find_codes_in_file(plan, plan->image, segment->start - base, segment->file_end - segment->start,
                               segment->start, HL_EXEC_PROGRAM))
            return true;
    }
    return false;
}

bool hl_find_codes_in_linker(struct hl_exec_plan *plan, const char *path) {
    struct hl_elf_file linker;
    bool found = false;
    if (hl_open_elf(&linker, AT_FDCWD, path) != HL_ELF_FINE)
        return false;
    for (size_t i = 0; i < linker.phnum && !found && hl_is_position_independent(&linker); i++) {
        const Elf64_Phdr *ph = &linker.phdr[i];
        if (ph->p_type == PT_LOAD && (ph->p_flags & PF_X) && !(ph->p_flags & PF_W) && ph->p_filesz > 0)
            found =
                find_codes_in_file(plan, linker.fd, ph->p_offset, ph->p_filesz, ph->p_vaddr, HL_EXEC_LINKER);
    }
    hl_close_elf(&linker);
    return found;
}

static int plan_codes(struct hl_exec_plan *plan, const struct hl_elf_file *file) {
    char *path = hl_read_interpreter(file);
    bool found = (path != NULL && hl_find_codes_in_linker(plan, path)) || find_codes_in_image(plan);
    free(path);
    return found ? 0 : HL_REASON_ATTACH_INSTRUCTIONS;
}

/* --- the pieces --- */

/* A segment's zeros, which no file has, are not in the image either. */
static bool has_zeros(const struct hl_exec_plan *plan, const struct hl_span *span) {
    for (unsigned i = 0; i < plan->object.n_segments; i++) {
        const struct hl_segment *segment = &plan->object.segment[i];
        if (hl_overlap(segment->file_end, segment->end, span->start, span->end) > 0)
            return true;
    }
    return false;
}

/* Adds text.  The huge page with the headers is to be mapped twice. */
static void add_text(struct hl_exec_plan *plan, const struct hl_image_source *source,
                     const struct hl_span *span) {
    struct hl_piece_of_text part[3];
    unsigned n = 0;
    hl_add_piece(plan->piece, &plan->n_pieces, span->start, span->end, span->start - source->base,
                 span->flags);
    hl_add_image_pieces(part, &n, source, span->start, span->end, span->flags);
    for (unsigned i = 0; i < n; i++)
        if (part[i].offset != part[i].start - source->base)
            plan->header = part[i];
}

/* Adds the rest of SEGMENT that is in no piece. */
static void add_rest(struct hl_exec_plan *plan, const struct hl_segment *segment,
                     const struct hl_image_source *source) {
    uint64_t at = segment->first_page, end = segment->end_page;
    for (unsigned i = 0; i < plan->n_pieces && at < end; i++) {
        const struct hl_piece_of_text *piece = &plan->piece[i];
        hl_add_image_pieces(plan->rest, &plan->n_rest, source, at, piece->start < end ? piece->start : end,
                            segment->flags);
        at = piece->end > at ? piece->end : at;
    }
    hl_add_image_pieces(plan->rest, &plan->n_rest, source, at, end, segment->flags);
}

/* In a position-independent program that moves, all headers have to be the file's, and everything read-only a file's. */
static void plan_move(struct hl_exec_plan *plan, const struct hl_image_source *source) {
    plan->may_move = plan->is_position_independent && source->header_offset != 0;
    for (unsigned i = 0; i < plan->object.n_segments && plan->may_move; i++) {
        const struct hl_segment *segment = &plan->object.segment[i];
        if (segment->flags & PF_W)
            continue;
        plan->may_move = segment->file_end == segment->end;
        add_rest(plan, segment, source);
    }
}

static int plan_pieces(struct hl_exec_plan *plan, const struct hl_elf_file *file,
                       const struct hl_options *options) {
    struct hl_options all = hl_options_for_image(options);
    struct hl_plan spans;
    uint64_t huge = plan->geometry.huge_page_bytes;
    struct hl_image_source source;
    hl_find_image_source(&source, &plan->object, file, plan->image, &plan->geometry);
    int result = hl_plan_object(&spans, &plan->object, &all, &plan->geometry);
    for (unsigned i = 0; i < spans.n_spans && result == 0; i++) {
        const struct hl_span *span = &spans.span[i];
        if (span->flags & PF_W)
            continue;
        if (has_zeros(plan, span) || span->end - source.base > (uint64_t)plan->image_stat.st_size)
            return HL_REASON_IMAGE_MISMATCH;
        if (span->flags & PF_X)
            add_text(plan, &source, span);
        else
            hl_add_image_pieces(plan->piece, &plan->n_pieces, &source, span->start, span->end, span->flags);
        *(span->kind == HL_TEXT ? &plan->text_pages : &plan->rodata_pages) += hl_span_bytes(span) / huge;
    }
    if (result == 0 && plan->n_pieces == 0)
        result = HL_REASON_TOO_SMALL;
    if (result == 0)
        plan_move(plan, &source);
    if (result == 0 && !plan->may_move && hl_gets_any_address(file, &plan->geometry))
        result = HL_REASON_IMAGE_PLACE;
    return result;
}

static int check_file(const struct hl_exec_plan *plan, const struct hl_elf_file *file) {
    if (!hl_is_native(file))
        return HL_REASON_FOREIGN;
    if (hl_has_privileges(file)) /* the kernel gives none to a program that is traced */
        return HL_REASON_PRIVILEGED;
    for (unsigned i = 0; i < plan->object.n_segments; i++)
        if ((plan->object.segment[i].flags & (PF_W | PF_X)) == (PF_W | PF_X))
            return HL_REASON_WRITABLE_TEXT;
    return 0;
}

static int open_image(struct hl_exec_plan *plan, const struct hl_elf_file *file,
                      const struct hl_options *options) {
    int result = hl_read_file_state(&plan->file, file->fd);
    long image =
        result == 0 ? hl_open_image_as(&plan->status, &plan->file, options) : -HL_REASON_SOURCE_UNREADABLE;
    if (image < 0)
        return (int)-image;
    plan->image = (int)image;
    plan->image_path = hl_find_file_path(plan->image);
    if (plan->image_path == NULL || strlen(plan->image_path) >= HL_TRACEE_DATA_BYTES ||
        fstat(plan->image, &plan->image_stat) != 0)
        return HL_REASON_NO_IMAGE;
    result = hl_check_image(&plan->object, plan->image, &plan->geometry);
    return result == 0 && hl_forbids_execution(plan->image) ? HL_REASON_STORE_NOEXEC : result;
}

static int plan_file(struct hl_exec_plan *plan, const struct hl_elf_file *file,
                     const struct hl_options *options) {
    int result = hl_load_object(&plan->object, file, plan->executable, 0, &plan->geometry);
    plan->entry = file->header.e_entry;
    plan->is_position_independent = hl_is_position_independent(file);
    plan->has_linker = file->has_interpreter;
    if (result == 0)
        result = check_file(plan, file);
    if (result == 0)
        result = open_image(plan, file, options);
    if (result == 0)
        result = plan_pieces(plan, file, options);
    return result == 0 ? plan_codes(plan, file) : result;
}

int hl_plan_exec_stop(struct hl_exec_plan *plan, const struct hl_status *status,
                      const struct hl_program *program, const struct hl_options *options,
                      const char *linker) {
    memset(plan, 0, offsetof(struct hl_exec_plan, piece));
    plan->image = -1;
    plan->status = *status;
    plan->executable = hl_xasprintf("%s", program->executable);
    plan->verbose = options->verbose;
    plan->is_strict = options->strict != 0;
    plan->geometry = hl_read_geometry();
    int result = linker != NULL ? hl_plan_linker(plan, &program->file, linker)
                                : plan_file(plan, &program->file, options);
    if (result == 0) /* only after it is known that there is an image, since this is reported then */
        result = hl_check_exec_stop_machine();
    plan->object.soname = NULL; /* it points into the program's file */
    return result;
}

static void shift(struct hl_piece_of_text *list, unsigned n, uint64_t distance) {
    for (unsigned i = 0; i < n; i++) {
        list[i].start += distance;
        list[i].end += distance;
    }
}

void hl_shift_exec_plan(struct hl_exec_plan *plan, uint64_t distance) {
    for (unsigned i = 0; i < plan->object.n_segments; i++) {
        struct hl_segment *segment = &plan->object.segment[i];
        segment->start += distance;
        segment->end += distance;
        segment->file_end += distance;
        segment->first_page += distance;
        segment->end_page += distance;
    }
    shift(plan->piece, plan->n_pieces, distance);
    shift(&plan->header, 1, distance);
    shift(plan->rest, plan->n_rest, distance);
    plan->call.at += plan->call.owner == HL_EXEC_PROGRAM ? distance : 0;
    plan->back.at += plan->back.owner == HL_EXEC_PROGRAM ? distance : 0;
}
