/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* bad-blocks FILE START END eio|exit FOLDER: a file system (FUSE) with a copy of FILE in which the bytes from
   START to END cannot be read: reading them gives EIO, or the file system's process ends there and then. */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int file;
static const char *name;
static off_t bad_start, bad_end;
static int ends;

static void *initialise(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->kernel_cache = 1;
    config->attr_timeout = config->entry_timeout = 3600;
    return NULL;
}

static int get_attributes(const char *path, struct stat *to, struct fuse_file_info *info) {
    (void)info;
    memset(to, 0, sizeof *to);
    if (strcmp(path, "/") == 0) {
        to->st_mode = S_IFDIR | 0755;
        return 0;
    }
    return strcmp(path + 1, name) == 0 && fstat(file, to) == 0 ? 0 : -ENOENT;
}

static int read_bytes(const char *path, char *to, size_t bytes, off_t at, struct fuse_file_info *info) {
    (void)path, (void)info;
    if (at < bad_end && at + (off_t)bytes > bad_start) {
        if (ends)
            _exit(0);
        return -EIO;
    }
    ssize_t done = pread(file, to, bytes, at);
    return done < 0 ? -errno : (int)done;
}

int main(int argc, char **argv) {
    static const struct fuse_operations operations = {
        .init = initialise, .getattr = get_attributes, .read = read_bytes};
    if (argc != 6)
        return 2;
    file = open(argv[1], O_RDONLY);
    name = strrchr(argv[1], '/') + 1;
    bad_start = atol(argv[2]);
    bad_end = atol(argv[3]);
    ends = strcmp(argv[4], "exit") == 0;
    char *arguments[] = {argv[0], "-f", "-s", argv[5], NULL};
    return fuse_main(4, arguments, &operations, NULL);
}
