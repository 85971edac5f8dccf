/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much of an observed file could be put in place. */
#include "command/service/observe.h"
#include "command/base/common.h"
#include "command/file/elf-file.h"
#include "command/image/in-place.h"
#include "elf/kernel.h"
#include "elf/reason.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note_place(struct hl_observed_file *file, const struct hl_place *place) {
    file->text_bytes = place->text_bytes;
    file->huge_bytes = hl_huge_text_bytes(place);
    file->possible_bytes = place->n_chunks * place->chunk_bytes;
    for (size_t i = 0; i < file->n_chunks; i++) {
        struct hl_observed_chunk *chunk = &file->chunk[i];
        for (size_t j = 0; j < place->n_chunks; j++) {
            if (place->chunk[j].offset != chunk->offset)
                continue;
            chunk->can_be_huge = true;
            chunk->is_huge = place->chunk[j].is_huge;
        }
    }
}

static void examine(struct hl_observed_file *file, const struct hl_elf_file *elf) {
    struct hl_geometry geometry;
    struct hl_place place;
    if (elf->stat.st_dev != file->id.device || elf->stat.st_ino != file->id.inode) {
        file->obstacle = hl_xasprintf("it is another file now");
        return;
    }
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    int result = hl_look_in_place(&place, elf, &geometry);
    if (result == 0 || result == -EPERM) {
        note_place(file, &place);
        file->obstacle = hl_explain_not_in_place(elf, file->path, file->possible_bytes - file->huge_bytes);
        hl_free_place(&place);
    } else if (result > 0) {
        file->obstacle = hl_xasprintf("%s", hl_reason_sentence((enum hl_reason)result));
    } else {
        file->obstacle = hl_xasprintf("%s", strerror(-result));
    }
}

void hl_examine_observed(struct hl_observed_file *file) {
    struct hl_elf_file elf;
    free(file->obstacle);
    file->obstacle = NULL;
    file->is_examined = true;
    file->text_bytes = file->huge_bytes = file->possible_bytes = 0;
    for (size_t i = 0; i < file->n_chunks; i++)
        file->chunk[i].can_be_huge = file->chunk[i].is_huge = false;
    if (hl_open_elf_soon(&elf, file->path, false) != HL_ELF_FINE) {
        file->obstacle = hl_xasprintf("it is no ELF file of this machine");
        return;
    }
    examine(file, &elf);
    hl_close_elf(&elf);
}
