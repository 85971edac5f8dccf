/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The system calls that the core may make while it reads, and their answers. */
#undef hl_syscall6
#undef hl_copy_bytes
#include "fuzz.h"

#include <asm/unistd.h>
#include <errno.h>
#include <linux/stat.h>
#include <sanitizer/asan_interface.h>

/* Mappings are pieces of this, given out in order and poisoned again when they are unmapped. */
#define ARENA_BYTES ((size_t)64 << 20)
#define MAPPINGS 64

struct file {
    const char *path;
    const uint8_t *data;
    size_t bytes, at;
    unsigned open;
};

static struct file file[T_FILES];
static int n_files;
static _Alignas(4096) uint8_t arena[ARENA_BYTES];
static size_t arena_used;
static struct {
    uint64_t at;
    size_t bytes;
} mapping[MAPPINGS]; /* bytes is 0: unused */
size_t t_read_most, t_file_ends = SIZE_MAX;

__attribute__((constructor)) static void poison_arena(void) {
    ASAN_POISON_MEMORY_REGION(arena, sizeof arena);
}

int t_add_file(const char *path, const void *data, size_t bytes) {
    assert_true(n_files < T_FILES);
    file[n_files] = (struct file){path, data, bytes, 0, 0};
    return n_files++;
}

void t_end_world(void) {
    for (int i = 0; i < n_files; i++)
        if (file[i].open != 0)
            fail_msg("%s is still open", file[i].path);
    for (unsigned i = 0; i < MAPPINGS; i++)
        if (mapping[i].bytes != 0)
            fail_msg("%zu bytes are still mapped", mapping[i].bytes);
    arena_used = 0;
    n_files = 0;
    t_read_most = 0;
    t_file_ends = SIZE_MAX;
}

static long open_file(const char *path) {
    size_t bytes = strlen(path);
    for (int i = 0; i < n_files; i++) {
        size_t end = strlen(file[i].path);
        if (bytes < end || strcmp(path + bytes - end, file[i].path) != 0)
            continue;
        file[i].open++;
        file[i].at = 0;
        return T_FIRST_FILE + i;
    }
    return -ENOENT;
}

static struct file *find_file(long fd) {
    assert_true(fd >= T_FIRST_FILE && fd < T_FIRST_FILE + n_files);
    return &file[fd - T_FIRST_FILE];
}

static long read_file(struct file *from, void *to, size_t bytes, uint64_t offset) {
    size_t end = from->bytes < t_file_ends ? from->bytes : t_file_ends;
    if (offset > INT64_MAX)
        return -EINVAL;
    size_t some = offset < end ? end - offset : 0;
    some = some < bytes ? some : bytes;
    some = t_read_most > 0 && some > t_read_most ? t_read_most : some;
    if (some > 0)
        memcpy(to, from->data + offset, some);
    return (long)some;
}

static long read_next(struct file *from, void *to, size_t bytes) {
    long n = read_file(from, to, bytes, from->at);
    from->at += (size_t)n;
    return n;
}

/* Exactly as many bytes as asked for, so that one beyond them is a finding. */
static long map(size_t bytes) {
    unsigned i = 0;
    while (i < MAPPINGS && mapping[i].bytes != 0)
        i++;
    if (i == MAPPINGS || bytes == 0 || bytes > ARENA_BYTES - arena_used)
        return -ENOMEM;
    uint8_t *at = arena + arena_used;
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    memset(at, 0, bytes);
    mapping[i].at = (uint64_t)at;
    mapping[i].bytes = bytes;
    arena_used += hl_round_up(bytes + 1, T_PAGE);
    arena_used = arena_used < ARENA_BYTES ? arena_used : ARENA_BYTES;
    return (long)at;
}

/* A whole mapping, its beginning or its end. */
static long unmap(uint64_t at, size_t bytes) {
    unsigned i = 0;
    while (i < MAPPINGS && (mapping[i].bytes == 0 || at - mapping[i].at >= mapping[i].bytes))
        i++;
    assert_true(i < MAPPINGS && at % T_PAGE == 0);
    uint64_t end = mapping[i].at + mapping[i].bytes;
    assert_true(bytes > 0 && bytes <= end - at && (at == mapping[i].at || at + bytes == end));
    ASAN_POISON_MEMORY_REGION((void *)at, bytes);
    if (at == mapping[i].at)
        mapping[i].at += bytes;
    mapping[i].bytes -= bytes;
    return 0;
}

static long remap(uint64_t from, size_t had, size_t wanted) {
    long to = map(wanted);
    if (to < 0)
        return to;
    memcpy((void *)to, (void *)from, had < wanted ? had : wanted);
    unmap(from, had);
    return to;
}

static long stat_file(const struct file *of, struct statx *stat) {
    memset(stat, 0, sizeof *stat);
    stat->stx_size = of->bytes;
    stat->stx_mode = 0100644;
    return 0;
}

long t_syscall6(long number, long a, long b, long c, long d, long e, long f) {
    (void)f;
    switch (number) {
    case __NR_openat:
        return open_file((const char *)b);
    case __NR_close:
        assert_true(find_file(a)->open-- > 0);
        return 0;
    case __NR_read:
        return read_next(find_file(a), (void *)b, (size_t)c);
    case __NR_pread64:
        return read_file(find_file(a), (void *)b, (size_t)c, (uint64_t)d);
    case __NR_statx:
        return stat_file(find_file(a), (struct statx *)e);
    case __NR_mmap:
        return map((size_t)b);
    case __NR_munmap:
        return unmap((uint64_t)a, (size_t)b);
    case __NR_mremap:
        return remap((uint64_t)a, (size_t)b, (size_t)c);
    case __NR_madvise:
    case __NR_getcpu:
        return 0;
    case __NR_prlimit64: /* no limit */
        memset((void *)d, 0xff, 2 * sizeof(uint64_t));
        return 0;
    case __NR_get_mempolicy:
    case __NR_prctl:
        return -EPERM;
    default:
        fail_msg("system call %ld", number);
    }
}

void t_copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        memmove(to, from, bytes);
}
