/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the image that systemd mounts over a program's file (keep/unit.c), so that /proc/self/exe, $ORIGIN and every program that
   looks for its own files find the usual paths.

   The kernel then maps the image like any program, and no code of hugeld's is in the process.  So everything is checked before: the
   store and the image as in the process (elf/store.c, elf/image.c), and every header on which the kernel and the dynamic linker
   act. */
#include "command/image/mountable.h"
#include "command/lib/common.h"
#include "command/lib/elf-file.h"
#include "command/lib/remedy.h"
#include "elf/image.h"
#include "command/image/find.h"
#include "elf/kernel.h"
#include "command/image/layout.h"
#include "command/image/loads.h"
#include "elf/reason.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the image LAID_OUT has the headers of FILE, except for file offsets and the borders of read-only data. */
static bool have_same_headers(const struct hl_elf_file *file, const struct hl_elf_file *laid_out,
                              const struct hl_geometry *geometry) {
    const Elf64_Ehdr *a = &file->header, *b = &laid_out->header;
    if (a->e_type != b->e_type || a->e_machine != b->e_machine || a->e_entry != b->e_entry ||
        a->e_flags != b->e_flags || memcmp(a->e_ident, b->e_ident, EI_NIDENT) != 0 ||
        file->phnum != laid_out->phnum)
        return false;
    Elf64_Phdr *wanted = hl_merge_loads(file, geometry);
    bool same = true;
    for (size_t i = 0; i < file->phnum; i++) {
        const Elf64_Phdr *x = &wanted[i], *y = &laid_out->phdr[i];
        same = same && x->p_type == y->p_type && x->p_flags == y->p_flags && x->p_vaddr == y->p_vaddr &&
               x->p_paddr == y->p_paddr && x->p_filesz == y->p_filesz && x->p_memsz == y->p_memsz &&
               (x->p_type == PT_LOAD || x->p_align == y->p_align);
    }
    free(wanted);
    return same;
}

char *hl_look_for_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options,
                        char **image) {
    struct hl_geometry geometry = hl_read_geometry();
    struct hl_file_state state;
    struct hl_status status;
    struct hl_object object;
    struct hl_elf_file laid_out;
    struct hl_coverage coverage;
    *image = NULL;
    if (hl_has_privileges(file)) /* the image would be executed without them */
        return hl_explain_reason(HL_REASON_PRIVILEGED, path);
    if (hl_read_file_state(&state, file->fd) != 0)
        return hl_explain_reason(HL_REASON_SOURCE_UNREADABLE, path);
    hl_read_status(&status, &hl_system_roots);
    long found = hl_open_image_as(&status, &state, options);
    if (found < 0) {
        uint64_t pages;
        enum hl_reason reason = hl_consider_image((enum hl_reason) - found, file, options, &geometry, &pages);
        return hl_explain_reason(reason, path);
    }
    if (hl_read_elf(&laid_out, (int)found) != HL_ELF_FINE) {
        close((int)found);
        return hl_explain_reason(HL_REASON_IMAGE_MISMATCH, path);
    }
    int result = hl_load_object(&object, file, path, 0, &geometry);
    if (result == 0)
        result = hl_check_image(&object, laid_out.fd, &geometry);
    if (result == 0 && !have_same_headers(file, &laid_out, &geometry))
        result = HL_REASON_IMAGE_MISMATCH;
    if (result == 0 && hl_forbids_execution(laid_out.fd))
        result = HL_REASON_STORE_NOEXEC;
    bool is_of_use = hl_find_coverage(&coverage, file, &geometry) != 0 || coverage.executed_bytes > 0;
    *image = result == 0 && is_of_use ? hl_find_file_path(laid_out.fd) : NULL;
    hl_close_elf(&laid_out);
    if (result != 0)
        return hl_explain_reason((enum hl_reason)result, path);
    return is_of_use
               ? NULL
               : hl_xasprintf("no whole huge page lies inside the text where the kernel maps it by itself "
                              "(start it with hugeld run, which puts it where one does)");
}
