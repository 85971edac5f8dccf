/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/lib/section.h"
#include "command/lib/basics.h"
#include "command/lib/elf-file.h"

#include <stdlib.h>
#include <string.h>

/* The sections that are read have some MiB at most.  A sparse file can claim to have terabytes. */
#define BYTES_MAX ((size_t)64 << 20)

bool hl_find_section(int file, const char *name, Elf64_Shdr *section) {
    Elf64_Ehdr header;
    Elf64_Shdr names;
    char found[32];
    size_t size = strlen(name) + 1;
    if (!hl_read_exactly(file, 0, &header, sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof names || size > sizeof found ||
        !hl_read_exactly(file, header.e_shoff + header.e_shstrndx * sizeof names, &names, sizeof names))
        return false;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        if (!hl_read_exactly(file, header.e_shoff + i * sizeof names, section, sizeof *section))
            return false;
        if (hl_read_exactly(file, names.sh_offset + section->sh_name, found, size) &&
            memcmp(found, name, size) == 0)
            return true;
    }
    return false;
}

void *hl_read_section(int file, const char *name, size_t *bytes) {
    Elf64_Shdr section;
    if (!hl_find_section(file, name, &section) || section.sh_size == 0 || section.sh_size > BYTES_MAX)
        return NULL;
    void *copy = hl_xmalloc(section.sh_size);
    *bytes = section.sh_size;
    if (hl_read_exactly(file, section.sh_offset, copy, section.sh_size))
        return copy;
    free(copy);
    return NULL;
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
