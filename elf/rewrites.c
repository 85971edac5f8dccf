/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds out from an object's file whether it will rewrite its own text (rewrites.def).  Section headers are
   not mapped, so this reads the file; what cannot be read, or is not the file that is mapped, has no marks.
 */
#include "move.h"
#include "sys.h"
#include "text.h"

#include <linux/fcntl.h>

#define SECTIONS_MAX 512
#define SECTIONS_AT_ONCE 32

static const char *const marks[] = {
#define REWRITES(section, what) section,
#include "rewrites.def"
#undef REWRITES
};

static bool is_mark(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        size_t wanted = hl_text_bytes(marks[i]) + 1;
        if (wanted <= bytes && hl_same_bytes(name, marks[i], wanted))
            return true;
    }
    return false;
}

/* Whether a section that is loaded has one of these names.  Names beyond 8 KiB of them are not looked at. */
static bool has_marked_section(int fd, const Elf64_Ehdr *file) {
    Elf64_Shdr strings, section[SECTIONS_AT_ONCE];
    char names[8192];
    if (hl_pread(fd, &strings, sizeof strings, file->e_shoff + file->e_shstrndx * sizeof strings) !=
        (long)sizeof strings)
        return false;
    long names_bytes = hl_pread(fd, names, sizeof names, strings.sh_offset);
    for (unsigned i = 0; i < file->e_shnum; i++) {
        unsigned left = file->e_shnum - i, n = left < SECTIONS_AT_ONCE ? left : SECTIONS_AT_ONCE;
        if (i % SECTIONS_AT_ONCE == 0 &&
            hl_pread(fd, section, n * sizeof section[0], file->e_shoff + i * sizeof section[0]) !=
                (long)(n * sizeof section[0]))
            return false;
        const Elf64_Shdr *s = &section[i % SECTIONS_AT_ONCE];
        if ((s->sh_flags & SHF_ALLOC) && (long)s->sh_name < names_bytes &&
            is_mark(names + s->sh_name, (size_t)names_bytes - s->sh_name))
            return true;
    }
    return false;
}

bool hl_rewrites_text(const struct hl_object *object) {
    Elf64_Ehdr file;
    long fd = hl_open(object->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (hl_is_error(fd))
        return false;
    bool result = hl_pread((int)fd, &file, sizeof file, 0) == (long)sizeof file &&
                  hl_same_bytes((const char *)file.e_ident, ELFMAG, SELFMAG) &&
                  file.e_shentsize == sizeof(Elf64_Shdr) && file.e_shnum <= SECTIONS_MAX &&
                  file.e_shstrndx < file.e_shnum && has_marked_section((int)fd, &file);
    hl_close((int)fd);
    return result;
}
