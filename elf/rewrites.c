/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds out from an object's file whether it will rewrite its own text (rewrites.def).  Section headers are not mapped, so this
   reads the file; a file that cannot be read, or is not the mapped one, has no marks. */
#include "rewrites.h"
#include "backing-file.h"
#include "line.h"
#include "sys.h"

#include <linux/mman.h>

#define SECTIONS_MAX 512

/* Section headers, and the first of their names. */
struct tables {
    Elf64_Shdr section[SECTIONS_MAX];
    char names[8192];
};

static const struct hl_mark marks[] = {
#define REWRITES(section, what) {section, what},
#include "rewrites.def"
#undef REWRITES
};

static const struct hl_mark *find_name(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        size_t wanted = hl_strlen(marks[i].section) + 1;
        if (wanted <= bytes && hl_same_bytes(name, marks[i].section, wanted))
            return &marks[i];
    }
    return NULL;
}

/* The mark whose name a loaded section has.  Names beyond the first 8 KiB are not looked at. */
static const struct hl_mark *find_marked_section(int fd, const Elf64_Ehdr *file) {
    struct tables t;
    uint64_t bytes = file->e_shnum * sizeof t.section[0];
    if (hl_pread(fd, t.section, bytes, file->e_shoff) != (long)bytes)
        return NULL;
    long names_bytes = hl_pread(fd, t.names, sizeof t.names, t.section[file->e_shstrndx].sh_offset);
    for (unsigned i = 0; i < file->e_shnum; i++) {
        const Elf64_Shdr *section = &t.section[i];
        const struct hl_mark *mark = NULL;
        if ((section->sh_flags & SHF_ALLOC) && (long)section->sh_name < names_bytes)
            mark = find_name(t.names + section->sh_name, (size_t)names_bytes - section->sh_name);
        if (mark != NULL)
            return mark;
    }
    return NULL;
}

static bool has_sections(const Elf64_Ehdr *file) {
    return hl_same_bytes((const char *)file->e_ident, ELFMAG, SELFMAG) &&
           file->e_shentsize == sizeof(Elf64_Shdr) && file->e_shnum <= SECTIONS_MAX &&
           file->e_shstrndx < file->e_shnum;
}

const struct hl_mark *hl_find_mark(int fd) {
    Elf64_Ehdr file;
    bool is_readable = hl_pread(fd, &file, sizeof file, 0) == (long)sizeof file && has_sections(&file);
    return is_readable ? find_marked_section(fd, &file) : NULL;
}

/* The object's ELF header, if it is in memory; else NULL. */
static const Elf64_Ehdr *find_header(const struct hl_object *object) {
    const struct hl_segment *first = &object->segment[0];
    bool is_there = first->offset == 0 && (first->flags & PF_R) &&
                    first->file_end - first->first_page >= sizeof(Elf64_Ehdr);
    return is_there ? (const Elf64_Ehdr *)(uintptr_t)first->first_page : NULL;
}

bool hl_rewrites_text(struct hl_context *context, struct hl_work *work) {
    const struct hl_object *object = &work->object;
    const Elf64_Ehdr *header = hl_find_file(context, work) >= 0 ? find_header(object) : NULL;
    if (header != NULL)
        return has_sections(header) && find_marked_section(object->file, header) != NULL;
    long file = hl_open_mapped_file(context, work);
    bool result = !hl_is_error(file) && hl_find_mark((int)file) != NULL;
    hl_close_mapped_file(work, file);
    return result;
}

/* The BYTES at ADDRESS, if OBJECT's file has them and they may be read; else NULL. */
static const void *find_bytes(const struct hl_object *object, uint64_t address, uint64_t bytes) {
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if ((segment->flags & PF_R) && address >= segment->start && address <= segment->file_end &&
            bytes <= segment->file_end - address)
            return (const void *)(uintptr_t)address;
    }
    return NULL;
}

/* V8 moves its built-in functions with MREMAP_DONTUNMAP and goes on executing them in the old place: anonymous memory has zeros
   there, a file its pages again.  Nothing but the import shows this in every stripped V8; so many who only let their heap grow are
   taken for one.  The linker may have stored the name as the end of a longer one.  The dynamic linker may have relocated DT_STRTAB
   in place.  It has read few of the names, and a load of one on a bad block would be a SIGBUS. */
int hl_moves_text(const struct hl_object *object, uint64_t page_bytes) {
    static const char import[] = "mremap";
    uint64_t names = 0, bytes = 0, next = object->dynamic;
    const Elf64_Dyn *dynamic;
    while ((dynamic = find_bytes(object, next, sizeof *dynamic)) != NULL && dynamic->d_tag != DT_NULL) {
        names = dynamic->d_tag == DT_STRTAB ? dynamic->d_un.d_ptr : names;
        bytes = dynamic->d_tag == DT_STRSZ ? dynamic->d_un.d_val : bytes;
        next += sizeof *dynamic;
    }
    const char *at = find_bytes(object, names, bytes);
    if (at == NULL)
        at = find_bytes(object, object->load_bias + names, bytes);
    uint64_t start = (uint64_t)(uintptr_t)at, page = hl_round_down(start, page_bytes);
    long result = at == NULL ? 1 : hl_madvise(page, start + bytes - page, MADV_POPULATE_READ);
    for (; result == 0 && bytes >= sizeof import; at++, bytes--)
        if (*at == 'm' && hl_same_bytes(at, import, sizeof import))
            return 1;
    return (int)result;
}
