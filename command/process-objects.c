/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the ELF objects of a process, some of whose pages hugeld has moved.

   A moved range is anonymous: nothing in maps says any more which file it came from.  But no object moves
   whole: its edges, its RELRO pages and its writable pages stay mapped from the file,

       /usr/bin/app  r--   edge, offset 0          \
       [huge pages]  r-x   anonymous now            } inside the PT_LOADs of /usr/bin/app
       /usr/bin/app  rw-   writable, offset 0x1a000 /

   so from each file mapping that is left and the file's program headers follows the load bias, and from that
   where the object's segments are.  For the executable AT_ENTRY says it directly.  The file is opened through
   /proc/PID/map_files where that is allowed, else by name inside the process's root folder, and then it must
   be the same file. */
#include "common.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A file of which a process maps something; opened once. */
struct hl_process_file {
    dev_t device;
    ino_t inode;
    bool is_elf;
    struct hl_elf_file *elf; /* in memory of its own, because hl_loaded points to it */
    uint64_t found_end;      /* up to here its mappings belong to an object that was found */
};

/* Whether FILE is the one that REGION maps.  On btrfs and overlayfs stat and maps name different devices. */
static bool is_same_file(const struct hl_elf_file *file, const struct hl_region *region) {
    struct statfs fs;
    if (file->stat.st_ino == region->inode && file->stat.st_dev == region->device)
        return true;
    if (fstatfs(file->fd, &fs) != 0)
        return false;
    return fs.f_type == OVERLAYFS_SUPER_MAGIC ||
           (fs.f_type == BTRFS_SUPER_MAGIC && file->stat.st_ino == region->inode);
}

static bool open_region(struct hl_elf_file *file, const struct hl_process *process,
                        const struct hl_region *region) {
    char *path = hl_format("map_files/%" PRIx64 "-%" PRIx64, region->start, region->end);
    enum hl_elf_problem problem = hl_open_elf(file, process->folder, path);
    free(path);
    if (problem != HL_ELF_UNREADABLE)
        return problem == HL_ELF_FINE;

    path = hl_format("root%s", region->name);
    problem = hl_open_elf(file, process->folder, path);
    free(path);
    if (problem != HL_ELF_FINE)
        return false;
    if (is_same_file(file, region))
        return true;
    hl_close_elf(file);
    return false;
}

static struct hl_process_file *add_file(struct hl_process *process, dev_t device, ino_t inode) {
    if (process->n_files % 64 == 0)
        process->file = hl_resize(process->file, (process->n_files + 64) * sizeof *process->file);
    struct hl_process_file *file = &process->file[process->n_files++];
    *file = (struct hl_process_file){device, inode, false, hl_allocate(sizeof *file->elf), 0};
    return file;
}

static struct hl_process_file *find_file(struct hl_process *process, const struct hl_region *region) {
    for (size_t i = 0; i < process->n_files; i++)
        if (process->file[i].inode == region->inode && process->file[i].device == region->device)
            return &process->file[i];
    struct hl_process_file *file = add_file(process, region->device, region->inode);
    file->is_elf = open_region(file->elf, process, region);
    return file;
}

static void add_loaded(struct hl_process *process, struct hl_process_file *file, const char *path,
                       uint64_t bias, bool is_main, const struct hl_geometry *geometry) {
    struct hl_loaded loaded = {.file = file->elf, .device = file->device, .inode = file->inode};
    if (hl_load_object(&loaded.object, file->elf, path, bias, geometry) != 0)
        return;
    loaded.object.is_main = is_main;
    file->found_end = loaded.object.segment[loaded.object.n_segments - 1].end_page;
    if (process->n_loaded % 16 == 0)
        process->loaded = hl_resize(process->loaded, (process->n_loaded + 16) * sizeof loaded);
    process->loaded[process->n_loaded++] = loaded;
}

/* How well REGION fits to PH at BIAS: 0 not at all, 1 in its place, 2 also in its protection (r-- is what
   RELRO leaves of a writable segment). */
static unsigned rate_region(const struct hl_region *region, const GElf_Phdr *ph, uint64_t bias,
                            uint64_t page_bytes) {
    uint64_t start = hl_round_down(bias + ph->p_vaddr, page_bytes);
    uint64_t end = hl_round_up(bias + ph->p_vaddr + ph->p_filesz, page_bytes);
    if (ph->p_type != PT_LOAD || ph->p_filesz == 0 || region->start < start || region->end > end ||
        region->offset - (region->start - start) != hl_round_down(ph->p_offset, page_bytes))
        return 0;
    uint32_t flags = ph->p_flags & (PF_R | PF_W | PF_X);
    return region->flags == flags || (region->flags == PF_R && (flags & PF_W)) ? 2 : 1;
}

/* How well the file's regions, from FIRST upwards, fit to BIAS. */
static unsigned rate_bias(const struct hl_process *process, size_t first, const struct hl_elf_file *elf,
                          uint64_t bias, const struct hl_geometry *geometry) {
    const struct hl_region *from = &process->region[first];
    struct hl_object object;
    unsigned sum = 0;
    if (hl_load_object(&object, elf, NULL, bias, geometry) != 0)
        return 0;
    uint64_t end = object.segment[object.n_segments - 1].end_page;
    for (size_t i = first; i < process->n_regions && process->region[i].start < end; i++) {
        const struct hl_region *region = &process->region[i];
        unsigned best = 0;
        if (region->inode != from->inode || region->device != from->device || region->shared)
            continue;
        for (size_t j = 0; j < elf->phnum; j++) {
            unsigned rating = rate_region(region, &elf->phdr[j], bias, geometry->page_bytes);
            best = rating > best ? rating : best;
        }
        if (i == first && best == 0)
            return 0; /* the one that the bias was made from */
        sum += best;
    }
    return sum;
}

/* The bias that explains the region FIRST and those of the same file after it best.  The page where one
   segment ends and the next begins is in the file once and mapped twice, so one region alone may fit to two.
   False: none fits. */
static bool find_bias(const struct hl_process *process, size_t first, const struct hl_elf_file *elf,
                      const struct hl_geometry *geometry, uint64_t *bias) {
    const struct hl_region *region = &process->region[first];
    uint64_t page_bytes = geometry->page_bytes;
    unsigned best = 0;
    for (size_t i = 0; i < elf->phnum; i++) {
        const GElf_Phdr *ph = &elf->phdr[i];
        uint64_t offset = hl_round_down(ph->p_offset, page_bytes);
        if (ph->p_type != PT_LOAD || region->offset < offset ||
            region->offset - offset >= ph->p_filesz + page_bytes)
            continue;
        uint64_t candidate =
            region->start - (region->offset - offset) - hl_round_down(ph->p_vaddr, page_bytes);
        if (elf->header.e_type == ET_EXEC && candidate != 0)
            continue;
        unsigned rating = rate_bias(process, first, elf, candidate, geometry);
        if (rating > best) {
            best = rating;
            *bias = candidate;
        }
    }
    return best > 0;
}

/* The executable: /proc/PID/exe is the file that runs, whatever its name means now. */
static void find_executable(struct hl_process *process, const struct hl_geometry *geometry) {
    struct hl_elf_file elf;
    if (process->executable == NULL || process->entry == 0 ||
        hl_open_elf(&elf, process->folder, "exe") != HL_ELF_FINE)
        return;
    struct hl_process_file *file = add_file(process, elf.stat.st_dev, elf.stat.st_ino);
    for (size_t i = 0; i < process->n_regions; i++) { /* the file's numbers as maps has them */
        if (strcmp(process->region[i].name, process->executable) == 0) {
            file->device = process->region[i].device;
            file->inode = process->region[i].inode;
        }
    }
    *file->elf = elf;
    file->is_elf = true;
    add_loaded(process, file, process->executable, process->entry - elf.header.e_entry, true, geometry);
}

/* Whether REGION is a part of the executable, which was found first. */
static bool is_in_executable(const struct hl_process *process, const struct hl_region *region) {
    const struct hl_object *object = process->n_loaded > 0 ? &process->loaded[0].object : NULL;
    for (unsigned i = 0; object != NULL && object->is_main && i < object->n_segments; i++)
        if (hl_segment_overlap(&object->segment[i], region->start, region->end) > 0)
            return true;
    return false;
}

void hl_find_loaded(struct hl_process *process, const struct hl_geometry *geometry) {
    find_executable(process, geometry);
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        uint64_t bias;
        if (region->inode == 0 || region->shared || region->name[0] != '/' || hl_hugetlb_bytes(region) > 0 ||
            is_in_executable(process, region))
            continue;
        struct hl_process_file *file = find_file(process, region);
        if (!file->is_elf || region->start < file->found_end)
            continue;
        if (find_bias(process, i, file->elf, geometry, &bias))
            add_loaded(process, file, region->name, bias, false, geometry);
    }
}

void hl_close_process(struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions; i++) {
        free(process->region[i].name);
        free(process->region[i].node_bytes);
    }
    for (size_t i = 0; i < process->n_files; i++) {
        if (process->file[i].is_elf)
            hl_close_elf(process->file[i].elf);
        free(process->file[i].elf);
    }
    free(process->region);
    free(process->file);
    free(process->loaded);
    free(process->name);
    free(process->executable);
    if (process->folder >= 0)
        close(process->folder);
}
