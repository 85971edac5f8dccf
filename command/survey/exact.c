/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey --exact: every page of a file that was accessed in the window.

   The processor notes in each translation that it was used.  Writing 3 to /proc/PID/clear_refs takes the note away from all pages
   of files, and smaps counts afterwards how many have it again (Referenced).  It belongs to the process's own page tables: accesses
   by other processes to the same file do not show in it.  Not exact, in ways that the manual names: a translation that stays in the
   TLB all the time is not noted again, so up to as many pages as the TLB holds may be missing; where the kernel has put pages of a
   file together, they count together.

   Both walk all files and shared memory that a process has mapped, with its mmap_lock held, clear_refs for writing: all threads
   that map memory or fault wait.  So processes with much of that are left out.

   Processes of one program share their pages.  Referenced says how many, and not which; so the largest number among them is
   taken for each file, and other pages that another process executes are not counted. */
#include "command/survey/watch.h"
#include "command/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

/* How often the survey checks whether the program that it has started has ended. */
#define LOOK_MS 100
/* A process with more resident pages of files and shared memory is left out: 1 GiB takes 10 ms. */
#define MAPPED_MAX ((uint64_t)1 << 30)

/* The files and shared memory that clear_refs would walk.  0 if that cannot be read. */
static uint64_t read_mapped_bytes(const struct hl_process *process) {
    unsigned long shared = 0;
    FILE *text = hl_open_text(process->folder, "statm");
    if (text != NULL && fscanf(text, "%*u %*u %lu", &shared) != 1)
        shared = 0;
    if (text != NULL)
        fclose(text);
    return (uint64_t)shared * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 0, or a negated errno. */
static int clear_notes(const struct hl_process *process) {
    int file = openat(process->folder, "clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -errno;
    int result = write(file, "3", 1) == 1 ? 0 : -errno;
    close(file);
    return result;
}

static bool begin(struct hl_watch *watch, const struct hl_process *process) {
    struct hl_survey *survey = watch->survey;
    if (read_mapped_bytes(process) > MAPPED_MAX) {
        survey->too_large++;
        return false;
    }
    double start = hl_now_ms();
    int result = clear_notes(process);
    survey->clear_ms_max = fmax(survey->clear_ms_max, hl_now_ms() - start);
    if (result == -ENOENT && access("/proc/self/clear_refs", F_OK) != 0) {
        hl_warn("this kernel cannot tell which pages were executed; leave --exact away, or boot one with "
                "CONFIG_PROC_PAGE_MONITOR");
        watch->code = HL_EXIT_NO;
        return false;
    }
    survey->refused += result == -EACCES || result == -EPERM;
    survey->ended += result == -ESRCH || result == -ENOENT;
    return result == 0;
}

/* Anonymous text on small pages belongs to a JIT compiler, and clear_refs was not asked about it; on huge pages it is moved
   text. */
static void add_region(struct hl_watched *watched, const struct hl_region *region) {
    uint64_t huge = hl_huge_bytes(region),
             small = hl_subtract(region->resident_bytes, huge - hl_hugetlb_bytes(region));
    const struct hl_file_id id = {.device = region->device, .inode = region->inode};
    if (!(region->flags & PF_X) || region->name[0] == '[' || (region->inode == 0 && huge == 0))
        return;
    struct hl_hot_object *object = hl_find_hot_object(
        &watched->object, &watched->n_objects, &id,
        region->inode != 0 && hl_hugetlb_bytes(region) == 0 ? region->name : HL_HOT_MEMORY);
    object->text_bytes += region->end - region->start;
    object->huge_bytes += huge;
    if (region->inode != 0)
        object->hot_bytes += region->referenced_bytes < small ? region->referenced_bytes : small;
}

/* Reads which pages WATCHED has executed since it was added, and its processor time and faults. */
static void look_at(struct hl_watch *watch, struct hl_watched *watched) {
    struct hl_process process;
    struct hl_usage usage;
    if (hl_open_process(&process, watched->pid) != 0)
        return;
    double start = hl_now_ms();
    int result = hl_read_regions(&process);
    watch->survey->read_ms_max = fmax(watch->survey->read_ms_max, hl_now_ms() - start);
    /* Read last: if it is still the same process then, the regions were that process's. */
    if (result == 0 && hl_read_usage(watched->pid, &usage) == 0 && usage.started == watched->first.started) {
        hl_free_hot_objects(watched->object, watched->n_objects);
        watched->object = NULL;
        watched->n_objects = 0;
        for (size_t i = 0; i < process.n_regions; i++)
            add_region(watched, &process.region[i]);
        watched->last = usage;
        watched->has_text = true;
        hl_note_executable(watched, &process);
    }
    hl_close_process(&process);
}

static void look_at_all(struct hl_watch *watch) {
    for (size_t i = 0; i < watch->n; i++) {
        look_at(watch, &watch->process[i]);
        if (watch->filter->child == 0)
            hl_show_progress(0, "%zu of %zu processes read", i + 1, watch->n);
    }
}

void hl_watch_exactly(struct hl_watch *watch, double seconds) {
    double start = hl_now_ms(), end = start + seconds * 1e3, rest;
    if (watch->filter->child != 0)
        close(watch->filter->go); /* before it executes the program, there is nothing to note */
    hl_find_processes(watch, begin);
    if (watch->code == 0 && watch->filter->pid != 0 && watch->n == 0 && watch->survey->too_large == 0)
        hl_refuse_process(watch);
    while (watch->code == 0 && (rest = end - hl_now_ms()) > 0) {
        hl_show_progress(0, "%zu processes, %zu s to go", watch->n, (size_t)(rest / 1e3) + 1);
        if (watch->filter->child != 0 && hl_has_child_ended(watch->filter))
            break;
        poll(NULL, 0, (int)(rest < LOOK_MS ? rest : LOOK_MS) + 1);
        if (watch->filter->child != 0) {
            hl_find_processes(watch, begin);
            look_at_all(watch);
        }
    }
    watch->survey->seconds = (hl_now_ms() - start) / 1e3;
    if (watch->filter->child == 0)
        look_at_all(watch);
}

/* Processes of one program share its pages, so of each file the count of the process that executed most of it is taken. */
void hl_add_exact(struct hl_surveyed *program, const struct hl_watched *watched) {
    for (size_t i = 0; i < watched->n_objects; i++) {
        const struct hl_hot_object *from = &watched->object[i];
        struct hl_hot_object *to =
            hl_find_hot_object(&program->object, &program->n_objects, &from->id, from->path);
        hl_raise_to(&to->text_bytes, from->text_bytes);
        hl_raise_to(&to->huge_bytes, from->huge_bytes);
        hl_raise_to(&to->hot_bytes, from->hot_bytes);
    }
}
