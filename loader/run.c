/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run: sets LD_PRELOAD, LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS, then becomes the program.

   The program's file is looked at first, because there are programs in which a preloaded library never runs,
   and one kind (AddressSanitizer) that refuses to start with any.  They run as they would without hugeld,
   with one line that says so; with strict=on they don't run. */
#include "command.h"
#include "elf-file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef HL_LIBDIR
#define HL_LIBDIR "/usr/local/lib/hugeld"
#endif

struct request {
    const char *patterns; /* -p, or NULL */
    char *options;        /* every -o, joined; or NULL */
    bool use_ldso;
    int program; /* the index of PROGRAM in argv, or 0 */
};

static const struct argp_option argp_options[] = {
    {"objects", 'p', "PATTERNS", 0, "Which objects, as in LD_HUGEPAGES: 'main:libLLVM*:!libc.so*'", 0},
    {"options", 'o', "NAME=VALUE,...", 0,
     "How, as in LD_HUGEPAGES_OPTIONS; may be repeated, the later one wins", 0},
    {"loader", 'l', "preload|ldso", 0,
     "Which way in: libhugeld.so (the default), or the patched dynamic linker", 0},
    HL_HELP_OPTION,
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t set_loader(struct request *request, const char *name) {
    request->use_ldso = strcmp(name, "ldso") == 0;
    if (request->use_ldso || strcmp(name, "preload") == 0)
        return 0;
    hl_say("--loader=%s: there is no such loader; use preload or ldso", name);
    return EINVAL;
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct request *request = state->input;
    switch (key) {
    case 'p':
        request->patterns = argument;
        return 0;
    case 'o':
        return hl_add_options(&request->options, argument);
    case 'l':
        return set_loader(request, argument);
    case ARGP_KEY_ARG: /* what follows is the program's */
        request->program = state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        return hl_parse_common(key, state, "hugeld run", true);
    }
}

char *hl_find_library(void) {
    char self[PATH_MAX] = "";
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = bytes > 0 ? strrchr(self, '/') : NULL;
    if (slash != NULL)
        *slash = '\0';
    char *places[] = {
        hl_format("%s/libhugeld.so", self),
        hl_format("%s/../lib/hugeld/libhugeld.so", self),
        hl_format("%s/libhugeld.so", HL_LIBDIR),
    };
    char *found = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (found == NULL && access(places[i], R_OK) == 0)
            found = realpath(places[i], NULL);
        free(places[i]);
    }
    return found;
}

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

/* Where execvp(3) finds NAME.  NULL if nowhere, and errno is EACCES if it was there but can't be run; else
   the caller owns the path. */
static char *find_program(const char *name) {
    if (strchr(name, '/') != NULL)
        return is_executable(name) ? hl_format("%s", name) : NULL;
    const char *folder = getenv("PATH");
    char *found = NULL;
    int error = ENOENT;
    if (folder == NULL)
        folder = "/bin:/usr/bin"; /* what glibc takes */
    while (found == NULL && name[0] != '\0') {
        int length = (int)strcspn(folder, ":");
        found = hl_format("%.*s%s%s", length, folder, length > 0 ? "/" : "", name);
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

/* Why PROGRAM can't be run, in the words and with the exit codes of env(1). */
static int refuse_program(const char *name) {
    int error = errno;
    const char *remedy = error == ENOENT    ? "check the name and PATH"
                         : error == EACCES  ? "make it an executable file (chmod +x)"
                         : error == ENOEXEC ? "it is no program for this machine"
                                            : "check the file";
    hl_say("%s: %s; %s", name[0] != '\0' ? name : "''", strerror(error), remedy);
    return error == ENOENT ? HL_EXIT_NOT_FOUND : HL_EXIT_CANNOT_RUN;
}

/* Whether the kernel will start PATH in secure mode, in which the dynamic linker takes no library from
 * LD_PRELOAD. */
static bool is_privileged(const char *path) {
    struct stat stat_buffer;
    if (stat(path, &stat_buffer) != 0)
        return false;
    if ((stat_buffer.st_mode & S_ISUID) && stat_buffer.st_uid != getuid())
        return true;
    if ((stat_buffer.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && stat_buffer.st_gid != getgid())
        return true;
    return getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0;
}

/* Why libhugeld.so would not work in the program at PATH; NULL if nothing speaks against it.  A script is
   fine: its interpreter inherits the variables. */
static const char *explain_plain_run(const char *path) {
    struct hl_elf_file file;
    const char *reason = NULL;
    if (is_privileged(path))
        return "set-user-ID, set-group-ID or with file capabilities, where hugeld does nothing";
    enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, path);
    if (problem == HL_ELF_32_BIT)
        return "a 32-bit program, and libhugeld.so is a 64-bit library";
    if (problem != HL_ELF_FINE)
        return NULL;
    if (!hl_is_native(&file))
        reason = "a program for another machine";
    else if (!file.has_interpreter)
        reason = "static, the dynamic linker never runs";
    else if (hl_needs_library(&file, "libasan.so"))
        reason = "built with AddressSanitizer, which aborts with any preloaded library";
    hl_close_elf(&file);
    return reason;
}

/* Why LIBRARY, as hl_find_library found it, can't be preloaded; NULL if it can. */
static const char *explain_no_library(const char *library) {
    if (library == NULL)
        return "libhugeld.so is neither beside this command nor in " HL_LIBDIR ", build it with 'make'";
    if (strpbrk(library, " :") != NULL)
        return "LD_PRELOAD cannot name libhugeld.so by a path with a space or a colon, move it elsewhere";
    return NULL;
}

/* The folder LIBRARY is in, as a printf precision. */
static int folder_bytes(const char *library) { return (int)(hl_base_name(library) - library); }

/* Puts LIBRARY first in LD_PRELOAD.  Beside it may be a folder "preload" with one library for each kind of
   program, and each dynamic linker takes its own ($LIB): 32-bit children complain of nothing. */
static void set_preload(const char *library) {
    const char *inherited = getenv("LD_PRELOAD");
    char *folder = hl_format("%.*spreload", folder_bytes(library), library);
    char *name =
        access(folder, X_OK) == 0 ? hl_format("%s/$LIB/libhugeld.so", folder) : hl_format("%s", library);
    char *both = hl_format("%s%s%s", name, inherited != NULL && inherited[0] != '\0' ? ":" : "",
                           inherited != NULL ? inherited : "");
    setenv("LD_PRELOAD", both, 1);
    free(both);
    free(name);
    free(folder);
}

/* Sets the environment for the program at PATH.  0, or the exit code. */
static int prepare_environment(const struct request *request, const char *name, const char *path) {
    struct hl_options options;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->options);
    hl_default_options(&options);
    hl_parse_options(&options, text, NULL); /* libhugeld.so warns of what was inherited */
    if (request->patterns != NULL)
        setenv("LD_HUGEPAGES", request->patterns, 1);
    if (request->options != NULL)
        setenv("LD_HUGEPAGES_OPTIONS", text, 1);

    bool acts = hl_match_only(&options, path), strict = acts && options.strict != 0;
    const char *reason = explain_plain_run(path);
    char *library = hl_find_library();
    if (reason == NULL)
        reason = explain_no_library(library);
    if (reason == NULL)
        set_preload(library);
    else if (acts)
        hl_say("%s: %s; %s", name, reason,
               strict ? "strict=on, so it does not run: leave that out" : "it runs on small pages");
    free(library);
    free(text);
    return reason != NULL && strict ? HL_EXIT_NOT_FOUND : 0;
}

/* Becomes the program at PATH.  Returns only when that fails.  Only what is no ELF file may be a script
   without "#!", which execvp gives to the shell: another machine's program ends there in syntax errors. */
static int become_program(const char *path, char **program) {
    struct hl_elf_file file;
    execv(path, program);
    if (errno == ENOEXEC) {
        if (hl_open_elf(&file, AT_FDCWD, path) == HL_ELF_OTHER)
            execvp(program[0], program);
        errno = ENOEXEC;
    }
    return refuse_program(program[0]);
}

int hl_run_program(int argc, char **argv) {
    static const struct argp argp = {
        argp_options,
        parse_argument,
        "[--] PROGRAM [ARGUMENT...]",
        "Runs PROGRAM with its text and data on huge pages.\v"
        "PATTERNS are shell globs, separated by colons, against an object's base name, its soname, or its "
        "path where "
        "the pattern has a slash; 'main' is the executable; a leading '!' excludes.",
        NULL,
        NULL,
        NULL,
    };
    struct request request = {0};
    char *path = NULL;
    int code = HL_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL, &request) != 0)
        goto out;
    if (request.program == 0) {
        hl_say("run: no program given; try 'hugeld run ls'");
        goto out;
    }
    if (request.use_ldso) {
        hl_say("--loader=ldso: this version has no patched dynamic linker; use --loader=preload");
        goto out;
    }
    char **program = argv + request.program;
    path = find_program(program[0]);
    if (path == NULL) {
        code = refuse_program(program[0]);
        goto out;
    }
    code = prepare_environment(&request, program[0], path);
    if (code == 0)
        code = become_program(path, program);
out:
    free(path);
    free(request.options);
    return code;
}
