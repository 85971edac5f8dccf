/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Decides for which files images may be made, and which files root puts on huge pages in place.

   A process finds the image of a file by numbers (elf/store.h), and all of these can repeat: two file systems made from the same
   files have the same inodes, sizes and times, and if one is mounted after the other, it gets the same device number.  So the
   superblock must be one that cannot be exchanged while the store exists.  overlayfs tells nothing about the layer of a file, a
   write through a shared mapping changes no time on tmpfs, and FUSE and the servers of network file systems may tell anything.

   An image for all users makes its file readable for all.  Mode bits alone don't tell which users can read a file: folders, groups
   and access control lists may keep users out. */
#include "command/image/eligible.h"
#include "command/lib/common.h"
#include "command/lib/local.h"
#include "command/lib/process.h"
#include "command/lib/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NOBODY 65534
#define READ_MS 30e3
#define READABLE (S_IRGRP | S_IROTH)
#define ENTERABLE (S_IXGRP | S_IXOTH)

/* --- versions --- */

static bool sets_ctime(int file) {
    static const unsigned types[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC};
    struct statfs fs;
    bool found = false;
    int result = fstatfs(file, &fs);
    for (size_t i = 0; result == 0 && i < sizeof types / sizeof types[0]; i++)
        found |= (unsigned)fs.f_type == types[i];
    return found;
}

/* Finds the device number of a mount's file system in MOUNTINFO (proc(5)): of the mount NUMBER, or if that is 0, of the last one at
   POINT.  stat(2) gives another one for a subvolume of btrfs. */
static bool find_device(const char *mountinfo, uint64_t number, const char *point, dev_t *device) {
    FILE *text = fopen(mountinfo, "re");
    char *line = NULL, at[PATH_MAX];
    size_t size = 0;
    uint64_t mount;
    unsigned device_major, device_minor;
    bool found = false;
    while (text != NULL && getline(&line, &size, text) >= 0) {
        if (strlen(line) >= sizeof at ||
            sscanf(line, "%" SCNu64 " %*u %u:%u %*s %s", &mount, &device_major, &device_minor, at) != 4)
            continue;
        if (number != 0 ? mount != number : strcmp(at, point) != 0)
            continue;
        *device = makedev(device_major, device_minor);
        found = true;
    }
    free(line);
    if (text != NULL)
        fclose(text);
    return found;
}

/* Whether the open FILE lies on the file system mounted at / or /usr for process 1 of the machine: these stay mounted as long as
   the machine runs.  Any user may read that; the / of this process may be another one (chroot(2)), and so may a container's. */
static bool is_pinned(int file) {
    struct statx status;
    dev_t own, other;
    if (!hl_is_outermost() || statx(file, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) != 0 ||
        (status.stx_mask & STATX_MNT_ID) == 0 ||
        !find_device("/proc/self/mountinfo", status.stx_mnt_id, "", &own))
        return false;
    return (find_device("/proc/1/mountinfo", 0, "/", &other) && other == own) ||
           (find_device("/proc/1/mountinfo", 0, "/usr", &other) && other == own);
}

char *hl_explain_unsteady(int file, bool any_disk) {
    if (!sets_ctime(file))
        return hl_xasprintf(
            "its file system does not record every change of a file (only ext4, xfs, btrfs and f2fs do); in "
            "a "
            "container, enable its layer's file on the host; or use hugeld attach, which compares all bytes");
    if (any_disk || is_pinned(file))
        return NULL;
    return hl_xasprintf("it lies on another file system than the machine's / and /usr%s, and a disk that is "
                        "mounted there later could hold another file with the same numbers; accept that: "
                        "any_disk = yes in /etc/hugeld/hugeld.conf, or with --list the option --any-disk",
                        hl_is_outermost() ? "" : ", or this cannot be seen from inside a container");
}

/* --- users --- */

/* Gives up every right that other users do not have.  In a child only.  The real and the saved user stay root, because the
   processes of a user with these IDs may send signals to this one. */
static bool become_nobody(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return setgroups(0, NULL) == 0 && setresgid((gid_t)-1, NOBODY, (gid_t)-1) == 0 &&
           setresuid((uid_t)-1, NOBODY, (uid_t)-1) == 0 && syscall(SYS_capset, &header, none) == 0;
}

struct reading {
    const char *path;
    const struct stat *wanted;
};

/* Whether a user without groups and capabilities can open a file, in a child: 0, or */
enum { CANNOT_READ = 1, CANNOT_TRY };

/* Only root can change the path by now, so no user can put a FUSE there. */
static int try_reading(void *reading_) {
    const struct reading *reading = reading_;
    struct stat now;
    int file = become_nobody() ? open(reading->path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (file < 0 && hl_is_passing_error(errno))
        return CANNOT_TRY;
    bool is_wanted = file >= 0 && fstat(file, &now) == 0 && now.st_dev == reading->wanted->st_dev &&
                     now.st_ino == reading->wanted->st_ino;
    return is_wanted ? 0 : CANNOT_READ;
}

/* Whether the open FILE, an O_PATH descriptor, has an access control list, or may have one. */
static bool has_acl(int file) {
    char *path = hl_xasprintf("/proc/self/fd/%d", file);
    bool none =
        getxattr(path, "system.posix_acl_access", NULL, 0) < 0 && (errno == ENODATA || errno == EOPNOTSUPP);
    free(path);
    return !none;
}

/* The problem with one part of a path, which is open as PART, or could not be opened (hl_open_local_part), and has the status AT;
   NULL if there is none.  If an access control list lets a user write, the group's write bit is set in the mode. */
static const char *examine_part(int part, const struct stat *at, bool readable) {
    if (part == -EREMOTE)
        return HL_LOCAL_LIES;
    if (part < 0 || S_ISLNK(at->st_mode))
        return "changed while it was looked at";
    if (!hl_only_writable_by(at, 0))
        return "can be written by users other than root";
    unsigned needed = S_ISDIR(at->st_mode) ? ENTERABLE : READABLE;
    if (readable && ((at->st_mode & needed) != needed || has_acl(part)))
        return "cannot be read by all users";
    return NULL;
}

/* Walks to PATH from the root.  NULL, or the problem with a part of PATH, which is then cut off after that part; *ERROR is not 0 if
   this cannot be determined now.  A sticky folder does not help: the file in it may belong to another user tomorrow. */
static const char *examine_path(char *path, const struct stat *wanted, bool readable, int *error) {
    struct hl_local local = {0};
    struct stat at = {0};
    int folder = hl_open_local_part(&local, AT_FDCWD, "/", &at);
    const char *problem = examine_part(folder, &at, readable);
    if (problem != NULL)
        path[1] = '\0';
    for (char *part = path + 1, *end; problem == NULL && part != NULL; part = end != NULL ? end + 1 : NULL) {
        end = strchr(part, '/');
        if (end != NULL)
            *end = '\0';
        int next = hl_open_local_part(&local, folder, part, &at);
        close(folder);
        folder = next;
        problem = examine_part(folder, &at, readable);
        if (problem == NULL && end == NULL && (at.st_dev != wanted->st_dev || at.st_ino != wanted->st_ino))
            problem = "changed while it was looked at";
        if (problem == NULL && end != NULL)
            *end = '/';
    }
    if (folder >= 0)
        close(folder);
    else if (hl_is_passing_error(-folder))
        *error = -folder;
    hl_close_local(&local);
    return problem;
}

char *hl_explain_exposed(int file, const char *path, bool readable, int *error) {
    struct stat wanted;
    int unknown = 0;
    char *walked = hl_xasprintf("%s", path);
    const char *problem =
        fstat(file, &wanted) != 0 ? "cannot be examined" : examine_path(walked, &wanted, readable, &unknown);
    int result = problem == NULL && readable
                     ? hl_call_in_child(try_reading, &(struct reading){path, &wanted}, READ_MS)
                     : 0;
    if (result == CANNOT_READ)
        problem = "cannot be read by all users";
    else if (result != 0) { /* killed, for example for lack of memory */
        problem = "cannot be examined now";
        unknown = EAGAIN;
    }
    char *sentence = problem == NULL ? NULL : hl_xasprintf("%s %s", walked, problem);
    free(walked);
    if (error != NULL)
        *error = problem != NULL ? unknown : 0;
    return sentence;
}

char *hl_explain_private(int file, const char *path, int *error) {
    char *problem = hl_explain_exposed(file, path, true, error);
    if (problem == NULL)
        return NULL;
    char *sentence =
        hl_xasprintf("%s, and this store is for all users; keep the file where only root can write and all "
                     "users can read, or make a store of your own (hugeld apply --list=FILE --store=FOLDER)",
                     problem);
    free(problem);
    return sentence;
}
