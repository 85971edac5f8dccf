/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at a program's file before it is started.

   There are programs in which a preloaded library never runs, and one kind (AddressSanitizer) that refuses to
   start with any; `run` tells before and `doctor` counts no pages for them. */
#include "command/file/program.h"
#include "command/base/basics.h"
#include "command/file/elf-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

/* As many as the kernel follows (BINPRM_MAX_RECURSION in fs/exec.c). */
#define INTERPRETERS_MAX 5

/* Whether PATH can be executed; if not, errno says why. */
static bool is_executable(const char *path) {
    struct stat stat_buffer;
    if (stat(path, &stat_buffer) != 0)
        return false;
    if (!S_ISREG(stat_buffer.st_mode)) {
        errno = EACCES;
        return false;
    }
    return access(path, X_OK) == 0;
}

char *hl_find_program(const char *name) {
    if (strchr(name, '/') != NULL)
        return is_executable(name) ? hl_xasprintf("%s", name) : NULL;
    const char *folder = getenv("PATH");
    char *found = NULL;
    int error = ENOENT;
    if (folder == NULL)
        folder = "/bin:/usr/bin"; /* what glibc takes */
    while (found == NULL && name[0] != '\0') {
        int length = (int)strcspn(folder, ":");
        found = hl_xasprintf("%.*s%s%s", length, folder, length > 0 ? "/" : "", name);
        if (is_executable(found))
            break;
        if (errno != ENOENT && errno != ENOTDIR)
            error = errno;
        free(found);
        found = NULL;
        folder += length;
        if (*folder++ == '\0')
            break;
    }
    errno = error;
    return found;
}

char *hl_find_named_file(const char *name) {
    bool is_name = strchr(name, '/') == NULL && access(name, F_OK) != 0;
    char *program = is_name ? hl_find_program(name) : NULL;
    return program != NULL ? program : hl_xasprintf("%s", name);
}

static bool has_other_user(const struct stat *status) {
    return ((status->st_mode & S_ISUID) && status->st_uid != getuid()) ||
           ((status->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && status->st_gid != getgid());
}

bool hl_is_privileged(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 &&
           (has_other_user(&status) || (getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0));
}

static const char privileged[] =
    "set-user-ID, set-group-ID or with file capabilities, where hugeld does nothing";

const char *hl_explain_plain_file(const struct hl_elf_file *file) {
    if (has_other_user(&file->stat) ||
        (getuid() != 0 && fgetxattr(file->fd, "security.capability", NULL, 0) > 0))
        return privileged;
    if (!hl_is_native(file))
        return "a program for another machine";
    if (!file->has_interpreter)
        return "static, the dynamic linker never runs";
    return hl_needs_library(file, "libasan.so")
               ? "built with AddressSanitizer, which aborts with any preloaded library"
               : NULL;
}

const char *hl_explain_plain_run(const char *path) {
    struct hl_elf_file file;
    if (hl_is_privileged(path))
        return privileged;
    enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, path);
    if (problem == HL_ELF_32_BIT)
        return "a 32-bit program, and hugeld is for 64-bit ones only";
    if (problem != HL_ELF_FINE)
        return NULL;
    const char *reason = hl_explain_plain_file(&file);
    hl_close_elf(&file);
    return reason;
}

/* The interpreter in the first line of the script at PATH; NULL if it has none. */
static char *read_script_interpreter(const char *path) {
    char line[256]; /* as much as the kernel reads (BINPRM_BUF_SIZE) */
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    size_t bytes = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[bytes] = '\0';
    if (strncmp(line, "#!", 2) != 0)
        return NULL;
    char *name = line + 2 + strspn(line + 2, " \t");
    name[strcspn(name, " \t\n")] = '\0';
    return name[0] != '\0' ? hl_xasprintf("%s", name) : NULL;
}

char *hl_find_executable(const char *path) {
    char *at = hl_xasprintf("%s", path);
    for (int i = 0; at != NULL && i <= INTERPRETERS_MAX; i++) {
        struct hl_elf_file file;
        enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, at);
        if (problem == HL_ELF_FINE)
            hl_close_elf(&file);
        char *next = problem == HL_ELF_SCRIPT ? read_script_interpreter(at) : NULL;
        char *found = problem == HL_ELF_FINE || problem == HL_ELF_32_BIT ? realpath(at, NULL) : NULL;
        free(at);
        if (found != NULL)
            return found;
        at = next;
    }
    free(at);
    return NULL;
}
