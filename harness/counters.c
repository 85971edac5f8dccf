/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* counters FOLDER GROUP: a FUSE at FOLDER with the files of /sys/kernel/mm/hugepages/hugepages-2048kB, as they would be if the pool
   were only that of the cgroup GROUP (version 2).  A write to nr_hugepages or nr_overcommit_hugepages sets the limits of the group.
   machine.py mounts these files over those in /sys. Ends with its parent. */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fuse.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define HUGE_PAGE_BYTES (2u << 20)

enum { NR, OVERCOMMIT, FREE, RESERVED, SURPLUS, N_FILES };
static const char *const names[N_FILES] = {
    "nr_hugepages", "nr_overcommit_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages",
};
static const char *group;
static uint64_t pool[OVERCOMMIT + 1]; /* in pages */

static FILE *open_limit(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/hugetlb.2MB.%s", group, name);
    return fopen(path, mode);
}

/* The pages that the group's file NAME counts, 0 if it cannot be read. */
static uint64_t count_pages(const char *name) {
    uint64_t bytes = 0;
    FILE *file = open_limit(name, "r");
    if (file == NULL || fscanf(file, "%" SCNu64, &bytes) != 1)
        bytes = 0;
    if (file != NULL)
        fclose(file);
    return bytes / HUGE_PAGE_BYTES;
}

static int set_limit(const char *name, uint64_t pages) {
    FILE *file = open_limit(name, "w");
    if (file == NULL)
        return -errno;
    int written = fprintf(file, "%" PRIu64, pages * HUGE_PAGE_BYTES);
    return fclose(file) == 0 && written > 0 ? 0 : -EIO;
}

/* The kernel takes surplus pages for what is reserved or in use beyond nr_hugepages.  The group's rsvd.current also counts
   reserved pages that are in use, as well as pages in use without a reservation. */
static uint64_t count(int file) {
    uint64_t used = count_pages("current"), promised = count_pages("rsvd.current");
    uint64_t most = used > promised ? used : promised;
    uint64_t surplus = most > pool[NR] ? most - pool[NR] : 0;
    if (file == FREE)
        return pool[NR] + surplus - used;
    if (file == RESERVED)
        return most - used;
    return file == SURPLUS ? surplus : pool[file];
}

static int find(const char *path) {
    for (int i = 0; i < N_FILES; i++)
        if (strcmp(path + 1, names[i]) == 0)
            return i;
    return -ENOENT;
}

static int get_attributes(const char *path, struct stat *status, struct fuse_file_info *info) {
    (void)info;
    int file = strcmp(path, "/") == 0 ? N_FILES : find(path);
    if (file < 0)
        return file;
    status->st_mode = file == N_FILES ? S_IFDIR | 0755 : file <= OVERCOMMIT ? S_IFREG | 0644 : S_IFREG | 0444;
    status->st_nlink = 1;
    status->st_size = file == N_FILES ? 0 : 4096;
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *info) {
    info->direct_io = 1;
    int file = find(path);
    return file < 0 ? file : 0;
}

static int read_file(const char *path, char *buffer, size_t bytes, off_t offset,
                     struct fuse_file_info *info) {
    (void)info;
    char text[24];
    size_t length = (size_t)snprintf(text, sizeof text, "%" PRIu64 "\n", count(find(path)));
    if ((size_t)offset >= length)
        return 0;
    if (bytes > length - (size_t)offset)
        bytes = length - (size_t)offset;
    memcpy(buffer, text + offset, bytes);
    return (int)bytes;
}

static int write_file(const char *path, const char *buffer, size_t bytes, off_t offset,
                      struct fuse_file_info *info) {
    (void)info;
    char text[24] = "";
    if (offset != 0 || bytes >= sizeof text)
        return -EINVAL;
    memcpy(text, buffer, bytes);
    pool[find(path)] = strtoull(text, NULL, 10);
    int result = set_limit("max", pool[NR] + pool[OVERCOMMIT]);
    result = result != 0 ? result : set_limit("rsvd.max", pool[NR] + pool[OVERCOMMIT]);
    return result != 0 ? result : (int)bytes;
}

static int truncate_file(const char *path, off_t bytes, struct fuse_file_info *info) {
    (void)path, (void)bytes, (void)info;
    return 0;
}

int main(int argc, char **argv) {
    static const struct fuse_operations operations = {
        .getattr = get_attributes,
        .open = open_file,
        .read = read_file,
        .write = write_file,
        .truncate = truncate_file,
    };
    char *arguments[] = {argv[0], argv[1], "-f", "-s", "-o", "allow_other,default_permissions,attr_timeout=0",
                         NULL};
    if (argc != 3)
        return 2;
    group = argv[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return fuse_main(6, arguments, &operations, NULL);
}
