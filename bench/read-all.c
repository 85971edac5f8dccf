// SPDX-License-Identifier: LGPL-2.1-or-later
// Preloaded: reads every page of the program, once in an order that readahead doesn't see, then in a row, and prints, before the
// program's own code runs, the KiB on huge pages of its text and of its other read-only segments, and the KiB of both.
#include <link.h>
#include <stdio.h>
#include <unistd.h>

enum { PAGE = 4096, PARTS_MAX = 64 };
static struct {
    unsigned long from, to;
    int executable;
} parts[PARTS_MAX];
static int parts_count;

// The program alone, which is the first object.
static int add_parts(struct dl_phdr_info *info, size_t size, void *closure) {
    (void)size, (void)closure;
    for (int i = 0; i < info->dlpi_phnum && parts_count < PARTS_MAX; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type != PT_LOAD || (ph->p_flags & PF_W))
            continue;
        parts[parts_count].from = (info->dlpi_addr + ph->p_vaddr) & -(unsigned long)PAGE;
        parts[parts_count].to = (info->dlpi_addr + ph->p_vaddr + ph->p_filesz) & -(unsigned long)PAGE;
        parts[parts_count++].executable = (ph->p_flags & PF_X) != 0;
    }
    return 1;
}

static int find_part(unsigned long from) {
    for (int i = 0; i < parts_count; i++)
        if (from >= parts[i].from && from < parts[i].to)
            return i;
    return -1;
}

__attribute__((constructor)) static void read_all(void) {
    unsigned long huge[2] = {0, 0}, all[2] = {0, 0}, from, to, kib;
    char line[4096];
    dl_iterate_phdr(add_parts, NULL);
    for (int i = 0; i < parts_count; i++) {
        const volatile char *start =
            (const volatile char *)parts[i].from; // NOLINT(performance-no-int-to-ptr)
        unsigned long pages = (parts[i].to - parts[i].from) / PAGE, at = 0;
        all[parts[i].executable] += pages * PAGE / 1024;
        for (unsigned long n = 0; n < pages; n++, at = (at + 2654435761UL) % pages)
            (void)start[PAGE * at];
        for (unsigned long n = 0; n < pages; n++)
            (void)start[PAGE * n];
    }
    FILE *smaps = fopen("/proc/self/smaps", "r");
    for (int in = -1; smaps && fgets(line, sizeof line, smaps);) {
        if (sscanf(line, "%lx-%lx %*4c ", &from, &to) == 2)
            in = find_part(from);
        else if (in >= 0 && sscanf(line, "FilePmdMapped: %lu", &kib) == 1)
            huge[parts[in].executable] += kib;
    }
    printf("%lu %lu %lu %lu\n", huge[1], huge[0], all[1], all[0]);
    (void)fflush(stdout);
    _exit(0);
}
