/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at a program's file before it is started.

   In some programs a preloaded library never runs, and one kind (AddressSanitizer) refuses to start with any; `run` and `inspect`
   give that as the reason.

   It is opened once, and all decisions use that descriptor, so that they are about one file, even if another one is put at its path
   meanwhile.  The kernel looks at the path once more, to execute it. */
#include "command/lib/program.h"
#include "command/lib/basics.h"
#include "command/lib/elf-file.h"
#include "command/lib/launcher.h"

#include <errno.h>
#include <fcntl.h>
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
    return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0; /* as the kernel decides, unlike access(2) */
}

char *hl_find_program(const char *name) {
    if (strchr(name, '/') != NULL)
        return is_executable(name) ? hl_xasprintf("%s", name) : NULL;
    const char *folder = getenv("PATH");
    char *found = NULL;
    int error = ENOENT;
    if (folder == NULL)
        folder = "/bin:/usr/bin"; /* glibc's default */
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

bool hl_is_privileged(const struct hl_program *program) {
    struct stat status;
    bool is_open = program->fd >= 0;
    if ((is_open ? fstat(program->fd, &status) : stat(program->path, &status)) != 0)
        return false;
    return has_other_user(&status) ||
           (getuid() != 0 && (is_open ? fgetxattr(program->fd, "security.capability", NULL, 0)
                                      : getxattr(program->path, "security.capability", NULL, 0)) > 0);
}

static bool is_sanitized(const struct hl_elf_file *file) {
    return hl_needs_library(file, "libasan.so") || hl_needs_library(file, "libclang_rt.asan");
}

/* Whether FILE is a dynamic linker, which has no PT_INTERP and yet is not static. */
static bool is_linker(const struct hl_elf_file *file) {
    return file->soname != NULL && strncmp(file->soname, "ld-linux", strlen("ld-linux")) == 0;
}

enum hl_reason hl_check_file(const struct hl_elf_file *file) {
    if (has_other_user(&file->stat) ||
        (getuid() != 0 && fgetxattr(file->fd, "security.capability", NULL, 0) > 0))
        return HL_REASON_PRIVILEGED;
    if (!hl_is_native(file))
        return HL_REASON_OTHER_MACHINE;
    if (!file->has_interpreter && !is_linker(file))
        return HL_REASON_STATIC;
    return is_sanitized(file) ? HL_REASON_SANITIZED : HL_MOVED;
}

enum hl_reason hl_check_preload(struct hl_program *program) {
    if (hl_is_privileged(program))
        return HL_REASON_PRIVILEGED;
    hl_read_program(program);
    if (program->problem == HL_ELF_UNREADABLE)
        return HL_REASON_UNREADABLE;
    if (program->problem != HL_ELF_FINE)
        return program->problem == HL_ELF_32_BIT && !program->is_script ? HL_REASON_32_BIT : HL_MOVED;
    if (!program->is_script)
        return hl_check_file(&program->file);
    return is_sanitized(&program->file) ? HL_REASON_SANITIZED : HL_MOVED;
}

bool hl_is_linker_called(struct hl_program *program) {
    return hl_read_program(program) && is_linker(&program->file);
}

/* --- the file --- */

char *hl_find_interpreter(const char *line) {
    const char *name = line + 2 + strspn(line + 2, " \t");
    size_t bytes = strcspn(name, " \t\n");
    return bytes > 0 ? hl_xasprintf("%.*s", (int)bytes, name) : NULL;
}

/* A regular file alone: opening a device can do things. */
static int open_regular(const char *path) {
    struct stat status;
    bool is_regular = stat(path, &status) == 0 && S_ISREG(status.st_mode);
    return is_regular ? open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
}

/* Replaces the open file of the script PROGRAM by the file that the kernel runs for it. */
static void follow_script(struct hl_program *program) {
    char line[sizeof program->first_line];
    memcpy(line, program->first_line, sizeof line);
    for (int i = 0; strncmp(line, "#!", 2) == 0; i++) {
        char *interpreter = i < INTERPRETERS_MAX ? hl_find_interpreter(line) : NULL;
        if (program->fd >= 0)
            close(program->fd);
        program->fd = interpreter != NULL ? open_regular(interpreter) : -1;
        free(interpreter);
        memset(line, 0, sizeof line);
        if (program->fd >= 0 && pread(program->fd, line, sizeof line - 1, 0) < 0)
            line[0] = '\0';
    }
}

bool hl_open_program(struct hl_program *program, const char *name) {
    memset(program, 0, sizeof *program);
    program->fd = -1;
    program->path = hl_find_program(name);
    if (program->path == NULL)
        return false;
    program->fd = open_regular(program->path);
    program->is_script = program->fd >= 0 &&
                         pread(program->fd, program->first_line, sizeof program->first_line - 1, 0) > 2 &&
                         strncmp(program->first_line, "#!", 2) == 0;
    if (program->is_script)
        follow_script(program);
    return true;
}

bool hl_read_program(struct hl_program *program) {
    if (!program->is_read) {
        program->problem = program->fd >= 0 ? hl_read_elf(&program->file, program->fd) : HL_ELF_UNREADABLE;
        if (program->problem == HL_ELF_FINE || program->problem == HL_ELF_32_BIT)
            program->executable = hl_find_file_path(program->fd);
    }
    program->is_read = true;
    return program->problem == HL_ELF_FINE && program->executable != NULL;
}

void hl_close_program(struct hl_program *program) {
    bool is_elf = program->is_read && program->problem == HL_ELF_FINE;
    if (is_elf)
        hl_close_elf(&program->file);
    else if (program->path != NULL && program->fd >= 0)
        close(program->fd);
    if (program->target != NULL && program->target->followed) {
        hl_close_program(program->target->program);
        free(program->target->program);
    }
    free(program->target);
    free(program->executable);
    free(program->path);
    memset(program, 0, sizeof *program);
}
