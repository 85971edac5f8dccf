/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patched dynamic linker, and how a program gets it that names another one.

   "ld.so PROGRAM" is the simple way, but then /proc/self/exe and comm are ld.so's: interpreters don't find
   their libraries, compilers not their other halves, and a script is no ELF file.  So ld.so is mounted over
   the one that programs name, in a mount namespace that only this program and its children see. */
#include "command/run/ldso.h"
#include "command/base/common.h"
#include "command/file/elf-file.h"
#include "command/run/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUILD_ID_BYTES 64 /* no linker makes longer ones */

char *hl_find_linker(void) { return hl_find_part("ld.so", "ldso/ld.so", X_OK); }

/* The build ID among the notes in [at, at + bytes), in hexadecimal; NULL if there is none. */
static char *find_build_id(const char *at, size_t bytes) {
    GElf_Nhdr note;
    for (size_t next; bytes >= sizeof note; at += next, bytes -= next) {
        memcpy(&note, at, sizeof note);
        size_t name = (note.n_namesz + (size_t)3) & ~(size_t)3,
               text = (note.n_descsz + (size_t)3) & ~(size_t)3;
        next = sizeof note + name + text;
        if (next > bytes)
            return NULL;
        if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || memcmp(at + sizeof note, "GNU", 4) != 0 ||
            note.n_descsz > BUILD_ID_BYTES)
            continue;
        char *id = hl_xmalloc(2 * BUILD_ID_BYTES + 1);
        id[0] = '\0';
        for (size_t i = 0; i < note.n_descsz; i++)
            sprintf(id + 2 * i, "%02x", (unsigned char)at[sizeof note + name + i]);
        return id;
    }
    return NULL;
}

/* The build ID of the file at PATH; NULL if it has none. */
static char *read_build_id(const char *path) {
    struct hl_elf_file file;
    char *id = NULL;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return NULL;
    for (size_t i = 0; i < file.phnum && id == NULL; i++) {
        const GElf_Phdr *ph = &file.phdr[i];
        if (ph->p_type != PT_NOTE || ph->p_filesz > 65536)
            continue;
        char *notes = hl_xmalloc(ph->p_filesz + 1);
        ssize_t bytes = pread(file.fd, notes, ph->p_filesz, (off_t)ph->p_offset);
        id = find_build_id(notes, bytes > 0 ? (size_t)bytes : 0);
        free(notes);
    }
    hl_close_elf(&file);
    return id;
}

char *hl_read_origin(const struct hl_elf_file *file) {
    char *origin = NULL;
    size_t names;
    elf_version(EV_CURRENT);
    Elf *elf = elf_begin(file->fd, ELF_C_READ, NULL);
    for (Elf_Scn *section = NULL; elf_getshdrstrndx(elf, &names) == 0 &&
                                  (section = elf_nextscn(elf, section)) != NULL && origin == NULL;) {
        GElf_Shdr header;
        const char *name =
            gelf_getshdr(section, &header) != NULL ? elf_strptr(elf, names, header.sh_name) : NULL;
        if (name == NULL || strcmp(name, ".hugeld.for") != 0)
            continue;
        const Elf_Data *data = elf_rawdata(section, NULL);
        if (data != NULL && data->d_buf != NULL) {
            origin = hl_xasprintf("%.*s", (int)(data->d_size < 256 ? data->d_size : 256),
                                  (const char *)data->d_buf);
            origin[strspn(origin, "0123456789abcdef")] = '\0';
        }
    }
    elf_end(elf);
    return origin;
}

/* The same of the file at PATH. */
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
    if (access(linker, X_OK) != 0) /* also where nothing may be executed: a mount with noexec */
        return hl_xasprintf("%s may not be executed (%s)", linker, strerror(errno));
    if (file == NULL)
        return hl_xasprintf("what it runs cannot be found");
    *interpreter = hl_read_interpreter(file);
    if (*interpreter == NULL)
        return hl_xasprintf("%s names no dynamic linker", path);
    origin = read_origin(linker);
    installed = read_build_id(*interpreter);
    if (origin == NULL)
        reason = hl_xasprintf("%s is not what 'make ldso' makes", linker);
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
