/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stores: folders of images.

   STORE/KEY/.image is a symbolic link to the image, which has the original's name, so that perf, gdb and /proc/PID/maps show that.
   KEY identifies the file, and its state when the image was made: a file that was replaced or written to since has another key, and
   its old image is not found.

   A descriptor holds the folder that was checked, so whatever happens to its path afterwards, files are opened in a folder in
   which only its owner can create any. */
#include "store.h"
#include "sys.h"

#include <asm/stat.h>
#include <asm/statfs.h>
#include <linux/fcntl.h>
#include <linux/magic.h>

/* As in stat(2): <linux/stat.h> keeps them to itself beside glibc's headers. */
#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFREG 0100000
#define WRITABLE_BY_OTHERS 022
/* As in statfs(2). */
#define ST_NOEXEC 8

static void fill_state(struct hl_file_state *state, const struct stat *status) {
    state->device = status->st_dev;
    state->inode = status->st_ino;
    state->bytes = (uint64_t)status->st_size;
    state->ctime_seconds = (uint64_t)status->st_ctime;
    state->ctime_nanoseconds = status->st_ctime_nsec;
}

int hl_read_file_state(struct hl_file_state *state, int file) {
    struct stat status;
    long result = HL_CALL(__NR_fstat, file, &status, 0, 0, 0, 0);
    if (hl_is_error(result))
        return (int)result;
    fill_state(state, &status);
    return 0;
}

void hl_set_image_key(struct hl_line *key, const struct hl_file_state *state) {
    hl_set_line(key, "");
    hl_add_hex(key, state->device);
    hl_add_text(key, "-");
    hl_add_hex(key, state->inode);
    hl_add_text(key, "-");
    hl_add_hex(key, state->bytes);
    hl_add_text(key, "-");
    hl_add_hex(key, state->ctime_seconds);
    hl_add_text(key, ".");
    hl_add_hex(key, state->ctime_nanoseconds);
}

/* The number of users that this user namespace does not map: 65534, unless the administrator has set another one. */
static uint64_t read_overflow_user(void) {
    uint64_t user;
    return hl_read_number("/proc/sys/kernel/overflowuid", &user) ? user : 65534;
}

/* Whether the process is STATUS's user, and not only the calling thread: a file of /proc/self (but not that folder) belongs to
   the user of the first thread, and to root if other processes of that user may not look into this one (PR_SET_DUMPABLE), as
   after setuid(2). */
static bool is_whole_process(const struct hl_status *status) {
    struct stat self;
    long file = hl_open("/proc/self/status", O_PATH | O_CLOEXEC);
    if (hl_is_error(file))
        return false;
    long result = HL_CALL(__NR_fstat, file, &self, 0, 0, 0, 0);
    hl_close((int)file);
    return !hl_is_error(result) && self.st_uid == status->user && self.st_gid == status->group;
}

uint64_t hl_find_trusted_user(const struct hl_status *status) {
    if (status->user == 0 || status->user == HL_USER_UNKNOWN || !status->is_one_user ||
        !status->is_one_group || status->has_capabilities || status->user == read_overflow_user() ||
        !is_whole_process(status))
        return 0;
    return status->user;
}

static bool is_on_tmpfs(int file) {
    struct statfs fs;
    return !hl_is_error(HL_CALL(__NR_fstatfs, file, &fs, 0, 0, 0, 0)) && fs.f_type == TMPFS_MAGIC;
}

bool hl_forbids_execution(int file) {
    struct statfs fs;
    return !hl_is_error(HL_CALL(__NR_fstatfs, file, &fs, 0, 0, 0, 0)) && (fs.f_flags & ST_NOEXEC) != 0;
}

/* 0 if FILE is of TYPE and only OWNER or root can have written to it.  STATE is FILE's; before, its device is one that is known to be
   a tmpfs's, or 0. */
static long check_owner(int file, uint64_t owner, unsigned type, struct hl_file_state *state) {
    struct stat status;
    uint64_t tmpfs = state->device;
    long result = HL_CALL(__NR_fstat, file, &status, 0, 0, 0, 0);
    if (hl_is_error(result))
        return result;
    fill_state(state, &status);
    if ((tmpfs == 0 || state->device != tmpfs) && !is_on_tmpfs(file))
        return -EOPNOTSUPP;
    if (status.st_uid != owner && status.st_uid != 0)
        return status.st_uid == read_overflow_user() ? -EOVERFLOW : -EACCES;
    /* A user's processes with another group are kept out of each other (ptrace(2)). */
    if (status.st_uid != 0 && status.st_gid != (uint32_t)HL_CALL(__NR_getegid, 0, 0, 0, 0, 0, 0))
        return -EACCES;
    return (status.st_mode & WRITABLE_BY_OTHERS) != 0 || (status.st_mode & S_IFMT) != type ? -EACCES : 0;
}

/* Returns FILE, just opened, or closes it and returns why it is not to be used. */
static long keep_if_safe(long file, uint64_t owner, unsigned type, struct hl_file_state *state) {
    if (hl_is_error(file))
        return file;
    long result = check_owner((int)file, owner, type, state);
    if (result == 0)
        return file;
    hl_close((int)file);
    return result;
}

long hl_open_store_at(const char *path, uint64_t owner, struct hl_file_state *state) {
    state->device = 0;
    return keep_if_safe(hl_open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), owner, S_IFDIR, state);
}

long hl_open_store(const char *path, uint64_t owner) {
    struct hl_file_state state;
    return hl_open_store_at(path, owner, &state);
}

long hl_open_image_in_store(int store, uint64_t owner, const struct hl_file_state *state,
                            struct hl_line *path, struct hl_file_state *found) {
    hl_set_image_key(path, state);
    hl_add_text(path, "/" HL_IMAGE_LINK);
    return keep_if_safe(
        HL_CALL(__NR_openat, store, path->at, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0, 0, 0), owner,
        S_IFREG, found);
}
