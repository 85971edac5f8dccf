/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patched dynamic linker, and whether it can run a program that names another one.

   "ld.so PROGRAM" is the simple way, but then /proc/self/exe and comm are ld.so's: interpreters don't find their libraries,
   compilers don't find their other halves, and a script is no ELF file.  So the exec stop maps it in the place of the other one
   (inject/exec-interpreter.c). */
#include "command/run/ldso.h"
#include "command/lib/basics.h"
#include "command/lib/elf-file.h"
#include "command/lib/section.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *hl_find_linker(void) { return hl_find_part("ld.so", "ldso/ld.so", X_OK); }

char *hl_read_origin(const struct hl_elf_file *file) {
    size_t bytes = 0;
    char *text = hl_read_section(file->fd, ".hugeld.for", &bytes), *origin = NULL;
    if (text != NULL) {
        origin = hl_xasprintf("%.*s", (int)(bytes < 256 ? bytes : 256), text);
        origin[strspn(origin, "0123456789abcdef")] = '\0';
    }
    free(text);
    return origin;
}

/* Of the file at PATH the build ID, or if it IS_PATCHED the one that it was made for; NULL if it has none. */
static char *read_id(const char *path, bool is_patched) {
    struct hl_elf_file file;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return NULL;
    char *id = is_patched ? hl_read_origin(&file) : hl_read_build_id(file.fd);
    hl_close_elf(&file);
    return id;
}

char *hl_explain_no_linker(const char *linker, const struct hl_elf_file *file, const char *path) {
    char *reason = NULL;
    if (linker == NULL)
        return hl_xasprintf(
            "there is no patched dynamic linker; install hugeld-ldso, or build it with make ldso");
    if (access(linker, X_OK) != 0) /* fails also on a mount with noexec */
        return hl_xasprintf("%s may not be executed (%s)", linker, strerror(errno));
    if (file == NULL)
        return hl_xasprintf("the program that it runs cannot be found");
    char *interpreter = hl_read_interpreter(file);
    if (interpreter == NULL)
        return hl_xasprintf("%s names no dynamic linker", path);
    char *origin = read_id(linker, true), *installed = read_id(interpreter, false);
    if (origin == NULL)
        reason = hl_xasprintf("%s was not made by 'make ldso'", linker);
    else if (installed == NULL || strcmp(origin, installed) != 0)
        reason = hl_xasprintf("%s was not made for %s and its libc (upgraded since?); run 'make ldso'",
                              linker, interpreter);
    free(origin);
    free(installed);
    free(interpreter);
    return reason;
}
