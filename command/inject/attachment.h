/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld attach and detach: the text of a running process, and its replacement. */
#ifndef HL_ATTACHMENT_H
#define HL_ATTACHMENT_H

#include "command/inject/leftovers.h"
#include "command/inject/pieces.h"
#include "command/inject/tracee.h"
#include "command/image/verdict.h"

/* An image that is made here, for all processes that run the same file at the same address modulo a huge page, with the same
   ranges to be moved. */
struct hl_own_image {
    struct hl_file_state state;
    uint64_t load_bias; /* modulo a huge page */
    uint64_t bytes;
    int file; /* -1: not filled yet */
    unsigned n_pieces;
    struct hl_piece_of_text piece[HL_PIECES_MAX];
};

struct hl_attach_request {
    struct hl_geometry geometry;
    bool is_detach, dry_run;
    uint64_t memory_bytes; /* the most memory for copies; 0: an eighth of what is free */
    size_t n_own;
    struct hl_own_image *own;
};

/* One process, whose executable's text moves. */
struct hl_attachment {
    struct hl_attach_request *request;
    struct hl_process process;
    int maps; /* /proc/PID/maps of the process's memory at the beginning; below 0: it had none, or that cannot be read */
    int reason;          /* why the text stays: an enum hl_reason, or a negated errno; 0: it can move */
    uint64_t locked_kib; /* locked memory, read before its regions */
    const struct hl_loaded *loaded; /* the executable; NULL: it was not found */
    struct hl_file_state state;     /* of its file, as it was planned */
    size_t own; /* the number of the own image that is to be filled, from 1 on; 0: it needs none */
    int file; /* the pieces are mapped from this file, the own image or the executable; below 0: that is not filled yet */
    dev_t device; /* and how maps shows that */
    ino_t inode;
    uint64_t huge_pages; /* huge pages on which the pieces are, or were */
    unsigned n_pieces;
    struct hl_piece_of_text piece[HL_PIECES_MAX];
    unsigned n_gaps; /* of an image, between segments, where the program has nothing: detach unmaps them */
    struct hl_address_range gap[HL_PIECES_MAX];
    struct hl_leftovers left;  /* of earlier calls that were killed, */
    bool closes_leftovers;     /* which hl_move_attachment closes, also if the text stays */
    struct hl_gadgets gadgets; /* found if anything is to be done */
    uint64_t stopped_us;       /* how long its thread stood still */
};

/* Plans REQUEST for the process PID, without stopping or changing it; hl_free_attachment frees ATTACHMENT.  Only processes on x86-64
   can be changed: HL_REASON_ATTACH_MACHINE. */
void hl_plan_attachment(struct hl_attachment *attachment, struct hl_attach_request *request, pid_t pid);
void hl_free_attachment(struct hl_attachment *attachment);

/* RESULT (0, or why something of ATTACHMENT stays), but -ESRCH instead of a reason if the process has ended since it was opened,
   or executed another program: any reason may come from data that could not be read since then. */
int hl_or_ended(const struct hl_attachment *attachment, int result);

/* How much of PROCESS's memory is locked, in KiB. */
uint64_t hl_read_locked(const struct hl_process *process);

/* Notes that the pieces need an image with their bytes, which other processes may share. */
void hl_claim_own_image(struct hl_attachment *attachment);

/* The bytes of the images that the plans so far need, which are made before anything moves. */
uint64_t hl_sum_own_images(const struct hl_attach_request *request);

/* Whether REQUEST may take that much memory.  0, or HL_REASON_ATTACH_MEMORY.  *LIMIT: how much it may. */
int hl_check_own_images(const struct hl_attach_request *request, uint64_t *limit);

/* Fills the image that ATTACHMENT needs, unless it is filled already, and compares the bytes then.  The reason says why it cannot be.
   False: there is no memory for it. */
bool hl_fill_own_image(struct hl_attachment *attachment);
void hl_free_own_images(struct hl_attach_request *request);

/* Whether ATTACHMENT's file, or the executable's while an own image is not filled, has the bytes of the executable's segments in the
   process.  0, or why not. */
int hl_compare_attached_text(const struct hl_attachment *attachment);
/* Whether NOW still maps the pieces as they were when ATTACHMENT was planned, and nothing has written to them.  0, or why not. */
int hl_check_attached_text(const struct hl_attachment *attachment, const struct hl_process *now);

/* Carries out the plan.  The reason says why something does not move. */
void hl_move_attachment(struct hl_attachment *attachment);

/* --- attach-thread.c: how the thread that makes calls is held --- */

/* Whether the first thread of PROCESS could make calls now; looks for half a second.  Nothing is stopped.  0,
   HL_REASON_ATTACH_UNFIT, HL_REASON_ATTACH_STOPPED, or -ESRCH. */
int hl_look_at_thread(const struct hl_process *process);

/* Stops the first thread of PROCESS, and makes it one that can make calls, until hl_release_tracee.  PROCESS has
   its regions.  0, or why not; then it runs on, and is released.  -ESRCH: it has ended. */
int hl_hold_thread(struct hl_tracee *tracee, const struct hl_process *process,
                   const struct hl_gadgets *gadgets);

#endif
