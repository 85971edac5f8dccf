/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Moves a position-independent program, at its exec stop, to a place where its image fits:

       before               r TTTTTTTT r ww zz             the kernel's, at any multiple of 4 KiB
       new mappings of the image  RTTTTTTTTTR              below, at a multiple of 2 MiB: all that is read only
       mremap                                 ww zz        all that is not, with the kernel's writes to it
       AT_PHDR, AT_ENTRY    on the stack, and by PR_SET_MM_MAP in /proc/PID/auxv; start_code and its like
       munmap               the read-only rest of the old place, without mappings of the kernel's in a gap there

   Nothing has read an address of the program yet but the kernel.  Distances inside it stay, and the break where it is: the
   heap grows away from the program, as it does where the kernel has put a random gap between them.

   The distance is as short as it can be, past what is in the way (a static program may have the vdso below), so the
   place is as random as the kernel has made it, to multiples of 2 MiB; where that is switched off it is always the same
   one.  It is free, which is seen in /proc/PID/maps, and stays so: no other process has this memory.

   In the midst of this the program could not begin, so it is killed if its helper is; whatever fails is taken back. */
#include "command/lib/basics.h"
#include "command/inject/exec-stop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* Longer than the kernel's (AT_VECTOR_SIZE). */
#define VECTOR_WORDS 128

struct move {
    const struct hl_exec_plan *plan; /* at the old place */
    struct hl_tracee *thread;
    const struct hl_process *process;
    int file;                        /* the process's descriptor of the image */
    struct hl_address_range program; /* the program's segments */
    struct hl_address_range all;     /* and the pieces of the image, which may begin earlier and end later */
    uint64_t distance;               /* added to each address, modulo 2^64 */
    uint64_t vector_at;              /* where it lies on the stack */
    size_t vector_bytes;
    uint64_t vector[VECTOR_WORDS], old_vector[VECTOR_WORDS];
    struct prctl_mm_map map;
};

/* --- before anything is changed --- */

static void find_ranges(struct move *move) {
    const struct hl_exec_plan *plan = move->plan;
    const struct hl_piece_of_text *first = &plan->piece[0], *last = &plan->piece[plan->n_pieces - 1];
    move->program = (struct hl_address_range){plan->object.segment[0].first_page,
                                              plan->object.segment[plan->object.n_segments - 1].end_page};
    move->all = move->program;
    if (first->start < move->all.start)
        move->all.start = first->start;
    if (last->end > move->all.end)
        move->all.end = last->end;
}

/* Finds the nearest place below that is free and fits. */
static int find_place(struct move *move) {
    const struct hl_piece_of_text *piece = &move->plan->piece[0];
    uint64_t huge = move->plan->geometry.huge_page_bytes, skew = (piece->start - piece->offset) % huge;
    find_ranges(move);
    const struct hl_address_range all = move->all;
    uint64_t down = skew + hl_round_up(all.end - all.start - skew, huge);
    /* From above, and below any mapping that is in the way. */
    for (size_t i = move->process->n_regions; i-- > 0 && down < all.start;) {
        const struct hl_region *region = &move->process->region[i];
        if (hl_overlap(region->start, region->end, all.start - down, all.end - down) > 0)
            down = skew + hl_round_up(all.end - region->start - skew, huge);
    }
    if (down >= all.start)
        return HL_REASON_IMAGE_PLACE;
    move->distance = -down;
    return 0;
}

/* The vector lies behind argc, the arguments, a zero, the environment and a zero. */
static int find_vector(struct move *move) {
    uint64_t word[512], argc, at;
    int result = hl_read_thread(move->thread->pid, move->thread->arguments, &argc, sizeof argc);
    at = move->thread->arguments + (argc + 2) * sizeof *word;
    while (result == 0) {
        size_t n = (sizeof word - at % sizeof word) / sizeof *word;
        result = hl_read_thread(move->thread->pid, at, word, n * sizeof *word);
        for (size_t i = 0; i < n && result == 0; i++)
            if (word[i] == 0) {
                move->vector_at = at + (i + 1) * sizeof *word;
                return 0;
            }
        at += n * sizeof *word;
    }
    return result;
}

/* Plans the new vector.  The kernel's copy and the one on the stack must be the same until now. */
static int plan_vector(struct move *move) {
    ssize_t bytes = hl_read_process_file(move->process, "auxv", move->vector, sizeof move->vector);
    if (bytes <= 0 || bytes == sizeof move->vector)
        return HL_REASON_MAPPING_CHANGED;
    move->vector_bytes = (size_t)bytes;
    int result = find_vector(move);
    if (result == 0)
        result = hl_read_thread(move->thread->pid, move->vector_at, move->old_vector, move->vector_bytes);
    if (result == 0 && memcmp(move->vector, move->old_vector, move->vector_bytes) != 0)
        result = HL_REASON_MAPPING_CHANGED;
    for (size_t i = 0; i + 1 < move->vector_bytes / sizeof *move->vector; i += 2)
        if (move->vector[i] == AT_PHDR || move->vector[i] == AT_ENTRY)
            move->vector[i + 1] += move->distance;
    return result;
}

/* Fields of proc(5)'s stat. */
enum { CODE = 26, STACK = 28, DATA = 45, BREAK = 47, ARGUMENTS, ENVIRONMENT = 50 };

/* Plans the new addresses that the kernel keeps for the process. */
static int plan_map(struct move *move) {
    uint64_t field[HL_STAT_FIELDS];
    int result = hl_read_stat_fields(move->process, field);
    if (result != 0)
        return result;
    if (field[CODE] < move->program.start || field[CODE] >= move->program.end)
        return HL_REASON_MAPPING_CHANGED;
    move->map = (struct prctl_mm_map){.start_code = field[CODE] + move->distance,
                                      .end_code = field[CODE + 1] + move->distance,
                                      .start_data = field[DATA] + move->distance,
                                      .end_data = field[DATA + 1] + move->distance,
                                      .start_brk = field[BREAK],
                                      .brk = field[BREAK],
                                      .start_stack = field[STACK],
                                      .arg_start = field[ARGUMENTS],
                                      .arg_end = field[ARGUMENTS + 1],
                                      .env_start = field[ENVIRONMENT],
                                      .env_end = field[ENVIRONMENT + 1],
                                      .auxv = (void *)(uintptr_t)move->vector_at,
                                      .auxv_size = (uint32_t)move->vector_bytes,
                                      .exe_fd = UINT32_MAX};
    return 0;
}

/* --- the steps --- */

bool hl_is_between_segments(const struct hl_object *object, const struct hl_region *region) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (hl_overlap(region->start, region->end, object->segment[i].first_page,
                       object->segment[i].end_page) > 0)
            return false;
    return region->start >= object->segment[0].first_page &&
           region->end <= object->segment[object->n_segments - 1].end_page;
}

static void unmap_later(const struct move *move, uint64_t start, uint64_t end) {
    if (start < end)
        hl_call_later(move->thread, SYS_munmap, start, end - start);
}

static void unmap_old_place(const struct move *move) {
    uint64_t start = move->program.start;
    for (size_t i = 0; i < move->process->n_regions; i++) {
        const struct hl_region *region = &move->process->region[i];
        if (!hl_is_between_segments(&move->plan->object, region))
            continue;
        unmap_later(move, start, region->start);
        start = region->end;
    }
    unmap_later(move, start, move->program.end);
}

static int map_all_anew(const struct move *move) {
    const struct hl_exec_plan *plan = move->plan;
    int result = 0;
    for (unsigned i = 0; i < plan->n_pieces && result == 0; i++)
        result = hl_map_piece(move->thread, &plan->piece[i], plan->piece[i].start + move->distance,
                              MAP_FIXED_NOREPLACE, move->file);
    for (unsigned i = 0; i < plan->n_rest && result == 0; i++)
        result = hl_map_piece(move->thread, &plan->rest[i], plan->rest[i].start + move->distance,
                              MAP_FIXED_NOREPLACE, move->file);
    if (result == 0)
        result = hl_map_header_at_exec_stop(plan, move->thread, move->distance, move->file);
    return result;
}

/* Whether REGION is one of those that move. */
static bool is_to_move(const struct move *move, const struct hl_region *region) {
    return (region->flags & PF_W) && !hl_is_between_segments(&move->plan->object, region) &&
           hl_overlap(region->start, region->end, move->program.start, move->program.end) > 0;
}

static int move_region(const struct move *move, const struct hl_region *region, bool is_back) {
    uint64_t from = region->start + (is_back ? move->distance : 0);
    uint64_t to = region->start + (is_back ? 0 : move->distance), bytes = region->end - region->start;
    long moved;
    return hl_call(move->thread, &moved, SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to,
                   0);
}

/* Moves the first N regions, to the new place or back. */
static int move_regions(const struct move *move, size_t n, bool is_back, size_t *done) {
    int result = 0;
    for (*done = 0; *done < n && result == 0; *done += result == 0)
        if (is_to_move(move, &move->process->region[*done]))
            result = move_region(move, &move->process->region[*done], is_back);
    return result;
}

/* Sets the auxiliary vector that the program reads, and its start. */
static int set_addresses(const struct move *move, const uint64_t *vector, uint64_t distance) {
    int result = hl_write_exec_thread(move->thread, move->vector_at, vector, move->vector_bytes);
    if (result == 0 && !move->plan->has_linker)
        result = hl_set_exec_start(move->thread, move->thread->start + distance);
    return result;
}

/* The same, and the addresses that the kernel keeps. */
static int change_addresses(const struct move *move) {
    long done;
    int result = set_addresses(move, move->vector, move->distance);
    if (result == 0)
        result = hl_write_exec_thread(move->thread, move->thread->data, &move->map, sizeof move->map);
    if (result == 0)
        result = hl_call(move->thread, &done, SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, move->thread->data,
                         sizeof move->map, 0, 0);
    if (result != 0)
        set_addresses(move, move->old_vector, 0);
    return result;
}

/* Moves the addresses of the program's instructions that we use, and of its start. */
static int move_codes(const struct move *move, uint64_t distance) {
    const struct hl_exec_plan *plan = move->plan;
    struct hl_gadgets *gadgets = &move->thread->gadgets;
    gadgets->call += plan->call.owner == HL_EXEC_PROGRAM ? distance : 0;
    gadgets->back += plan->back.owner == HL_EXEC_PROGRAM ? distance : 0;
    return hl_set_exec_return(move->thread, gadgets->back);
}

/* The part that cannot be interrupted: the process ends if this one does. */
static int move_rest(const struct move *move) {
    size_t moved = 0, back;
    int result = hl_bind_exec_thread(move->thread, true);
    if (result == 0)
        result = move_regions(move, move->process->n_regions, false, &moved);
    if (result == 0)
        result = change_addresses(move);
    if (result != 0 && result != -ESRCH && move_regions(move, moved, true, &back) != 0) {
        hl_warn("%s: it cannot be moved back to where it was, so it is ended", move->plan->executable);
        kill(move->thread->pid, SIGKILL);
        return -ESRCH;
    }
    int freed = hl_bind_exec_thread(move->thread, false);
    return result != 0 ? result : freed;
}

int hl_set_linker_base(const struct hl_exec_plan *plan, struct hl_tracee *thread,
                       const struct hl_process *process, uint64_t base) {
    struct move move = {.plan = plan, .thread = thread, .process = process, .program = {0, UINT64_MAX}};
    int result = plan_vector(&move);
    for (size_t i = 0; i + 1 < move.vector_bytes / sizeof *move.vector; i += 2)
        if (move.vector[i] == AT_BASE)
            move.vector[i + 1] = base;
    if (result == 0)
        result = plan_map(&move);
    return result == 0 ? change_addresses(&move) : result;
}

int hl_move_at_exec_stop(const struct hl_exec_plan *plan, struct hl_tracee *thread,
                         const struct hl_process *process, int file) {
    struct move move = {.plan = plan, .thread = thread, .process = process, .file = file};
    int result = find_place(&move);
    if (result == 0)
        result = plan_vector(&move);
    if (result == 0)
        result = plan_map(&move);
    if (result != 0)
        return result;
    result = map_all_anew(&move);
    bool is_there = result == 0;
    if (is_there)
        result = move_codes(&move, move.distance);
    if (result == 0)
        result = move_rest(&move);
    if (result != 0 && is_there)
        move_codes(&move, -move.distance);
    if (result != 0)
        hl_unmap_in_tracee(thread, move.all.start + move.distance, move.all.end + move.distance);
    else
        unmap_old_place(&move);
    return result;
}
