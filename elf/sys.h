/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* System calls without libc: no errno, no PLT, no TLS.  Each returns the kernel's value: errors are -4095 to
   -1 (hl_is_error), and nothing else is. */
#ifndef HL_SYS_H
#define HL_SYS_H

#include <asm/errno.h>
#include <asm/unistd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__
#include "arch/x86_64/sys.h"
#elif defined __aarch64__
#include "arch/aarch64/sys.h"
#else
#error "hugeld knows x86-64 and AArch64"
#endif

#define HL_CALL(number, a, b, c, d, e, f)                                                                    \
    hl_syscall6((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline bool hl_is_error(long result) { return result >= -4095 && result <= -1; }

static inline long hl_mmap(uint64_t at, uint64_t bytes, int prot, int flags, int fd, uint64_t offset) {
    return HL_CALL(__NR_mmap, at, bytes, prot, flags, fd, offset);
}

/* For calls that undo earlier ones, so that they must not be left out: the kernel may be short of memory
   for a moment, and a second failure in a row must not be the end either. */
#define HL_TRIES 4

static inline long hl_munmap(uint64_t at, uint64_t bytes) {
    long result = -ENOMEM;
    for (int i = 0; hl_is_error(result) && i < HL_TRIES; i++)
        result = HL_CALL(__NR_munmap, at, bytes, 0, 0, 0, 0);
    return result;
}

static inline long hl_mprotect(uint64_t at, uint64_t bytes, int prot) {
    return HL_CALL(__NR_mprotect, at, bytes, prot, 0, 0, 0);
}

static inline long hl_madvise(uint64_t at, uint64_t bytes, int advice) {
    return HL_CALL(__NR_madvise, at, bytes, advice, 0, 0, 0);
}

/* mremap(2) with MREMAP_MAYMOVE and MREMAP_FIXED: moves the mapping [from, from + bytes) to TO. */
static inline long hl_move_mapping(uint64_t from, uint64_t bytes, uint64_t to) {
    return HL_CALL(__NR_mremap, from, bytes, bytes, 3, to, 0);
}

/* mremap(2) with MREMAP_MAYMOVE and MREMAP_DONTUNMAP: moves the pages of the mapping [at, at + bytes) to where there is room, and
   leaves it mapped where it is: a private mapping of a file has its pages from the file again (Linux 5.13).  The new address,
   which is WISH if nothing is mapped there.  (A wish that overlaps the mapping is EINVAL, so 0 is none.) */
static inline long hl_keep_mapping(uint64_t at, uint64_t bytes, uint64_t wish) {
    return HL_CALL(__NR_mremap, at, bytes, bytes, 5, wish, 0);
}

/* hl_move_mapping on the way back. */
static inline long hl_return_mapping(uint64_t from, uint64_t bytes, uint64_t to) {
    long result = -ENOMEM;
    for (int i = 0; hl_is_error(result) && i < HL_TRIES; i++)
        result = hl_move_mapping(from, bytes, to);
    return result;
}

static inline long hl_open(const char *path, int flags) {
    return HL_CALL(__NR_openat, -100 /* AT_FDCWD */, path, flags, 0, 0, 0);
}

static inline long hl_read(int fd, void *to, size_t bytes) {
    return HL_CALL(__NR_read, fd, to, bytes, 0, 0, 0);
}

static inline long hl_pread(int fd, void *to, size_t bytes, uint64_t offset) {
    return HL_CALL(__NR_pread64, fd, to, bytes, offset, 0, 0);
}

static inline long hl_pwrite(int fd, const void *from, size_t bytes, uint64_t offset) {
    return HL_CALL(__NR_pwrite64, fd, from, bytes, offset, 0, 0);
}

static inline long hl_write(int fd, const void *from, size_t bytes) {
    return HL_CALL(__NR_write, fd, from, bytes, 0, 0, 0);
}

static inline long hl_close(int fd) { return HL_CALL(__NR_close, fd, 0, 0, 0, 0, 0); }

static inline long hl_ioctl(int fd, unsigned long request, void *argument) {
    return HL_CALL(__NR_ioctl, fd, request, argument, 0, 0, 0);
}

static inline bool hl_set_signals(const uint64_t *mask, uint64_t *old) {
    long result = -EINTR;
    for (int i = 0; hl_is_error(result) && i < HL_TRIES; i++)
        result = HL_CALL(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, mask, old, sizeof *mask, 0, 0);
    return !hl_is_error(result);
}

/* Blocks every signal that can be blocked and notes through OLD which were; false if that cannot be done. */
static inline bool hl_block_signals(uint64_t *old) {
    uint64_t all = ~(uint64_t)0;
    return hl_set_signals(&all, old);
}

static inline void hl_restore_signals(uint64_t old) { hl_set_signals(&old, NULL); }

static inline long hl_getpid(void) { return HL_CALL(__NR_getpid, 0, 0, 0, 0, 0, 0); }

#endif
