/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds out from an object's file whether it will rewrite its own text (rewrites.def).  Section headers are
   not mapped, so this reads the file; what cannot be read, or is not the file that is mapped, has no
   marks. */
#include "rewrites.h"
#include "sys.h"
#include "line.h"

#include <linux/fcntl.h>

#define SECTIONS_MAX 512
#define SECTIONS_AT_ONCE 32

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

/* The mark whose name a loaded section has.  Names beyond 8 KiB of them are not looked at. */
static const struct hl_mark *find_marked_section(int fd, const Elf64_Ehdr *file) {
    Elf64_Shdr strings, section[SECTIONS_AT_ONCE];
    char names[8192];
    if (hl_pread(fd, &strings, sizeof strings, file->e_shoff + file->e_shstrndx * sizeof strings) !=
        (long)sizeof strings)
        return NULL;
    long names_bytes = hl_pread(fd, names, sizeof names, strings.sh_offset);
    for (unsigned i = 0; i < file->e_shnum; i++) {
        unsigned left = file->e_shnum - i, n = left < SECTIONS_AT_ONCE ? left : SECTIONS_AT_ONCE;
        if (i % SECTIONS_AT_ONCE == 0 &&
            hl_pread(fd, section, n * sizeof section[0], file->e_shoff + i * sizeof section[0]) !=
                (long)(n * sizeof section[0]))
            return NULL;
        const Elf64_Shdr *s = &section[i % SECTIONS_AT_ONCE];
        const struct hl_mark *mark = NULL;
        if ((s->sh_flags & SHF_ALLOC) && (long)s->sh_name < names_bytes)
            mark = find_name(names + s->sh_name, (size_t)names_bytes - s->sh_name);
        if (mark != NULL)
            return mark;
    }
    return NULL;
}

const struct hl_mark *hl_find_mark(int fd) {
    Elf64_Ehdr file;
    bool is_readable = hl_pread(fd, &file, sizeof file, 0) == (long)sizeof file &&
                       hl_same_bytes((const char *)file.e_ident, ELFMAG, SELFMAG) &&
                       file.e_shentsize == sizeof(Elf64_Shdr) && file.e_shnum <= SECTIONS_MAX &&
                       file.e_shstrndx < file.e_shnum;
    return is_readable ? find_marked_section(fd, &file) : NULL;
}

bool hl_rewrites_text(const struct hl_object *object) {
    long fd = hl_open(object->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (hl_is_error(fd))
        return false;
    bool result = hl_find_mark((int)fd) != NULL;
    hl_close((int)fd);
    return result;
}
