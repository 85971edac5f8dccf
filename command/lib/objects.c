/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the ELF objects of a process, some of whose pages hugeld has moved.

   A moved range is anonymous: maps no longer tells its file.  But no object moves as a whole: its edges, its RELRO pages and its
   writable pages stay mapped from the file,

       /usr/bin/app  r--   edge, offset 0          \
       [huge pages]  r-x   anonymous now            } inside the PT_LOADs of /usr/bin/app
       /usr/bin/app  rw-   writable, offset 0x1a000 /

   so a remaining file mapping and the file's program headers give the load bias, and that gives the places of the object's
   segments.  For the executable, AT_ENTRY gives the bias directly.  The file is opened through /proc/PID/map_files if that is
   allowed, else by name inside the process's root folder, and then it must be the same file.

   A mapping of an image has a file, but not the object's.  A store keeps each image in a folder whose name identifies the original
   (hl_set_image_key): by that name images are recognised even if their store is out of sight, in another namespace, or gone.  An
   image that is mounted over its original has the original's name in maps, and its own only in mountinfo.

       preloader         the remaining ranges of the file, and between them ranges of the image
       patched linker    only the image: the object is found by it, and has the original's name
       executed          the same, and /proc/PID/exe is the image */
#include "command/lib/basics.h"
#include "command/lib/process.h"
#include "elf/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* A file that a process maps, in whole or in part; opened once. */
struct hl_process_file {
    dev_t device;
    ino_t inode;
    bool is_elf;
    struct hl_elf_file *elf; /* in memory of its own, because hl_loaded points to it */
    uint64_t found_end;      /* its mappings below this belong to an object that was found */
    char *origin;            /* of an image: the original's path; or NULL */
};

/* --- images --- */

/* The length of the path component at the beginning of AT if it is the folder of an image: a name by hl_set_image_key, or for a
   removed image its last folder; else 0.  A slash follows. */
static size_t folder_bytes(const char *at) {
    static const char *const removed[] = {HL_NEW_FOLDER "/", HL_OLD_FOLDER "/"};
    int bytes = 0;
    for (unsigned i = 0; i < 2 && hl_ends_in(at, HL_DELETED); i++)
        if (strncmp(at, removed[i], strlen(removed[i])) == 0)
            return strlen(removed[i]) - 1;
    sscanf(at, "0x%*[0-9a-f]-0x%*[0-9a-f]-0x%*[0-9a-f]-0x%*[0-9a-f].0x%*[0-9a-f]%n", &bytes);
    return at[bytes] == '/' ? (size_t)bytes : 0;
}

/* The folder of the image at PATH, inside PATH; NULL if PATH is no image's. */
static const char *find_image_folder(const char *path) {
    for (const char *at = strchr(path, '/'); at != NULL; at = strchr(at + 1, '/')) {
        size_t bytes = folder_bytes(at + 1);
        const char *name = at + 1 + bytes + 1;
        if (bytes > 0 && name[0] != '\0' && strchr(name, '/') == NULL)
            return at + 1;
    }
    return NULL;
}

/* Turns the kernel's \040 in a mount point into the character itself. */
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at != '\0'; to++) {
        unsigned code;
        if (at[0] == '\\' && sscanf(at + 1, "%3o", &code) == 1) {
            *to = (char)code;
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = '\0';
}

/* The mount point of an image in LINE of mountinfo, "42 23 0:31 /KEY/NAME /usr/bin/NAME ro - tmpfs ...", inside LINE; or NULL. */
static char *find_image_mount(char *line) {
    char *rest = line, *field[5] = {NULL};
    for (size_t i = 0; i < 5 && rest != NULL; i++)
        field[i] = strsep(&rest, " ");
    if (field[4] == NULL || find_image_folder(field[3]) == NULL)
        return NULL;
    unescape(field[4]);
    return field[4];
}

/* Lists the places over which images are mounted. */
static void read_image_mounts(struct hl_texts *points, const struct hl_process *process) {
    FILE *text = hl_open_text(process->folder, "mountinfo");
    char *line = NULL, *point;
    size_t size = 0;
    while (text != NULL && getline(&line, &size, text) >= 0)
        if ((point = find_image_mount(line)) != NULL)
            hl_add_to_texts(points, point);
    free(line);
    if (text != NULL)
        fclose(text);
}

bool hl_is_own_image(const struct hl_region *region) {
    static const char memory_file[] = "/memfd:" HL_OWN_IMAGE, file[] = "/" HL_OWN_IMAGE;
    return strncmp(region->name, memory_file, sizeof memory_file - 1) == 0 ||
           strncmp(region->name, file, sizeof file - 1) == 0;
}

/* Whether REGION maps an image that was mounted over a file, and both have been replaced: such a mount has no path any more. */
static bool is_removed_mount(const struct hl_region *region) {
    return strcmp(region->name, "/" HL_DELETED) == 0 && region->shmem_pmd_bytes > 0;
}

/* Sets of_image.  Only files that may lie on a tmpfs are looked for among the mounts: such a file system has no disk, and so the
   major number 0, and hugetlbfs has none either. */
static void find_images(struct hl_process *process) {
    const struct hl_region *image = NULL;
    struct hl_texts points = {0};
    bool is_read = false;
    for (size_t i = 0; i < process->n_regions; i++) {
        struct hl_region *region = &process->region[i];
        bool is_mounted_over = false, may_be = major(region->device) == 0;
        if (region->inode == 0 || region->name[0] != '/')
            continue;
        if (may_be && !is_read)
            read_image_mounts(&points, process);
        is_read |= may_be;
        for (size_t j = 0; j < points.n && may_be; j++)
            is_mounted_over |= strcmp(points.text[j], region->name) == 0;
        region->of_image =
            find_image_folder(region->name) != NULL || hl_is_own_image(region) ||
            (image != NULL && image->inode == region->inode && image->device == region->device) ||
            is_removed_mount(region) || is_mounted_over;
        if (region->of_image)
            image = region;
    }
    hl_free_texts(&points);
}

/* The original's path of the image that REGION maps, by the link beside the image; NULL if there is no readable link, as on
   hugetlbfs, which has no links. */
static char *read_image_origin(const struct hl_process *process, const struct hl_region *region) {
    const char *folder = find_image_folder(region->name);
    if (folder == NULL)
        return NULL;
    char *path =
        hl_xasprintf("root%.*s/.origin", (int)(folder + folder_bytes(folder) - region->name), region->name);
    char *origin = hl_read_link(process->folder, path);
    free(path);
    return origin;
}

/* --- files --- */

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

static bool has_no_more_files(int error) { return error == EMFILE || error == ENFILE; }

/* False: it is no ELF file, or cannot be opened; errno is EMFILE or ENFILE then if there are too many open files. */
static bool open_region(struct hl_elf_file *file, const struct hl_process *process,
                        const struct hl_region *region) {
    char *path = hl_xasprintf("map_files/%" PRIx64 "-%" PRIx64, region->start, region->end);
    errno = 0;
    enum hl_elf_problem problem = hl_open_elf(file, process->folder, path);
    free(path);
    if (problem != HL_ELF_UNREADABLE || has_no_more_files(errno))
        return problem == HL_ELF_FINE;

    path = hl_xasprintf("root%s", region->name);
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
        process->file = hl_xrealloc(process->file, (process->n_files + 64) * sizeof *process->file);
    struct hl_process_file *file = &process->file[process->n_files++];
    *file = (struct hl_process_file){device, inode, false, hl_xmalloc(sizeof *file->elf), 0, NULL};
    return file;
}

/* *RESULT becomes a negated errno if it could not be opened because of too many open files. */
static struct hl_process_file *find_file(struct hl_process *process, const struct hl_region *region,
                                         int *result) {
    for (size_t i = 0; i < process->n_files; i++)
        if (process->file[i].inode == region->inode && process->file[i].device == region->device)
            return &process->file[i];
    struct hl_process_file *file = add_file(process, region->device, region->inode);
    file->is_elf = open_region(file->elf, process, region);
    if (!file->is_elf && has_no_more_files(errno))
        *result = -errno;
    if (region->of_image)
        file->origin = read_image_origin(process, region);
    return file;
}

static bool is_memory_file(const struct hl_process *process, const struct hl_region *region) {
    struct statfs fs;
    char *path = hl_xasprintf("map_files/%" PRIx64 "-%" PRIx64, region->start, region->end);
    int fd = openat(process->folder, path, O_PATH | O_CLOEXEC); /* this asks no server either */
    bool result = fd >= 0
                      ? fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC)
                      : errno == EPERM;
    free(path);
    if (fd >= 0)
        close(fd);
    return result;
}

bool hl_answers(const struct hl_process *process, const struct hl_region *region) {
    bool is_known = region->inode == 0;
    for (size_t i = 0; i < process->n_loaded; i++)
        is_known |= process->loaded[i].inode == region->inode && process->loaded[i].device == region->device;
    bool is_served = strstr(region->vm_flags, "um") != NULL || strstr(region->vm_flags, "ui") != NULL;
    return !is_served && (is_known || is_memory_file(process, region));
}

/* Whether REGION is a part of OBJECT. */
static bool is_in_object(const struct hl_object *object, const struct hl_region *region) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (hl_segment_overlap(&object->segment[i], region->start, region->end) > 0)
            return true;
    return false;
}

/* Whether only text is mapped at OBJECT, while FILE's writable pages belong to another place: a killed `detach` leaves such a
   mapping behind. */
static bool is_left_aside(const struct hl_process *process, const struct hl_process_file *file,
                          const struct hl_object *object) {
    bool elsewhere = false;
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        if (region->inode != file->inode || region->device != file->device || region->shared ||
            !(region->flags & PF_W))
            continue;
        if (is_in_object(object, region))
            return false;
        elsewhere = true;
    }
    return elsewhere;
}

static void add_loaded(struct hl_process *process, struct hl_process_file *file, const char *path,
                       uint64_t bias, bool is_main, bool is_image, const struct hl_geometry *geometry) {
    struct hl_loaded loaded = {
        .file = file->elf, .is_image = is_image, .device = file->device, .inode = file->inode};
    if (hl_load_object(&loaded.object, file->elf, path, bias, geometry) != 0 ||
        (!is_main && is_left_aside(process, file, &loaded.object)))
        return;
    loaded.object.is_main = is_main;
    file->found_end = loaded.object.segment[loaded.object.n_segments - 1].end_page;
    if (process->n_loaded % 16 == 0)
        process->loaded = hl_xrealloc(process->loaded, (process->n_loaded + 16) * sizeof loaded);
    process->loaded[process->n_loaded++] = loaded;
}

/* How well REGION fits PH at BIAS: 0 not at all, 1 in its place, 2 also in its protection (RELRO leaves r-- of a writable
   segment). */
static unsigned rate_region(const struct hl_region *region, const Elf64_Phdr *ph, uint64_t bias,
                            uint64_t page_bytes) {
    uint64_t start = hl_round_down(bias + ph->p_vaddr, page_bytes);
    uint64_t end = hl_round_up(bias + ph->p_vaddr + ph->p_filesz, page_bytes);
    if (ph->p_type != PT_LOAD || ph->p_filesz == 0 || region->start < start || region->end > end ||
        region->offset - (region->start - start) != hl_round_down(ph->p_offset, page_bytes))
        return 0;
    uint32_t flags = ph->p_flags & (PF_R | PF_W | PF_X);
    return region->flags == flags || (region->flags == PF_R && (flags & PF_W)) ? 2 : 1;
}

/* How well the file's regions, from FIRST upwards, fit BIAS. */
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
            return 0; /* the region from which the bias was computed */
        sum += best;
    }
    return sum;
}

/* Finds the bias that best explains the region FIRST and the later regions of the same file.  The page where one segment ends and
   the next begins is in the file once and mapped twice, so one region alone may fit two biases.  False: none fits. */
static bool find_bias(const struct hl_process *process, size_t first, const struct hl_elf_file *elf,
                      const struct hl_geometry *geometry, uint64_t *bias) {
    const struct hl_region *region = &process->region[first];
    uint64_t page_bytes = geometry->page_bytes;
    unsigned best = 0;
    for (size_t i = 0; i < elf->phnum; i++) {
        const Elf64_Phdr *ph = &elf->phdr[i];
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

/* Finds the executable: /proc/PID/exe is the running file, even if its name leads elsewhere now.  0, or the negated errno of
   opening it. */
static int find_executable(struct hl_process *process, const struct hl_geometry *geometry) {
    struct hl_elf_file elf;
    if (process->executable == NULL || process->entry == 0)
        return 0;
    enum hl_elf_problem problem = hl_open_elf(&elf, process->folder, "exe");
    if (problem != HL_ELF_FINE)
        return problem == HL_ELF_UNREADABLE ? -errno : 0;
    struct hl_process_file *file = add_file(process, elf.stat.st_dev, elf.stat.st_ino);
    bool is_image = false;
    for (size_t i = 0; i < process->n_regions; i++) { /* the file's numbers as maps has them */
        if (strcmp(process->region[i].name, process->executable) == 0) {
            file->device = process->region[i].device;
            file->inode = process->region[i].inode;
            is_image = is_image || process->region[i].of_image;
            if (is_image && file->origin == NULL)
                file->origin = is_removed_mount(&process->region[i])
                                   ? hl_xasprintf("%s" HL_DELETED, process->name)
                                   : read_image_origin(process, &process->region[i]);
        }
    }
    *file->elf = elf;
    file->is_elf = true;
    add_loaded(process, file, file->origin != NULL ? file->origin : process->executable,
               process->entry - elf.header.e_entry, true, is_image, geometry);
    return 0;
}

/* Whether REGION is a part of the executable, which was found first; with ANY: of any object that was found. */
static bool is_found(const struct hl_process *process, const struct hl_region *region, bool any) {
    for (size_t i = 0; i < process->n_loaded && (any || i == 0); i++)
        if ((any || process->loaded[i].object.is_main) && is_in_object(&process->loaded[i].object, region))
            return true;
    return false;
}

/* Finds the libraries that are mapped from files of their own, or with IMAGES those mapped from images as a whole.  The results of
   hl_find_loaded. */
static int find_libraries(struct hl_process *process, bool images, const struct hl_geometry *geometry) {
    int result = 0;
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        uint64_t bias;
        if (region->inode == 0 || region->shared || region->name[0] != '/' || region->of_image != images ||
            (hl_hugetlb_bytes(region) > 0 && !images) || is_found(process, region, images))
            continue;
        struct hl_process_file *file = find_file(process, region, &result);
        if (!file->is_elf || region->start < file->found_end)
            continue;
        if (find_bias(process, i, file->elf, geometry, &bias))
            add_loaded(process, file, file->origin != NULL ? file->origin : region->name, bias, false, images,
                       geometry);
    }
    return result;
}

int hl_find_loaded(struct hl_process *process, const struct hl_geometry *geometry) {
    find_images(process);
    int executable = find_executable(process, geometry), libraries = find_libraries(process, false, geometry),
        images = find_libraries(process, true, geometry); /* after the objects of which they are ranges */
    /* An executable that cannot be opened, of another user's FUSE for example, does not hide libraries that can. */
    if (executable != 0 && (process->n_loaded == 0 || has_no_more_files(-executable)))
        return executable;
    return libraries != 0 ? libraries : images;
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
        free(process->file[i].origin);
    }
    free(process->region);
    free(process->file);
    free(process->loaded);
    free(process->name);
    free(process->executable);
    if (process->folder >= 0)
        close(process->folder);
}
