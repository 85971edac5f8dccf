/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What hugeld.c, which starts programs, and hugeld-command both need to know about a request. */
#include "command/lib/program.h"
#include "command/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

const struct hl_choice hl_via_names[] = {
    {"auto", HL_VIA_AUTO}, {"preload", HL_VIA_PRELOAD}, {"ldso", HL_VIA_LDSO}, {NULL, 0}};

const char *hl_via_name(const struct hl_run *run) { return hl_via_names[run->via].name; }

int hl_set_linker(void *run_, const char *path) {
    struct hl_run *run = run_;
    run->via = HL_VIA_LDSO;
    run->linker = path;
    return 0;
}

struct hl_string hl_find_patterns(const char *given) {
    const char *text = given != NULL ? given : getenv("LD_HUGEPAGES");
    text = text != NULL ? text : "main";
    return (struct hl_string){text, strlen(text)};
}

static bool names_option(const char *text, const char *name) {
    size_t bytes = strlen(name);
    for (const char *at = text; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, bytes) == 0 && at[bytes] == '=')
            return true;
    return false;
}

bool hl_shares_only(const struct hl_run *run, const struct hl_options *options, const char *text) {
    return !run->copies && run->via == HL_VIA_AUTO && options->bss == HL_BSS_OFF &&
           !names_option(text, "backend");
}

char *hl_find_library(void) { return hl_find_part("libhugeld.so", NULL, R_OK); }

/* The interpreter of the program NAME, if it is missing, or NULL.  The caller frees it. */
static char *find_missing_interpreter(const char *name) {
    struct hl_program program;
    char *path = NULL;
    if (hl_open_program(&program, name))
        path = program.is_script           ? hl_find_interpreter(program.first_line)
               : hl_read_program(&program) ? hl_read_interpreter(&program.file)
                                           : NULL;
    hl_close_program(&program);
    if (path == NULL || access(path, F_OK) != 0)
        return path;
    free(path);
    return NULL;
}

int hl_refuse_program(const char *name) {
    struct stat status;
    struct statvfs fs;
    int error = errno;
    bool is_noexec = error == EACCES && statvfs(name, &fs) == 0 && (fs.f_flag & ST_NOEXEC) != 0;
    char *interpreter = error == ENOENT ? find_missing_interpreter(name) : NULL;
    if (error == EACCES && strchr(name, '/') != NULL && stat(name, &status) == 0 && S_ISDIR(status.st_mode))
        error = EISDIR;
    if (interpreter != NULL) {
        hl_warn("%s: its interpreter %s is not there; install it", name, interpreter);
        free(interpreter);
        return HL_EXIT_NOT_FOUND;
    }
    const char *remedy = error == ENOENT    ? "check the name and PATH"
                         : is_noexec        ? "mount its file system without noexec"
                         : error == EACCES  ? "make it an executable file (chmod +x)"
                         : error == EISDIR  ? "name a program"
                         : error == ENOEXEC ? "it is no program for this machine"
                                            : "check the file";
    hl_warn("%s: %s; %s", name[0] != '\0' ? name : "''", strerror(error), remedy);
    return error == ENOENT ? HL_EXIT_NOT_FOUND : HL_EXIT_CANNOT_RUN;
}

void hl_wait_at_gate(int gate) {
    char byte = 0;
    if (gate < 0)
        return;
    if (write(gate, &byte, 1) == 1)
        while (read(gate, &byte, 1) < 0 && errno == EINTR)
            ;
    close(gate);
}

void hl_keep_standard_numbers(void) {
    int fd = STDIN_FILENO;
    for (int i = STDIN_FILENO; i <= STDERR_FILENO + 1 && fd >= 0 && fd <= STDERR_FILENO; i++)
        fd = open("/", O_PATH | O_CLOEXEC); /* a seccomp filter may answer anything, again and again */
    if (fd > STDERR_FILENO)
        close(fd);
}
