/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patched dynamic linker, and how it gets into a program that names another one.

   "ld.so PROGRAM" is the simple way, but then /proc/self/exe and comm are ld.so's: interpreters don't find their libraries,
   compilers don't find their other halves, and a script is no ELF file.  So ld.so is mounted over the one that programs name, in a
   mount namespace that only this program and its children see. */
#include "command/run/ldso.h"
#include "command/base/common.h"
#include "command/file/elf-file.h"
#include "command/run/mount.h"

#include <elfutils/libdwelf.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *hl_find_linker(void) { return hl_find_part("ld.so", "ldso/ld.so", X_OK); }

/* The build ID of the file at PATH, in hexadecimal; NULL if it has none. */
static char *read_build_id(const char *path) {
    struct hl_elf_file file;
    const void *id;
    char *text = NULL;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return NULL;
    elf_version(EV_CURRENT);
    Elf *elf = elf_begin(file.fd, ELF_C_READ, NULL);
    ssize_t bytes = dwelf_elf_gnu_build_id(elf, &id);
    if (bytes > 0)
        text = hl_xmalloc(2 * (size_t)bytes + 1);
    for (ssize_t i = 0; i < bytes; i++)
        sprintf(text + 2 * i, "%02x", ((const unsigned char *)id)[i]);
    elf_end(elf);
    hl_close_elf(&file);
    return text;
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
