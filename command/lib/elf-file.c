/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads an ELF file: any ELF64 of the byte order that x86-64 and AArch64 have, of any architecture.

   The file may be anything that a user's PATH or another process's maps name, so it is read and never mapped (a mapped file that
   shrinks is SIGBUS), every offset is compared with its size, and strings end where their table does.  No library is used, because
   this is also in hugeld.c, the part of the command that starts programs and must start fast itself. */
#include "command/lib/elf-file.h"
#include "command/lib/local.h"
#include "elf/segments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The length of the longest path. */
#define STRING_MAX 4096

/* A dynamic section has some hundred entries of 16 bytes at most.  A sparse file can claim to have a gigabyte of them. */
#define DYNAMIC_MAX (1 << 20)

static const char *const sentences[HL_ELF_PROBLEMS] = {
    [HL_ELF_FINE] = "nothing is wrong",
    [HL_ELF_SPECIAL] = "it is no regular file; name a program or a library",
    [HL_ELF_EMPTY] = "it is empty; build or install it again",
    [HL_ELF_SCRIPT] = "it is a script; name the program that it runs",
    [HL_ELF_OTHER] = "it is no ELF file of this byte order that can be loaded; name a program or a library",
    [HL_ELF_32_BIT] = "it is a 32-bit file; only ELF64 can be planned",
    [HL_ELF_TRUNCATED] = "it is truncated: its headers name bytes past its end; build or install it again",
    [HL_ELF_BROKEN] = "it has a broken ELF header; check it with readelf -hlW",
    [HL_ELF_NO_SEGMENTS] = "it has no PT_LOAD segment; name a program or a library",
};

const char *hl_elf_problem_sentence(enum hl_elf_problem problem) {
    if (problem == HL_ELF_UNREADABLE && errno == ENOENT)
        return "No such file or directory; check the name and PATH";
    if (problem == HL_ELF_UNREADABLE && errno == EACCES)
        return "Permission denied; run hugeld as a user who may read it";
    if (problem == HL_ELF_UNREADABLE && errno == EREMOTE)
        return HL_LOCAL_PROBLEM;
    return problem == HL_ELF_UNREADABLE ? strerror(errno) : sentences[problem];
}

/* Reads the first bytes, which are the header, and finds the kind of file. */
static enum hl_elf_problem check_magic(struct hl_elf_file *file) {
    const unsigned char *head = (const unsigned char *)&file->header;
    ssize_t n = pread(file->fd, &file->header, sizeof file->header, 0);
    if (n < 0)
        return HL_ELF_UNREADABLE;
    if (n == 0)
        return HL_ELF_EMPTY;
    if (n >= 2 && memcmp(head, "#!", 2) == 0)
        return HL_ELF_SCRIPT;
    if (n < SELFMAG || memcmp(head, ELFMAG, SELFMAG) != 0)
        return HL_ELF_OTHER;
    if (n > EI_CLASS && head[EI_CLASS] == ELFCLASS32)
        return HL_ELF_32_BIT;
    return n < (ssize_t)sizeof file->header ? HL_ELF_TRUNCATED : HL_ELF_FINE;
}

bool hl_read_exactly(int file, uint64_t offset, void *to, size_t bytes) {
    size_t done = 0;
    if (offset > INT64_MAX - bytes)
        return false;
    while (done < bytes) {
        ssize_t n = pread(file, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static enum hl_elf_problem check_header(const Elf64_Ehdr *header) {
    const unsigned char *ident = header->e_ident;
    bool is_other = ident[EI_DATA] == ELFDATA2MSB || header->e_type == ET_REL || header->e_type == ET_CORE;
    if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_VERSION] != EV_CURRENT)
        return HL_ELF_BROKEN;
    if (is_other)
        return HL_ELF_OTHER;
    bool is_loaded = header->e_type == ET_EXEC || header->e_type == ET_DYN;
    return is_loaded && ident[EI_DATA] == ELFDATA2LSB ? HL_ELF_FINE : HL_ELF_BROKEN;
}

static enum hl_elf_problem read_program_headers(struct hl_elf_file *file) {
    uint64_t bytes = (uint64_t)file->stat.st_size;
    bool any = false;
    if (file->header.e_phoff == 0)
        return HL_ELF_NO_SEGMENTS;
    file->phnum = file->header.e_phnum; /* neither the kernel nor glibc reads PN_XNUM */
    if (file->header.e_phoff > bytes || file->phnum > (bytes - file->header.e_phoff) / sizeof(Elf64_Phdr))
        return HL_ELF_TRUNCATED;
    file->phdr = calloc(file->phnum + 1, sizeof *file->phdr);
    if (file->phdr == NULL)
        return HL_ELF_UNREADABLE;
    if (!hl_read_exactly(file->fd, file->header.e_phoff, file->phdr, file->phnum * sizeof *file->phdr))
        return HL_ELF_TRUNCATED;
    for (size_t i = 0; i < file->phnum; i++) {
        Elf64_Phdr *ph = &file->phdr[i];
        if (ph->p_type == PT_LOAD && ph->p_filesz > 0 &&
            (ph->p_offset > bytes || ph->p_filesz > bytes - ph->p_offset))
            return HL_ELF_TRUNCATED;
        any |= ph->p_type == PT_LOAD && ph->p_memsz > 0;
        file->has_interpreter |= ph->p_type == PT_INTERP;
    }
    return any ? HL_ELF_FINE : HL_ELF_NO_SEGMENTS;
}

/* Reads up to BYTES of the file from OFFSET; *GOT is their number.  NULL: there are none, or they cannot be read; else the caller
   frees the result. */
static void *read_chunk(const struct hl_elf_file *file, uint64_t offset, uint64_t bytes, size_t *got) {
    uint64_t size = (uint64_t)file->stat.st_size;
    if (offset >= size || bytes == 0)
        return NULL;
    *got = (size_t)(bytes < size - offset ? bytes : size - offset);
    void *chunk = malloc(*got);
    if (chunk != NULL && hl_read_exactly(file->fd, offset, chunk, *got))
        return chunk;
    free(chunk);
    return NULL;
}

/* The file offset of the byte at virtual ADDRESS; UINT64_MAX if it is not in the file. */
static uint64_t find_offset(const struct hl_elf_file *file, uint64_t address) {
    for (size_t i = 0; i < file->phnum; i++) {
        const Elf64_Phdr *ph = &file->phdr[i];
        if (ph->p_type == PT_LOAD && address - ph->p_vaddr < ph->p_filesz)
            return ph->p_offset + (address - ph->p_vaddr);
    }
    return UINT64_MAX;
}

static uint64_t find_dynamic(const struct hl_elf_file *file, Elf64_Sxword tag) {
    for (size_t i = 0; i < file->n_dyn && file->dyn[i].d_tag != DT_NULL; i++)
        if (file->dyn[i].d_tag == tag)
            return file->dyn[i].d_un.d_val;
    return 0;
}

/* Reads only this string of the dynamic string table, which may have megabytes.  The caller frees it. */
static char *find_string(const struct hl_elf_file *file, uint64_t offset) {
    size_t bytes;
    if (offset >= file->strings_bytes || file->strings_at > UINT64_MAX - offset)
        return NULL;
    uint64_t most = file->strings_bytes - offset < STRING_MAX ? file->strings_bytes - offset : STRING_MAX;
    char *string = read_chunk(file, file->strings_at + offset, most, &bytes);
    if (string != NULL && memchr(string, '\0', bytes) != NULL)
        return string;
    free(string);
    return NULL;
}

static void free_headers(struct hl_elf_file *file) {
    free(file->phdr);
    free(file->dyn);
    free(file->soname);
    file->phdr = NULL;
    file->dyn = NULL;
    file->soname = NULL;
    file->fd = -1;
}

/* Missing data is no error here: then there is no name and no known text relocation. */
static void read_dynamic(struct hl_elf_file *file) {
    uint64_t strtab, soname;
    size_t bytes;
    for (size_t i = 0; i < file->phnum && file->dyn == NULL; i++) {
        const Elf64_Phdr *ph = &file->phdr[i];
        if (ph->p_type != PT_DYNAMIC || ph->p_filesz > DYNAMIC_MAX)
            continue;
        uint64_t whole = ph->p_filesz - ph->p_filesz % sizeof(Elf64_Dyn);
        file->dyn = read_chunk(file, ph->p_offset, whole, &bytes);
        file->n_dyn = file->dyn != NULL ? bytes / sizeof(Elf64_Dyn) : 0;
    }
    file->text_relocations = hl_read_dynamic(file->dyn, file->n_dyn, &strtab, &soname);
    file->strings_at = find_offset(file, strtab);
    file->strings_bytes = find_dynamic(file, DT_STRSZ);
    file->soname = soname != 0 ? find_string(file, soname) : NULL;
}

enum hl_elf_problem hl_read_elf(struct hl_elf_file *file, int fd) {
    memset(file, 0, sizeof *file);
    file->fd = fd;
    enum hl_elf_problem problem = fstat(fd, &file->stat) != 0    ? HL_ELF_UNREADABLE
                                  : !S_ISREG(file->stat.st_mode) ? HL_ELF_SPECIAL
                                                                 : HL_ELF_FINE;
    if (problem == HL_ELF_FINE)
        problem = check_magic(file);
    if (problem == HL_ELF_FINE)
        problem = check_header(&file->header);
    if (problem == HL_ELF_FINE)
        problem = read_program_headers(file);
    if (problem == HL_ELF_FINE)
        read_dynamic(file);
    else
        free_headers(file);
    return problem;
}

/* Calls stat before it opens: opening a device can have effects, and opening a FIFO waits. */
enum hl_elf_problem hl_open_elf(struct hl_elf_file *file, int directory, const char *path) {
    memset(file, 0, sizeof *file);
    file->fd = -1;
    if (fstatat(directory, path, &file->stat, 0) != 0)
        return HL_ELF_UNREADABLE;
    if (!S_ISREG(file->stat.st_mode))
        return HL_ELF_SPECIAL;
    int fd = openat(directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return HL_ELF_UNREADABLE;
    enum hl_elf_problem problem = hl_read_elf(file, fd);
    int error = errno; /* for hl_elf_problem_sentence */
    if (problem != HL_ELF_FINE)
        close(fd);
    errno = error;
    return problem;
}

enum hl_elf_problem hl_open_elf_soon(struct hl_elf_file *file, const char *path) {
    struct stat status;
    char link[32];
    int found = hl_open_local_path(path, &status);
    memset(file, 0, sizeof *file);
    file->fd = -1;
    if (found < 0) {
        errno = -found;
        return HL_ELF_UNREADABLE;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", found);
    enum hl_elf_problem problem = hl_open_elf(file, AT_FDCWD, link);
    int error = errno;
    close(found);
    errno = error;
    return problem;
}

void hl_close_elf(struct hl_elf_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    free_headers(file);
}

char *hl_read_interpreter(const struct hl_elf_file *file) {
    for (size_t i = 0; i < file->phnum; i++) {
        const Elf64_Phdr *ph = &file->phdr[i];
        size_t bytes;
        char *path = ph->p_type == PT_INTERP && ph->p_filesz < STRING_MAX
                         ? read_chunk(file, ph->p_offset, ph->p_filesz, &bytes)
                         : NULL;
        if (path != NULL && path[0] == '/' && memchr(path, '\0', bytes) != NULL)
            return path;
        free(path);
    }
    return NULL;
}

int hl_load_object(struct hl_object *object, const struct hl_elf_file *file, const char *path,
                   uint64_t load_bias, const struct hl_geometry *geometry) {
    memset(object, 0, sizeof *object);
    object->path = path;
    object->soname = file->soname;
    int result = hl_read_segments(object, file->phdr, file->phnum, load_bias, geometry);
    object->text_relocations = file->text_relocations;
    return result;
}

const struct hl_segment *hl_find_segment(const struct hl_object *object, uint64_t at) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (at >= object->segment[i].first_page && at < object->segment[i].end_page)
            return &object->segment[i];
    return NULL;
}

uint64_t hl_count_segment_bytes(const struct hl_object *object, uint64_t start, uint64_t end,
                                uint32_t flags) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < object->n_segments; i++)
        if ((object->segment[i].flags & flags) == flags)
            bytes += hl_overlap(start, end, object->segment[i].start, object->segment[i].end);
    return bytes;
}

bool hl_needs_library(const struct hl_elf_file *file, const char *prefix) {
    char name[32]; /* longer than any PREFIX */
    size_t bytes = strlen(prefix);
    for (size_t i = 0; i < file->n_dyn && file->dyn[i].d_tag != DT_NULL; i++) {
        uint64_t at = file->dyn[i].d_un.d_val;
        if (file->dyn[i].d_tag == DT_NEEDED && at < file->strings_bytes &&
            file->strings_at <= UINT64_MAX - at &&
            hl_read_exactly(file->fd, file->strings_at + at, name, bytes) && memcmp(name, prefix, bytes) == 0)
            return true;
    }
    return false;
}

bool hl_is_position_independent(const struct hl_elf_file *file) { return file->header.e_type == ET_DYN; }

uint64_t hl_load_alignment(const struct hl_elf_file *file, uint64_t page_bytes) {
    uint64_t alignment = page_bytes;
    for (size_t i = 0; i < file->phnum; i++) {
        uint64_t align = file->phdr[i].p_align;
        if (file->phdr[i].p_type == PT_LOAD && align > alignment && (align & (align - 1)) == 0)
            alignment = align;
    }
    return alignment;
}

bool hl_gets_any_address(const struct hl_elf_file *file, const struct hl_geometry *geometry) {
    return hl_is_position_independent(file) &&
           hl_load_alignment(file, geometry->page_bytes) < geometry->huge_page_bytes;
}

bool hl_has_privileges(const struct hl_elf_file *file) {
    return (file->stat.st_mode & (S_ISUID | S_ISGID)) != 0 ||
           fgetxattr(file->fd, "security.capability", NULL, 0) >= 0;
}

/* This command's own header, as the linker left it in memory. */
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

bool hl_is_native(const struct hl_elf_file *file) { return file->header.e_machine == __ehdr_start.e_machine; }

const char *hl_elf_type(const struct hl_elf_file *file) {
    if (file->header.e_type == ET_EXEC)
        return "exec";
    if (find_dynamic(file, DT_FLAGS_1) & DF_1_PIE)
        return "pie";
    return file->has_interpreter && file->soname == NULL ? "pie" : "dso";
}
