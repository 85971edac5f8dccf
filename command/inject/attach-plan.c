/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which text of a running process can be replaced, and by which file.

   Nothing here changes the process.  Planning takes most of the time of an attach, and the process runs meanwhile; so its mappings
   are looked at once more while a thread of it stands still (inject/attach-move.c).

   The process may be hostile, and we may be root.  Its files are opened through /proc/PID/exe and map_files, which name the
   mapped files, whatever its paths mean; its own data decide about nothing but itself.  Above all, the new text must have the
   same bytes as the old (inject/compare.c). */
#include "command/lib/common.h"
#include "elf/image.h"
#include "elf/options.h"
#include "command/inject/attachment.h"
#include "elf/maps.h"
#include "elf/plan.h"
#include "command/inject/tracee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* At most 1/RESERVED_SHARE of the address space that a limit leaves is reserved. */
#define RESERVED_SHARE 10
/* Files that the process can open meanwhile, including ours, which are up to three (an image and a pair of sockets). */
#define SPARE_FILES 64
/* The kernel counts some 50 MiB of small pages in a millisecond or two. */
#define BELOW_MAX (UINT64_C(64) << 20)
/* The cost of a mapping with nothing resident, in such bytes: smaps of 60,000 mappings takes Linux 6.18 130 ms. */
#define MAPPING_COST (UINT64_C(64) << 10)

/* --- the process --- */

/* Whether the process can open enough files while it holds some of ours.  The kernel lists their numbers in ascending order. */
static int check_files(const struct hl_process *process) {
    uint64_t limit = hl_read_limit(process, "Max open files"), n = 0;
    DIR *folder = hl_open_list(process->folder, "fd");
    if (folder == NULL)
        return -errno;
    for (struct dirent *entry; n + SPARE_FILES <= limit && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        if (strtoull(entry->d_name, NULL, 10) >= limit)
            break;
        n++;
    }
    closedir(folder);
    return n + SPARE_FILES <= limit ? 0 : HL_REASON_ATTACH_FILES;
}

/* Whether the process's status allows an attach. */
static int check_status(struct hl_attachment *attachment) {
    struct hl_task_status status;
    int result = hl_read_task_status(&status, attachment->process.folder, "status");
    attachment->locked_kib = status.locked_kib;
    if (result != 0)
        return result;
    if (status.state == 'T')
        return HL_REASON_ATTACH_STOPPED;
    if (status.state == 'Z')
        return -ENODATA;
    if (status.tracer != 0)
        return HL_REASON_ATTACH_TRACED;
    return status.has_shadow_stack ? HL_REASON_ATTACH_SHADOW_STACK : 0;
}

uint64_t hl_read_locked(const struct hl_process *process) {
    struct hl_task_status status;
    hl_read_task_status(&status, process->folder, "status");
    return status.locked_kib;
}

/* --- its text --- */

/* Checks VmFlags against those that text has: readable and executable, may be made readable, writable and executable, is advised
   to be on huge pages, was writable for a while (ac), is of a file that may not be written to while it runs (dw, before Linux
   5.15); sd is for programs that track changes; mg is on all memory of a process whose equal pages may be merged
   (PR_SET_MEMORY_MERGE).  A protection key (pkey_mprotect) would be lost. */
static int check_flags(const struct hl_region *region) {
    static const char usual[] = "rd ex mr mw me ac dw sd hg mg";
    if (region->protection_key != 0)
        return HL_REASON_ATTACH_FLAGS;
    for (const char *at = region->vm_flags; at[0] != '\0' && at[1] != '\0'; at += at[2] == ' ' ? 3 : 2) {
        char flag[3] = {at[0], at[1], '\0'};
        if (strcmp(flag, "lo") == 0)
            return HL_REASON_ATTACH_LOCKED;
        if (strcmp(flag, "sl") == 0)
            return HL_REASON_SEALED;
        if (strstr(usual, flag) == NULL)
            return HL_REASON_ATTACH_FLAGS;
    }
    return 0;
}

/* Whether REGION maps the executable as SEGMENT says; neighbours may map other parts of it. */
static int check_region(const struct hl_attachment *attachment, const struct hl_segment *segment,
                        const struct hl_region *region) {
    const struct hl_loaded *loaded = attachment->loaded;
    bool is_left = region->of_image && !region->shared && !(region->flags & PF_W) &&
                   hl_answers(&attachment->process, region); /* by an attach or detach that was killed */
    if (!is_left && !hl_maps_segment(region, segment, loaded->device, loaded->inode))
        return HL_REASON_MAPPING_CHANGED;
    return check_flags(region);
}

/* Whether nothing but its own file, or an image, is mapped in SPAN, without a hole.  With edges=small a span may
   reach into the gap behind its segment; that part is cut off. */
static int check_span(const struct hl_attachment *attachment, struct hl_span *span, unsigned edges) {
    uint64_t huge_bytes = 0, huge_page_bytes = attachment->request->geometry.huge_page_bytes;
    for (uint64_t at = span->start, next; at < span->end; at = next) {
        const struct hl_segment *segment = hl_find_segment(&attachment->loaded->object, at);
        const struct hl_region *region = hl_find_region(&attachment->process, at);
        if (segment == NULL && edges == HL_EDGES_SMALL && at > span->start) {
            span->end = hl_round_down(at, huge_page_bytes);
            break;
        }
        if (segment == NULL || region == NULL || segment->file_end < segment->end)
            return HL_REASON_GAP_OCCUPIED;
        int result = check_region(attachment, segment, region);
        if (result != 0)
            return result;
        next = region->end < segment->end_page ? region->end : segment->end_page;
        if (region->of_image)
            huge_bytes += hl_overlap(at, next, span->start, span->end);
        else if (region->start <= span->start && region->end >= span->end)
            huge_bytes = region->file_pmd_bytes + region->shmem_pmd_bytes;
    }
    return huge_bytes > 0 && huge_bytes >= span->end - span->start ? HL_REASON_HUGE_ALREADY : 0;
}

static int check_unwritten(const struct hl_attachment *attachment) {
    return hl_check_pieces_unmodified(&attachment->process, attachment->piece, attachment->n_pieces,
                                      attachment->request->geometry.page_bytes);
}

/* Adds [start, end) of a span to the pieces.  0, also if there is nothing to move; HL_REASON_HUGE_ALREADY; or another reason. */
static int add_piece(struct hl_attachment *attachment, unsigned edges, struct hl_span span) {
    const struct hl_geometry *geometry = &attachment->request->geometry;
    uint64_t base = hl_find_image_base(&attachment->loaded->object, geometry);
    int result = span.start < span.end ? check_span(attachment, &span, edges) : 0;
    if (result != 0 || span.end == span.start)
        return result;
    hl_add_piece(attachment->piece, &attachment->n_pieces, span.start, span.end, span.start - base,
                 PF_R | PF_X);
    attachment->huge_pages += hl_span_bytes(&span) / geometry->huge_page_bytes;
    return 0;
}

/* Plans the pieces with EDGES.  An obstacle in one span keeps all of the text, since it moves as a whole. */
static int plan_pieces(struct hl_attachment *attachment, unsigned edges) {
    struct hl_options options;
    struct hl_plan plan;
    bool is_already = false; /* a part is on huge pages */
    hl_default_options(&options);
    options.sparse_text = 1; /* a page of an image costs nothing */
    options.data = HL_DATA_OFF;
    options.edges = edges;
    int result = hl_plan_object(&plan, &attachment->loaded->object, &options, &attachment->request->geometry);
    attachment->n_pieces = 0;
    attachment->huge_pages = 0;
    for (unsigned i = 0; i < plan.n_spans && result == 0; i++) {
        if (plan.span[i].kind == HL_TEXT)
            result = add_piece(attachment, edges, plan.span[i]);
        is_already |= result == HL_REASON_HUGE_ALREADY;
        result = result == HL_REASON_HUGE_ALREADY ? 0 : result;
    }
    if (result != 0 || attachment->n_pieces > 0)
        return result == 0 ? check_unwritten(attachment) : result;
    return is_already ? HL_REASON_HUGE_ALREADY : HL_REASON_TOO_SMALL;
}

/* --- the new text --- */

/* Whether the limit of the process's address space leaves enough beside the addresses that are reserved meanwhile. */
static int check_address_space(const struct hl_attachment *attachment) {
    uint64_t limit = hl_read_limit(&attachment->process, "Max address space"), used = 0, needed = 0;
    for (size_t i = 0; i < attachment->process.n_regions; i++)
        used += attachment->process.region[i].end - attachment->process.region[i].start;
    for (unsigned i = 0; i < attachment->n_pieces; i++)
        needed += attachment->piece[i].end - attachment->piece[i].start +
                  2 * attachment->request->geometry.huge_page_bytes;
    bool is_enough = limit == UINT64_MAX || (limit > used && (limit - used) / RESERVED_SHARE >= needed);
    return is_enough ? 0 : HL_REASON_NO_MEMORY;
}

/* --- there and back --- */

static int plan_attach(struct hl_attachment *attachment, enum hl_now now) {
    if (now == HL_NOW_EXECUTED || now == HL_NOW_MOVED)
        return now == HL_NOW_EXECUTED ? HL_REASON_HUGE_ALREADY : HL_REASON_ATTACH_COPY;
    int result = plan_pieces(attachment, HL_EDGES_MERGE);
    if (result == HL_REASON_GAP_OCCUPIED)
        result = plan_pieces(attachment, HL_EDGES_SMALL);
    if (result == 0)
        result = (int)hl_find_obstacle(&attachment->process);
    if (result == 0)
        hl_claim_own_image(attachment);
    /* A dry run fills no image, and must not promise a move that fails. */
    return result == 0 && attachment->request->dry_run ? hl_compare_attached_text(attachment) : result;
}

/* Adds the parts of [start, end), an image's mapping, that lie in no segment: the exec stop maps traps there. */
static void add_gaps(struct hl_attachment *attachment, uint64_t start, uint64_t end) {
    const struct hl_object *object = &attachment->loaded->object;
    for (unsigned i = 0; i <= object->n_segments && start < end; i++) {
        uint64_t from = i < object->n_segments ? object->segment[i].first_page : end;
        uint64_t to = i < object->n_segments ? object->segment[i].end_page : end;
        if (start < from && attachment->n_gaps < HL_PIECES_MAX)
            attachment->gap[attachment->n_gaps++] = (struct hl_address_range){start, from < end ? from : end};
        start = to > start ? to : start;
    }
}

/* Adds the parts of segments that REGION, outside of the executable, maps from its image: V8 moves or copies some of its own text to
   where it writes code. */
static void add_pieces_elsewhere(struct hl_attachment *attachment, const struct hl_region *region) {
    const struct hl_object *object = &attachment->loaded->object;
    uint64_t distance =
        hl_find_image_base(object, &attachment->request->geometry) + region->offset - region->start;
    unsigned before = attachment->n_pieces;
    hl_add_own_pieces(attachment->piece, &attachment->n_pieces, object, region->start + distance,
                      region->end + distance);
    for (unsigned i = before; i < attachment->n_pieces; i++) {
        attachment->piece[i].start -= distance;
        attachment->piece[i].end -= distance;
        attachment->piece[i].distance = distance;
    }
}

/* check_flags for a REGION of which only the fields of maps are known. */
static int check_flags_elsewhere(const struct hl_attachment *attachment, const struct hl_region *region) {
    struct hl_process now = {.folder = -1};
    struct hl_address_range range = {region->start, region->end};
    int result = hl_read_some_regions(&now, &attachment->process, &range, 1);
    if (result == 0 && now.n_regions == 0)
        result = HL_REASON_MAPPING_CHANGED;
    for (size_t i = 0; i < now.n_regions && result == 0; i++)
        result = check_flags(&now.region[i]);
    hl_close_process(&now);
    return result;
}

/* Whether REGION lies in reserved addresses of an earlier call, which was killed. */
static bool is_left(const struct hl_attachment *attachment, const struct hl_region *region) {
    for (unsigned i = 0; i < attachment->left.n_ranges; i++)
        if (hl_overlap(region->start, region->end, attachment->left.range[i].start,
                       attachment->left.range[i].end) > 0)
            return true;
    return false;
}

/* REGION maps an image where the executable is, or a part of that elsewhere. */
static int plan_region_back(struct hl_attachment *attachment, const struct hl_region *region) {
    const struct hl_object *object = &attachment->loaded->object;
    unsigned before = attachment->n_pieces, gaps_before = attachment->n_gaps;
    hl_add_own_pieces(attachment->piece, &attachment->n_pieces, object, region->start, region->end);
    bool is_elsewhere =
        attachment->n_pieces == before && (region->start < object->segment[0].first_page ||
                                           region->end > object->segment[object->n_segments - 1].end_page);
    if (is_elsewhere)
        add_pieces_elsewhere(attachment, region);
    else
        add_gaps(attachment, region->start, region->end);
    if (attachment->n_pieces == before && attachment->n_gaps == gaps_before)
        return 0;
    int result = is_elsewhere ? check_flags_elsewhere(attachment, region) : check_flags(region);
    if (result != 0)
        return result;
    attachment->huge_pages += (region->end - region->start) / attachment->request->geometry.huge_page_bytes;
    return 0;
}

static int plan_detach(struct hl_attachment *attachment, enum hl_now now) {
    const struct hl_loaded *loaded = attachment->loaded;
    if (now == HL_NOW_EXECUTED || now == HL_NOW_MOVED)
        return now == HL_NOW_EXECUTED ? HL_REASON_ATTACH_EXECUTED : HL_REASON_ATTACH_MOVED;
    attachment->file = loaded->file->fd;
    attachment->device = loaded->device;
    attachment->inode = loaded->inode;
    for (size_t i = 0; i < attachment->process.n_regions && !loaded->is_image; i++) {
        const struct hl_region *region = &attachment->process.region[i];
        if (!region->of_image || region->shared || (region->flags & PF_W) || is_left(attachment, region) ||
            !hl_answers(&attachment->process, region))
            continue;
        int result = plan_region_back(attachment, region);
        if (result != 0)
            return result;
    }
    if (attachment->n_pieces + attachment->n_gaps == 0)
        return HL_REASON_ATTACH_DETACHED;
    int result = check_unwritten(attachment);
    return result == 0 ? hl_compare_attached_text(attachment) : result;
}

/* --- once more --- */

/* Whether [start, end) is mapped in NOW as it was when ATTACHMENT was planned. */
static bool is_as_planned(const struct hl_attachment *attachment, const struct hl_process *now,
                          uint64_t start, uint64_t end) {
    for (uint64_t at = start; at < end;) {
        const struct hl_region *a = hl_find_region(&attachment->process, at), *b = hl_find_region(now, at);
        if ((a == NULL) != (b == NULL))
            return false;
        if (a == NULL) {
            at += (uint64_t)sysconf(_SC_PAGESIZE);
            continue;
        }
        if (a->flags != b->flags || a->shared != b->shared || a->inode != b->inode ||
            a->device != b->device || a->offset - a->start != b->offset - b->start)
            return false;
        at = a->end < b->end ? a->end : b->end;
    }
    return true;
}

/* Bytes that were resident below ADDRESS at the last count, and the cost of the mappings there. */
static uint64_t count_below(const struct hl_process *process, uint64_t address) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < process->n_regions && process->region[i].start < address; i++)
        bytes += process->region[i].resident_bytes + MAPPING_COST;
    return bytes;
}

/* Whether the text was locked, or mapped in an unusual way, since it was planned.  To tell, the kernel counts all resident memory
   below it, while the thread stands still; where that is much, no other memory may be locked or unlocked meanwhile. */
static int check_flags_again(const struct hl_attachment *attachment) {
    struct hl_process now = {.folder = -1};
    struct hl_address_range range[HL_PIECES_MAX];
    size_t n = 0;
    uint64_t lowest = attachment->n_pieces > 0 ? attachment->piece[0].start : 0;
    if (count_below(&attachment->process, lowest) > BELOW_MAX)
        return hl_read_locked(&attachment->process) == attachment->locked_kib ? 0 : HL_REASON_MAPPING_CHANGED;
    for (unsigned i = 0; i < attachment->n_pieces; i++)
        if (attachment->piece[i].distance == 0) /* others lie above nearly everything */
            range[n++] = (struct hl_address_range){attachment->piece[i].start, attachment->piece[i].end};
    int result = n > 0 ? hl_read_some_regions(&now, &attachment->process, range, n) : 0;
    for (unsigned i = 0; i < attachment->n_pieces && result == 0; i++)
        if (attachment->piece[i].distance == 0 &&
            !is_as_planned(attachment, &now, attachment->piece[i].start, attachment->piece[i].end))
            result = HL_REASON_MAPPING_CHANGED;
    for (size_t i = 0; i < now.n_regions && result == 0; i++)
        result = check_flags(&now.region[i]);
    hl_close_process(&now);
    return result;
}

/* A process that has executed another program, and then the first one again, has the same mappings as before, and another file's
   state if that was written to. */
int hl_check_attached_text(const struct hl_attachment *attachment, const struct hl_process *now) {
    bool is_same = hl_check_executable(&attachment->process, &attachment->state) == 0;
    int result = is_same ? check_flags_again(attachment) : HL_REASON_MAPPING_CHANGED;
    for (unsigned i = 0; i < attachment->n_pieces && result == 0; i++)
        if (!is_as_planned(attachment, now, attachment->piece[i].start, attachment->piece[i].end))
            result = HL_REASON_MAPPING_CHANGED;
    for (unsigned i = 0; i < attachment->n_gaps && result == 0; i++)
        if (!is_as_planned(attachment, now, attachment->gap[i].start, attachment->gap[i].end))
            result = HL_REASON_MAPPING_CHANGED;
    return result == 0 ? check_unwritten(attachment) : result;
}

/* --- the whole --- */

static int check_class(const struct hl_attachment *attachment) {
    struct hl_elf_file file;
    enum hl_elf_problem problem = hl_open_elf(&file, attachment->process.folder, "exe");
    if (problem == HL_ELF_FINE)
        hl_close_elf(&file);
    return problem == HL_ELF_32_BIT ? HL_REASON_ATTACH_32_BIT : 0;
}

/* Whether the first thread can be stopped, and make calls. */
static int check_thread(struct hl_attachment *attachment) {
#if defined __x86_64__
    int result = hl_find_gadgets(&attachment->gadgets, &attachment->process);
    if (result == 0)
        result = check_files(&attachment->process);
    return result == 0 ? hl_look_at_thread(&attachment->process) : result;
#else
    return check_files(&attachment->process);
#endif
}

static bool has_memory(int maps) {
    char first;
    return pread(maps, &first, 1, 0) > 0;
}

/* A kernel thread has none from the start. */
static void open_maps(struct hl_attachment *attachment) {
    attachment->maps = hl_open_process_file(&attachment->process, "maps");
    if (attachment->maps >= 0 && !has_memory(attachment->maps)) {
        close(attachment->maps);
        attachment->maps = -1;
    }
}

/* The end of the executable's mappings: at the first large hole. */
static uint64_t find_end_of_main(const struct hl_process *process) {
    static const uint64_t hole = 64 << 20;
    const struct hl_region *region = hl_find_region(process, process->entry);
    const struct hl_region *end = process->region + process->n_regions;
    if (region == NULL)
        return UINT64_MAX;
    while (region + 1 < end && region[1].start - region->end < hole)
        region++;
    return region->end;
}

/* Reads PROCESS without nodes, and with only the fields of /proc/PID/maps for regions behind the executable: while the kernel counts the
   resident pages of a region, as it does for smaps, the process cannot change its mappings. */
static int read_process_for_main(struct hl_process *process) {
    struct hl_process details;
    int result = hl_read_process_map(process);
    struct hl_address_range main = {0, find_end_of_main(process)};
    if (result != 0)
        return result;
    result = hl_read_some_regions(&details, process, &main, 1);
    for (size_t i = 0; i < details.n_regions; i++) {
        struct hl_region *same = (struct hl_region *)hl_find_region(process, details.region[i].start), old;
        if (same == NULL || same->start != details.region[i].start || same->end != details.region[i].end)
            continue;
        old = *same;
        *same = details.region[i];
        details.region[i] = old;
    }
    hl_close_process(&details);
    return result;
}

static int look_at(struct hl_attachment *attachment, pid_t pid) {
#if defined __x86_64__
    int result = hl_open_process(&attachment->process, pid);
#else
    int result = pid > 0 ? HL_REASON_ATTACH_MACHINE : -ESRCH;
#endif
    if (result == 0)
        open_maps(attachment);
    if (result == 0)
        result = check_status(attachment);
    if (result == 0)
        result = read_process_for_main(&attachment->process);
    if (result == 0)
        result = check_class(attachment);
    if (result == 0)
        result = hl_find_loaded(&attachment->process, &attachment->request->geometry);
    if (result != 0)
        return result;
    if (attachment->process.n_loaded == 0 || !attachment->process.loaded[0].object.is_main)
        return -ENOENT; /* the executable cannot be opened */
    attachment->loaded = &attachment->process.loaded[0];
    hl_find_leftovers(&attachment->left, &attachment->process);
    bool any_left = hl_has_leftovers(&attachment->left);
    enum hl_now now = hl_find_now(&attachment->process, attachment->loaded, NULL);
    result = hl_read_state_at(&attachment->state, attachment->loaded->file->fd, "");
    if (result == 0)
        result = attachment->request->is_detach ? plan_detach(attachment, now) : plan_attach(attachment, now);
    if (result == 0)
        result = check_address_space(attachment);
    int calls = result == 0 || any_left ? check_thread(attachment) : 0;
    attachment->closes_leftovers = any_left && calls == 0;
    return result == 0 ? calls : result;
}

/* Its first thread may end before others, which still have that memory, but then none of it can be read. */
static bool has_ended(const struct hl_attachment *attachment) {
    if (attachment->maps < 0)
        return false;
    if (!has_memory(attachment->maps))
        return true;
    int now = hl_open_process_file(&attachment->process, "maps");
    if (now < 0)
        return now == -ESRCH || now == -ENOENT;
    bool ended = !has_memory(now);
    close(now);
    return ended;
}

int hl_or_ended(const struct hl_attachment *attachment, int result) {
    return result != 0 && has_ended(attachment) ? -ESRCH : result;
}

void hl_plan_attachment(struct hl_attachment *attachment, struct hl_attach_request *request, pid_t pid) {
    *attachment = (struct hl_attachment){
        .request = request, .process = {.pid = pid, .folder = -1}, .maps = -1, .file = -1};
    attachment->reason = hl_or_ended(attachment, look_at(attachment, pid));
}

void hl_free_attachment(struct hl_attachment *attachment) {
    if (attachment->maps >= 0)
        close(attachment->maps);
    hl_close_process(&attachment->process);
}
