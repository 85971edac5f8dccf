/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld perf-map: names the moved functions of a running process.

   Moved text is anonymous, and a profiler that comes later finds no file for it.  The map names the
   functions at its addresses, as perf_map=on does from inside, but with more names, because here are
   libraries that read debug files.  Forked children have the same text and other numbers: --children
   writes a map for each. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "elf/kernel.h"
#include "command/perf-map/perf-map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    struct hl_pids asked; /* the given PIDs, and those with the given names */
    pid_t pid;            /* of these, the one that is mapped now, with its children */
    bool append, children, clean, force, keep_mangled, is_asked;
    const char *output;
    struct hl_geometry geometry;
    unsigned written, failed;
    /* The last map made, for children that have the same. */
    struct hl_map_text text;
    char *signature; /* its objects and addresses; NULL: none yet */
};

/* A process ID, or a name, of which there may be several processes. */
static int parse_process(void *request_, const char *text) {
    struct request *request = request_;
    int n = hl_add_processes(&request->asked, text, "perf-map");
    request->is_asked = true;
    request->failed += n == 0;
    return n < 0 ? EINVAL : 0;
}

static const struct hl_flag command_flags[] = {
    {"append", 'a', NULL, "Add to the map that is there (a JIT writes one too) instead of replacing it",
     HL_SWITCH(struct request, append)},
    {"children", 'c', NULL, "Also for each child, and theirs, that has moved text",
     HL_SWITCH(struct request, children)},
    {"clean", 'C', NULL, "Remove the maps in /tmp that hugeld wrote for processes that are gone",
     HL_SWITCH(struct request, clean)},
    {"force", 'f', NULL, "Also replace a map that hugeld did not write", HL_SWITCH(struct request, force)},
    {"no-demangle", 'm', NULL, "Leave C++ and Rust names as they are in the file",
     HL_SWITCH(struct request, keep_mangled)},
    {"output", 'O', "FILE", "Write the map to FILE (- for standard output)",
     HL_STRING(struct request, output)},
    {NULL, 0, "PID|NAME...", NULL, HL_CALL(parse_process)},
};

/* The objects and addresses that a map depends on. */
static char *make_signature(const struct hl_moved *moved, size_t n) {
    char *signature = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&signature, &size);
    for (size_t i = 0; text != NULL && i < n; i++) {
        const struct hl_loaded *loaded = moved[i].loaded;
        fprintf(text, "%ju:%ju %" PRIx64, (uintmax_t)loaded->device, (uintmax_t)loaded->inode,
                loaded->object.load_bias);
        for (size_t j = 0; j < moved[i].n_ranges; j++)
            fprintf(text, " %" PRIx64 "-%" PRIx64, moved[i].range[j].start, moved[i].range[j].end);
        fprintf(text, "\n");
    }
    if (text == NULL || fclose(text) != 0) {
        hl_warn("out of memory; free some and try again");
        exit(HL_EXIT_NO);
    }
    return signature;
}

/* Makes the text for these objects, unless it is there.  0, or a negated errno. */
static int make_text(struct request *request, const struct hl_process *process, const struct hl_moved *moved,
                     size_t n) {
    char *signature = make_signature(moved, n);
    if (request->signature != NULL && strcmp(request->signature, signature) == 0) {
        free(signature);
        return request->text.result;
    }
    if (request->signature != NULL)
        hl_free_map(&request->text);
    free(request->signature);
    request->signature = signature;
    hl_begin_map(&request->text, -1);
    for (size_t i = 0; i < n && request->text.result == 0; i++)
        hl_add_names(&request->text, process, &moved[i], !request->keep_mangled);
    return hl_finish_map(&request->text);
}

static const char *error_sentence(int result) {
    switch (-result) {
    case EPERM:
    case EACCES:
    case ELOOP:
        return "a file or link of another user is in the way; remove it, or use --output";
    case EBUSY:
        return "hugeld did not write this map (a JIT did?); add to it with --append, or use --force";
    case EISDIR:
        return "a folder has its name; remove it";
    case ENOSPC:
    case EDQUOT:
        return "there is no room; make some, or use --output";
    case EFBIG:
        return "it is larger than the limit for files; raise ulimit -f";
    case ENXIO:
        return "a pipe or device has its name; remove it";
    default:
        return NULL;
    }
}

static void say_unwritten(const char *path, int result) {
    const char *sentence = error_sentence(result);
    if (sentence != NULL)
        hl_warn("%s is not written: %s", path, sentence);
    else
        hl_warn("%s is not written: %s; use --output", path, strerror(-result));
}

/* Writes to the file that the user has named. */
static int write_output(const struct request *request) {
    if (strcmp(request->output, "-") == 0)
        return hl_write_all(STDOUT_FILENO, request->text.at, request->text.filled);
    int fd = open(request->output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int result = hl_write_all(fd, request->text.at, request->text.filled);
    return close(fd) != 0 && result == 0 ? -errno : result;
}

static int write_place(const struct request *request, const struct hl_process *process,
                       const struct hl_moved *moved, size_t n, char **path, bool *known) {
    struct hl_map_place place;
    int result = hl_find_place(&place, process);
    *path = hl_xasprintf("/tmp/perf-%d.map", place.inner_pid);
    *known = false;
    if (result == 0)
        result = request->append
                     ? hl_append_map(&place, process, &request->text, known)
                     : hl_replace_map(&place, process, request->force ? NULL : moved, n, &request->text);
    hl_close_place(&place);
    return result;
}

static void write_map(struct request *request, const struct hl_process *process, const struct hl_moved *moved,
                      size_t n) {
    char *path = NULL;
    bool known = false;
    int result;
    if (request->output != NULL) {
        path = hl_xasprintf("%s", request->output);
        result = write_output(request);
    } else {
        result = write_place(request, process, moved, n, &path, &known);
    }
    if (result != 0) {
        say_unwritten(path, result);
        request->failed++;
    } else {
        request->written++;
        if (request->output == NULL)
            hl_print("%d: %s: %" PRIu64 " functions%s", process->pid, path, request->text.lines,
                     known ? ", there already" : "");
    }
    free(path);
}

/* Whether some text of PROCESS is mapped from an image; after hl_find_loaded. */
static bool has_shared_text(const struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions; i++)
        if (process->region[i].of_image && process->region[i].flags & PF_X)
            return true;
    return false;
}

/* Whether PROCESS was attached to a copy that has no path (attach.h). */
static bool has_nameless_copy(const struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions; i++)
        if (process->region[i].flags & PF_X && hl_is_own_image(&process->region[i]))
            return true;
    return false;
}

static void say_not_moved(const struct hl_process *process) {
    if (has_nameless_copy(process))
        hl_warn(
            "%d: nothing is written: it was attached with a copy of its own, in which perf finds no names, "
            "with "
            "a map or without; profile it after hugeld detach %d, or start it on an image (hugeld enable, "
            "hugeld run)",
            process->pid, process->pid);
    else if (has_shared_text(process))
        hl_warn("%d: nothing is written: text that is mapped from images needs no map file, and no other "
                "text was moved",
                process->pid);
    else
        hl_warn("%d: none of its text was moved, perf names it without a map; 'hugeld status %d' shows more",
                process->pid, process->pid);
}

/* That a process has no moved text is printed for PID itself, not for its children. */
static void map_process(struct request *request, pid_t pid) {
    struct hl_process process;
    struct hl_moved *moved = NULL;
    size_t n = 0;
    int result = hl_open_process(&process, pid);
    if (result != 0) {
        if (pid == request->pid)
            hl_say_unreadable(pid, result);
        return;
    }
    result = hl_read_process(&process);
    if (result == 0)
        result = hl_find_loaded(&process, &request->geometry);
    if (result == 0) {
        moved = hl_find_moved(&process, &n);
        if (n > 0)
            result = make_text(request, &process, moved, n);
    }
    if (result != 0 && (pid == request->pid || n > 0))
        hl_say_unreadable(pid, result);
    else if (result == 0 && n == 0 && pid == request->pid)
        say_not_moved(&process);
    else if (result == 0 && n > 0 && request->text.lines > 0)
        write_map(request, &process, moved, n);
    for (size_t i = 0; i < n; i++)
        free(moved[i].range);
    free(moved);
    hl_close_process(&process);
}

static void map_children(struct request *request) {
    struct hl_pids family = {0};
    hl_add_pid(&family, request->pid);
    hl_add_children(&family);
    for (size_t i = 1; i < family.n; i++)
        map_process(request, family.pid[i]);
    free(family.pid);
}

/* Handles a file that is truncated while libdw has it mapped. */
static void end_on_truncation(int signal) {
    static const char line[] = "hugeld: perf-map: a file was truncated while it was read; try again\n";
    (void)signal;
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0)
        (void)0;
    _exit(HL_EXIT_NO);
}

/* Maps all processes; the exit code. */
static int map_all(struct request *request) {
    signal(SIGBUS, end_on_truncation);
    signal(SIGXFSZ, SIG_IGN); /* EFBIG reports it */
    hl_set_geometry(&request->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    for (size_t i = 0; i < request->asked.n; i++) {
        unsigned before = request->written;
        request->pid = request->asked.pid[i];
        map_process(request, request->pid);
        if (request->children)
            map_children(request);
        request->failed += request->written == before;
    }
    if (request->signature != NULL)
        hl_free_map(&request->text);
    free(request->signature);
    return request->failed == 0 ? HL_EXIT_DONE : HL_EXIT_NO;
}

static int clean_up(void) {
    long removed = hl_remove_stale_maps();
    if (removed < 0) {
        hl_warn("perf-map: --clean: %s; check /tmp and /proc", strerror((int)-removed));
        return HL_EXIT_NO;
    }
    hl_print("%ld map%s removed from /tmp", removed, hl_plural((uint64_t)removed));
    return HL_EXIT_DONE;
}

/* 0, or the exit code for wrong use. */
static int check_request(const struct request *request) {
    bool alone = !request->is_asked && !request->append && !request->children && !request->force &&
                 request->output == NULL;
    if (request->clean && !alone)
        hl_warn("perf-map: --clean stands alone; it removes the maps of processes that are gone");
    else if (request->output != NULL && (request->append || request->children || request->force))
        hl_warn("perf-map: --output takes one process's map; leave out --append, --children and --force");
    else if (request->append && request->force)
        hl_warn("perf-map: --append replaces nothing; leave out --force");
    else if (request->output != NULL && request->asked.n > 1)
        hl_warn("perf-map: --output takes one process's map; give one PID");
    else if (!request->is_asked && !request->clean)
        hl_warn("perf-map: give PIDs or NAMEs; 'hugeld status --all' lists processes with huge pages");
    else
        return 0;
    return HL_EXIT_USAGE;
}

int hl_map_functions(int argc, char **argv) {
    static const struct hl_command command = {
        "perf-map",
        "Writes /tmp/perf-PID.map, so that perf names the moved functions of running processes.\v"
        "NAME is a process's name or the base name of its executable.  The map goes to the /tmp of the "
        "process's mount namespace, under its number in its PID namespace, and "
        "belongs to its user.  Names come from the program's file, from separate debug files (by build ID or "
        ".gnu_debuglink) and from .gnu_debugdata.  Exit status: 1 when there is nothing to name in one of "
        "them.",
        command_flags, false};
    struct request request = {0};
    int code = hl_read_flags(&command, argc, argv, &request);
    if (code == 0)
        code = check_request(&request);
    if (code == 0)
        code = request.clean ? clean_up() : map_all(&request);
    free(request.asked.pid);
    return code;
}
