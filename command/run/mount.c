/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mounts one file over another, for a program and its children alone: so the program keeps its name (/proc/self/exe), and no other
   process sees the mount.

   In a new mount namespace a descriptor from outside cannot be mounted, because its mount belongs to the other namespace.  And in a
   new user namespace root's files belong to the overflow ID, so owners cannot be checked there.  So the caller checks and opens
   both files before; inside, they are opened again by their paths, compared, and mounted by descriptor. */
#include "command/run/mount.h"
#include "command/base/basics.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct cover {
    int from, to;
    char *from_path, *to_path;
};

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = write(fd, text, strlen(text)) < 0 ? -errno : 0;
    close(fd);
    return result;
}

/* Enters a user namespace in which this process keeps its IDs. */
static int enter_user_namespace(void) {
    char *users = hl_xasprintf("%u %u 1", geteuid(), geteuid()),
         *groups = hl_xasprintf("%u %u 1", getegid(), getegid());
    int result = unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ? -errno : write_file("/proc/self/uid_map", users);
    if (result == 0)
        result = write_file("/proc/self/setgroups", "deny");
    if (result == 0)
        result = write_file("/proc/self/gid_map", groups);
    free(users);
    free(groups);
    return result;
}

/* Opens the file of KNOWN again at PATH.  A descriptor, or a negated errno. */
static int open_again(const char *path, int known) {
    struct stat a, b;
    int file = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
    if (fstat(known, &a) == 0 && fstat(file, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return file;
    close(file);
    return -ESTALE;
}

static int mount_files(const struct cover *cover) {
    int from = open_again(cover->from_path, cover->from), to = open_again(cover->to_path, cover->to);
    int result = from < 0 ? from : to < 0 ? to : 0;
    char *source = hl_xasprintf("/proc/self/fd/%d", from), *target = hl_xasprintf("/proc/self/fd/%d", to);
    if (result == 0 && mount(source, target, NULL, MS_BIND, NULL) != 0)
        result = -errno;
    free(source);
    free(target);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return result;
}

static int mount_here(const struct cover *cover, bool is_privileged) {
    int result;
    if (is_privileged)
        result = unshare(CLONE_NEWNS) != 0 ? -errno : 0;
    else
        result = enter_user_namespace();
    /* Mounts made here are not seen outside.  Mounts made outside are seen here if they are shared. */
    if (result == 0 && mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        result = -errno;
    return result == 0 ? mount_files(cover) : result;
}

/* Whether the mount works: a child tries it, because there is no way back out of a namespace. */
static int try_mount(const struct cover *cover, bool is_privileged) {
    /* If it is inherited as ignored, the exit status is lost. */
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL);
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(-mount_here(cover, is_privileged) & 0xff);
    int result = child < 0 ? -errno : 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    signal(SIGCHLD, inherited);
    return result != 0 ? result : WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
}

int hl_mount_over(int from, int to) {
    struct cover cover = {from, to, hl_find_file_path(from), hl_find_file_path(to)};
    bool is_privileged = true;
    int result =
        cover.from_path != NULL && cover.to_path != NULL ? try_mount(&cover, is_privileged) : -ESTALE;
    if (result == -EPERM || result == -EACCES) {
        is_privileged = false;
        result = try_mount(&cover, is_privileged);
    }
    if (result == 0 && (result = mount_here(&cover, is_privileged)) != 0) {
        hl_warn(
            "%s: it cannot be covered any more (%s), and its mount namespace cannot be left; run it again",
            cover.to_path, strerror(-result));
        exit(HL_EXIT_CANNOT_RUN);
    }
    free(cover.from_path);
    free(cover.to_path);
    return result;
}
