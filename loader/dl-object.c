/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the loaded objects as a debugger does, by struct r_debug, and turns them into the core's.  dl_iterate_phdr(3) tells the
   same, but any library may stand in for it (ThreadSanitizer, profilers) and is not ready before its own constructor has run. */
#include "dl-object.h"
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

/* The executable's DT_DEBUG comes first: _r_debug may be a copy of the executable's own (R_X86_64_COPY), in which glibc before
   2.35 changes nothing any more.  lld writes no DT_DEBUG with -z rodynamic. */
const struct hl_debug *hl_find_debug(void) {
    const struct hl_debug *debug = &hl_glibc_debug;
    if (&hl_musl_debug != NULL)
        debug = hl_musl_debug;
    if (debug == NULL || debug->base.r_map == NULL)
        return NULL;
    for (const ElfW(Dyn) *dynamic = debug->base.r_map->l_ld; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
            return (const struct hl_debug *)dynamic->d_un.d_ptr;
    return debug;
}

static uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

/* DT_SONAME's string, or NULL.  The dynamic linker may have relocated DT_STRTAB in place, or not; the table lies in the same
   object as the dynamic section. */
static const char *find_soname(const struct link_map *map, uint64_t strtab, uint64_t soname_offset) {
    uint64_t dynamic = (uint64_t)map->l_ld, moved = strtab + map->l_addr;
    if (strtab == 0 || soname_offset == 0)
        return NULL;
    if (distance(moved, dynamic) < distance(strtab, dynamic))
        strtab = moved;
    return (const char *)(strtab + soname_offset);
}

bool hl_is_linked_selected(const struct hl_context *context, struct hl_object *object,
                           const struct link_map *map, const char *executable) {
    uint64_t strtab, soname_offset;
    object->is_main = executable != NULL;
    object->path = executable != NULL ? executable : map->l_name;
    object->load_bias = map->l_addr;
    object->text_relocations = object->is_new = object->has_holes = object->is_image = false;
    object->no_image = HL_MOVED;
    object->file = -1;
    hl_read_dynamic(object, map->l_ld, SIZE_MAX, &strtab, &soname_offset);
    object->soname = find_soname(map, strtab, soname_offset);
    return hl_select_object(context->config->options.objects, object) != HL_NOT_SELECTED;
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

/* Reads the program headers of MAP from memory.  0, HL_REASON_NO_PROC, or HL_REASON_MALFORMED: they are not there, or not its
   own. */
static int read_from_memory(struct hl_headers *headers, const struct link_map *map, long *memory) {
    if (*memory == -1)
        *memory = hl_open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    int result = hl_read_headers(headers, (int)*memory, map->l_addr);
    if (!hl_is_error(*memory) && result != 0)
        result = hl_read_headers(headers, (int)*memory, find_header(map));
    if (result == 0 && !are_headers_of(map, headers->header, headers->file.e_phnum))
        result = HL_REASON_MALFORMED;
    return result;
}

void hl_add_linked(struct hl_context *context, const struct link_map *map, const char *executable,
                   long *memory) {
    struct hl_headers headers;
    struct hl_object object;
    bool is_selected = hl_is_linked_selected(context, &object, map, executable);
    hl_note_object(context, &object);
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
    if (result == 0)
        hl_add_object(context, &object, phdr, n);
    else
        hl_report_dropped(context, &object, (enum hl_reason)result);
}
