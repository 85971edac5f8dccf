/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool hl_is_at(int file, int folder, const char *name) {
    struct stat a, b;
    return fstat(file, &a) == 0 && fstatat(folder, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int lock_file(int file, bool waits) {
    while (flock(file, LOCK_EX | (waits ? 0 : LOCK_NB)) != 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int hl_lock_path(int folder, const char *name, bool waits) {
    for (;;) {
        int lock = openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (lock < 0)
            return -errno;
        int result = lock_file(lock, waits);
        if (result == 0 && hl_is_at(lock, folder, name))
            return lock;
        close(lock); /* the previous holder has removed the file */
        if (result != 0)
            return result;
    }
}

void hl_drop_lock(const char *path, int lock) {
    if (lock < 0)
        return;
    unlink(path);
    close(lock);
}
