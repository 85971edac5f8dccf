/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rings of sample.h.

   Without named threads there is one event for each processor (any thread, this processor).  With named threads there is one event
   for each thread on each processor, which the thread's children inherit, since the kernel gives no ring to an inherited event that
   follows its thread from processor to processor; all events of a processor write to one ring, that of an event which never ends. */
#include "command/measure/sample.h"
#include "command/lib/common.h"
#include "command/measure/sample-read.h"
#include "elf/line.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Newer than the headers of Debian 11. */
#define SAMPLE_CODE_PAGE_SIZE (1U << 23)
#define FORMAT_LOST (1U << 4)
#define PROCESSORS_MAX 8192
#define RING_PAGES 4
/* Of the files that this process may open, this many are left for other uses. */
#define FILES_LEFT 256

struct ring {
    unsigned processor;
    int file; /* of the event that owns the ring */
    struct perf_event_mmap_page *page;
    size_t bytes;
};

struct hl_sampler {
    unsigned hz;
    bool is_of_threads;
    size_t n_rings;
    struct ring *ring;
    size_t n_files; /* of the events of threads, which have no ring of their own */
    int *file;
    bool
        counts_lost; /* events say how many samples they have lost: Linux 6.0; else there are records of that */
    uint64_t recorded_lost; /* of throttled events, or from records */
    struct hl_sampler_counts counts;
};

/* --- processors --- */

static void read_processors(const char *path, bool *set, bool value) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    if (file != NULL && getline(&line, &size, file) > 0)
        hl_parse_processors(line, set, PROCESSORS_MAX, value);
    free(line);
    if (file != NULL)
        fclose(file);
}

static unsigned count_processors(const bool *set) {
    unsigned n = 0;
    for (size_t i = 0; i < PROCESSORS_MAX; i++)
        n += set[i];
    return n;
}

/* The processors that may be disturbed: a user who isolates a processor, or takes its tick away, wants no other timers there. */
static void find_processors(struct hl_sampler *sampler, bool *set) {
    memset(set, 0, PROCESSORS_MAX * sizeof *set);
    read_processors("/sys/devices/system/cpu/online", set, true);
    if (count_processors(set) == 0) /* without /sys */
        for (long i = 0; i < sysconf(_SC_NPROCESSORS_ONLN) && i < PROCESSORS_MAX; i++)
            set[i] = true;
    unsigned online = count_processors(set);
    for (size_t i = 0; i < HL_ISOLATED_LISTS; i++)
        read_processors(hl_isolated_lists[i], set, false);
    sampler->counts.left_out = online - count_processors(set);
}

/* --- events and rings --- */

static int open_event(const struct hl_sampler *sampler, uint64_t what, pid_t thread, unsigned processor) {
    struct perf_event_attr attr = {
        .size = sizeof attr, .type = PERF_TYPE_SOFTWARE, .config = what, .clockid = CLOCK_BOOTTIME};
    attr.sample_period = 1000000000 / sampler->hz;
    attr.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | SAMPLE_CODE_PAGE_SIZE;
    attr.read_format = sampler->counts_lost ? FORMAT_LOST : 0;
    attr.exclude_kernel = attr.exclude_hv = attr.exclude_guest = attr.exclude_idle = 1;
    attr.use_clockid = 1;
    attr.inherit = thread > 0 && what == PERF_COUNT_SW_CPU_CLOCK;
    int file = (int)syscall(SYS_perf_event_open, &attr, thread, (int)processor, -1, PERF_FLAG_FD_CLOEXEC);
    return file >= 0 ? file : -errno;
}

/* Adds a ring for THREAD on PROCESSOR; -1: any thread.  0, or a negated errno. */
static int open_ring(struct hl_sampler *sampler, uint64_t what, pid_t thread, unsigned processor) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    int file = open_event(sampler, what, thread, processor);
    if (file == -EINVAL && sampler->counts_lost && sampler->n_rings == 0) {
        sampler->counts_lost = false; /* before Linux 6.0 */
        file = open_event(sampler, what, thread, processor);
    }
    if (file < 0)
        return file;
    struct ring ring = {.processor = processor, .file = file, .bytes = (RING_PAGES + 1) * page_bytes};
    ring.page = mmap(NULL, ring.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ring.page == MAP_FAILED) {
        int error = errno;
        close(file);
        return -error;
    }
    sampler->ring = hl_xrealloc(sampler->ring, (sampler->n_rings + 1) * sizeof ring);
    sampler->ring[sampler->n_rings++] = ring;
    sampler->counts.processors++;
    return 0;
}

static void read_rings(struct hl_sampler *sampler, void (*handle)(void *, const struct hl_sample *),
                       void *data) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sampler->n_rings; i++) {
        struct perf_event_mmap_page *page = sampler->ring[i].page;
        uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
        const struct hl_ring_view view = {(const char *)page + page_bytes, RING_PAGES * page_bytes};
        while (tail < head) {
            struct hl_sample sample;
            uint64_t lost = 0;
            enum hl_record kind = hl_read_record(&view, &tail, head, &sample, &lost);
            /* The kernel may write again before the sample is handled. */
            __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
            sampler->recorded_lost += kind == HL_RECORD_LOST && sampler->counts_lost ? 0 : lost;
            sampler->counts.samples += kind == HL_RECORD_SAMPLE;
            if (kind == HL_RECORD_SAMPLE)
                handle(data, &sample);
        }
    }
}

/* --- threads --- */

/* Opens events of THREAD on all processors that have rings.  0, -ESRCH, or another negated errno. */
static int add_thread(struct hl_sampler *sampler, pid_t thread, size_t files_max) {
    for (size_t i = 0; i < sampler->n_rings; i++) {
        int file = sampler->n_files < files_max
                       ? open_event(sampler, PERF_COUNT_SW_CPU_CLOCK, thread, sampler->ring[i].processor)
                       : -EMFILE;
        if (file == -ENODEV) /* the processor has just gone */
            continue;
        if (file >= 0 && ioctl(file, PERF_EVENT_IOC_SET_OUTPUT, sampler->ring[i].file) != 0) {
            int error = errno;
            close(file);
            file = -error;
        }
        if (file < 0)
            return file;
        if (sampler->n_files % 64 == 0)
            sampler->file = hl_xrealloc(sampler->file, (sampler->n_files + 64) * sizeof *sampler->file);
        sampler->file[sampler->n_files++] = file;
    }
    return 0;
}

/* Opens a ring for EVENT on each processor that may be disturbed, for THREAD; -1: any thread.  0, or the error that all have. */
static int open_rings(struct hl_sampler *sampler, uint64_t event, pid_t thread) {
    bool set[PROCESSORS_MAX];
    int result = -ENODEV;
    find_processors(sampler, set);
    for (unsigned i = 0; i < PROCESSORS_MAX; i++) {
        int opened = set[i] ? open_ring(sampler, event, thread, i) : -ENODEV;
        result = opened != -ENODEV ? opened : result;
    }
    return sampler->n_rings > 0 ? 0 : result;
}

static int open_threads(struct hl_sampler *sampler, const struct hl_sampler_request *request) {
    size_t limit = hl_raise_file_limit();
    int result = open_rings(sampler, PERF_COUNT_SW_DUMMY, 0);
    if (result != 0)
        return result;
    size_t files_max = limit > FILES_LEFT + sampler->n_rings ? limit - FILES_LEFT - sampler->n_rings : 0;
    result = -ESRCH;
    for (size_t i = 0; i < request->n_threads; i++) {
        int added = add_thread(sampler, request->thread[i], files_max);
        result = result != 0 && added != -ESRCH ? added : result;
        sampler->counts.threads_refused += added != 0 && added != -ESRCH;
    }
    return result;
}

/* --- all of it --- */

int hl_open_sampler(struct hl_sampler **opened, const struct hl_sampler_request *request) {
    struct hl_sampler *sampler = hl_xmalloc(sizeof *sampler);
    *sampler =
        (struct hl_sampler){.hz = request->hz, .is_of_threads = request->n_threads > 0, .counts_lost = true};
    int result = sampler->is_of_threads ? open_threads(sampler, request)
                                        : open_rings(sampler, PERF_COUNT_SW_CPU_CLOCK, -1);
    if (result != 0) {
        hl_close_sampler(sampler);
        return result;
    }
    *opened = sampler;
    return 0;
}

void hl_read_samples(struct hl_sampler *sampler, double ms, void (*handle)(void *, const struct hl_sample *),
                     void *data) {
    poll(NULL, 0, (int)ceil(fmin(ms, HL_SAMPLER_READ_MS)));
    read_rings(sampler, handle, data);
}

static uint64_t read_lost(int file) {
    uint64_t answer[2]; /* the value, and the number lost */
    return read(file, answer, sizeof answer) == (ssize_t)sizeof answer ? answer[1] : 0;
}

/* A record of lost samples comes with the next sample only, and there may be none. */
const struct hl_sampler_counts *hl_count_samples(struct hl_sampler *sampler) {
    sampler->counts.lost = sampler->recorded_lost;
    for (size_t i = 0; sampler->counts_lost && !sampler->is_of_threads && i < sampler->n_rings; i++)
        sampler->counts.lost += read_lost(sampler->ring[i].file);
    for (size_t i = 0; sampler->counts_lost && i < sampler->n_files; i++)
        sampler->counts.lost += read_lost(sampler->file[i]);
    return &sampler->counts;
}

void hl_close_sampler(struct hl_sampler *sampler) {
    if (sampler == NULL)
        return;
    for (size_t i = 0; i < sampler->n_files; i++)
        close(sampler->file[i]);
    for (size_t i = 0; i < sampler->n_rings; i++) {
        munmap(sampler->ring[i].page, sampler->ring[i].bytes);
        close(sampler->ring[i].file);
    }
    free(sampler->file);
    free(sampler->ring);
    free(sampler);
}

/* --- reasons --- */

char *hl_explain_no_samples(int error) {
    uint64_t paranoid = 0;
    hl_read_number("/proc/sys/kernel/perf_event_paranoid", &paranoid);
    switch (-error) {
    case EACCES:
    case EPERM:
        if (paranoid > 2)
            return hl_xasprintf("kernel.perf_event_paranoid is above 2, so only root with CAP_SYS_ADMIN may "
                                "sample; set it to 2, or run hugeld as root");
        if (geteuid() == 0)
            return hl_xasprintf(
                "a container or a policy forbids perf_event_open(2); give the container CAP_PERFMON");
        return hl_xasprintf(
            "a container or a policy forbids perf_event_open(2), or RLIMIT_MEMLOCK is used up; run "
            "hugeld as root, outside of it");
    case ENOSYS:
        return hl_xasprintf(
            "there is no perf_event_open(2) here; boot a kernel with CONFIG_PERF_EVENTS, or let the "
            "container call it");
    case ENODEV:
        return hl_xasprintf(
            "all processors are isolated or without a tick (nohz_full); leave one for the rest");
    default:
        return hl_xasprintf("perf_event_open(2) fails: %s; try again", strerror(-error));
    }
}
