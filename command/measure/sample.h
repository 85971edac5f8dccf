/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Samples of the code that processors execute in user mode, by the kernel's software clock, which needs no counters.

   No process is stopped, written to or walked: the processor's timer notes the address.  The rings hold samples alone; events
   that any user can cause in any number (mmap, fork, exec) are not recorded, so no user can push samples out of them. */
#ifndef HL_SAMPLE_H
#define HL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Samples in a second, on each processor.  Neither divides, nor is divided by, the values of HZ in kernels: 100, 250, 300, 1000. */
#define HL_SAMPLER_HZ 97
#define HL_SAMPLER_HZ_ONE 997 /* if only named processes are sampled */
/* The interval at which the rings are read.  A wake-up for each sample would find more processes alive, and cost the sampled
   processes twice as much as the samples. */
#define HL_SAMPLER_READ_MS 10
/* A window that has lost more than this share of its samples decides nothing. */
#define HL_SAMPLER_LOST_MAX 0.01

struct hl_sample {
    uint64_t address;
    pid_t process;       /* in this process's PID namespace; 0: it is in another one */
    uint64_t boot_ns;    /* CLOCK_BOOTTIME */
    uint64_t page_bytes; /* of the page at ADDRESS */
};

struct hl_sampler_request {
    unsigned hz;
    size_t n_threads;
    const pid_t *
        thread; /* these threads, and those that they start from now on, on all processors at once; none: all threads */
};

struct hl_sampler_counts {
    uint64_t samples, lost;
    unsigned processors; /* the sampled ones, */
    unsigned left_out;   /* and those that are online and isolated, or without a tick */
    size_t
        threads_refused; /* threads that could not be sampled: too many open files, or a policy; not those that had ended */
};

struct hl_sampler;

/* Begins to sample, with *OPENED.  0, or a negated errno, which hl_explain_no_samples explains; -ESRCH: no thread of REQUEST
   exists any more.  REQUEST and its threads are not used afterwards. */
int hl_open_sampler(struct hl_sampler **opened, const struct hl_sampler_request *request);

/* Waits for MS, HL_SAMPLER_READ_MS at most, and hands each sample to HANDLE.  Later samples are read by the next call; 16 KiB of
   them are kept for each processor meanwhile. */
void hl_read_samples(struct hl_sampler *sampler, double ms,
                     void (*handle)(void *data, const struct hl_sample *sample), void *data);

/* The counts until now. */
const struct hl_sampler_counts *hl_count_samples(struct hl_sampler *sampler);

/* SAMPLER may be NULL. */
void hl_close_sampler(struct hl_sampler *sampler);

/* Whether too many samples were lost for a decision. */
static inline bool hl_lost_too_many(const struct hl_sampler_counts *counts) {
    return (double)counts->lost > HL_SAMPLER_LOST_MAX * (double)(counts->samples + counts->lost);
}

/* Why nothing can be sampled, and a remedy, without a full stop.  The caller frees it. */
char *hl_explain_no_samples(int error);

#endif
