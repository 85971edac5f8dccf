/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* floor FILE: the least that a simple way of putting FILE's read-only segments on huge pages can cost: map
   hugetlb pages, populate them, copy the bytes from the mapped file, end.  Without FILE it does nothing, for
   the difference. */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2UL << 20)

static int fail(const char *what) {
    perror(what);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 0;
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    struct stat file;
    if (fd < 0 || fstat(fd, &file) != 0)
        return fail(argv[1]);
    const char *bytes = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return fail("mmap");

    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
    const Elf64_Phdr *segment = (const Elf64_Phdr *)(bytes + header->e_phoff);
    for (unsigned i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type != PT_LOAD || (segment[i].p_flags & PF_W) ||
            segment[i].p_filesz < HUGE_PAGE_BYTES)
            continue;
        size_t huge_bytes = (segment[i].p_filesz + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1);
        char *huge = mmap(NULL, huge_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0);
        if (huge == MAP_FAILED)
            return fail("no huge pages");
        if (madvise(huge, huge_bytes, MADV_POPULATE_WRITE) != 0)
            return fail("MADV_POPULATE_WRITE");
        memcpy(huge, bytes + segment[i].p_offset, segment[i].p_filesz);
    }
    return 0;
}
