/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The few memory operations that more than one step needs. */
#include "memory.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/ioctl.h>
#include <linux/memfd.h>
#include <linux/mman.h>
#include <linux/uio.h>
#include <linux/userfaultfd.h>

int hl_protection(uint32_t flags) {
    return (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) | (flags & PF_X ? PROT_EXEC : 0);
}

int hl_hugetlb_flags(const struct hl_geometry *geometry) {
    return MAP_HUGETLB | __builtin_ctzll(geometry->huge_page_bytes) << MAP_HUGE_SHIFT;
}

long hl_create_hugetlb_memfd(const struct hl_geometry *geometry) {
    unsigned flags =
        MFD_CLOEXEC | MFD_HUGETLB | (unsigned)__builtin_ctzll(geometry->huge_page_bytes) << MFD_HUGE_SHIFT;
    return HL_CALL(__NR_memfd_create, "hugeld", flags, 0, 0, 0, 0);
}

long hl_open_userfaultfd(void) {
    long fd = HL_CALL(__NR_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
    if (hl_is_error(fd))
        return fd;
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_HUGETLBFS};
    long result = hl_ioctl((int)fd, UFFDIO_API, &api);
    if (!hl_is_error(result))
        return fd;
    hl_close((int)fd);
    return result;
}

long hl_read_memory(void *to, uint64_t from, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
    return HL_CALL(__NR_process_vm_readv, hl_getpid(), &local, 1, &remote, 1, 0);
}

uint64_t hl_map_unusable(uint64_t bytes) {
    long at = hl_mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return hl_is_error(at) ? 0 : (uint64_t)at;
}

/* Enough from every step of a commit with 6 mappings left (measured on 6.18). */
#define BALLAST_MAPPINGS 24

/* Pages of alternating protection, so that the kernel cannot merge them.  The first and the last may merge
   with a neighbour; they do not count. */
int hl_take_ballast(struct hl_ballast *ballast, uint64_t page_bytes) {
    ballast->page_bytes = page_bytes;
    ballast->at = hl_map_unusable((BALLAST_MAPPINGS + 2) * page_bytes);
    if (ballast->at == 0)
        return HL_SKIP_MAP_COUNT;
    for (unsigned i = 1; i <= BALLAST_MAPPINGS; i += 2)
        if (hl_is_error(hl_mprotect(ballast->at + i * page_bytes, page_bytes, PROT_READ)))
            return HL_SKIP_MAP_COUNT;
    return 0;
}

/* Releasing whole mappings first needs no new one, also at the limit. */
void hl_drop_ballast(struct hl_ballast *ballast) {
    if (ballast->at == 0)
        return;
    hl_munmap(ballast->at + ballast->page_bytes, BALLAST_MAPPINGS * ballast->page_bytes);
    hl_munmap(ballast->at, (BALLAST_MAPPINGS + 2) * ballast->page_bytes);
    ballast->at = 0;
}
