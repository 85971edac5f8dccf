/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/lib/local.h"
#include "command/lib/common.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define LINKS_MAX 40 /* as in path_resolution(7) */

/* File systems that depend on nothing but a disk.  The layers of an overlay are chosen by root. */
static const char *const kinds[] = {"bcachefs", "btrfs", "erofs",  "ext2",     "ext3",  "ext4", "f2fs",
                                    "overlay",  "ramfs", "rootfs", "squashfs", "tmpfs", "xfs",  "zfs"};

bool hl_is_passing_error(int error) {
    return error == EREMOTE || error == ENOMEM || error == EAGAIN || error == EMFILE || error == ENFILE;
}

/* --- mounts --- */

static bool is_kind_local(const char *line) {
    const char *kind = strstr(line, " - ");
    size_t length = kind != NULL ? strcspn(kind + 3, " ") : 0;
    bool found = false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        found |= strlen(kinds[i]) == length && strncmp(kinds[i], kind + 3, length) == 0;
    return found;
}

char *hl_find_mount(const char *mountinfo, uint64_t number) {
    FILE *text = fopen(mountinfo, "re");
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    while (text != NULL && !found && getline(&line, &size, text) >= 0)
        found = strtoull(line, NULL, 10) == number;
    if (text != NULL)
        fclose(text);
    if (found)
        return line;
    free(line);
    return NULL;
}

/* Whether the mount of the open FILE, which has this NUMBER, is of a local kind; each mount is looked up once.

   mountinfo lists only mounts below the process's own root, so a mount that chroot(2) has left behind is looked for in the list of
   process 1: the numbers are the same for all.  A mount in neither list may be of any kind. */
static bool is_mount_local(struct hl_local *local, int file, uint64_t number) {
    for (size_t i = 0; i < local->n; i++)
        if (local->mount[i].number == number)
            return local->mount[i].is_local;
    char *line = hl_find_mount("/proc/self/mountinfo", number);
    if (line == NULL)
        line = hl_find_mount("/proc/1/mountinfo", number);
    bool is_local = line != NULL && is_kind_local(line);
    free(line);
    int own = local->n < HL_LOCAL_MOUNTS ? fcntl(file, F_DUPFD_CLOEXEC, 0) : -1;
    if (own >= 0) {
        local->mount[local->n].number = number;
        local->mount[local->n].file = own;
        local->mount[local->n++].is_local = is_local;
    }
    return is_local;
}

static void forget_folder(struct hl_local *local) {
    if (local->folder != NULL)
        close(local->folder_file);
    free(local->folder);
    local->folder = NULL;
}

void hl_close_local(struct hl_local *local) {
    for (size_t i = 0; i < local->n; i++)
        close(local->mount[i].file);
    local->n = 0;
    free(local->exposed);
    local->exposed = NULL;
    forget_folder(local);
}

/* --- paths --- */

/* Notes that PATH is left out, since others can change it. -EPERM */
static int exclude(struct hl_local *local, const char *path) {
    if (local->exposed == NULL)
        local->exposed = hl_xasprintf("%s", path);
    return -EPERM;
}

int hl_open_local_part(struct hl_local *local, int folder, const char *name, struct stat *status) {
    *status = (struct stat){0};
    struct statx about;
    int file = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return -errno;
    bool is_local =
        statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_MNT_ID, &about) == 0 &&
        (about.stx_mask & STATX_MNT_ID) != 0 && is_mount_local(local, file, about.stx_mnt_id);
    if (is_local) { /* its attributes are never out of date */
        *status = (struct stat){.st_dev = makedev(about.stx_dev_major, about.stx_dev_minor),
                                .st_ino = about.stx_ino,
                                .st_mode = about.stx_mode,
                                .st_uid = about.stx_uid,
                                .st_size = (off_t)about.stx_size,
                                .st_mtim = {about.stx_mtime.tv_sec, about.stx_mtime.tv_nsec},
                                .st_ctim = {about.stx_ctime.tv_sec, about.stx_ctime.tv_nsec}};
        return file;
    }
    local->is_remote = true;
    close(file);
    return -EREMOTE;
}

/* Replaces the part of the path before REST by the target of the symbolic link FILE, in LEFT.  0, or a negated errno. */
static int follow(int file, char *left, const char *rest) {
    char path[PATH_MAX];
    ssize_t bytes = readlinkat(file, "", path, sizeof path);
    if (bytes <= 0)
        return bytes < 0 ? -errno : -ENOENT;
    if ((size_t)bytes + 1 + strlen(rest) >= PATH_MAX)
        return -ENAMETOOLONG;
    path[bytes] = '/';
    memmove(left + bytes + 1, rest, strlen(rest) + 1);
    memcpy(left, path, (size_t)bytes + 1);
    return 0;
}

/* Takes the open FILE over, which is the folder of PATH. */
static void note_folder(struct hl_local *local, const char *path, int file) {
    const char *name = strrchr(path, '/');
    forget_folder(local);
    local->folder = hl_xasprintf("%.*s", name != NULL ? (int)(name - path) : 0, path);
    local->folder_file = file;
}

/* The name of PATH in the folder that was looked into last, or NULL: PATH is not directly in it. */
static const char *find_name(const struct hl_local *local, const char *path) {
    const char *name = strrchr(path, '/');
    size_t length = local->folder != NULL ? strlen(local->folder) : 0;
    bool is_inside = length > 0 && name == path + length && strncmp(path, local->folder, length) == 0;
    return is_inside && name[1] != '\0' ? name + 1 : NULL;
}

/* Notes that something is not known because of ERROR: glob(3) would take it for a file that is not there. */
static void note_error(struct hl_local *local, int error) {
    local->is_unread |= error == EIO || (error != EREMOTE && hl_is_passing_error(error));
}

/* From the folder that was looked into last, if PATH is in it; else from the first part of PATH on. */
int hl_open_local(struct hl_local *local, const char *path, bool follows, struct stat *status) {
    const char *known = find_name(local, path);
    char left[2 * PATH_MAX], *at = left;
    unsigned links = 0;
    size_t length = strlen(path);
    *status = (struct stat){0};
    if (length == 0 || length >= PATH_MAX)
        return length == 0 ? -ENOENT : -ENAMETOOLONG;
    snprintf(left, sizeof left, "%s", known != NULL ? known : path);
    int folder = known != NULL ? local->folder_file
                               : hl_open_local_part(local, AT_FDCWD, left[0] == '/' ? "/" : ".", status);
    while (folder >= 0 && *(at += strspn(at, "/")) != '\0') {
        char *end = at + strcspn(at, "/"), *next = end + strspn(end, "/");
        bool is_last = *next == '\0';
        *end = '\0';
        int part = hl_open_local_part(local, folder, at, status);
        at = next;
        if (part >= 0 && S_ISLNK(status->st_mode) && (follows || !is_last)) {
            bool is_left_out = local->only_roots && status->st_uid != 0;
            int error = is_left_out           ? exclude(local, path)
                        : ++links > LINKS_MAX ? -ELOOP
                                              : follow(part, left, next);
            close(part);
            at = left;
            part = error != 0       ? error
                   : left[0] == '/' ? hl_open_local_part(local, AT_FDCWD, "/", status)
                                    : folder;
        }
        bool stays = part == folder || (known != NULL && folder == local->folder_file);
        if (!stays && part >= 0 && is_last && links == 0 && path[length - 1] != '/')
            note_folder(local, path, folder);
        else if (!stays)
            close(folder);
        folder = part;
    }
    note_error(local, -folder);
    return folder;
}

int hl_open_local_path(const char *path, struct stat *status) {
    struct hl_local local = {0};
    int file = hl_open_local(&local, path, true, status);
    hl_close_local(&local);
    return file;
}

int hl_stat_local(struct hl_local *local, const char *path, bool follows, struct stat *status) {
    int file = hl_open_local(local, path, follows, status);
    if (file >= 0)
        close(file);
    return file < 0 ? file : 0;
}

/* --- patterns --- */

/* glob(3) passes no data to these functions. */
static struct hl_local *globbing;

DIR *hl_open_folder(struct hl_local *local, const char *path, bool follows) {
    struct stat status;
    int part = hl_open_local(local, path, follows, &status);
    bool is_left_out = part >= 0 && local->only_roots && !hl_only_writable_by(&status, 0);
    int file = part >= 0 && !is_left_out ? openat(part, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int error = part < 0 ? -part : is_left_out ? EPERM : errno;
    if (is_left_out && S_ISDIR(status.st_mode) && follows)
        exclude(local, path);
    if (part >= 0)
        close(part);
    DIR *folder = file >= 0 ? fdopendir(file) : NULL;
    if (file >= 0 && folder == NULL) {
        error = errno;
        close(file);
    }
    note_error(local, folder != NULL ? 0 : error);
    errno = error;
    return folder;
}

struct dirent *hl_read_folder(struct hl_local *local, DIR *folder) {
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(folder);
    } while (entry != NULL && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    note_error(local, entry != NULL ? 0 : errno);
    local->is_full |= entry != NULL && local->entries_max > 0 && local->entries == local->entries_max;
    local->entries += entry != NULL && !local->is_full;
    return local->is_full ? NULL : entry;
}

static void *open_globbed(const char *path) { return hl_open_folder(globbing, path, true); }

static struct dirent *read_globbed(void *folder) { return hl_read_folder(globbing, folder); }

static void close_globbed(void *folder) { closedir(folder); }

static int stat_local(const char *path, struct stat *status, bool follows) {
    int error = -hl_stat_local(globbing, path, follows, status);
    errno = error;
    return error != 0 ? -1 : 0;
}

static int stat_globbed(const char *path, struct stat *status) { return stat_local(path, status, true); }

static int lstat_globbed(const char *path, struct stat *status) { return stat_local(path, status, false); }

int hl_glob_local(struct hl_local *local, const char *pattern, glob_t *found) {
    *found = (glob_t){.gl_opendir = open_globbed,
                      .gl_readdir = read_globbed,
                      .gl_closedir = close_globbed,
                      .gl_stat = stat_globbed,
                      .gl_lstat = lstat_globbed};
    globbing = local;
    int result = glob(pattern, GLOB_ALTDIRFUNC, NULL, found);
    globbing = NULL;
    return local->is_unread ? GLOB_ABORTED : result;
}
