/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The few memory operations that more than one step needs. */
#include "mapping.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/memfd.h>
#include <linux/mman.h>
#include <linux/uio.h>

int hl_protection(uint32_t flags) {
    return (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) | (flags & PF_X ? PROT_EXEC : 0);
}

int hl_hugetlb_flags(const struct hl_geometry *geometry) {
    return MAP_HUGETLB | __builtin_ctzll(geometry->huge_page_bytes) << MAP_HUGE_SHIFT;
}

long hl_create_memfd(const struct hl_geometry *geometry, bool is_hugetlb) {
    unsigned size = (unsigned)__builtin_ctzll(geometry->huge_page_bytes) << MFD_HUGE_SHIFT;
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (is_hugetlb ? MFD_HUGETLB | size : 0);
    return HL_CALL(__NR_memfd_create, "hugeld", flags, 0, 0, 0, 0);
}

void hl_seal_memfd(int memfd) {
    const unsigned seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    HL_CALL(__NR_fcntl, memfd, F_ADD_SEALS, seals, 0, 0, 0);
}

int hl_claim_range(uint64_t at, uint64_t bytes) {
    long result = hl_mmap(at, bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (hl_is_error(result))
        return (int)result;
    if ((uint64_t)result == at)
        return 0;
    hl_munmap((uint64_t)result, bytes); /* before 4.17 the flag is unknown and the address a wish */
    return -EEXIST;
}

long hl_read_memory(void *to, uint64_t from, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
    return HL_CALL(__NR_process_vm_readv, hl_getpid(), &local, 1, &remote, 1, 0);
}

long hl_repeat_memory(void *to, size_t bytes, const void *from, size_t unit) {
    struct iovec local = {to, bytes}, remote[HL_REPEATS_MAX];
    unsigned n = 0;
    for (size_t left = bytes; left > 0; left -= remote[n++].iov_len) {
        remote[n].iov_base = (void *)from;
        remote[n].iov_len = left < unit ? left : unit;
    }
    return HL_CALL(__NR_process_vm_readv, hl_getpid(), &local, 1, remote, n, 0);
}

/* Enough from every step of a commit with 6 mappings left (measured on 6.18). */
#define BALLAST_MAPPINGS 24

/* Pages of alternating protection, so that the kernel cannot merge them.  The first and the last may merge
   with a neighbour; they do not count. */
int hl_reserve_ballast(struct hl_ballast *ballast, uint64_t page_bytes) {
    uint64_t bytes = (BALLAST_MAPPINGS + 2) * page_bytes;
    ballast->page_bytes = page_bytes;
    if (hl_map_area(&ballast->area, bytes, PROT_NONE, MAP_NORESERVE) != 0)
        return HL_REASON_MAP_COUNT;
    for (unsigned i = 1; i <= BALLAST_MAPPINGS; i += 2)
        if (hl_is_error(hl_mprotect(ballast->area.start + i * page_bytes, page_bytes, PROT_READ)))
            return HL_REASON_MAP_COUNT;
    return 0;
}

/* Releasing whole mappings first needs no new one, also at the limit. */
void hl_drop_ballast(struct hl_ballast *ballast) {
    struct hl_area *area = &ballast->area;
    uint64_t inner = area->start + ballast->page_bytes, inner_end = area->end - ballast->page_bytes;
    if (area->start == area->end)
        return;
    hl_munmap(inner, inner_end - inner);
    hl_disown_area(area, inner, inner_end);
    hl_free_area(area);
}
