/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Turns a loaded object, as dl_iterate_phdr(3) describes it, into one of the core's. */
#include "dl-object.h"
#include "elf/move.h"
#include "elf/segments.h"

#include <sys/auxv.h>

/* A function of the dynamic linker, which in musl is libc as well. (AT_BASE does not find it when it was
   started as "ld.so PROGRAM".) Weak, so that glibc's ld.so is not in DT_NEEDED, where musl would look for
   it. */
extern void *__tls_get_addr(void *) __attribute__((weak));

/* Whether ADDRESS lies in a PT_LOAD. */
static bool contains(const struct dl_phdr_info *info, uint64_t address) {
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type == PT_LOAD && address - (info->dlpi_addr + ph->p_vaddr) < ph->p_memsz)
            return true;
    }
    return false;
}

/* AT_BASE too, because a sanitizer's runtime in the executable stands in for __tls_get_addr. */
static bool is_off_limits(const struct dl_phdr_info *info) {
    static const char own;
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR), linker = getauxval(AT_BASE);
    return contains(info, (uint64_t)&own) || contains(info, (uint64_t)&__tls_get_addr) ||
           (linker != 0 && contains(info, linker)) || (vdso != 0 && contains(info, vdso));
}

/* DT_SONAME's string.  The dynamic linker may have relocated DT_STRTAB in place, or not. */
static const char *find_soname(const struct dl_phdr_info *info, uint64_t strtab, uint64_t soname_offset) {
    uint64_t address = strtab + soname_offset;
    if (strtab == 0 || soname_offset == 0)
        return NULL;
    if (contains(info, address))
        return (const char *)address;
    return contains(info, info->dlpi_addr + address) ? (const char *)(info->dlpi_addr + address) : NULL;
}

void hl_add_linked(struct hl_context *context, const struct dl_phdr_info *info, bool is_main,
                   const char *path) {
    struct hl_object object;
    uint64_t strtab = 0, soname_offset = 0;
    object.is_main = is_main;
    object.path = path;
    object.load_bias = info->dlpi_addr;
    object.text_relocations = object.is_new = object.is_image = false;
    object.no_image = HL_MOVED;
    object.file = -1;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type == PT_DYNAMIC)
            hl_read_dynamic(&object, (const ElfW(Dyn) *)(info->dlpi_addr + ph->p_vaddr),
                            ph->p_memsz / sizeof(ElfW(Dyn)), &strtab, &soname_offset);
    }
    object.soname = find_soname(info, strtab, soname_offset);
    hl_note_object(context, &object);
    if (is_main || !is_off_limits(info))
        hl_add_object(context, &object, info->dlpi_phdr, info->dlpi_phnum);
}
