/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Processes are kept by a descriptor of /proc/PID, which never leads to a later process.  The executable and the mappings of a
   process may change at any time, so only the slowest answer of the kernel (maps) is kept, and not for long.

   Names, devices and numbers may be chosen by the process, or by its file systems (FUSE).  So nothing here opens a file for
   reading or asks a file system that may not answer: device and inode are in the kernel's answer, and statx is told not to ask
   (AT_STATX_DONT_SYNC). */
#include "command/measure/sample-resolve.h"
#include "command/lib/common.h"
#include "command/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The number of processes that are known at a time, with an open file for each. */
#define PROCESSES_MAX 512
/* The answer of maps is used for this time; and it is not read again before this many times as long as reading took, so that a
   process with many mappings costs 1/20 of a processor at most. */
#define MAPS_MS 1000
#define MAPS_AGAIN_MS 50
#define MAPS_REST 20

struct known {
    pid_t pid;
    struct hl_process process; /* its regions: those of maps that are executable, if it was read */
    uint64_t started;          /* ticks since boot */
    uid_t owner;
    uint64_t used; /* when it was last asked for, as a count */
    double read_ms, again_ms;
    struct hl_file_id program;
    char *program_path;
};

struct hl_resolver {
    uint64_t uses;
    size_t n;
    struct known known[PROCESSES_MAX];
};

/* --- processes --- */

static void forget(struct hl_resolver *resolver, struct known *known) {
    hl_close_process(&known->process);
    free(known->program_path);
    *known = resolver->known[--resolver->n];
}

static struct known *find_oldest(struct hl_resolver *resolver) {
    struct known *oldest = &resolver->known[0];
    for (size_t i = 1; i < resolver->n; i++)
        if (resolver->known[i].used < oldest->used)
            oldest = &resolver->known[i];
    return oldest;
}

/* Opens the process of SAMPLE.  NULL: it has ended; a process that has its number now has started since. */
static struct known *meet(struct hl_resolver *resolver, const struct hl_sample *sample) {
    struct known known = {.pid = sample->process};
    struct hl_usage usage;
    struct stat folder;
    uint64_t tick_ns = 1000000000 / (uint64_t)sysconf(_SC_CLK_TCK);
    known.process.folder = -1;
    if (hl_open_process(&known.process, known.pid) != 0)
        return NULL;
    if (fstat(known.process.folder, &folder) != 0 || hl_read_usage(known.pid, &usage) != 0 ||
        usage.started * tick_ns > sample->boot_ns + tick_ns) {
        hl_close_process(&known.process);
        return NULL;
    }
    known.started = usage.started;
    known.owner = folder.st_uid;
    if (resolver->n == PROCESSES_MAX)
        forget(resolver, find_oldest(resolver));
    resolver->known[resolver->n] = known;
    return &resolver->known[resolver->n++];
}

int hl_read_file_id(struct hl_file_id *id, int folder, const char *name) {
    struct statx status;
    int file = openat(folder, name, O_PATH | O_CLOEXEC);
    if (file < 0)
        return -errno;
    int result = statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &status) == 0 ? 0 : -errno;
    if (result == 0)
        *id = (struct hl_file_id){makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
    close(file);
    return result;
}

/* Reads its present executable, since it may have called execve.  0, or a negated errno. */
static int read_program(struct known *known) {
    char *path = hl_read_link(known->process.folder, "exe");
    if (path == NULL)
        return -errno;
    free(known->program_path);
    known->program_path = path;
    struct hl_file_id before = known->program;
    int result = hl_read_file_id(&known->program, known->process.folder, "exe");
    if (!hl_is_same_file_id(&known->program, &before))
        known->read_ms = 0; /* its mappings are others */
    return result;
}

/* NULL: the process of SAMPLE has ended.  *RESULT: read_program's. */
static struct known *find_known(struct hl_resolver *resolver, const struct hl_sample *sample, int *result) {
    struct known *found = NULL;
    for (size_t i = 0; found == NULL && i < resolver->n; i++)
        if (resolver->known[i].pid == sample->process)
            found = &resolver->known[i];
    *result = found != NULL ? read_program(found) : 0;
    if (*result == -ESRCH || *result == -ENOENT) { /* the number may be another's now */
        forget(resolver, found);
        found = NULL;
    }
    if (found == NULL) {
        found = meet(resolver, sample);
        *result = found != NULL ? read_program(found) : -ESRCH;
    }
    if (found != NULL)
        found->used = ++resolver->uses;
    return found;
}

/* --- mappings --- */

/* Reads maps into KNOWN.  0, or a negated errno. */
static int read_maps(struct known *known) {
    struct hl_process fresh;
    double start = hl_now_ms();
    int result = hl_read_mappings(&fresh, &known->process);
    double took = hl_now_ms() - start;
    hl_close_process(result == 0 ? &known->process : &fresh);
    if (result == 0)
        known->process = fresh;
    known->read_ms = hl_now_ms() + fmax(MAPS_MS, MAPS_REST * took);
    known->again_ms = hl_now_ms() + fmax(MAPS_AGAIN_MS, MAPS_REST * took);
    return result;
}

/* Sets *REGION to the executable mapping at ADDRESS.  0; -ENOENT: there is none; or another negated errno. */
static int find_region(struct known *known, uint64_t address, const struct hl_region **region) {
    double now = hl_now_ms();
    *region = hl_find_region(&known->process, address);
    if (now > known->read_ms || (*region == NULL && now > known->again_ms)) {
        int result = read_maps(known);
        if (result != 0)
            return result;
        *region = hl_find_region(&known->process, address);
    }
    return *region != NULL && (*region)->flags & PF_X ? 0 : -ENOENT;
}

/* Anonymous memory on hugetlb pages is a file without a name. */
static bool is_memory(const struct hl_region *region) {
    static const char anonymous[] = "/anon_hugepage";
    return region->inode == 0 || strncmp(region->name, anonymous, sizeof anonymous - 1) == 0;
}

void hl_resolve_sample(struct hl_resolver *resolver, const struct hl_sample *sample,
                       struct hl_resolved_sample *resolved) {
    int result = -ESRCH;
    const struct hl_region *region = NULL;
    struct known *known = sample->process > 0 ? find_known(resolver, sample, &result) : NULL;
    *resolved = (struct hl_resolved_sample){.kind = HL_RESOLVED_ENDED, .process = sample->process};
    if (known == NULL)
        return;
    resolved->started = known->started;
    resolved->owner = known->owner;
    if (result == 0)
        result = find_region(known, sample->address, &region);
    if (result == -EACCES || result == -EPERM)
        resolved->kind = HL_RESOLVED_REFUSED;
    if (result != 0)
        return;
    resolved->program = known->program;
    resolved->program_path = known->program_path;
    resolved->start = region->start;
    resolved->end = region->end;
    resolved->mapping_offset = region->offset;
    resolved->path = region->name;
    resolved->offset = sample->address - region->start + region->offset;
    resolved->kind = is_memory(region) ? HL_RESOLVED_MEMORY : HL_RESOLVED_FILE;
    resolved->file = (struct hl_file_id){region->device, region->inode};
}

struct hl_resolver *hl_open_resolver(void) {
    return hl_xmalloc(sizeof(struct hl_resolver));
}

void hl_close_resolver(struct hl_resolver *resolver) {
    while (resolver->n > 0)
        forget(resolver, &resolver->known[resolver->n - 1]);
    free(resolver);
}
