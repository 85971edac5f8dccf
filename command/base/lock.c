/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether PATH still leads to the open FILE. */
static bool is_at(int file, const char *path) {
    struct stat a, b;
    return fstat(file, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int hl_take_lock(const char *path, bool waits) {
    for (;;) {
        int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600), error = 0;
        if (lock < 0)
            return -errno;
        while (flock(lock, LOCK_EX | (waits ? 0 : LOCK_NB)) != 0 && error == 0)
            error = errno == EINTR ? 0 : errno;
        if (error == 0 && is_at(lock, path))
            return lock;
        close(lock); /* who had it has removed it */
        if (error != 0)
            return -error;
    }
}

void hl_drop_lock(const char *path, int lock) {
    if (lock < 0)
        return;
    unlink(path);
    close(lock);
}
