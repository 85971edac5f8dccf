/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* perf_map=on: writes the functions of moved text to /tmp/perf-PID.map, from inside, before main.

   The names come from the files that were mapped.  A file that was replaced is not read: its functions are elsewhere.

   Names stay as they are in the file, mangled: perf prints a map as it stands. */
#include "in-process.h"
#include "backing-file.h"
#include "line.h"
#include "report.h"
#include "sys.h"
#include "write.h"

#include <linux/fcntl.h>
#include <linux/stat.h>

/* <linux/stat.h> leaves these to libc's headers wherever there are any. */
#define HL_S_IFMT 0170000
#define HL_S_IFREG 0100000

#define RANGES_MAX HL_SPANS_MAX

/* An object that is opened and closed a thousand times is added a thousand times. */
#define MAP_BYTES_MAX (64 << 20)

/* "hugeld: WHAT: not written: ...". */
static void tell_failure(const struct hl_context *context, const char *what, const char *consequence,
                         int result) {
    struct hl_line line;
    const char *sentence = hl_explain_map_error(result);
    if (context->config->options.verbose < 1)
        return;
    hl_set_line(&line, "hugeld: ");
    hl_add_foreign(&line, (struct hl_string){what, hl_strlen(what)});
    hl_add_text(&line, consequence);
    if (sentence != NULL) {
        hl_add_text(&line, sentence);
    } else {
        hl_add_text(&line, "error ");
        hl_add_number(&line, (uint64_t)-result);
        hl_add_text(&line, "; see errno(3)");
    }
    hl_write_line(context, &line);
}

/* The ranges of WORK that were moved, are not writable, and have FLAG, ascending; neighbours are one
   range.  A range that is mapped from an image has a file, in which perf finds the names itself. */
static size_t find_ranges(const struct hl_work *work, uint32_t flag, struct hl_text_range *range) {
    size_t n = 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        bool has_file = work->move[i].backend == HL_IMAGE;
        if (!work->move[i].placed || has_file || !(span->flags & flag) || (span->flags & PF_W))
            continue;
        if (n > 0 && range[n - 1].end == span->start) {
            range[n - 1].end = span->end;
            continue;
        }
        range[n].start = span->start;
        range[n++].end = span->end;
    }
    return n;
}

/* Adds the lines of one object. */
static void add_object(struct hl_context *context, struct hl_work *work, struct hl_map_text *text) {
    struct hl_text_range range[RANGES_MAX], moved[RANGES_MAX];
    struct hl_symbols symbols;
    size_t n = find_ranges(work, PF_X, range);
    uint64_t lines = text->lines;
    long fd = hl_open_mapped_file(context, work);
    int result = hl_is_error(fd) ? (int)fd : 0;
    hl_begin_symbols(&symbols, work->object.load_bias);
    symbols.moved = moved;
    symbols.n_moved = find_ranges(work, PF_R, moved);
    if (result == 0) {
        result = hl_read_symbols(&symbols, (int)fd);
        int chosen = hl_choose_symbols(&symbols);
        if (chosen == 0)
            chosen = hl_write_symbols(text, &symbols, range, n);
        result = result != 0 ? result : chosen;
        hl_close_mapped_file(work, fd);
    }
    hl_free_symbols(&symbols);
    if (result == 0 && text->result == 0 && text->lines == lines)
        result = -ENODATA;
    if (result != 0)
        tell_failure(context, hl_base_name(work->object.path), ": functions stay unnamed: ", result);
}

/* The first object with moved text that begins at or after ADDRESS; or NULL. */
static struct hl_work *find_next(const struct hl_context *context, uint64_t address) {
    struct hl_text_range range[RANGES_MAX];
    struct hl_work *best = NULL;
    uint64_t start = UINT64_MAX;
    for (size_t i = 0; i < context->n_work; i++) {
        struct hl_work *work = &context->work[i];
        if (find_ranges(work, PF_X, range) > 0 && range[0].start >= address && range[0].start < start) {
            best = work;
            start = range[0].start;
        }
    }
    return best;
}

static uint64_t begins_at(const struct hl_work *work) {
    struct hl_text_range range[RANGES_MAX];
    return find_ranges(work, PF_X, range) > 0 ? range[0].start : 0;
}

/* Writes the lines of all objects at the end of FD, where BYTES have been written before. */
static int write_lines(struct hl_context *context, int fd, uint64_t bytes, uint64_t *lines) {
    struct hl_map_text text;
    hl_begin_map(&text, fd);
    text.written = bytes;
    for (struct hl_work *work = find_next(context, 0); work != NULL && text.result == 0;
         work = find_next(context, begins_at(work) + 1))
        add_object(context, work, &text);
    int result = hl_finish_map(&text);
    *lines = text.lines;
    hl_free_map(&text);
    return result;
}

static int write_map(struct hl_context *context, int folder, uint64_t *lines) {
    struct hl_new_map map;
    int result = hl_create_map(&map, folder, (uint64_t)hl_getpid());
    if (result != 0)
        return result;
    result = write_lines(context, map.fd, 0, lines);
    if (result != 0 || *lines == 0) {
        hl_drop_map(&map);
        return result;
    }
    return hl_place_map(&map);
}

/* Whether STAT is of a regular file that belongs to this user. */
static bool is_ours(const struct statx *stat) {
    return (stat->stx_mode & HL_S_IFMT) == HL_S_IFREG &&
           stat->stx_uid == (uint32_t)HL_CALL(__NR_geteuid, 0, 0, 0, 0, 0, 0);
}

#define STATX_OURS (STATX_TYPE | STATX_UID | STATX_SIZE)

/* A map of this number that is ours is an earlier process's: nothing of this process has run yet. */
static void remove_stale_map(int folder) {
    char name[HL_MAP_NAME_BYTES];
    struct statx stat;
    hl_name_map(name, (uint64_t)hl_getpid());
    long result = HL_CALL(__NR_statx, folder, name, 0x100 /* AT_SYMLINK_NOFOLLOW */, STATX_OURS, &stat, 0);
    if (!hl_is_error(result) && is_ours(&stat))
        HL_CALL(__NR_unlinkat, folder, name, 0, 0, 0, 0);
}

/* The process whose map was begun here: a later object's lines are added to it.  A child's would need its
   parent's lines, too, and a file with that name may be its JIT's: hugeld perf-map knows better. */
static uint64_t mapped_process;

static int append_map(struct hl_context *context, int folder, uint64_t *lines) {
    char name[HL_MAP_NAME_BYTES];
    struct statx stat;
    hl_name_map(name, mapped_process);
    long fd = HL_CALL(__NR_openat, folder, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0,
                      0, 0);
    if (fd == -ENOENT)
        return write_map(context, folder, lines);
    fd = hl_move_up(fd);
    if (hl_is_error(fd))
        return (int)fd;
    long result = HL_CALL(__NR_statx, fd, "", 0x1000 /* AT_EMPTY_PATH */, STATX_OURS, &stat, 0);
    if (!hl_is_error(result) && !is_ours(&stat))
        result = -EPERM;
    if (!hl_is_error(result) && stat.stx_size >= MAP_BYTES_MAX)
        result = -EOVERFLOW;
    if (!hl_is_error(result))
        result = write_lines(context, (int)fd, stat.stx_size, lines);
    hl_close((int)fd);
    return (int)result;
}

static void tell_written(const struct hl_context *context, uint64_t lines) {
    struct hl_line line;
    char name[HL_MAP_NAME_BYTES];
    if (context->config->options.verbose < 2)
        return;
    hl_name_map(name, (uint64_t)hl_getpid());
    hl_set_line(&line, "hugeld: /tmp/");
    hl_add_text(&line, name);
    hl_add_text(&line, ": ");
    hl_add_number(&line, lines);
    hl_add_text(&line, lines == 1 ? " function" : " functions");
    hl_write_line(context, &line);
}

void hl_write_own_map(struct hl_context *context) {
    char name[HL_MAP_NAME_BYTES];
    uint64_t lines = 0;
    bool is_first = mapped_process == 0;
    if (!context->config->options.perf_map || (!is_first && mapped_process != (uint64_t)hl_getpid()))
        return;
    long folder = hl_open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int result = hl_is_error(folder) ? (int)folder : 0;
    if (result == 0) {
        mapped_process = (uint64_t)hl_getpid();
        if (is_first)
            remove_stale_map((int)folder);
        if (find_next(context, 0) != NULL)
            result =
                is_first ? write_map(context, (int)folder, &lines) : append_map(context, (int)folder, &lines);
        hl_close((int)folder);
    }
    hl_name_map(name, (uint64_t)hl_getpid());
    if (result != 0)
        tell_failure(context, name, " is not written: ", result);
    else if (lines > 0)
        tell_written(context, lines);
}
