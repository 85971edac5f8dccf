/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds which processes run a file, and which of them have its text on huge pages.

   Only the spans of the file are looked at, by PAGEMAP_SCAN: smaps walks all memory of a process, which then waits.  A process can keep
   its memory map locked for as long as it likes, with a FUSE behind a mapping; so a child reads, and if it makes no progress for two
   seconds, it is killed, and another goes on without the processes of that user. */
#include "command/base/subprocess.h"
#include "command/keep/keep.h"
#include "command/proc/process.h"
#include "elf/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRESS_MS 2000
#define LEFT_OUT_MAX 64
#define SPANS_MAX 4096

/* In memory that the child and its parent share. */
struct shared {
    volatile pid_t reading, last; /* the process that is being read, and the last one that was */
    volatile uid_t user;          /* of the former */
    bool is_unknown;              /* the kernel does not scan pagemap */
    unsigned n_left_out;
    struct left_out {
        uid_t user;
        pid_t process; /* of root, whose processes are left out one by one; else 0 */
    } left_out[LEFT_OUT_MAX];
    struct hl_use use[];
};

struct span {
    uint64_t start, end;
};

struct scan {
    struct shared *shared;
    size_t n;
    struct span *of; /* for each file, from its first region to the end of its last one in this process */
    size_t n_text;
    struct span text[SPANS_MAX]; /* the executable regions */
};

static bool is_left_out(const struct shared *shared, uid_t user, pid_t process) {
    for (unsigned i = 0; i < shared->n_left_out; i++)
        if (shared->left_out[i].user == user && (user != 0 || shared->left_out[i].process == process))
            return true;
    return shared->n_left_out == LEFT_OUT_MAX;
}

/* Whether REGION maps the file of USE or its image. */
static bool is_of(const struct hl_region *region, const struct hl_use *use) {
    return region->inode != 0 && ((region->inode == use->inode && region->device == use->device) ||
                                  (region->inode == use->image_inode && region->device == use->image_device));
}

static void read_regions(struct scan *scan, FILE *maps) {
    struct hl_region region;
    char *line = NULL;
    size_t size = 0;
    memset(scan->of, 0, scan->n * sizeof *scan->of);
    scan->n_text = 0;
    while (hl_next_region(&region, maps, &line, &size)) {
        for (size_t i = 0; i < scan->n; i++)
            if (is_of(&region, &scan->shared->use[i])) {
                struct span *of = &scan->of[i];
                of->start = of->end == 0 ? region.start : of->start;
                of->end = region.end;
            }
        if ((region.flags & PF_X) && scan->n_text < SPANS_MAX)
            scan->text[scan->n_text++] = (struct span){region.start, region.end};
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

/* Whether any text of the file that is mapped at OF is on huge pages: 1, 0, or -1 if the kernel does not tell; -2: it has none. */
static int find_huge(const struct scan *scan, const struct span *of, int pagemap) {
    int result = -2;
    for (size_t i = 0; i < scan->n_text && result < 1; i++) {
        const struct span *text = &scan->text[i];
        if (text->start < of->start || text->end > of->end)
            continue;
        int64_t bytes = pagemap >= 0 ? hl_measure_huge(pagemap, text->start, text->end) : -1;
        result = bytes < 0 ? -1 : bytes > 0 ? 1 : 0;
        if (result < 0)
            break;
    }
    return result;
}

static void scan_process(struct scan *scan, pid_t pid) {
    struct shared *shared = scan->shared;
    char *path = hl_xasprintf("/proc/%d/maps", pid), *other = hl_xasprintf("/proc/%d/pagemap", pid);
    FILE *maps = fopen(path, "re");
    if (maps != NULL) {
        read_regions(scan, maps);
        fclose(maps);
    }
    int pagemap = maps != NULL ? open(other, O_RDONLY | O_CLOEXEC) : -1;
    for (size_t i = 0; maps != NULL && i < scan->n; i++) {
        int huge = scan->of[i].end > 0 ? find_huge(scan, &scan->of[i], pagemap) : -2;
        if (huge == -2)
            continue;
        shared->use[i].processes++;
        shared->use[i].huge += huge == 1;
        shared->is_unknown |= huge == -1;
        if (huge != 1)
            shared->use[i].in_units += read_unit(pid, shared->use[i].unit);
    }
    if (pagemap >= 0)
        close(pagemap);
    free(other);
    free(path);
}

/* Reads the processes behind the last one. */
static void scan_processes(struct scan *scan) {
    struct shared *shared = scan->shared;
    DIR *proc = NULL;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        struct hl_task_status status;
        if (pid <= shared->last || pid == getpid() || pid == getppid() ||
            hl_read_thread_status(&status, pid, pid) != 0 || is_left_out(shared, status.user, pid))
            continue;
        shared->user = status.user;
        shared->reading = pid;
        scan_process(scan, pid);
        shared->reading = 0;
        shared->last = pid;
    }
}

/* Waits for CHILD as long as it makes progress.  False: it stood still and was killed. */
static bool await(pid_t child, const struct shared *shared) {
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status;
    struct pollfd ends = {pidfd, POLLIN, 0};
    bool has_ended = false, moves = true;
    while (pidfd >= 0 && !has_ended && moves) {
        pid_t before = shared->last, reading = shared->reading;
        has_ended = poll(&ends, 1, PROGRESS_MS) > 0;
        moves = shared->last != before || shared->reading != reading;
    }
    if (!has_ended)
        kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (pidfd >= 0)
        close(pidfd);
    return has_ended;
}

bool hl_find_users(struct hl_use *use, size_t n, unsigned *left_out) {
    size_t bytes = sizeof(struct shared) + n * sizeof *use;
    struct shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct scan *scan = hl_xmalloc(sizeof *scan);
    *left_out = 0;
    if (shared == MAP_FAILED || n == 0) {
        free(scan);
        return n == 0;
    }
    memcpy(shared->use, use, n * sizeof *use);
    *scan = (struct scan){.shared = shared, .n = n};
    scan->of = hl_xmalloc(n * sizeof *scan->of);
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL);
    for (bool has_ended = false; !has_ended && shared->n_left_out < LEFT_OUT_MAX;) {
        shared->reading = 0;
        pid_t child = fork();
        if (child == 0) {
            scan_processes(scan);
            _exit(0);
        }
        has_ended = child < 0 || await(child, shared);
        if (!has_ended) {
            shared->left_out[shared->n_left_out++] =
                (struct left_out){shared->user, shared->user == 0 ? shared->reading : 0};
            shared->last = shared->reading != 0 ? shared->reading : shared->last + 1;
        }
    }
    signal(SIGCHLD, inherited);
    memcpy(use, shared->use, n * sizeof *use);
    *left_out = shared->n_left_out;
    bool is_known = !shared->is_unknown;
    free(scan->of);
    free(scan);
    munmap(shared, bytes);
    return is_known;
}
