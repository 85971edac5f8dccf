/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds which processes run a file, and which of them have its text on huge pages.

   Only the spans of the file are looked at, by PAGEMAP_SCAN: smaps walks all memory of a process, which then waits. */
#include "command/lib/subprocess.h"
#include "command/keep/keep.h"
#include "command/lib/process.h"
#include "elf/maps.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VISIT_SECONDS 2
#define ALL_MS 600e3
#define LEFT_OUT_MAX 64
#define SPANS_MAX 4096

struct scan {
    bool is_unknown; /* the kernel does not scan pagemap */
    size_t n_text;
    struct hl_address_range text[SPANS_MAX]; /* the executable regions of one process */
    size_t n;
    struct hl_use use[];
};

/* Whether REGION maps the file of USE or its image. */
static bool is_of(const struct hl_region *region, const struct hl_use *use) {
    return region->inode != 0 && ((region->inode == use->inode && region->device == use->device) ||
                                  (region->inode == use->image_inode && region->device == use->image_device));
}

static void read_regions(struct scan *scan, FILE *maps) {
    struct hl_region region;
    char *line = NULL;
    size_t size = 0;
    scan->n_text = 0;
    for (size_t i = 0; i < scan->n; i++)
        scan->use[i].start = scan->use[i].end = 0;
    while (hl_next_region(&region, maps, &line, &size)) {
        for (size_t i = 0; i < scan->n; i++)
            if (is_of(&region, &scan->use[i])) {
                struct hl_use *use = &scan->use[i];
                use->start = use->end == 0 ? region.start : use->start;
                use->end = region.end;
            }
        if ((region.flags & PF_X) && scan->n_text < SPANS_MAX)
            scan->text[scan->n_text++] = (struct hl_address_range){region.start, region.end};
    }
    free(line);
}

/* Copies the name of the unit of systemd that PID belongs to to UNIT.  False: it belongs to none. */
static bool read_unit(pid_t pid, char unit[128]) {
    bool has_unit = false;
    char *path = hl_xasprintf("/proc/%d/cgroup", pid), groups[4096];
    long bytes = hl_read_file(path, groups, sizeof groups);
    free(path);
    for (char *part = bytes > 0 ? strtok(groups, "/\n") : NULL; part != NULL; part = strtok(NULL, "/\n"))
        if (hl_is_unit(part) && strlen(part) < 128 && strncmp(part, "user@", 5) != 0) {
            memcpy(unit, part, strlen(part) + 1);
            has_unit = true;
        }
    return has_unit;
}

/* Whether any text of the file of USE is on huge pages: 1, 0, or -1 if the kernel does not tell; -2: it has none. */
static int find_huge(const struct scan *scan, const struct hl_use *use, int pagemap) {
    int result = -2;
    for (size_t i = 0; i < scan->n_text && result != 1 && result != -1; i++) {
        const struct hl_address_range *text = &scan->text[i];
        if (text->start < use->start || text->end > use->end)
            continue;
        int64_t bytes = pagemap >= 0 ? hl_measure_huge(pagemap, text->start, text->end) : -1;
        result = bytes < 0 ? -1 : bytes > 0;
    }
    return result;
}

static void scan_process(void *scan_, pid_t pid) {
    struct scan *scan = scan_;
    char *path = hl_xasprintf("/proc/%d/maps", pid), *other = hl_xasprintf("/proc/%d/pagemap", pid);
    FILE *maps = fopen(path, "re");
    if (maps != NULL) {
        read_regions(scan, maps);
        fclose(maps);
    }
    int pagemap = maps != NULL ? open(other, O_RDONLY | O_CLOEXEC) : -1;
    for (size_t i = 0; maps != NULL && i < scan->n; i++) {
        struct hl_use *use = &scan->use[i];
        int huge = use->end > 0 ? find_huge(scan, use, pagemap) : -2;
        if (huge == -2)
            continue;
        use->processes++;
        use->huge += huge == 1;
        scan->is_unknown |= huge == -1;
        if (huge != 1)
            use->in_units += read_unit(pid, use->unit);
    }
    if (pagemap >= 0)
        close(pagemap);
    free(other);
    free(path);
}

bool hl_find_users(struct hl_use *use, size_t n, unsigned *left_out) {
    size_t bytes = sizeof(struct scan) + n * sizeof *use;
    struct scan *scan = hl_xmalloc(bytes);
    scan->n = n;
    memcpy(scan->use, use, n * sizeof *use);
    *left_out = n > 0 ? hl_visit_processes(scan_process, scan, bytes) : 0;
    memcpy(use, scan->use, n * sizeof *use);
    bool is_known = !scan->is_unknown;
    free(scan);
    return is_known;
}

/* --- all processes --- */

/* In memory that the child and its parent share. */
struct shared {
    volatile pid_t reading, last; /* the process that is being read, and the last one that was */
    volatile uid_t user;          /* of the former */
    unsigned n_left_out;
    struct left_out {
        uid_t user;
        pid_t process; /* of root, whose processes are left out one by one; else 0 */
    } left_out[LEFT_OUT_MAX];
    void (*visit)(void *data, pid_t pid);
    _Alignas(max_align_t) char data[];
};

static bool is_left_out(const struct shared *shared, uid_t user, pid_t process) {
    for (unsigned i = 0; i < shared->n_left_out; i++)
        if (shared->left_out[i].user == user && (user != 0 || shared->left_out[i].process == process))
            return true;
    return shared->n_left_out == LEFT_OUT_MAX;
}

/* Visits the processes behind the last one, in the child. */
static int visit_others(void *shared_) {
    struct shared *shared = shared_;
    struct hl_task_status status;
    DIR *proc = NULL;
    signal(SIGALRM, SIG_DFL);
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        if (pid <= shared->last || pid == getpid() || pid == getppid() ||
            hl_read_thread_status(&status, pid, pid) != 0 || is_left_out(shared, status.user, pid))
            continue;
        shared->user = status.user;
        shared->reading = pid;
        alarm(VISIT_SECONDS);
        shared->visit(shared->data, pid);
        shared->reading = 0;
        shared->last = pid;
    }
    return 0;
}

unsigned hl_visit_processes(void (*visit)(void *data, pid_t pid), void *data, size_t bytes) {
    size_t all = sizeof(struct shared) + bytes;
    struct shared *shared = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return LEFT_OUT_MAX;
    shared->visit = visit;
    memcpy(shared->data, data, bytes);
    while (shared->n_left_out < LEFT_OUT_MAX && hl_call_in_child(visit_others, shared, ALL_MS) != 0) {
        pid_t pid = shared->last = shared->reading;
        shared->left_out[shared->n_left_out++] = (struct left_out){shared->user, shared->user == 0 ? pid : 0};
        if (pid == 0) /* no child could be made, and nothing more is known */
            shared->n_left_out = LEFT_OUT_MAX;
        else
            hl_warn(
                "process %d keeps its mappings locked, as with a FUSE that does not answer, so %s left out; "
                "end it",
                pid, shared->user == 0 ? "it is" : "all processes of its user are");
        shared->reading = 0;
    }
    memcpy(data, shared->data, bytes);
    unsigned left_out = shared->n_left_out;
    munmap(shared, all);
    return left_out;
}
