/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which text of a process has no file any more, and the names of its functions.

   All files are read by the code that does it inside the process.  A stripped one has its names elsewhere: in a debug file, which is
   found by the build ID or .gnu_debuglink and must have the same build ID, or in .gnu_debugdata, a small ELF file packed by xz. */
#include "command/lib/basics.h"
#include "command/lib/section.h"
#include "command/perf-map/perf-map.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef HL_HAS_LZMA
#include <lzma.h>

/* The names of the largest programs have some MiB.  Some KiB packed by xz can become many GiB. */
#define UNPACKED_MAX ((size_t)256 << 20)

/* A file in memory with the unpacked .gnu_debugdata; or -1.  xz(1) chooses no dictionary beyond 64 MiB itself. */
static int unpack_names(const struct hl_elf_file *file) {
    size_t bytes = 0, from = 0, to = 0;
    uint64_t limit = 128 << 20;
    void *packed = hl_read_section(file->fd, ".gnu_debugdata", &bytes),
         *text = packed != NULL ? malloc(UNPACKED_MAX) : NULL;
    int fd = -1;
    if (text != NULL &&
        lzma_stream_buffer_decode(&limit, 0, NULL, packed, &from, bytes, text, &to, UNPACKED_MAX) == LZMA_OK)
        fd = memfd_create("names", MFD_CLOEXEC);
    (void)hl_write_bytes(fd, text, to); /* if only a part fits, its symbols are broken */
    free(packed);
    free(text);
    return fd;
}
#else
#define unpack_names(file) -1
#endif

/* Opens PATH of PROCESS if it is a regular file (opening a device can have effects) with this build ID; else -1. */
static int open_if_same(const struct hl_process *process, const char *path, const char *id) {
    struct stat status;
    char link[32];
    int found = hl_open_inside(process, path, O_PATH), fd = -1;
    if (found < 0)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", found);
    if (fstat(found, &status) == 0 && S_ISREG(status.st_mode))
        fd = open(link, O_RDONLY | O_CLOEXEC);
    close(found);
    char *own = fd >= 0 ? hl_read_build_id(fd) : NULL;
    bool is_same = own != NULL && strcmp(own, id) == 0;
    free(own);
    if (fd >= 0 && !is_same)
        close(fd);
    return is_same ? fd : -1;
}

/* An open debug file of LOADED, a container's own or one of this system, in one of the places where gdb looks for it; or -1. */
static int open_debug_file(const struct hl_process *process, const struct hl_loaded *loaded) {
    const char *path = loaded->object.path;
    size_t bytes = 0;
    char *id = hl_read_build_id(loaded->file->fd);
    if (id == NULL)
        return -1;
    char *link = hl_read_section(loaded->file->fd, ".gnu_debuglink", &bytes);
    char *name = hl_xasprintf("%.*s", (int)(bytes < NAME_MAX ? bytes : NAME_MAX), link != NULL ? link : "");
    int folder = (int)(hl_base_name(path) - path), found = -1;
    char *debug_file[] = {hl_xasprintf("/usr/lib/debug/.build-id/%.2s/%s.debug", id, id + 2),
                          hl_xasprintf("%.*s%s", folder, path, name),
                          hl_xasprintf("%.*s.debug/%s", folder, path, name),
                          hl_xasprintf("/usr/lib/debug%.*s%s", folder, path, name)};
    for (size_t i = 0; i < sizeof debug_file / sizeof debug_file[0]; i++) {
        if (found < 0)
            found = open_if_same(process, debug_file[i], id);
        if (found < 0)
            found = open_if_same(NULL, debug_file[i], id);
        free(debug_file[i]);
    }
    free(name);
    free(link);
    free(id);
    return found;
}

/* Whether REGION has text that was moved out of LOADED; perf itself finds the names of an image. */
static bool is_moved(const struct hl_region *region, const struct hl_loaded *loaded) {
    bool is_of_file =
        region->inode != 0 && hl_hugetlb_bytes(region) == 0 && strncmp(region->name, "/memfd:", 7) != 0;
    return (region->flags & PF_X) && region->name[0] != '[' && !region->of_image && !is_of_file &&
           hl_count_segment_bytes(&loaded->object, region->start, region->end, PF_X) > 0;
}

/* The moved ranges of LOADED, which the caller frees; neighbours are one. */
static struct hl_text_range *find_moved(const struct hl_process *process, const struct hl_loaded *loaded,
                                        size_t *n) {
    struct hl_text_range *range = NULL;
    *n = 0;
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        if (!is_moved(region, loaded))
            continue;
        if (*n > 0 && range[*n - 1].end == region->start) {
            range[*n - 1].end = region->end;
            continue;
        }
        range = hl_xrealloc(range, (*n + 1) * sizeof *range);
        range[(*n)++] = (struct hl_text_range){region->start, region->end};
    }
    return range;
}

bool hl_add_names(struct hl_map_text *text, const struct hl_process *process,
                  const struct hl_loaded *loaded) {
    struct hl_symbols symbols;
    size_t n;
    uint64_t lines = text->lines;
    struct hl_text_range *range = find_moved(process, loaded, &n);
    if (n == 0)
        return false;
    hl_begin_symbols(&symbols, loaded->object.load_bias);
    int result = hl_read_symbols(&symbols, loaded->file->fd);
    if (symbols.table != SHT_SYMTAB) {
        int file = open_debug_file(process, loaded);
        if (file < 0)
            file = unpack_names(loaded->file);
        if (file >= 0) {
            int added = hl_read_symbols(&symbols, file);
            result = result != 0 ? result : added;
            close(file);
        }
    }
    int chosen = hl_choose_symbols(&symbols);
    if (chosen == 0)
        chosen = hl_write_symbols(text, &symbols, range, n);
    hl_free_symbols(&symbols);
    free(range);
    result = result != 0 ? result : chosen;
    if (result != 0)
        hl_warn("%s: its symbols cannot be read: %s; check it with readelf -sW", loaded->object.path,
                result == -ENOEXEC ? "the symbol table is broken" : strerror(-result));
    else if (text->lines == lines)
        hl_warn("%s: names no function in the moved text; install its debug symbols", loaded->object.path);
    return true;
}
