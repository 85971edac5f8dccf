/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: looks at a run from the kernel's side.

   Two runs of the warm-up and the last one are traced: as a process exits it stops once more (PTRACE_EVENT_EXIT), with its
   memory intact, and smaps shows the memory on huge pages.  The measured runs are not traced. */
#include "command/measure/trace.h"
#include "command/lib/process.h"
#include "command/inject/tracee.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The number of executables that a page can show. */
#define MAPS_MAX 16
/* The time between two tries to trace a process that is traced. */
#define PAUSE_US 20

static json_t *backend_of(const struct hl_region *region) {
    if (region->anon_huge_bytes > 0)
        return json_string("thp");
    if (region->of_image && hl_huge_bytes(region) > 0)
        return json_string("image");
    if (hl_hugetlb_bytes(region) > 0)
        return json_string("hugetlb");
    return hl_huge_bytes(region) > 0 ? json_string("file") : json_null();
}

/* What is looked for in each process. */
struct view {
    struct hl_string patterns;
    json_t *maps;
};

/* One object's row, or NULL if it has nothing huge, is not named, and is not the executable. */
static json_t *map_object(const struct hl_process *process, const struct hl_object *object,
                          struct hl_string patterns) {
    uint64_t start = object->segment[0].first_page, end = object->segment[object->n_segments - 1].end_page;
    uint64_t text = hl_count_segment_bytes(object, start, end, PF_X), text_huge = 0, huge = 0;
    json_t *ranges = json_array();
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        uint64_t from = region->start > start ? region->start : start,
                 to = region->end < end ? region->end : end;
        if (from >= to || region->flags == 0)
            continue;
        uint64_t bytes = hl_huge_bytes(region), size = region->end - region->start;
        long double share = bytes >= size ? 1 : (long double)bytes / (long double)size;
        huge += bytes;
        text_huge += (uint64_t)((long double)hl_count_segment_bytes(object, from, to, PF_X) * share);
        json_array_append_new(ranges,
                              json_pack("{s:o, s:o, s:s, s:o, s:I}", "start", hl_json_hex(from), "end",
                                        hl_json_hex(to), "flags", hl_flags_text(region->flags), "backend",
                                        backend_of(region), "huge_bytes", (json_int_t)bytes));
    }
    if (huge == 0 && !object->is_main && hl_select_object(patterns, object) == HL_NOT_SELECTED) {
        json_decref(ranges);
        return NULL;
    }
    return json_pack("{s:o, s:b, s:I, s:I, s:o}", "path", hl_json_text(object->path), "is_main",
                     object->is_main, "text_bytes", (json_int_t)text, "text_huge_bytes",
                     (json_int_t)text_huge, "ranges", ranges);
}

/* The memory of the process PID: {executable, objects: [path, is_main, text_bytes, text_huge_bytes, ranges: [start, end
   ("0x..."), flags, backend ("hugetlb", "thp", "image", "file" or null), huge_bytes]]}.  NULL if it cannot be read. */
static json_t *map_process(pid_t pid, struct hl_string patterns) {
    struct hl_process process;
    struct hl_geometry geometry = hl_read_geometry();
    json_t *map = NULL;
    if (hl_open_process(&process, pid) != 0)
        return NULL;
    if (hl_read_process(&process) == 0 && process.executable != NULL &&
        hl_find_loaded(&process, &geometry) == 0) {
        json_t *objects = json_array();
        for (size_t i = 0; i < process.n_loaded; i++) {
            json_t *object = map_object(&process, &process.loaded[i].object, patterns);
            if (object != NULL)
                json_array_append_new(objects, object);
        }
        map = json_pack("{s:o, s:o}", "executable", hl_json_text(process.executable), "objects", objects);
    }
    hl_close_process(&process);
    return map;
}

static uint64_t sum_process(const json_t *map, const char *backends, char flag) {
    uint64_t bytes = 0;
    size_t i, j;
    json_t *object, *range;
    json_array_foreach(json_object_get(map, "objects"), i, object)
        json_array_foreach(json_object_get(object, "ranges"), j, range) {
        const char *backend = json_string_value(json_object_get(range, "backend")),
                   *flags = json_string_value(json_object_get(range, "flags"));
        if (backend != NULL && strstr(backends, backend) != NULL && strchr(flags, flag) != NULL)
            bytes += (uint64_t)json_integer_value(json_object_get(range, "huge_bytes"));
    }
    return bytes;
}

uint64_t hl_sum_huge_bytes(const json_t *maps, const char *backends, char flag) {
    uint64_t bytes = 0;
    size_t i;
    json_t *map;
    json_array_foreach((json_t *)maps, i, map) bytes += sum_process(map, backends, flag);
    return bytes;
}

/* Adds MAP to MAPS, which keep of the processes of one executable that with most huge pages. */
static void add_map(json_t *maps, json_t *map) {
    size_t i;
    json_t *other;
    json_array_foreach(maps, i, other) {
        if (!json_equal(json_object_get(other, "executable"), json_object_get(map, "executable")))
            continue;
        if (sum_process(map, HL_MOVED, 'r') > sum_process(other, HL_MOVED, 'r'))
            json_array_set(maps, i, map);
        return;
    }
    if (json_array_size(maps) < MAPS_MAX)
        json_array_append(maps, map);
}

/* Notes what the thread TID's process has when that exits, which it does once for each thread; unless it only prepared the program's
   start. */
static void note_exit(pid_t tid, const struct view *view) {
    struct hl_task_status status;
    hl_read_thread_status(&status, tid, tid);
    json_t *map = status.process == tid ? map_process(tid, view->patterns) : NULL;
    char *self = realpath("/proc/self/exe", NULL);
    if (map != NULL &&
        (self == NULL || strcmp(self, json_string_value(json_object_get(map, "executable"))) != 0))
        add_map(view->maps, map);
    free(self);
    json_decref(map);
}

/* All traced threads. */
struct tracees {
    pid_t *pid;
    size_t n;
};

static void add_tracee(struct tracees *tracees, pid_t pid) {
    for (size_t i = 0; i < tracees->n; i++)
        if (tracees->pid[i] == pid)
            return;
    tracees->pid = hl_xrealloc(tracees->pid, (tracees->n + 1) * sizeof *tracees->pid);
    tracees->pid[tracees->n++] = pid;
}

static void drop_tracee(struct tracees *tracees, pid_t pid) {
    for (size_t i = 0; i < tracees->n; i++)
        if (tracees->pid[i] == pid)
            tracees->pid[i--] = tracees->pid[--tracees->n];
}

/* Lets PID go on after it stopped with STATUS.  A child is known from its parent's stop: the child's own stop may come only
   after the program has ended. */
static void let_go_on(pid_t pid, int status, const struct view *view, struct tracees *tracees) {
    int event = status >> 16, signal = WSTOPSIG(status);
    unsigned long child;
    bool forked = event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE;
    if (event == PTRACE_EVENT_EXIT)
        note_exit(pid, view);
    if (forked && ptrace(PTRACE_GETEVENTMSG, pid, 0, &child) == 0)
        add_tracee(tracees, (pid_t)child);
    if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) /* stopped as by a terminal: it stays */
        ptrace(PTRACE_LISTEN, pid, 0, 0);
    else
        ptrace(PTRACE_CONT, pid, 0, event != 0 ? 0 : signal);
}

/* Lets the processes that the program left running go on alone. */
static void release_all(const struct tracees *tracees) {
    for (size_t i = 0; i < tracees->n; i++) {
        int status;
        pid_t pid = tracees->pid[i];
        if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0 && waitpid(pid, &status, __WALL) == pid &&
            WIFSTOPPED(status))
            ptrace(PTRACE_DETACH, pid, 0, status >> 16 != 0 ? 0 : WSTOPSIG(status));
    }
    free(tracees->pid);
}

/* Traces CHILD, which goes on when GO is closed.  At its exec stop a helper of its own may trace it, which lets go before
   the program's first instruction. */
static bool start_tracing(pid_t child, int go, unsigned long options) {
    bool traced = ptrace(PTRACE_SEIZE, child, 0, options) == 0;
    bool waits = !traced && errno == EPERM && hl_find_tracer(child, child) > 0;
    close(go);
    while (waits && !traced) {
        usleep(PAUSE_US);
        waits = hl_find_tracer(child, child) > 0;
        traced = ptrace(PTRACE_SEIZE, child, 0, options) == 0;
    }
    return traced;
}

int hl_trace_program(pid_t child, int go, const char *patterns, json_t *maps, struct rusage *usage) {
    const struct view view = {hl_find_patterns(patterns), maps};
    static const unsigned long options =
        PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
    struct tracees tracees = {0};
    bool traced = start_tracing(child, go, options);
    int status = 0;
    for (pid_t pid = 0; pid != child || WIFSTOPPED(status);) {
        pid = wait4(traced ? -1 : child, &status, __WALL, usage);
        if (pid < 0 && errno != EINTR)
            break;
        if (pid > 0 && WIFSTOPPED(status)) {
            add_tracee(&tracees, pid);
            let_go_on(pid, status, &view, &tracees);
        } else if (pid > 0) {
            drop_tracee(&tracees, pid);
        }
    }
    release_all(&tracees);
    return status;
}
