/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* floor [-u|-2] FILE: the least that a simple way of putting FILE's read-only segments on huge pages can
   cost: map hugetlb pages, populate them, copy the bytes from the mapped file, end.  With -u the least that
   is known: UFFDIO_COPY into pages that were not zeroed before, from a source that is populated for reading.
   Without FILE it does nothing, for the difference. */
#include <elf.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2UL << 20)

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int copy_zeroed(char *to, const char *from, size_t bytes, size_t huge_bytes) {
    if (madvise(to, huge_bytes, MADV_POPULATE_WRITE) != 0)
        return fail("MADV_POPULATE_WRITE");
    memcpy(to, from, bytes);
    return 0;
}

struct part {
    int fd;
    char *to;
    const char *from;
    size_t bytes;
};

static void *copy_part(void *data) {
    const struct part *part = data;
    struct uffdio_copy copy = {.dst = (uintptr_t)part->to, .src = (uintptr_t)part->from, .len = part->bytes};
    bool copied = madvise((void *)(uintptr_t)part->from, part->bytes, MADV_POPULATE_READ) == 0 &&
                  ioctl(part->fd, UFFDIO_COPY, &copy) == 0;
    return copied ? NULL : data;
}

static int copy_unzeroed(char *to, const char *from, size_t huge_bytes, bool by_two) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_HUGETLBFS};
    struct uffdio_register range = {.range = {(uintptr_t)to, huge_bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &range) != 0)
        return fail("userfaultfd");
    size_t half = by_two ? huge_bytes / 2 & ~(HUGE_PAGE_BYTES - 1) : 0;
    struct part first = {fd, to, from, half}, rest = {fd, to + half, from + half, huge_bytes - half};
    pthread_t thread;
    void *failed = NULL;
    if (half > 0 && pthread_create(&thread, NULL, copy_part, &first) != 0)
        return fail("pthread_create");
    void *failed_here = copy_part(&rest);
    if (half > 0)
        pthread_join(thread, &failed);
    return failed == NULL && failed_here == NULL ? 0 : fail("UFFDIO_COPY");
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 0;
    bool by_two = strcmp(argv[1], "-2") == 0, unzeroed = by_two || strcmp(argv[1], "-u") == 0;
    const char *path = argv[unzeroed && argc > 2 ? 2 : 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat file;
    if (fd < 0 || fstat(fd, &file) != 0)
        return fail(path);
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
        const char *from = bytes + segment[i].p_offset;
        size_t whole_bytes = segment[i].p_filesz & ~(HUGE_PAGE_BYTES - 1);
        int result = unzeroed ? copy_unzeroed(huge, from, whole_bytes, by_two)
                              : copy_zeroed(huge, from, segment[i].p_filesz, huge_bytes);
        if (result != 0)
            return result;
    }
    return 0;
}
