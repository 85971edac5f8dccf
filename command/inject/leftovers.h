/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What an attach or detach that was killed has left in a process. */
#ifndef HL_LEFTOVERS_H
#define HL_LEFTOVERS_H

#include "command/lib/process.h"

/* A descriptor that we pass to a process has this position, and reads no file as large as that. */
#define HL_LEFT_POSITION UINT64_C(0x68756765)
/* Reserved addresses map a file from this offset on, without any permission. */
#define HL_LEFT_OFFSET UINT64_C(0x68756000)
#define HL_LEFT_MAX 64

struct hl_leftovers {
    unsigned n_ranges, n_files;
    struct hl_address_range range[HL_LEFT_MAX]; /* reserved addresses, with mappings of an image in them */
    int file[HL_LEFT_MAX]; /* numbers of descriptors of an image or of the program's file */
    bool has_journal;      /* beside the frame, perhaps with two sockets */
};

static inline bool hl_has_leftovers(const struct hl_leftovers *left) {
    return left->n_ranges > 0 || left->n_files > 0 || left->has_journal;
}

/* Finds them in PROCESS, which has its regions, with the fields of maps at least. */
void hl_find_leftovers(struct hl_leftovers *left, const struct hl_process *process);

/* "3 descriptors and 24 MiB of addresses"; the caller frees it. */
char *hl_describe_leftovers(const struct hl_leftovers *left);

#endif
