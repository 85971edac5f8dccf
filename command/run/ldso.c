/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patched dynamic linker, and how it gets into a program that names another one.

   "ld.so PROGRAM" is the simple way, but then /proc/self/exe and comm are ld.so's: interpreters don't find their libraries,
   compilers don't find their other halves, and a script is no ELF file.  So ld.so is mounted over the one that programs name, in a
   mount namespace that only this program and its children see. */
#include "command/run/ldso.h"
#include "command/base/basics.h"
#include "command/file/elf-file.h"
#include "command/run/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *hl_find_linker(void) { return hl_find_part("ld.so", "ldso/ld.so", X_OK); }

#define SECTION_MAX 256

/* Reads at most SECTION_MAX bytes of FILE's section NAME.  Their number; 0: there is none. */
static size_t read_section(const struct hl_elf_file *file, const char *name, char bytes[SECTION_MAX]) {
    const Elf64_Ehdr *header = &file->header;
    Elf64_Shdr names, section;
    char found[32];
    size_t size = strlen(name) + 1;
    if (header->e_shentsize != sizeof section ||
        !hl_read_exactly(file->fd, header->e_shoff + header->e_shstrndx * sizeof names, &names, sizeof names))
        return 0;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (!hl_read_exactly(file->fd, header->e_shoff + i * sizeof section, &section, sizeof section))
            return 0;
        if (!hl_read_exactly(file->fd, names.sh_offset + section.sh_name, found, size) ||
            memcmp(found, name, size) != 0)
            continue;
        size_t n = section.sh_size < SECTION_MAX ? section.sh_size : SECTION_MAX;
        return hl_read_exactly(file->fd, section.sh_offset, bytes, n) ? n : 0;
    }
    return 0;
}

/* The build ID of the file at PATH, in hexadecimal; NULL if it has none. */
static char *read_build_id(const char *path) {
    struct hl_elf_file file;
    char note[SECTION_MAX], *text = NULL;
    Elf64_Nhdr header;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return NULL;
    size_t bytes = read_section(&file, ".note.gnu.build-id", note), at = sizeof header + sizeof "GNU";
    memcpy(&header, note, sizeof header);
    if (bytes > at && header.n_namesz == sizeof "GNU" && header.n_descsz <= bytes - at) {
        text = hl_xmalloc(2 * (size_t)header.n_descsz + 1);
        for (size_t i = 0; i < header.n_descsz; i++)
            sprintf(text + 2 * i, "%02x", (unsigned char)note[at + i]);
    }
    hl_close_elf(&file);
    return text;
}

char *hl_read_origin(const struct hl_elf_file *file) {
    char text[SECTION_MAX];
    size_t bytes = read_section(file, ".hugeld.for", text);
    size_t digits = 0;
    while (digits < bytes && strchr("0123456789abcdef", text[digits]) != NULL && text[digits] != '\0')
        digits++;
    return bytes > 0 ? hl_xasprintf("%.*s", (int)digits, text) : NULL;
}

/* The same for the file at PATH. */
static char *read_origin(const char *path) {
    struct hl_elf_file file;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return NULL;
    char *origin = hl_read_origin(&file);
    hl_close_elf(&file);
    return origin;
}

char *hl_explain_no_linker(const char *linker, const struct hl_elf_file *file, const char *path,
                           char **interpreter) {
    char *reason = NULL, *origin = NULL, *installed = NULL;
    *interpreter = NULL;
    if (linker == NULL)
        return hl_xasprintf(
            "there is no patched dynamic linker; install hugeld-ldso, or build it with make ldso");
    if (access(linker, X_OK) != 0) /* fails also on a mount with noexec */
        return hl_xasprintf("%s may not be executed (%s)", linker, strerror(errno));
    if (file == NULL)
        return hl_xasprintf("the program that it runs cannot be found");
    *interpreter = hl_read_interpreter(file);
    if (*interpreter == NULL)
        return hl_xasprintf("%s names no dynamic linker", path);
    origin = read_origin(linker);
    installed = read_build_id(*interpreter);
    if (origin == NULL)
        reason = hl_xasprintf("%s was not made by 'make ldso'", linker);
    else if (installed == NULL || strcmp(origin, installed) != 0)
        reason = hl_xasprintf("%s was not made for %s and its libc (upgraded since?), run 'make ldso'",
                              linker, *interpreter);
    free(origin);
    free(installed);
    return reason;
}

int hl_mount_linker(const char *linker, const char *interpreter) {
    int from = open(linker, O_PATH | O_CLOEXEC), to = open(interpreter, O_PATH | O_CLOEXEC);
    int result = from < 0 || to < 0 ? -errno : hl_mount_over(from, to);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return result;
}
