/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Maps the patched dynamic linker, at the exec stop, in the place of the one that the program names:

       mmap                 addresses for all of it, where the kernel chooses
       mmap, MAP_FIXED      its segments, as execve(2) maps them
       first instruction    in the frame that begins the program; with it AT_BASE on the stack, then in /proc/PID/auxv (PR_SET_MM_MAP)
       munmap               the other linker

   Each call is valid by itself: between two of them the program could begin, with the one linker or the other.  Debuggers would take
   the symbols of the linker that the program names, so the patched one gets its own path for its link map (.hugeld.path). */
#include "command/lib/basics.h"
#include "command/inject/exec-stop.h"
#include "command/lib/section.h"
#include "elf/maps.h"
#include "elf/sys.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE_BYTES_MAX (64 << 10)

int hl_plan_linker(struct hl_exec_plan *plan, const struct hl_elf_file *program, const char *path) {
    struct hl_elf_file linker;
    Elf64_Shdr name;
    plan->maps_linker = plan->has_linker = true;
    plan->image_path = hl_xasprintf("%s", path);
    if (strlen(path) >= HL_TRACEE_DATA_BYTES || hl_read_file_state(&plan->file, program->fd) != 0 ||
        hl_open_elf(&linker, AT_FDCWD, path) != HL_ELF_FINE)
        return HL_REASON_SOURCE_UNREADABLE;
    plan->image_stat = linker.stat;
    plan->linker_entry = linker.header.e_entry;
    if (hl_find_section(linker.fd, ".hugeld.path", &name) && strlen(path) < name.sh_size)
        plan->linker_path_at = name.sh_addr;
    int result = hl_load_object(&plan->object, &linker, path, 0, &plan->geometry);
    hl_close_elf(&linker);
    char *interpreter = hl_read_interpreter(program);
    bool found = hl_find_codes_in_linker(plan, path);
    plan->linker_call = plan->call;
    plan->linker_back = plan->back;
    found = found && interpreter != NULL && hl_find_codes_in_linker(plan, interpreter);
    free(interpreter);
    return result == 0 && !found ? HL_REASON_ATTACH_INSTRUCTIONS : result;
}

static int map(struct hl_tracee *thread, uint64_t *at, uint64_t bytes, int prot, unsigned flags, int file,
               uint64_t offset) {
    int result = hl_call(thread, (long *)at, SYS_mmap, *at, bytes, (uint64_t)prot, MAP_PRIVATE | flags,
                         (uint64_t)file, offset);
    return result == HL_REASON_ATTACH_CALL ? hl_explain_mapping((long)*at) : result;
}

/* EXTRA: as the kernel has protected the other linker's text (PROT_BTI). */
static int map_segment(struct hl_tracee *thread, const struct hl_segment *segment, uint64_t base,
                       uint64_t page_bytes, int file, int extra) {
    static const char zeros[PAGE_BYTES_MAX];
    uint64_t start = base + segment->first_page, file_end = base + segment->file_end,
             zeros_page = hl_round_up(file_end, page_bytes), end = base + segment->end_page;
    int prot = (segment->flags & PF_R ? PROT_READ : 0) | (segment->flags & PF_W ? PROT_WRITE : 0) |
               (segment->flags & PF_X ? PROT_EXEC | extra : 0);
    int result = map(thread, &start, zeros_page - start, prot, MAP_FIXED, file, segment->offset);
    if (result == 0 && segment->end > segment->file_end && zeros_page > file_end)
        result = hl_write_exec_thread(thread, file_end, zeros, zeros_page - file_end);
    if (result == 0 && end > zeros_page)
        result = map(thread, &zeros_page, end - zeros_page, prot, MAP_FIXED | MAP_ANONYMOUS, -1, 0);
    return result;
}

/* Makes the program begin with the patched linker at BASE, and our calls. */
static int begin_there(const struct hl_exec_plan *plan, struct hl_tracee *thread,
                       const struct hl_process *process, uint64_t base) {
    const char *path = plan->image_path;
    int result = plan->linker_path_at == 0
                     ? 0
                     : hl_write_exec_thread(thread, base + plan->linker_path_at, path, strlen(path) + 1);
    if (result == 0) /* with AT_BASE on the stack there is no call between */
        result = hl_set_exec_start(thread, base + plan->linker_entry);
    if (result == 0)
        result = hl_set_linker_base(plan, thread, process, base);
    if (result != 0) {
        hl_set_exec_start(thread, thread->start);
        return result;
    }
    thread->gadgets.call = base + plan->linker_call.at;
    if (plan->linker_back.owner == HL_EXEC_LINKER)
        thread->gadgets.back = base + plan->linker_back.at;
    return hl_set_exec_return(thread, thread->gadgets.back);
}

/* Unmaps the linker that begins with the region FIRST: the mappings of its file, and its zeros right behind them. */
static void unmap_other(struct hl_tracee *thread, const struct hl_process *process,
                        const struct hl_region *first) {
    uint64_t end = 0;
    for (const struct hl_region *region = first; region < process->region + process->n_regions; region++) {
        bool is_zeros = region->start == end && region->inode == 0 && region->name[0] == '\0';
        if (!is_zeros && (region->inode != first->inode || region->device != first->device))
            continue;
        end = region->end;
        hl_call_later(thread, SYS_munmap, region->start, region->end - region->start);
    }
}

int hl_map_linker(const struct hl_exec_plan *plan, struct hl_tracee *thread, const struct hl_process *process,
                  int file) {
    const struct hl_object *object = &plan->object;
    uint64_t base = 0, bytes = object->segment[object->n_segments - 1].end_page;
    uint64_t text = thread->gadgets.call; /* in the other linker, on every machine */
    const struct hl_region *first = hl_find_region(process, text - plan->call.at);
    int extra = 0, result = first == NULL || first->inode == 0 ? HL_REASON_MAPPING_CHANGED : 0;
    if (result == 0 && HL_PROT_BTI != 0)
        result = hl_read_branch_protection_in(hl_open_process_file(process, "smaps"), text, text + 1, &extra);
    if (result == 0)
        result = map(thread, &base, bytes, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (result != 0)
        return result;
    for (unsigned i = 0; i < object->n_segments && result == 0; i++)
        result = map_segment(thread, &object->segment[i], base, plan->geometry.page_bytes, file, extra);
    if (result == 0)
        result = begin_there(plan, thread, process, base);
    if (result == 0)
        unmap_other(thread, process, first);
    else
        hl_unmap_in_tracee(thread, base, base + bytes);
    return result;
}
