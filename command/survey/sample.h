/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What processors execute in user mode, by samples of the kernel's software clock, which needs no counters.

   Nothing of a process is stopped, written or walked: the processor's timer notes where it was.  The rings hold samples
   alone; events that any user can cause in any number (mmap, fork, exec) are not recorded, so no user can push samples out
   of them. */
#ifndef HL_SAMPLE_H
#define HL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* So many processors are sampled at once: each is woken up for its samples, also where it would sleep. */
#define HL_SAMPLER_PROCESSORS 8
/* In a second, on each processor.  Neither divides, nor is divided by, what kernels have for HZ: 100, 250, 300, 1000. */
#define HL_SAMPLER_HZ 97
#define HL_SAMPLER_HZ_ONE 997 /* where only named processes are sampled */
/* The rings are read so often.  To be woken up for each sample would find more processes alive, and cost those that are
   sampled twice as much as the samples. */
#define HL_SAMPLER_READ_MS 10
/* A window that has lost more than this share of its samples decides nothing. */
#define HL_SAMPLER_LOST_MAX 0.01

struct hl_sample {
    uint64_t address;
    pid_t process;       /* in the PID namespace of this process; 0: in another one */
    uint64_t boot_ns;    /* CLOCK_BOOTTIME */
    uint64_t page_bytes; /* of the page that ADDRESS was on; 0: not known */
};

struct hl_sampler_request {
    unsigned hz;
    double turn_ms; /* all: how long the same processors are sampled, before it is the next ones' turn */
    size_t n_threads;
    const pid_t *
        thread; /* these threads, and what they start from now on, on all processors at once; none: all of them */
};

struct hl_sampler_counts {
    uint64_t samples, lost;
    unsigned processors; /* those that had their turn, */
    unsigned left_out;   /* and those that are online and isolated, or without a tick, and never have one */
    size_t
        threads_refused; /* that could not be sampled: too many open files, or a policy; not those that had ended */
    bool has_page_bytes; /* Linux 5.11 and newer */
};

struct hl_sampler;

/* Begins to sample, with *OPENED.  0, or a negated errno, of which hl_explain_no_samples says what it means; -ESRCH: no thread of
   REQUEST is there any more.  REQUEST and its threads are not used afterwards. */
int hl_open_sampler(struct hl_sampler **opened, const struct hl_sampler_request *request);

/* Waits for MS, HL_SAMPLER_READ_MS at most, and hands each sample that there is to HANDLE.  What comes next is read by the
   next call; 16 KiB of samples are kept for each processor meanwhile.  Processors that come and go are followed.  0, or a
   negated errno where no processor can be sampled any more. */
int hl_read_samples(struct hl_sampler *sampler, double ms,
                    void (*handle)(void *data, const struct hl_sample *sample), void *data);

/* Until now; those of a turn that has not ended are among them. */
const struct hl_sampler_counts *hl_count_samples(struct hl_sampler *sampler);

/* SAMPLER may be NULL. */
void hl_close_sampler(struct hl_sampler *sampler);

/* Whether so many were lost that nothing should be decided. */
static inline bool hl_lost_too_many(const struct hl_sampler_counts *counts) {
    return (double)counts->lost > HL_SAMPLER_LOST_MAX * (double)(counts->samples + counts->lost);
}

/* Why nothing can be sampled, and what would help, without a full stop.  The caller frees it. */
char *hl_explain_no_samples(int error);

#endif
