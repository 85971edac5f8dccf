/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The exec stop: a program has been executed and has not run its first instruction yet.  There its text is put on the huge pages
   of its image. */
#ifndef HL_EXEC_STOP_H
#define HL_EXEC_STOP_H

#include "command/inject/pieces.h"
#include "command/lib/program.h"
#include "command/inject/tracee.h"

#include <sys/stat.h>

/* Makes the next program that this process executes start with its text on its image; it is PROGRAM, after hl_read_program.  A
   helper process traces this one from now on until that program begins.  OPTIONS say which stores are looked into.  LINKER: the
   patched dynamic linker is mapped instead, from this path, in the place of the one that the program names; or NULL.  Returns NULL,
   and *STOP is for hl_cancel_exec_stop, or NULL if the program has no image that fits; else the reason why its image, or the linker,
   is not used, which the caller owns.  If *STOP is NULL nothing has changed.  The memory is shared with the helper, so until the
   program is executed nothing of STOP may be changed. */
struct hl_exec_stop;
char *hl_start_exec_stop(struct hl_exec_stop **stop, const struct hl_program *program,
                         const struct hl_options *options, const char *linker);

/* For use if the program was not executed: this process is traced no more, and has no helper. errno is kept. */
void hl_cancel_exec_stop(struct hl_exec_stop *stop);

/* --- between the parts --- */

/* Instructions of the program's, or of its dynamic linker's or the vdso's, which lie anywhere. */
enum hl_exec_owner { HL_EXEC_PROGRAM, HL_EXEC_LINKER, HL_EXEC_VDSO, HL_EXEC_OWNERS };
struct hl_exec_code {
    uint64_t at; /* offset from the start of the linker or the vdso, if it is theirs */
    enum hl_exec_owner owner;
    const struct hl_code *bytes;
};

/* Everything that is known before the program is executed. */
struct hl_exec_plan {
    char *executable;
    struct hl_status status; /* of the process that will execute it */
    struct hl_file_state file;
    struct hl_object object;
    struct hl_geometry geometry;
    uint64_t entry; /* e_entry */
    bool is_position_independent;
    bool has_linker; /* which runs first */
    bool may_move;
    int image;
    struct stat image_stat;
    char *image_path;
    uint64_t text_pages, rodata_pages; /* huge ones */
    struct hl_piece_of_text header;    /* text in the huge page with the headers; or empty */
    struct hl_exec_code call, back;    /* as in hl_gadgets */
    /* The patched linker is mapped.  OBJECT, at 0, and the image are its file, and there are no pieces. */
    bool maps_linker;
    uint64_t linker_entry, linker_path_at;        /* where its own path belongs; 0: nowhere */
    struct hl_exec_code linker_call, linker_back; /* its own, for use afterwards */
    unsigned verbose;
    bool is_strict;
    unsigned n_pieces, n_rest;
    struct hl_piece_of_text piece[HL_PIECES_MAX];                      /* these lists are not cleared */
    struct hl_piece_of_text rest[HL_PIECES_MAX + HL_SEGMENTS_MAX + 1]; /* the other read-only parts */
};

/* Plans the calls for PROGRAM, which a process with STATUS will execute.  0; or why nothing can be done: a reason or a negated
   errno.  What PLAN refers to is not freed: this process is about to become another program. */
int hl_plan_exec_stop(struct hl_exec_plan *plan, const struct hl_status *status,
                      const struct hl_program *program, const struct hl_options *options, const char *linker);
/* The same for the linker at PATH in the place of the one that PROGRAM names. */
int hl_plan_linker(struct hl_exec_plan *plan, const struct hl_elf_file *program, const char *path);
/* Finds the instructions in the text of the dynamic linker at PATH, for plan->call and plan->back. */
bool hl_find_codes_in_linker(struct hl_exec_plan *plan, const char *path);
/* Adds DISTANCE, modulo 2^64, to all addresses of the program. */
void hl_shift_exec_plan(struct hl_exec_plan *plan, uint64_t distance);

/* --- a process at its exec stop: 0, a reason, or a negated errno: -ESRCH if it is gone --- */

/* Makes this process the tracer of PID until it executes a program. */
int hl_seize_exec_thread(pid_t pid);
/* Waits until the traced process is at its exec stop. */
int hl_await_exec_stop(struct hl_tracee *thread);
/* Prepares the thread to make calls, and to begin its program even if we are killed. */
int hl_arm_exec_thread(struct hl_tracee *thread);
int hl_write_exec_thread(struct hl_tracee *thread, uint64_t at, const void *from, size_t bytes);
/* Sets the addresses to which the program's own return and its start have moved, for the case that it begins by itself. */
int hl_set_exec_return(struct hl_tracee *thread, uint64_t back);
int hl_set_exec_start(struct hl_tracee *thread, uint64_t start);
/* Whether it is killed, and does not begin, if this process ends. */
int hl_bind_exec_thread(struct hl_tracee *thread, bool is_bound);
/* Ends it with CODE, before it has run an instruction. */
void hl_end_exec_thread(struct hl_tracee *thread, int code);
/* Has it make a call whose result does not matter, without a stop, after it was let go; or now, if those are too many already. */
void hl_call_later(struct hl_tracee *thread, long number, uint64_t a, uint64_t b);
/* Lets the process go.  Its program begins as soon as CHILD, this process, has ended. */
void hl_detach_exec_thread(struct hl_tracee *thread, pid_t child);

/* Carries out PLAN in THREAD, which is at its exec stop.  PLAN then has the program's addresses. */
int hl_act_at_exec_stop(struct hl_exec_plan *plan, struct hl_tracee *thread);

/* Moves the program, which is mapped as PLAN and PROCESS say, to where the image (its descriptor FILE) fits, and maps the image
   there.  0; else the program is back in its old place. */
int hl_move_at_exec_stop(const struct hl_exec_plan *plan, struct hl_tracee *thread,
                         const struct hl_process *process, int file);

/* Maps the patched linker from FILE, the process's descriptor of it, in the place of the other one.  0; else the program begins with
   that one. */
int hl_map_linker(const struct hl_exec_plan *plan, struct hl_tracee *thread, const struct hl_process *process,
                  int file);
/* Sets AT_BASE on the stack and in /proc/PID/auxv.  0, or both are as before. */
int hl_set_linker_base(const struct hl_exec_plan *plan, struct hl_tracee *thread,
                       const struct hl_process *process, uint64_t base);

/* Whether REGION lies in a gap between segments of OBJECT: it is not the program's. */
bool hl_is_between_segments(const struct hl_object *object, const struct hl_region *region);

/* Maps text in the huge page with the headers with the file's own headers, from the image FILE, over the image's first such
   page.  0, or the result of a call; HL_REASON_ATTACH_CALL: it is not there. */
int hl_map_header_at_exec_stop(const struct hl_exec_plan *plan, struct hl_tracee *thread, uint64_t distance,
                               int file);

#endif
