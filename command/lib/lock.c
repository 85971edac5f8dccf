/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/lib/lock.h"
#include "command/lib/basics.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* A waiting process looks again after PAUSE_MS, says so after SAY_MS, and gives up after WAIT_MS. */
#define PAUSE_MS 20
#define SAY_MS 500
#define WAIT_MS 10000

bool hl_is_at(int file, int folder, const char *name) {
    struct stat a, b;
    return fstat(file, &a) == 0 && fstatat(folder, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The process that has locked the open FILE; 0: it is in another PID namespace, or has just let go. */
static pid_t find_lock_owner(int file) {
    struct stat lock;
    char *line = NULL;
    size_t size = 0;
    pid_t found = 0;
    FILE *locks = fstat(file, &lock) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks != NULL && found == 0 && getline(&line, &size, locks) >= 0) {
        unsigned device_major, device_minor;
        uint64_t inode;
        pid_t pid;
        if (sscanf(line, "%*u: FLOCK %*s WRITE %d %x:%x:%" SCNu64, &pid, &device_major, &device_minor,
                   &inode) == 4 &&
            inode == lock.st_ino && makedev(device_major, device_minor) == lock.st_dev && pid > 0)
            found = pid;
    }
    free(line);
    if (locks != NULL)
        fclose(locks);
    return found;
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000L}, NULL); }

const struct hl_lock_clock hl_lock_clock = {hl_now_ms, sleep_ms};

static int lock_file(int file, const struct hl_lock_clock *clock) {
    double start = clock->now_ms();
    bool has_said = false;
    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK || clock->now_ms() >= start + WAIT_MS)
            return -errno;
        if (!has_said && clock->now_ms() > start + SAY_MS) {
            pid_t owner = find_lock_owner(file);
            if (owner != 0)
                hl_note("waiting for process %d, which has the lock", owner);
            else
                hl_note("waiting for another process, which has the lock");
            has_said = true;
        }
        clock->sleep_ms(PAUSE_MS);
    }
    return 0;
}

int hl_lock_path(int folder, const char *name, const struct hl_lock_clock *clock) {
    for (;;) {
        int lock = openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (lock < 0)
            return -errno;
        int result = lock_file(lock, clock);
        if (result == 0 && hl_is_at(lock, folder, name))
            return lock;
        close(lock); /* the previous owner has removed the file */
        if (result != 0)
            return result;
    }
}
