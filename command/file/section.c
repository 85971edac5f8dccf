/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/file/section.h"
#include "command/base/basics.h"

#include <gelf.h>
#include <stdlib.h>
#include <string.h>

void *hl_read_section(int file, const char *name, size_t *bytes) {
    size_t names;
    void *copy = NULL;
    elf_version(EV_CURRENT);
    Elf *elf = elf_begin(file, ELF_C_READ, NULL); /* it reads: a mapped file that shrinks is SIGBUS */
    for (Elf_Scn *section = NULL; copy == NULL && elf_getshdrstrndx(elf, &names) == 0 &&
                                  (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        const char *found =
            gelf_getshdr(section, &header) != NULL ? elf_strptr(elf, names, header.sh_name) : NULL;
        if (found == NULL || strcmp(found, name) != 0)
            continue;
        const Elf_Data *data = elf_rawdata(section, NULL);
        if (data == NULL || data->d_buf == NULL || data->d_size == 0)
            break;
        *bytes = data->d_size;
        copy = memcpy(hl_xmalloc(data->d_size), data->d_buf, data->d_size);
    }
    elf_end(elf);
    return copy;
}

/* The section is one note: three numbers, "GNU" and the ID. */
char *hl_read_build_id(int file) {
    size_t bytes;
    char *note = hl_read_section(file, ".note.gnu.build-id", &bytes), *text = NULL;
    const size_t before = sizeof(Elf64_Nhdr) + sizeof ELF_NOTE_GNU;
    if (note != NULL && bytes > before) {
        text = hl_xmalloc(2 * (bytes - before) + 1);
        for (size_t i = before; i < bytes; i++)
            sprintf(text + 2 * (i - before), "%02x", (unsigned char)note[i]);
    }
    free(note);
    return text;
}
