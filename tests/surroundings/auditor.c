/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An auditor (LD_AUDIT) that keeps the executable's writable data out of core dumps before any constructor runs. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <sys/mman.h>

static struct link_map *executable;

unsigned int la_version(unsigned int version) { return version; }

unsigned int la_objopen(struct link_map *map, Lmid_t list, uintptr_t *cookie) {
    (void)list, (void)cookie;
    executable = executable == NULL ? map : executable;
    return 0;
}

/* The executable is not PIE, so its header is at an address that is known. */
void la_activity(uintptr_t *cookie, unsigned int flag) {
    const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)0x400000;
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)((uintptr_t)file + file->e_phoff);
    (void)cookie;
    for (unsigned i = 0; flag == LA_ACT_CONSISTENT && executable != NULL && i < file->e_phnum; i++)
        if (header[i].p_type == PT_LOAD && (header[i].p_flags & PF_W))
            madvise((void *)(header[i].p_vaddr & -(uintptr_t)4096), header[i].p_memsz, MADV_DONTDUMP);
}
