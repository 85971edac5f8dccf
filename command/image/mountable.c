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

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the image B has the headers of A, except for file offsets and the borders of read-only data. */
static bool have_same_headers(const struct hl_elf_file *a, const struct hl_elf_file *b) {
    struct hl_geometry geometry = hl_read_geometry();
    if (a->header.e_type != b->header.e_type || a->header.e_machine != b->header.e_machine ||
        a->header.e_entry != b->header.e_entry || a->header.e_flags != b->header.e_flags ||
        memcmp(a->header.e_ident, b->header.e_ident, EI_NIDENT) != 0 || a->phnum != b->phnum)
        return false;
    Elf64_Phdr *wanted = hl_xmalloc((a->phnum + 1) * sizeof *wanted);
    bool same = true;
    memcpy(wanted, a->phdr, a->phnum * sizeof *wanted);
    hl_merge_loads(wanted, a, &geometry);
    for (size_t i = 0; i < a->phnum; i++) {
        const Elf64_Phdr *x = &wanted[i], *y = &b->phdr[i];
        same = same && x->p_type == y->p_type && x->p_flags == y->p_flags && x->p_vaddr == y->p_vaddr &&
               x->p_paddr == y->p_paddr && x->p_filesz == y->p_filesz && x->p_memsz == y->p_memsz &&
               (x->p_type == PT_LOAD || x->p_align == y->p_align);
    }
    free(wanted);
    return same;
}

static int compare_headers(const struct hl_elf_file *file, int image) {
    struct hl_elf_file laid_out;
    char *path = hl_xasprintf("/proc/self/fd/%d", image);
    int result = HL_REASON_IMAGE_MISMATCH;
    if (hl_open_elf(&laid_out, AT_FDCWD, path) == HL_ELF_FINE) {
        result = have_same_headers(file, &laid_out) ? 0 : HL_REASON_IMAGE_MISMATCH;
        hl_close_elf(&laid_out);
    }
    free(path);
    return result;
}

/* Whether IMAGE may be executed in FILE's place: 0, or the reason why not. */
static int check_image(const struct hl_elf_file *file, const char *path, int image) {
    struct hl_object object;
    struct hl_geometry geometry = hl_read_geometry();
    int result = hl_load_object(&object, file, path, 0, &geometry);
    if (result == 0)
        result = hl_check_image(&object, image, &geometry);
    if (result == 0)
        result = compare_headers(file, image);
    return result == 0 && hl_is_noexec(image) ? HL_REASON_STORE_NOEXEC : result;
}

/* Opens the image of the open FILE.  A descriptor, or the negated reason why there is none. */
static long find_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options) {
    struct hl_file_state state;
    struct hl_status status;
    if (hl_has_privileges(file)) /* the image would be executed without them */
        return -HL_REASON_PRIVILEGED;
    if (hl_read_file_state(&state, file->fd) != 0)
        return -HL_REASON_SOURCE_UNREADABLE;
    hl_read_status(&status, &hl_system_roots);
    long image = hl_open_image_as(&status, &state, options);
    if (image < 0) {
        struct hl_geometry geometry = hl_read_geometry();
        uint64_t pages;
        return -(long)hl_consider_image((enum hl_reason) - image, file, options, &geometry, &pages);
    }
    int result = check_image(file, path, (int)image);
    if (result != 0) {
        close((int)image);
        image = -result;
    }
    return image;
}

char *hl_look_for_image(const struct hl_elf_file *file, const char *path, const struct hl_options *options,
                        char **image) {
    struct hl_geometry geometry = hl_read_geometry();
    struct hl_coverage coverage;
    long found = find_image(file, path, options);
    *image = NULL;
    if (found < 0)
        return hl_explain_reason((enum hl_reason) - found, path);
    bool is_of_use = hl_find_coverage(&coverage, file, &geometry) != 0 || coverage.executed_bytes > 0;
    *image = is_of_use ? hl_find_file_path((int)found) : NULL;
    close((int)found);
    return is_of_use
               ? NULL
               : hl_xasprintf("no whole huge page lies inside the text where the kernel maps it by itself "
                              "(start it with hugeld run, which puts it where one does)");
}
