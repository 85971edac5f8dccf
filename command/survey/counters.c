/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the processor's counters of other processes, where the machine has some.

   Each thread that a process has at the beginning gets counters of its own; later threads are not counted.  If there are more
   counters than the processor has, the kernel lets them take turns, and says for how long each really counted. */
#include "command/survey/survey.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MAX 64

enum event { CYCLES, INSTRUCTIONS, ITLB_MISSES, ITLB_WALKS, EVENTS };

struct hl_watch_counters {
    size_t n;
    int file[THREADS_MAX][EVENTS];
};

static bool is_intel(void) {
#if defined __x86_64__
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* -1 where EVENT can't be counted in the thread TID. */
static int open_event(pid_t tid, enum event event) {
    struct perf_event_attr attr = {
        .size = sizeof attr, .type = PERF_TYPE_HARDWARE, .exclude_kernel = 1, .exclude_hv = 1};
    attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    switch (event) {
    case CYCLES:
        attr.config = PERF_COUNT_HW_CPU_CYCLES;
        break;
    case INSTRUCTIONS:
        attr.config = PERF_COUNT_HW_INSTRUCTIONS;
        break;
    case ITLB_MISSES:
        attr.type = PERF_TYPE_HW_CACHE;
        attr.config = PERF_COUNT_HW_CACHE_ITLB | PERF_COUNT_HW_CACHE_OP_READ << 8 |
                      PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
        break;
    default: /* ITLB_MISSES.WALK_ACTIVE, Skylake and later; only Intel's count cycles */
        if (!is_intel())
            return -1;
        attr.type = PERF_TYPE_RAW;
        attr.config = 0x01001085;
    }
    return (int)syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

const char *hl_try_watch_counters(void) {
    int file = open_event(0, INSTRUCTIONS);
    if (file >= 0) {
        close(file);
        return NULL;
    }
    return errno == EACCES || errno == EPERM ? "sysctl kernel.perf_event_paranoid=2 would allow them"
                                             : "the processor shows none, as in most virtual machines";
}

struct hl_watch_counters *hl_open_watch_counters(pid_t pid) {
    struct hl_watch_counters *counters = hl_xmalloc(sizeof *counters);
    pid_t *tids = NULL;
    size_t n = 0;
    hl_add_threads(&tids, &n, pid);
    for (; counters->n < n && counters->n < THREADS_MAX; counters->n++)
        for (unsigned event = 0; event < EVENTS; event++)
            counters->file[counters->n][event] = open_event(tids[counters->n], (enum event)event);
    free(tids);
    return counters;
}

/* The count of FILE; 0 if it never had its turn. */
static double read_event(int file) {
    uint64_t answer[3]; /* the value; ns enabled, ns running */
    double count;
    if (file < 0 || read(file, answer, sizeof answer) != (ssize_t)sizeof answer ||
        !hl_scale_count(answer[0], answer[1], answer[2], &count))
        return 0;
    return count;
}

void hl_close_watch_counters(struct hl_watch_counters *counters, struct hl_event_counts *counts) {
    if (counters == NULL)
        return;
    for (size_t i = 0; i < counters->n; i++) {
        double value[EVENTS];
        for (unsigned event = 0; event < EVENTS; event++) {
            value[event] = read_event(counters->file[i][event]);
            if (event == ITLB_WALKS && counters->file[i][event] >= 0)
                counts->has_walks = true;
            if (counters->file[i][event] >= 0)
                close(counters->file[i][event]);
        }
        counts->cycles += value[CYCLES];
        counts->instructions += value[INSTRUCTIONS];
        counts->itlb_misses += value[ITLB_MISSES];
        counts->walk_cycles += value[ITLB_WALKS];
    }
    counts->known = counts->known || counts->instructions > 0;
    free(counters);
}
