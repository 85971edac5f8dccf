/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Maps the image over a program at its exec stop.  Where the image does not fit, the program moves (inject/exec-move.c):

       open              the image, by its path
       mmap, MAP_FIXED   each piece over the kernel's mapping of the program's own file, text first: whether that may
                         be executed at all is seen while nothing has changed
       mmap, mremap      the contents of the huge page with the headers: see hl_map_header_at_exec_stop
       close             when the program is let go

   Each call is valid by itself: between two of them the program could begin.  It is safe to map over the text directly, because
   the program has not run: a check before shows that only its file is mapped there.  Kernels before 6.12 can take the old text
   away and then find no memory for the new; then it is mapped from the program's own file. */
#include "command/inject/exec-stop.h"
#include "command/lib/basics.h"
#include "command/inject/machine.h"
#include "elf/maps.h"
#include "elf/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct act {
    struct hl_exec_plan *plan;
    struct hl_tracee *thread;
    struct hl_process opened;
    struct hl_process process; /* the mappings that are needed of it */
    uint64_t vdso;             /* the vdso's start, or 0 */
    int file;                  /* the process's descriptor of the image, or -1 */
    bool moves;                /* all of the program moves, to an address where the image fits */
};

/* --- is it the planned program? --- */

/* From the auxiliary vector: the entry, and where the possible owners of the instructions begin. */
struct vector {
    uint64_t entry, secure, owner[HL_EXEC_OWNERS];
};

static int read_auxv(const struct act *act, struct vector *vector) {
    uint64_t pair[128];
    ssize_t bytes = hl_read_process_file(&act->opened, "auxv", pair, sizeof pair);
    *vector = (struct vector){.secure = 1};
    for (ssize_t i = 0; i + 1 < bytes / (ssize_t)sizeof *pair && pair[i] != AT_NULL; i += 2) {
        uint64_t *to = pair[i] == AT_BASE           ? &vector->owner[HL_EXEC_LINKER]
                       : pair[i] == AT_SYSINFO_EHDR ? &vector->owner[HL_EXEC_VDSO]
                       : pair[i] == AT_SECURE       ? &vector->secure
                       : pair[i] == AT_ENTRY        ? &vector->entry
                                                    : NULL;
        if (to != NULL)
            *to = pair[i + 1];
    }
    return bytes > 0 ? 0 : bytes < 0 ? (int)bytes : -EIO;
}

/* The addresses of the instructions that the plan found. */
static struct hl_gadgets find_codes(const struct hl_exec_plan *plan, const struct vector *vector) {
    return (struct hl_gadgets){plan->call.at + vector->owner[plan->call.owner],
                               plan->back.at + vector->owner[plan->back.owner]};
}

static int place_codes(const struct act *act, const struct vector *vector) {
    const struct hl_exec_plan *plan = act->plan;
    struct hl_gadgets code = find_codes(plan, vector);
    if (!hl_has_code(&act->process, code.call, plan->call.bytes) ||
        !hl_has_code(&act->process, code.back, plan->back.bytes))
        return HL_REASON_ATTACH_INSTRUCTIONS;
    act->thread->gadgets = code;
    return 0;
}

/* Whether REGION is the program's file, mapped as its headers say.  The kernel joins the mappings of neighbouring segments that go on
   in the file with the same flags. */
static bool is_own(const struct act *act, const struct hl_region *region, dev_t device) {
    const struct hl_object *object = &act->plan->object;
    const struct hl_segment *segment = hl_find_segment(object, region->start);
    if (segment == NULL)
        return false;
    for (uint64_t at = region->start; at < region->end; at = segment++->end_page)
        if (segment == object->segment + object->n_segments || segment->first_page > at ||
            !hl_maps_segment(region, segment, device, act->plan->file.inode))
            return false;
    return true;
}

/* Whether REGION is the part of a segment that no file has, its zeros. */
static bool is_zeros(const struct act *act, const struct hl_region *region) {
    const struct hl_segment *segment = hl_find_segment(&act->plan->object, region->start);
    return segment != NULL && !region->shared && region->inode == 0 && region->flags == segment->flags &&
           region->start >= segment->file_end && region->end <= segment->end_page;
}

/* Whether [start, end) maps the program and nothing else, without a hole where its segments are.  If all of it moves, its zeros move,
   too, and mappings that the kernel has put between segments may stay: the vdso, where a static program leaves 64 KiB there (AArch64). */
static int check_range(const struct act *act, uint64_t start, uint64_t end) {
    const struct hl_object *object = &act->plan->object;
    const struct hl_region *first = hl_find_region(&act->process, object->segment[0].first_page);
    uint64_t own = 0, expected = 0;
    for (size_t i = 0; i < act->process.n_regions && first != NULL; i++) {
        const struct hl_region *region = &act->process.region[i];
        uint64_t bytes = hl_overlap(region->start, region->end, start, end);
        bool may_stay = act->moves && region->inode == 0 && hl_is_between_segments(object, region);
        if (bytes == 0 || may_stay)
            continue;
        if (!is_own(act, region, first->device) && !(act->moves && is_zeros(act, region)))
            return HL_REASON_MAPPING_CHANGED;
        own += bytes;
    }
    for (unsigned i = 0; i < object->n_segments; i++)
        expected += hl_segment_overlap(&object->segment[i], start, end);
    return own == expected ? 0 : HL_REASON_MAPPING_CHANGED;
}

/* A uprobe of the file may have changed a page already. */
static int check_unmodified(const struct act *act) {
    struct hl_piece_of_text own[HL_PIECES_MAX];
    unsigned n = 0;
    hl_add_own_pieces(own, &n, &act->plan->object, 0, UINT64_MAX);
    return hl_check_pieces_unmodified(&act->process, own, n, act->plan->geometry.page_bytes);
}

/* Whether what changes is the program's and as its file has it.  If the whole program moves, that is all of it. */
static int check_text(const struct act *act) {
    const struct hl_exec_plan *plan = act->plan;
    const struct hl_object *object = &plan->object;
    int result = 0;
    if (act->moves && !plan->may_move) /* Linux before 5.10, and static ones before 6.1 */
        return HL_REASON_IMAGE_PLACE;
    if (act->moves)
        result =
            check_range(act, object->segment[0].first_page, object->segment[object->n_segments - 1].end_page);
    for (unsigned i = 0; i < plan->n_pieces && result == 0 && !act->moves; i++)
        result = check_range(act, plan->piece[i].start, plan->piece[i].end);
    return result == 0 ? check_unmodified(act) : result;
}

/* A program that stays needs only its own mappings read, and those of the instructions. */
static int read_mappings(struct act *act, const struct vector *vector) {
    const struct hl_exec_plan *plan = act->plan;
    const struct hl_object *object = &plan->object;
    struct hl_gadgets code = find_codes(plan, vector);
    struct hl_address_range range[] = {
        {object->segment[0].first_page, object->segment[object->n_segments - 1].end_page},
        {code.call, code.call + 1},
        {code.back, code.back + 1}};
    return !act->moves ? hl_read_some_mappings(&act->process, &act->opened, range, 3)
                       : hl_read_mappings(&act->process, &act->opened);
}

/* The image fits here, but mappings that the kernel has put into the program's gaps are in the way. */
static int check_move_instead(struct act *act) {
    act->moves = true;
    hl_close_process(&act->process);
    int result = hl_read_mappings(&act->process, &act->opened);
    return result == 0 ? check_text(act) : result;
}

/* New mappings get the protection of indirect branches that the kernel has given the program's own text (PROT_BTI); in a program
   with a dynamic linker, the linker sets it later. */
static int keep_branch_protection(const struct act *act) {
    if (HL_PROT_BTI == 0)
        return 0;
    struct hl_exec_plan *plan = act->plan;
    int extra = -1, result = 0;
    /* The vdso may lie in a gap; its protection was chosen when the kernel was built. */
    for (unsigned i = 0; i < plan->object.n_segments && result == 0; i++) {
        const struct hl_segment *segment = &plan->object.segment[i];
        int own = 0;
        if (!(segment->flags & PF_X))
            continue;
        result = hl_read_branch_protection_in(hl_open_process_file(&act->process, "smaps"),
                                              segment->first_page, segment->end_page, &own);
        if (result == 0 && extra >= 0 && own != extra)
            result = HL_REASON_MAPPING_CHANGED;
        extra = own;
    }
    if (result != 0 || extra < 0)
        return result != 0 ? result : HL_REASON_NO_PROC;
    for (unsigned i = 0; i < plan->n_pieces; i++)
        plan->piece[i].prot |= plan->piece[i].prot & PROT_EXEC ? extra : 0;
    for (unsigned i = 0; i < plan->n_rest; i++)
        plan->rest[i].prot |= plan->rest[i].prot & PROT_EXEC ? extra : 0;
    plan->header.prot |= plan->header.prot & PROT_EXEC ? extra : 0;
    return 0;
}

static int check(struct act *act) {
    struct vector vector;
    int result = read_auxv(act, &vector);
    if (result != 0)
        return result;
    /* The kernel may have executed another file in its place (a rename, binfmt_misc, the shell for a script without "#!"). */
    result = hl_check_executable(&act->opened, &act->plan->file);
    if (result == 0 && !act->plan->maps_linker) {
        uint64_t bias = vector.entry - act->plan->entry;
        if (bias == 0 || act->plan->is_position_independent)
            hl_shift_exec_plan(act->plan, bias);
        else
            result = HL_REASON_MAPPING_CHANGED;
    }
    /* Huge pages of the image can be where its pieces belong, or all of the program moves. */
    const struct hl_piece_of_text *first = &act->plan->piece[0];
    uint64_t huge = act->plan->geometry.huge_page_bytes;
    act->moves = act->plan->maps_linker || (first->start - first->offset) % huge != 0;
    act->vdso = vector.owner[HL_EXEC_VDSO];
    /* A program that is not the planned one has to wait for its helper, too. */
    int placed = read_mappings(act, &vector);
    if (placed == 0)
        placed = place_codes(act, &vector);
    if (result == 0)
        result = placed;
    if (result == 0 && vector.secure != 0)
        result = HL_REASON_PRIVILEGED;
    if (act->plan->maps_linker)
        return result;
    if (result == 0)
        result = keep_branch_protection(act);
    if (result != 0)
        return result;
    result = check_text(act);
    return result == HL_REASON_MAPPING_CHANGED && !act->moves && act->plan->may_move ? check_move_instead(act)
                                                                                     : result;
}

/* --- calls --- */

/* Opens PATH in the program, without waiting: the owner of a folder above a store may have put a FIFO there since the store was
   looked at.  0, and *FILE is its number. */
static int open_in_program(const struct act *act, const char *path, int *file) {
    long opened;
    int result = hl_write_exec_thread(act->thread, act->thread->data, path, strlen(path) + 1);
    if (result == 0)
        result = hl_call(act->thread, &opened, SYS_openat, (uint64_t)AT_FDCWD, act->thread->data,
                         O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0, 0, 0);
    if (result == 0)
        *file = (int)opened;
    return result;
}

/* Whether the opened file is the image that was checked. */
static int check_opened(const struct act *act) {
    struct stat stat;
    char *path = hl_xasprintf("fd/%d", act->file);
    int result = fstatat(act->process.folder, path, &stat, 0) != 0 ? -errno : 0;
    free(path);
    if (result != 0)
        return result;
    return stat.st_dev == act->plan->image_stat.st_dev && stat.st_ino == act->plan->image_stat.st_ino
               ? 0
               : HL_REASON_NO_IMAGE;
}

/* A system call instruction of the vdso, for use while the program's own text may be missing.  0: there is none. */
static uint64_t find_call_in_vdso(const struct act *act) {
    char bytes[8192];
    size_t n = act->vdso != 0 ? sizeof bytes : 0;
    while (n > 0 && hl_read_thread(act->thread->pid, act->vdso, bytes, n) != 0)
        n -= 4096;
    const struct hl_code code = {HL_SYSCALL_BYTES, hl_call_code.at}, *same;
    const char *found = hl_find_code(bytes, n, &code, 1, &same);
    return found != NULL ? act->vdso + (uint64_t)(found - bytes) : 0;
}

/* Maps PIECE from the program's own file.  This is harmless where that is mapped still: the bytes are the same. */
static int map_back(const struct act *act, const struct hl_piece_of_text *piece) {
    uint64_t *call_at = &act->thread->gadgets.call;
    const uint64_t usual = *call_at, of_vdso = find_call_in_vdso(act);
    int file = -1;
    if (act->plan->call.owner == HL_EXEC_PROGRAM && of_vdso != 0)
        *call_at = of_vdso;
    int result = open_in_program(act, "/proc/self/exe", &file);
    if (result == 0)
        result = hl_map_own_pieces(act->thread, &act->plan->object, piece->start, piece->end,
                                   piece->prot & HL_PROT_BTI, file);
    hl_close_in_tracee(act->thread, file);
    *call_at = usual;
    return result;
}

/* Whether the program's part of PIECE can be read: a failed call has taken all of its range away, or nothing.  This needs no
   descriptor, of which there may be none. */
static bool is_there(const struct act *act, const struct hl_piece_of_text *piece) {
    struct hl_piece_of_text own[HL_PIECES_MAX];
    unsigned n = 0;
    bool result = true;
    char byte;
    hl_add_own_pieces(own, &n, &act->plan->object, piece->start, piece->end);
    for (unsigned i = 0; i < n && result; i++)
        result =
            !(own[i].prot & PROT_READ) || (hl_read_thread(act->thread->pid, own[i].start, &byte, 1) == 0 &&
                                           hl_read_thread(act->thread->pid, own[i].end - 1, &byte, 1) == 0);
    return result;
}

/* PIECE could not be mapped: it keeps its old mapping, or gets it again.  -ESRCH: neither worked, and the process ends. */
static int restore_piece(const struct act *act, const struct hl_piece_of_text *piece) {
    if (!is_there(act, piece) && map_back(act, piece) != 0 && !is_there(act, piece)) {
        hl_warn("%s: its text is lost, so it is ended: no memory for mapping it again",
                act->plan->executable);
        kill(act->thread->pid, SIGKILL);
        return -ESRCH;
    }
    return HL_REASON_ATTACH_CALL;
}

/* A profiler that was there from the start (perf record) hears of mmap and not of mremap.  So the image's first such page, where
   its symbols are, is mapped for the profiler to see; the second one, which has the headers that debuggers expect, is mapped
   elsewhere and moved over it.  If that place has a page table, because it shares 2 MiB with other mappings, mremap gives the new
   place one, too, and the kernel then maps small pages there.  So it is a huge page's place, below the program, if that is free. */
int hl_map_header_at_exec_stop(const struct hl_exec_plan *plan, struct hl_tracee *thread, uint64_t distance,
                               int file) {
    const struct hl_piece_of_text *header = &plan->header;
    uint64_t bytes = header->end - header->start, to = header->start + distance;
    uint64_t prot = (uint64_t)header->prot, number = (uint64_t)file;
    long at, done;
    if (bytes == 0)
        return 0;
    int result = hl_call(thread, &at, SYS_mmap, to - bytes, bytes, prot, MAP_PRIVATE, number, header->offset);
    if (result == 0) {
        result = hl_call(thread, &done, SYS_mremap, (uint64_t)at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                         to, 0);
        if (result == HL_REASON_ATTACH_CALL)
            hl_unmap_in_tracee(thread, (uint64_t)at, (uint64_t)at + bytes);
    }
    if (result == HL_REASON_ATTACH_CALL) /* a store on the pool before Linux 5.16; RLIMIT_AS */
        result = hl_call(thread, &done, SYS_mmap, to, bytes, prot, MAP_PRIVATE | MAP_FIXED, number,
                         header->offset);
    return result;
}

/* Maps PIECE, and the headers if they lie in it. */
static int map_or_restore(const struct act *act, const struct hl_piece_of_text *piece) {
    const struct hl_piece_of_text *header = &act->plan->header;
    int result = hl_map_piece(act->thread, piece, piece->start, MAP_FIXED, act->file);
    if (result == HL_REASON_NO_MEMORY) { /* else it was refused before anything was unmapped */
        int left = restore_piece(act, piece);
        return left < 0 ? left : result;
    }
    if (result == 0 && header->start >= piece->start && header->start < piece->end)
        result = hl_map_header_at_exec_stop(act->plan, act->thread, 0, act->file);
    /* If the image's first such page is there still, the only damage is that debuggers see its headers instead of the file's. */
    return result == HL_REASON_ATTACH_CALL ? restore_piece(act, header) : result;
}

/* Text first. */
static int map_over(const struct act *act) {
    const struct hl_exec_plan *plan = act->plan;
    int result = 0;
    for (int prot = PROT_EXEC, pass = 0; pass < 2; pass++, prot = 0)
        for (unsigned i = 0; i < plan->n_pieces && result == 0; i++)
            if ((plan->piece[i].prot & PROT_EXEC) == prot)
                result = map_or_restore(act, &plan->piece[i]);
    return result;
}

static int change(struct act *act) {
    int result = open_in_program(act, act->plan->image_path, &act->file);
    if (result == 0)
        result = check_opened(act);
    if (result == 0 && act->plan->maps_linker)
        result = hl_map_linker(act->plan, act->thread, &act->process, act->file);
    else if (result == 0 && act->moves)
        result = hl_move_at_exec_stop(act->plan, act->thread, &act->process, act->file);
    else if (result == 0)
        result = map_over(act);
    if (act->file >= 0)
        hl_call_later(act->thread, SYS_close, (uint64_t)act->file, 0);
    return result;
}

int hl_act_at_exec_stop(struct hl_exec_plan *plan, struct hl_tracee *thread) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", thread->pid);
    struct act act = {.plan = plan, .thread = thread, .process = {.folder = -1}, .file = -1};
    act.opened =
        (struct hl_process){.pid = thread->pid, .folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    int result = act.opened.folder < 0 ? -errno : 0;
    if (result == 0)
        result = check(&act);
    if (thread->gadgets.call != 0) {
        int armed = hl_arm_exec_thread(thread);
        result = result != 0 ? result : armed;
    }
    return result == 0 ? change(&act) : result; /* and this process ends, with all that it has opened */
}
