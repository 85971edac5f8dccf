/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the loaded objects as a debugger does, by struct r_debug, and turns them into the core's.  dl_iterate_phdr(3) tells the
   same, but any library may stand in for it (ThreadSanitizer, profilers) and is not ready before its own constructor has run. */
#include "dl-object.h"
#include "elf/line.h"
#include "elf/maps.h"
#include "elf/move.h"
#include "elf/report.h"
#include "elf/segments.h"
#include "elf/sys.h"

#include <linux/fcntl.h>
#include <sys/auxv.h>

/* glibc has the first, musl the second.  Weak, so that glibc's ld.so is not in DT_NEEDED, where musl would look for it. */
extern struct hl_debug hl_glibc_debug __asm__("_r_debug") __attribute__((weak));
extern const struct hl_debug *hl_musl_debug __asm__("_dl_debug_addr") __attribute__((weak));

/* Whether ADDRESS lies in the object whose ELF header is at BASE. */
static bool is_inside(uint64_t base, uint64_t address) {
    const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)base;
    if (base == 0 || !hl_same_bytes((const char *)file->e_ident, ELFMAG, SELFMAG))
        return false;
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)(base + file->e_phoff);
    for (unsigned i = 0; i < file->e_phnum; i++)
        if (header[i].p_type == PT_LOAD && address - base < header[i].p_vaddr + header[i].p_memsz)
            return true;
    return false;
}

/* The dynamic linker's own, by the symbols.  A program or a library may define these names, too, as anything at all.  AT_BASE is
   missing where the dynamic linker was started as a program; then AT_PHDR is of musl's itself, but glibc makes it the program's. */
static const struct hl_debug *find_by_symbol(void) {
    uint64_t base = getauxval(AT_BASE), first = hl_round_down(getauxval(AT_PHDR), getauxval(AT_PAGESZ));
    uint64_t musl = (uint64_t)&hl_musl_debug, glibc = (uint64_t)&hl_glibc_debug;
    if (musl != 0 && is_inside(base != 0 ? base : first, musl))
        return hl_musl_debug;
    if (glibc != 0 && (base != 0 ? is_inside(base, glibc) : !is_inside(first, glibc)))
        return &hl_glibc_debug;
    return NULL;
}

/* The executable's last DT_DEBUG, the one that glibc fills in, unless the section is not writable. */
static const struct hl_debug *find_in_executable(void) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR), *dynamic = NULL, *own = NULL;
    size_t n = header != NULL ? getauxval(AT_PHNUM) : 0;
    for (size_t i = 0; i < n; i++) {
        own = header[i].p_type == PT_PHDR ? &header[i] : own;
        dynamic = header[i].p_type == PT_DYNAMIC && (header[i].p_flags & PF_W) ? &header[i] : dynamic;
    }
    if (own == NULL || dynamic == NULL)
        return NULL;
    const ElfW(Dyn) *at = (const ElfW(Dyn) *)((uint64_t)header - own->p_vaddr + dynamic->p_vaddr);
    const struct hl_debug *debug = NULL;
    for (; at->d_tag != DT_NULL; at++)
        if (at->d_tag == DT_DEBUG)
            debug = (const struct hl_debug *)at->d_un.d_ptr;
    return debug;
}

/* DT_DEBUG comes first: _r_debug may be the executable's copy of it (R_X86_64_COPY), in which glibc before 2.35 changes nothing any
   more.  lld writes no DT_DEBUG with -z rodynamic. */
const struct hl_debug *hl_find_debug(void) {
    const struct hl_debug *debug = find_in_executable();
    if (debug == NULL)
        debug = find_by_symbol();
    return debug != NULL && debug->base.r_map != NULL ? debug : NULL;
}

static bool is_musl(void) {
    const struct hl_debug *debug = &hl_musl_debug != NULL ? hl_find_debug() : NULL;
    return debug != NULL && is_inside(debug->base.r_ldbase, (uint64_t)&hl_musl_debug);
}

static uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

/* DT_SONAME's string, or NULL.  glibc adds the load bias to DT_STRTAB in place, unless the dynamic section is not writable, as the
   vDSO's; then the address is below the bias, or if the library was also linked for an address, far from the dynamic section (2 GiB:
   the code models).  musl never does. */
static const char *find_soname(const struct link_map *map, uint64_t strtab, uint64_t soname_offset) {
    if (strtab == 0 || soname_offset == 0)
        return NULL;
    uint64_t dynamic = (uint64_t)map->l_ld, moved = strtab + map->l_addr, away = distance(strtab, dynamic);
    bool is_far = away > (uint64_t)2 << 30 && distance(moved, dynamic) < away;
    if (is_musl() || is_far || ((int64_t)map->l_addr > 0 && strtab < map->l_addr))
        strtab = moved;
    return (const char *)(strtab + soname_offset);
}

bool hl_is_linked_selected(const struct hl_context *context, struct hl_names *names,
                           const struct link_map *map, const char *executable) {
    uint64_t strtab, soname_offset;
    hl_read_dynamic(map->l_ld, SIZE_MAX, &strtab, &soname_offset);
    names->path = executable != NULL ? executable : map->l_name;
    names->soname = find_soname(map, strtab, soname_offset);
    names->is_main = executable != NULL;
    return hl_select_names(context->config->options.objects, names) != HL_NOT_SELECTED;
}

/* Fills in what MAP tells of OBJECT with NAMES. */
static void describe(struct hl_object *object, const struct link_map *map, const struct hl_names *names) {
    uint64_t strtab, soname_offset;
    object->path = names->path;
    object->soname = names->soname;
    object->is_main = names->is_main;
    object->is_argument = names->is_main && getauxval(AT_BASE) == 0;
    object->load_bias = map->l_addr;
    object->text_relocations = hl_read_dynamic(map->l_ld, SIZE_MAX, &strtab, &soname_offset);
    object->is_new = object->has_holes = object->is_image = false;
    object->no_image = HL_MOVED;
    object->file = -1;
}

/* musl's dynamic linker is libc as well. */
static bool is_off_limits(const struct link_map *map) {
    const struct hl_debug *debug = hl_find_debug();
    return map->l_ld == _DYNAMIC || map->l_addr == getauxval(AT_SYSINFO_EHDR) ||
           (debug != NULL && map->l_addr == debug->base.r_ldbase);
}

/* Whether the N program HEADERS are MAP's. */
static bool are_headers_of(const struct link_map *map, const ElfW(Phdr) * headers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (headers[i].p_type == PT_DYNAMIC)
            return map->l_addr + headers[i].p_vaddr == (uint64_t)map->l_ld;
    return false;
}

/* The address of the ELF header of an object that does not begin at its bias, since it was linked for an address: the beginning
   of its file is mapped below its dynamic section.  0: it is not. */
static uint64_t find_header(const struct link_map *map) {
    struct hl_maps maps;
    uint64_t at = 0;
    if (hl_read_maps(&maps, 0, (uint64_t)map->l_ld + 1, false) != 0)
        return 0;
    for (size_t i = maps.n; i-- > 0 && at == 0;)
        if (maps.mapping[i].inode == maps.mapping[maps.n - 1].inode &&
            maps.mapping[i].device == maps.mapping[maps.n - 1].device && maps.mapping[i].offset == 0)
            at = maps.mapping[i].start;
    hl_free_maps(&maps);
    return at;
}

/* Reads the program headers of MAP through the file MEMORY, with the ELF header at AT.  0, HL_REASON_NO_PROC, or
   HL_REASON_MALFORMED: they are not there, or not its own. */
static int read_at(struct hl_headers *headers, const struct link_map *map, int memory, uint64_t at) {
    int result = hl_read_headers(headers, memory, at);
    bool is_own = result == 0 && are_headers_of(map, headers->header, headers->file.e_phnum);
    return result == 0 && !is_own ? HL_REASON_MALFORMED : result;
}

void hl_open_memory(long *memory) {
    if (*memory == -1)
        *memory = hl_open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (hl_is_error(*memory))
        *memory = hl_open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
}

static int read_from_memory(struct hl_headers *headers, const struct link_map *map, long *memory) {
    hl_open_memory(memory);
    int result = read_at(headers, map, (int)*memory, map->l_addr);
    uint64_t at = result != 0 ? find_header(map) : 0;
    return at != 0 ? read_at(headers, map, (int)*memory, at) : result;
}

void hl_add_linked(struct hl_context *context, const struct link_map *map, const char *executable,
                   long *memory) {
    static struct hl_headers headers;
    static struct hl_object object;
    struct hl_names names;
    bool is_selected = hl_is_linked_selected(context, &names, map, executable);
    hl_note_object(context, &names);
    if (!is_selected || (executable == NULL && is_off_limits(map)))
        return;
    /* The kernel's, unless the program was started as "ld-musl-x86_64.so.1 PROGRAM". */
    const ElfW(Phdr) *phdr = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    size_t n = phdr != NULL ? getauxval(AT_PHNUM) : 0;
    int result = 0;
    if (executable == NULL || !are_headers_of(map, phdr, n)) {
        result = read_from_memory(&headers, map, memory);
        phdr = headers.header;
        n = headers.file.e_phnum;
    }
    describe(&object, map, &names);
    if (result == 0)
        hl_add_object(context, &object, phdr, n);
    else
        hl_report_dropped(context, names.path, (enum hl_reason)result);
}
