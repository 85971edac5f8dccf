/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another process as the command reads it: smaps, numa_maps, auxv, comm and the link exe have any contents. */
#include "fuzz.h"

#include "command/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

/* The linker puts these in the place of libc's (--wrap). */
int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
FILE *__real_fdopen(int fd, const char *mode);
int __real_close(int fd);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
FILE *__wrap_fdopen(int fd, const char *mode);
int __wrap_close(int fd);
ssize_t __wrap_readlinkat(int folder, const char *path, char *to, size_t bytes);

#define FOLDER 999
static const char *const names[] = {"smaps", "numa_maps", "comm", "auxv", "smaps_rollup", "exe", "mountinfo"};
#define LINK 5 /* the index of "exe" */
static struct t_input file[T_COUNT(names)];

int __wrap_open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return strncmp(path, "/proc/4711", 10) == 0 ? FOLDER : __real_open(path, flags, mode);
}

int __wrap_openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    for (unsigned i = 0; folder == FOLDER && i < T_COUNT(names); i++)
        if (strcmp(path, names[i]) == 0 && file[i].bytes > 0)
            return T_FIRST_FILE + (int)i;
    if (folder != FOLDER)
        return __real_openat(folder, path, flags, mode);
    errno = ENOENT;
    return -1;
}

FILE *__wrap_fdopen(int fd, const char *mode) {
    if (fd < T_FIRST_FILE)
        return __real_fdopen(fd, mode);
    const struct t_input *from = &file[fd - T_FIRST_FILE];
    return fmemopen((void *)(uintptr_t)from->at, from->bytes, "r");
}

int __wrap_close(int fd) { return fd >= FOLDER ? 0 : __real_close(fd); }

ssize_t __wrap_readlinkat(int folder, const char *path, char *to, size_t bytes) {
    (void)folder, (void)path;
    const struct t_input *from = &file[LINK];
    bytes = from->bytes < bytes ? from->bytes : bytes;
    memcpy(to, from->at, bytes);
    return (ssize_t)bytes;
}

static void check_region(const struct hl_region *region) {
    assert_true(region->start < region->end);
    assert_true(region->name != NULL && strchr(region->name, '\n') == NULL);
    assert_true((region->flags & ~(uint32_t)(PF_R | PF_W | PF_X)) == 0);
    (void)hl_hugetlb_bytes(region);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct hl_process process, again;
    for (unsigned i = 0; i < T_COUNT(names); i++) { /* each ends with 0xff */
        const uint8_t *end = memchr(data, 0xff, bytes);
        size_t some = end != NULL ? (size_t)(end - data) : bytes;
        file[i] = (struct t_input){data, some};
        some += end != NULL;
        data += some;
        bytes -= some;
    }
    assert_int_equal(hl_open_process(&process, 4711), 0);
    assert_true(process.name != NULL);
    int result = hl_read_process(&process);
    assert_true(result == 0 || result == -ENODATA || result == -ENOENT);
    for (size_t i = 0; i < process.n_regions; i++)
        check_region(&process.region[i]);
    assert_int_equal(hl_open_process(&again, 4711), 0);
    assert_int_equal(hl_read_process(&again), result);
    assert_int_equal(again.n_regions, process.n_regions);
    hl_has_huge_pages(&process);
    hl_close_process(&again);
    hl_close_process(&process);
    return 0;
}
