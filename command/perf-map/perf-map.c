/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld perf-map: names the moved functions of a running process.

   Moved text is anonymous, and a profiler that comes later finds no file for it.  The map names the functions at its addresses, as
   perf_map=on does from inside, but with the names of debug files too.  perf prints its names as they stand. */
#include "command/command.h"
#include "command/lib/common.h"
#include "command/lib/flags.h"
#include "command/lib/subprocess.h"
#include "command/lib/program.h"
#include "command/perf-map/perf-map.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FREE_BYTES ((size_t)1 << 20)
#define OLD_BYTES_MAX ((size_t)1 << 30)

struct request {
    struct hl_list asked;
    bool appends, children, demangles;
    const char *output;
    json_t *maps; /* that were written */
};

static const struct hl_flag command_flags[] = {
    {"append", 'a', NULL, "Add to the map that is there, such as a JIT's, which is never replaced",
     HL_SWITCH(struct request, appends)},
    {"children", 'c', NULL, "Also for each child, and theirs, that has moved text",
     HL_SWITCH(struct request, children)},
    {"demangle", 'd', NULL, "Write C++ and Rust names as c++filt prints them",
     HL_SWITCH(struct request, demangles)},
    {"output", 'O', "FILE", "Write the map to FILE (- for standard output)",
     HL_STRING(struct request, output)},
    {NULL, 0, "PID...", NULL, HL_LIST(struct request, asked)},
};

int hl_open_inside(const struct hl_process *process, const char *path, uint64_t flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    bool is_ours = process == NULL || hl_has_same(process->folder, "ns/mnt") != 0;
    int root = is_ours ? open("/", O_PATH | O_CLOEXEC) : openat(process->folder, "root", O_PATH | O_CLOEXEC);
    long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
    int result = fd >= 0 ? (int)fd : -errno;
    if (root >= 0)
        close(root);
    return result;
}

/* Whether hugeld wrote all of the map FD: each line is between two marks, or empty. */
static bool is_own_map(int fd) {
    FILE *text = fdopen(dup(fd), "r");
    char line[256]; /* or the next part of a long one */
    size_t marks = 0;
    bool is_own = text != NULL, is_first = true;
    while (is_own && fgets(line, sizeof line, text) != NULL) {
        bool is_mark = is_first && strcmp(line, HL_MAP_MARK) == 0;
        marks += is_mark;
        is_own = is_mark || marks % 2 == 1 || (is_first && line[0] == '\n');
        is_first = strchr(line, '\n') != NULL;
    }
    if (text != NULL)
        fclose(text);
    return is_own && marks > 0 && marks % 2 == 0;
}

/* Adds TEXT to the map FD of OLD_BYTES, unless it is there, in one write, so that no other writer's line gets in between.  The map's
   last line may be half written, and its writer may go on at its own offset: it overwrites the free lines before it comes to ours. */
static int append_text(int fd, size_t old_bytes, const char *text, size_t bytes, bool *is_known) {
    char *all = old_bytes < OLD_BYTES_MAX ? malloc(old_bytes + FREE_BYTES + bytes) : NULL;
    int result = all == NULL ? -ENOMEM : hl_read_exactly(fd, 0, all, old_bytes) ? 0 : -EIO;
    *is_known = result == 0 && memmem(all, old_bytes, text, bytes) != NULL;
    if (result == 0 && !*is_known) {
        memset(all, '\n', FREE_BYTES);
        memcpy(all + FREE_BYTES, text, bytes);
        result = hl_write_bytes(fd, all, FREE_BYTES + bytes);
    }
    free(all);
    return result;
}

/* Writes the map in FOLDER, with the rights of the process's user.  A link is not followed, and is replaced itself.  -EBUSY: hugeld
   did not write all of the map that is there. */
static int store(int folder, const struct hl_task_status *status, const char *text, size_t bytes,
                 bool appends, bool *is_known) {
    char name[HL_MAP_NAME_BYTES];
    struct hl_new_map map;
    struct stat old;
    hl_name_map(name, (uint64_t)status->inner_pid);
    int flags = appends ? O_RDWR | O_APPEND : O_RDONLY;
    int fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && (errno != ELOOP || appends))
        return errno == ELOOP ? -EPERM : -errno;
    int result = fd >= 0 && fstat(fd, &old) != 0 ? -errno : 0;
    bool is_users = fd >= 0 && result == 0 && (old.st_uid == status->file_user || old.st_uid == geteuid());
    if (result == 0 && fd >= 0 && appends)
        result = !S_ISREG(old.st_mode) || old.st_nlink != 1 || !is_users
                     ? -EPERM
                     : append_text(fd, (size_t)old.st_size, text, bytes, is_known);
    else if (result == 0 && fd >= 0 && S_ISREG(old.st_mode) && !is_own_map(fd))
        result = is_users ? -EBUSY : -EPERM;
    else if (result == 0 && (result = hl_create_map(&map, folder, (uint64_t)status->inner_pid)) == 0) {
        result = hl_write_bytes(map.fd, text, bytes);
        if (result == 0)
            result = hl_place_map(&map);
        else
            hl_drop_map(&map);
    }
    if (fd >= 0)
        close(fd);
    return result;
}

/* Writes TEXT as the map of PROCESS: perf looks for /tmp/perf-PID.map in its mount namespace, with its number in its own PID
   namespace.  That /tmp belongs to another user, and all users may write to it.  So only single names are opened in it, never
   through a link, and with the rights of the process's user: every obstacle to that user stops root, too. */
static int store_map(const struct hl_process *process, const char *text, size_t bytes, bool appends,
                     char **path, bool *is_known) {
    struct hl_task_status status;
    int result = hl_read_task_status(&status, process->folder, "status");
    *path = hl_xasprintf("/tmp/perf-%d.map", status.inner_pid);
    if (result != 0)
        return result;
    int folder = hl_open_inside(process, "tmp", O_PATH | O_DIRECTORY);
    if (folder < 0)
        return folder;
    setfsgid(status.file_group); /* as far as that is allowed */
    setfsuid(status.file_user);
    result = store(folder, &status, text, bytes, appends, is_known);
    setfsuid(geteuid());
    setfsgid(getegid());
    close(folder);
    return result;
}

/* The map with the names that c++filt makes of it, without parameters, as perf has them; false after one line.  The names are
   whatever the file says, so c++filt gets no rights. */
static bool demangle(struct hl_answer *answer, const struct hl_map_text *text) {
    char *const argv[] = {"c++filt", "--no-params", "--no-verbose", NULL};
    char *program = hl_find_program("c++filt"), *input = hl_xasprintf("%.*s", (int)text->filled, text->at);
    if (program == NULL)
        hl_warn("perf-map: --demangle: there is no c++filt; install binutils");
    else
        hl_ask_program(answer, program, argv, geteuid() == 0, input);
    if (program != NULL && !answer->succeeded)
        hl_warn("perf-map: --demangle: c++filt fails; leave it out");
    free(program);
    free(input);
    return answer->succeeded;
}

static int write_output(const char *path, const char *text, size_t bytes) {
    if (strcmp(path, "-") == 0)
        return hl_write_bytes(STDOUT_FILENO, text, bytes);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int result = hl_write_bytes(fd, text, bytes);
    return close(fd) != 0 && result == 0 ? -errno : result;
}

/* Whether it is written; if not, after one line. */
static bool write_map(const struct request *request, const struct hl_process *process,
                      const struct hl_map_text *text) {
    struct hl_answer answer = {0};
    bool is_known = false, is_fine = !request->demangles || demangle(&answer, text);
    const char *at = request->demangles ? answer.output : text->at;
    char *path = NULL;
    if (is_fine) {
        size_t bytes = request->demangles ? strlen(at) : text->filled;
        int result = request->output != NULL
                         ? write_output(request->output, at, bytes)
                         : store_map(process, at, bytes, request->appends, &path, &is_known);
        const char *sentence = hl_explain_map_error(result);
        is_fine = result == 0;
        if (!is_fine)
            hl_warn("%s is not written: %s", path != NULL ? path : request->output,
                    sentence != NULL ? sentence : strerror(-result));
        else if (path != NULL)
            hl_print("%d: %s: %" PRIu64 " functions%s", process->pid, path, text->lines,
                     is_known ? ", there already" : "");
        if (is_fine)
            json_array_append_new(request->maps,
                                  json_pack("{s:i, s:o, s:I, s:b}", "pid", (int)process->pid, "path",
                                            hl_json_text(path != NULL ? path : request->output), "functions",
                                            (json_int_t)text->lines, "changed", !is_known));
    }
    free(path);
    hl_free_answer(&answer);
    return is_fine;
}

static void say_not_moved(const struct hl_process *process) {
    bool is_copy = false;
    for (size_t i = 0; i < process->n_regions; i++)
        is_copy |= hl_is_own_image(&process->region[i]) && (process->region[i].flags & PF_X);
    hl_warn("%d: nothing is written: %s", process->pid,
            is_copy ? "it was attached with a copy of its own, in which perf finds no names, with a map or "
                      "without; profile it after hugeld detach"
                    : "none of its text was moved, or it is mapped from images: perf names it without a map");
}

/* Whether the map of PID is written.  A child without moved text, or that has ended, costs no line. */
static bool map_process(const struct request *request, pid_t pid, bool is_child) {
    struct hl_process process;
    struct hl_geometry geometry = hl_read_geometry();
    struct hl_map_text text;
    bool is_moved = false, is_written = false;
    int result = hl_open_process(&process, pid);
    if (result == 0) {
        result = hl_read_process(&process);
        if (result == 0)
            result = hl_find_loaded(&process, &geometry);
        hl_begin_map(&text, -1);
        for (size_t i = 0; result == 0 && i < process.n_loaded; i++)
            is_moved |= hl_add_names(&text, &process, &process.loaded[i]);
        if (result == 0 && is_moved)
            result = hl_finish_map(&text);
        if (result == 0 && is_moved && text.lines > 0)
            is_written = write_map(request, &process, &text);
        else if (result == 0 && !is_moved && !is_child)
            say_not_moved(&process);
        hl_free_map(&text);
        hl_close_process(&process);
    }
    if (result != 0 && (!is_child || is_moved))
        hl_say_unreadable(pid, result);
    return is_written;
}

/* 0, or the exit code for wrong use; adds the IDs to PIDS. */
static int check_request(const struct request *request, struct hl_pids *pids) {
    bool has_others =
        request->output != NULL && (request->appends || request->children || request->asked.n > 1);
    bool is_stdout = request->output != NULL && strcmp(request->output, "-") == 0;
    const char *wrong = has_others ? "--output: give one PID, and neither --append nor --children"
                        : is_stdout && hl_output.is_json
                            ? "--output=- and --json would both write to standard output; name a file"
                        : request->asked.n == 0
                            ? "give PIDs; 'hugeld status --all' lists processes with huge pages"
                            : NULL;
    for (size_t i = 0; i < request->asked.n && wrong == NULL; i++) {
        pid_t pid = hl_parse_pid(request->asked.word[i]);
        if (pid == 0)
            wrong = "give the IDs of processes, numbers as ps prints them";
        hl_add_pid(pids, pid);
    }
    if (wrong != NULL)
        hl_warn("perf-map: %s", wrong);
    return wrong != NULL ? HL_EXIT_USAGE : 0;
}

int hl_map_functions(int argc, char **argv) {
    static const struct hl_command command = {
        "perf-map",
        "Writes /tmp/perf-PID.map, so that perf names the moved functions of running processes.\v"
        "The map goes to the /tmp of the process's mount namespace, under its number in its PID namespace, "
        "and belongs "
        "to its user.  Names come from the program's file, from separate debug files (by build ID or "
        ".gnu_debuglink) "
        "and from .gnu_debugdata.  Exit status: 1 when there is nothing to name in one of them.",
        command_flags, false};
    struct request request = {.maps = json_array()};
    struct hl_pids pids = {0};
    int code = hl_read_flags(&command, argc, argv, &request);
    if (code == 0)
        code = check_request(&request, &pids);
    signal(SIGXFSZ, SIG_IGN); /* EFBIG reports it */
    for (size_t i = 0, n = pids.n; code != HL_EXIT_USAGE && i < n; i++) {
        struct hl_pids family = {0};
        hl_add_pid(&family, pids.pid[i]);
        if (request.children)
            hl_add_children(&family);
        bool any = false;
        for (size_t j = 0; j < family.n; j++)
            any |= map_process(&request, family.pid[j], j > 0);
        code = any ? code : HL_EXIT_NO;
        free(family.pid);
    }
    if (code != HL_EXIT_USAGE)
        hl_print_answer(json_pack("{s:O}", "maps", request.maps), code == HL_EXIT_NO);
    json_decref(request.maps);
    free(pids.pid);
    free(request.asked.word);
    return code;
}
