/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* stall FOLDER FILE USER: a file system (FUSE) at FOLDER with one file that is never read to its end, and a process of USER that maps
   FILE and then keeps its memory map locked by it; prints that process's number.

   One thread reads the file, so a page of it stays locked in the page cache.  The other thread maps it by a descriptor for direct I/O:
   the kernel then drops the file's pages, waits for that page, and holds the lock of the memory map meanwhile (fuse_file_mmap). */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char path[4096];
static atomic_int opened;
static int reads[2]; /* a byte for each read that has come */

static int get_attributes(const char *name, struct stat *to, struct fuse_file_info *info) {
    (void)info;
    memset(to, 0, sizeof *to);
    to->st_mode = strcmp(name, "/") == 0 ? S_IFDIR | 0755 : S_IFREG | 0444;
    to->st_size = strcmp(name, "/") == 0 ? 0 : 1 << 20;
    return strcmp(name, "/") == 0 || strcmp(name, "/file") == 0 ? 0 : -ENOENT;
}

static int open_file(const char *name, struct fuse_file_info *info) {
    (void)name;
    info->direct_io = atomic_fetch_add(&opened, 1) > 0;
    return 0;
}

static int read_file(const char *name, char *to, size_t bytes, off_t at, struct fuse_file_info *info) {
    (void)name, (void)to, (void)bytes, (void)at, (void)info;
    if (write(reads[1], "", 1) == 1)
        for (;;)
            pause();
    return -EIO;
}

static void *read_it(void *fd) {
    char byte;
    return pread(*(int *)fd, &byte, 1, 0) == 1 ? fd : NULL;
}

static void stall(const char *file) {
    char byte;
    int mapped = open(file, O_RDONLY | O_CLOEXEC), first, second;
    pthread_t thread;
    while ((first = open(path, O_RDONLY)) < 0) /* until it is mounted */
        usleep(10000);
    char *text = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, mapped, 0);
    if (mapped < 0 || text == MAP_FAILED || *text != 0x7f || (second = open(path, O_RDONLY)) < 0 ||
        pthread_create(&thread, NULL, read_it, &first) != 0 || read(reads[0], &byte, 1) != 1)
        _exit(3);
    printf("%d\n", getpid());
    fflush(stdout);
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, second, 0);
    pause();
}

int main(int argc, char **argv) {
    static const struct fuse_operations operations = {
        .getattr = get_attributes, .open = open_file, .read = read_file};
    if (argc != 4 || pipe(reads) != 0)
        return 2;
    snprintf(path, sizeof path, "%s/file", argv[1]);
    if (fork() == 0) {
        if (setresuid((uid_t)atoi(argv[3]), (uid_t)atoi(argv[3]), (uid_t)atoi(argv[3])) == 0)
            stall(argv[2]);
        _exit(4);
    }
    char *arguments[] = {argv[0], "-f", "-o", "allow_other", argv[1], NULL};
    return fuse_main(5, arguments, &operations, NULL);
}
