/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds, makes, mounts, locks, lists and empties a store.

   A folder with its final name is complete: it is made as .new and renamed, and renamed to .old before anything in it is removed.
   A process that changes a store holds its lock, the one file .lock, which only the store's owner can open; so .new and .old, if
   they exist when the lock is taken, are leftovers of a killed process. */
#include "command/image/store.h"
#include "command/lib/common.h"
#include "command/lib/local.h"
#include "command/lib/lock.h"
#include "command/lib/process.h"
#include "elf/kernel.h"
#include "elf/memory-limit.h"
#include "elf/status.h"
#include "elf/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MOUNT_SOURCE "hugeld"
#define DEFAULT_SIZE "25%"
#define KEY_BEGINS "0x"
/* An empty folder where the system's store is mounted: it shows only when the store was unmounted. */

/* Empty folders in the folder of an image. */
static const struct {
    unsigned flag; /* HL_ADD_* */
    const char *name;
} mark_names[] = {{HL_ADD_ANY_DISK, ".any-disk"}, {HL_ADD_IN_PLACE, HL_IN_PLACE_MARK}};

static bool is_system_store(const char *path) { return geteuid() == 0 && strcmp(path, HL_SYSTEM_STORE) == 0; }

/* Reports why the folder at PATH could not be opened. */
static void say_unusable(const char *path, int result) {
    struct stat status;
    bool is_own = lstat(path, &status) == 0 && status.st_uid == geteuid(), is_system = is_system_store(path);
    const char *why =
        result == -EACCES ? "not used as a store: it must be owned and writable by you alone, and readable; "
                            "remove it, or " HL_NAME_ANOTHER_STORE
        : result == -EOVERFLOW && is_own
            ? "not used as a store: its owner, this user, stands for all that the user namespace does not "
              "map; run hugeld as another user"
        : result == -EOVERFLOW ? "not used as a store: it belongs to a user that this user namespace does "
                                 "not map; " HL_NAME_ANOTHER_STORE
        : result == -EOPNOTSUPP && is_system
            ? "another file system than tmpfs is mounted there, so pages cannot be huge; unmount it"
        : result == -EOPNOTSUPP
            ? "it does not lie on tmpfs, where pages can be huge; name a folder in XDG_RUNTIME_DIR, or let "
              "root mount a store: hugeld enable FILE"
        : result == -ENOTDIR || result == -ELOOP
            ? "a store is a folder, and no symbolic link to one; remove it, or " HL_NAME_ANOTHER_STORE
        : result == -ENOEXEC ? "it is mounted noexec, so no program can use its images; mount -o "
                               "remount,exec its file system, or " HL_NAME_ANOTHER_STORE
                             : NULL;
    if (why != NULL)
        hl_warn("%s: %s", path, why);
    else
        hl_warn("%s: the store cannot be opened: %s; " HL_NAME_ANOTHER_STORE, path, strerror(-result));
}

/* Finds the device of the open folder, and whether it is for all users.  0; -ENOEXEC: no program can use its images; or another
   negated errno. */
static int examine_folder(struct hl_store *store) {
    struct stat stat;
    if (fstat(store->folder, &stat) != 0)
        return -errno;
    store->device = stat.st_dev;
    store->for_all = geteuid() == 0 && (stat.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    return hl_forbids_execution(store->folder) ? -ENOEXEC : 0;
}

/* Opens the folder at PATH as a store.  Prints nothing. */
static int open_folder(struct hl_store *store, const char *path) {
    memset(store, 0, sizeof *store);
    store->folder = store->lock = -1;
    store->owner = hl_find_store_owner();
    long pinned = hl_open_store(path, store->owner);
    if (pinned < 0)
        return (int)pinned;
    store->folder = openat((int)pinned, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    close((int)pinned);
    if (store->folder < 0)
        return -error;
    store->path = hl_xasprintf("%s", path);
    store->geometry = hl_read_geometry();
    return 0;
}

void hl_close_store(struct hl_store *store) {
    if (store->folder >= 0)
        close(store->folder);
    if (store->lock >= 0)
        close(store->lock);
    free(store->path);
    free(store->problem);
    store->folder = store->lock = -1;
    store->path = store->problem = NULL;
}

int hl_is_mount(int folder) {
    struct statx status;
    if (statx(folder, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) != 0)
        return -errno;
    return (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* Opens the folder at PATH, which only root can write to, on any file system.  If it is a mount point by now, it is opened as a
   store: another process may have mounted one meanwhile. */
static int open_mount_point(struct hl_store *store, const char *path) {
    struct stat stat;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return -errno;
    if (fstat(folder, &stat) != 0 || !hl_only_writable_by(&stat, 0)) {
        close(folder);
        return -EACCES;
    }
    if (hl_is_mount(folder) != 0) {
        close(folder);
        return open_folder(store, path);
    }
    store->folder = folder;
    store->path = hl_xasprintf("%s", path);
    return 0;
}

bool hl_is_store_lost(const char *path) {
    char *mark = hl_xasprintf("%s/" HL_MOUNTED_MARK, path);
    bool is_lost = strcmp(path, HL_SYSTEM_STORE) == 0 && access(mark, F_OK) == 0;
    free(mark);
    return is_lost;
}

/* As hl_find_store, but prints nothing. */
static int find_store(struct hl_store *store, const char *path) {
    int result = path != NULL ? open_folder(store, path) : -ENOENT;
    if (result == -EOPNOTSUPP && is_system_store(path))
        return -ENOENT; /* the system's store was mounted at an ordinary folder, or will be */
    if (result != 0)
        return result;
    bool is_bare = is_system_store(path) && hl_is_mount(store->folder) == 0; /* the empty mount point */
    result = is_bare ? -ENOENT : examine_folder(store);
    if (result != 0)
        hl_close_store(store);
    return result;
}

int hl_find_store(struct hl_store *store, const char *path) {
    int result = find_store(store, path);
    if (result != 0 && result != -ENOENT)
        say_unusable(path, result);
    return result;
}

/* --- making one --- */

/* mount(2) at the open FOLDER, wherever its path leads by now. */
static int mount_at(int folder, const char *type, unsigned long flags, const char *data) {
    char target[64];
    snprintf(target, sizeof target, "/proc/self/fd/%d", folder);
    return mount(MOUNT_SOURCE, target, type, MS_NOSUID | MS_NODEV | flags, data) == 0 ? 0 : -errno;
}

/* Mounts a tmpfs of SIZE with huge pages at the open STORE; without swap (Linux 6.4), since swapped text stalls. */
static int mount_tmpfs(const struct hl_store *store, const char *size) {
    const char *mode = is_system_store(store->path) ? "0755" : "0700";
    char *data = hl_xasprintf("mode=%s,huge=always,size=%s", mode, size),
         *noswap = hl_xasprintf("%s,noswap", data);
    int result = mount_at(store->folder, "tmpfs", 0, noswap);
    if (result == -EINVAL)
        result = mount_at(store->folder, "tmpfs", 0, data);
    free(noswap);
    free(data);
    if (result == -EPERM)
        hl_warn("%s: a store cannot be mounted here: %s; run it as root, outside of containers", store->path,
                strerror(EPERM));
    else if (result != 0)
        hl_warn("%s: a tmpfs with huge pages cannot be mounted there: %s; boot a kernel with "
                "CONFIG_TRANSPARENT_HUGEPAGE",
                store->path, strerror(-result));
    return result;
}

/* Gives the mounted STORE the SIZE, unless it has that, but for a page.  One that holds more keeps its old size: it has to be opened
   to remove anything from it. */
static void resize(struct hl_store *store, const char *size) {
    uint64_t wanted = hl_store_bytes(size), bytes, used;
    hl_measure_store(store, &bytes, &used);
    if ((bytes > wanted ? bytes - wanted : wanted - bytes) <= store->geometry.huge_page_bytes)
        return;
    char *data = hl_xasprintf("size=%s", size);
    int result = mount_at(store->folder, NULL, MS_REMOUNT, data);
    free(data);
    store->is_larger = result == 0 && wanted > bytes;
    if (result != 0)
        store->problem = hl_xasprintf("%s: cannot resize to %s: %s; disable files first: hugeld disable",
                                      store->path, size, strerror(-result));
}

/* On a file system that others use, too, half of the space is left to them. */
static uint64_t blocks_of_others(const struct hl_store *store, const struct statvfs *fs) {
    return hl_is_mount(store->folder) == 1 ? 0 : fs->f_blocks / 2;
}

void hl_measure_store(const struct hl_store *store, uint64_t *bytes, uint64_t *used) {
    struct statvfs fs;
    *bytes = *used = 0;
    if (fstatvfs(store->folder, &fs) != 0 || fs.f_blocks == (fsblkcnt_t)-1)
        return;
    *bytes = (fs.f_blocks - blocks_of_others(store, &fs)) * fs.f_frsize;
    *used = (uint64_t)(fs.f_blocks - fs.f_bfree) * fs.f_frsize;
}

uint64_t hl_store_bytes(const char *size) {
    static const char units[] = "kKmMgG";
    const char *text = size != NULL ? size : DEFAULT_SIZE;
    struct sysinfo memory;
    char *end;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    bool is_share = *end == '%', has_unit = is_share || unit != NULL;
    if (text[0] < '0' || text[0] > '9' || errno != 0 || end[has_unit] != '\0' ||
        number > (is_share ? 100 : UINT64_MAX >> 30))
        return 0;
    if (is_share)
        return sysinfo(&memory) == 0 ? (uint64_t)memory.totalram * memory.mem_unit / 100 * number : 0;
    return unit != NULL ? number << 10 * ((unit - units) / 2 + 1) : number;
}

/* Takes the lock in the open folder.  Only the store's owner can open the file, so no other user can hold it. */
static int lock_folder(struct hl_store *store) {
    int lock = hl_lock_path(store->folder, HL_LOCK_FILE, &hl_lock_clock);
    store->lock = lock < 0 ? -1 : lock;
    if (lock == -EACCES)
        hl_warn(
            "%s: only its owner can change this store; run hugeld as its owner, or " HL_NAME_ANOTHER_STORE,
            store->path);
    else if (lock == -EWOULDBLOCK)
        hl_warn("%s: another process has been changing this store for ten seconds; try again later",
                store->path);
    else if (lock < 0 && !(lock == -ENOENT && is_system_store(store->path)))
        hl_warn("%s: the store cannot be locked: %s; make it writable, or " HL_NAME_ANOTHER_STORE,
                store->path, strerror(-lock));
    return lock < 0 ? lock : 0;
}

int hl_lock_store(struct hl_store *store) {
    int result = lock_folder(store);
    if (result == 0)
        hl_remove_leftovers(store);
    return result;
}

/* Opens and locks the folder at PATH; if MOUNTS and nothing is mounted there, mounts a tmpfs.  After an error, no lock file stays
   in a folder that IS_MADE just now.  -ESTALE: PATH leads to another folder by now. */
static int open_and_lock(struct hl_store *store, const char *path, const char *size, bool is_made,
                         bool mounts) {
    int result = open_folder(store, path);
    if (result != 0)
        /* A tmpfs is mounted at an ordinary folder on a disk. */
        result = result == -EOPNOTSUPP && mounts ? open_mount_point(store, path) : result;
    if (result == -ENOENT && mounts && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        return -ESTALE; /* hugeld reset has removed the folder meanwhile */
    if (result != 0) {
        say_unusable(path, result);
        return result;
    }
    result = lock_folder(store);
    if ((result == -ENOENT && mounts) || (result == 0 && !hl_is_at(store->folder, AT_FDCWD, path)))
        result = -ESTALE; /* it was removed, or another process has mounted a store over it */
    if (result == 0 && mounts && hl_is_mount(store->folder) == 0) {
        result = mount_tmpfs(store, size != NULL ? size : DEFAULT_SIZE);
        if (result == 0)
            mkdirat(store->folder, HL_MOUNTED_MARK, 0700);
        result = result == 0 ? -ESTALE : result;
    } else if (result == 0 && mounts && size != NULL) {
        resize(store, size);
    }
    if (result != 0 && result != -ESTALE && is_made && store->lock >= 0)
        unlinkat(store->folder, HL_LOCK_FILE, 0);
    if (result != 0)
        hl_close_store(store);
    return result;
}

int hl_make_store(struct hl_store *store, const char *path, const char *size) {
    int result = -ESTALE;
    bool is_made = false;
    if (path == NULL) {
        hl_warn("XDG_RUNTIME_DIR is not set, so there is no folder for a store of your own; log in with "
                "pam_systemd, or name a folder on tmpfs: hugeld apply --list=FILE --store=FOLDER");
        return -ENOENT;
    }
    bool was_lost = hl_is_store_lost(path);
    while (result == -ESTALE) {
        is_made = mkdir(path, is_system_store(path) ? 0755 : 0700) == 0;
        if (!is_made && errno != EEXIST) {
            int error = errno;
            hl_warn("%s: the store cannot be made: %s; " HL_NAME_ANOTHER_STORE, path, strerror(error));
            return -error;
        }
        result = open_and_lock(store, path, size, is_made, is_system_store(path));
    }
    if (result != 0) {
        if (is_made)
            rmdir(path); /* fails if the folder is in use by now */
        return result;
    }
    hl_remove_leftovers(store);
    if (was_lost && store->problem == NULL)
        store->problem = hl_xasprintf(
            "%s: the store had been unmounted, so its images were lost; they are made again", path);
    result = examine_folder(store);
    if (result != 0) {
        say_unusable(path, result);
        hl_close_store(store);
    }
    return result;
}

uint64_t hl_store_free_bytes(const struct hl_store *store) {
    struct statvfs fs;
    uint64_t records = store->geometry.huge_page_bytes; /* what was tried is always noted */
    if (store->folder < 0)
        return hl_subtract(store->bytes_if_made,
                           records + (store->planned > 0 ? (uint64_t)store->planned : 0));
    if (fstatvfs(store->folder, &fs) != 0 || fs.f_blocks == 0 || fs.f_blocks == (fsblkcnt_t)-1)
        return UINT64_MAX;
    uint64_t free_blocks = hl_subtract(fs.f_bavail, blocks_of_others(store, &fs));
    int64_t space = (int64_t)(free_blocks * fs.f_frsize) - store->planned;
    return space > 0 ? hl_subtract((uint64_t)space, records) : 0;
}

bool hl_leaves_margin(uint64_t bytes) {
    static const char *const keys[] = {"MemTotal:", "MemAvailable:", "Hugetlb:"};
    struct hl_number number[3];
    for (unsigned i = 0; i < 3; i++)
        hl_seek_number(&number[i], keys[i]);
    if (!hl_read_numbers("/proc/meminfo", number, 3) || !number[0].is_found || !number[1].is_found)
        return false;
    uint64_t total = hl_subtract(number[0].value, number[2].value);
    return number[1].value >= total / 100 * HL_AVAILABLE_MIN + bytes / 1024;
}

uint64_t hl_free_memory_bytes(void) {
    struct hl_status status;
    struct hl_placement placement;
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    return hl_read_memory_headroom(&hl_system_roots, &placement);
}

/* --- removing --- */

int hl_remove_tree(int folder, const char *name, unsigned depth) {
    DIR *entries = hl_open_list(folder, name);
    int result = 0;
    if (entries == NULL)
        return -errno;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(entries), entry->d_name, 0) != 0) {
            int error = errno;
            int below = depth > 0 && (error == EISDIR || error == EPERM)
                            ? hl_remove_tree(dirfd(entries), entry->d_name, depth - 1)
                            : -error;
            result = result != 0 ? result : below;
        }
    }
    closedir(entries);
    if (unlinkat(folder, name, AT_REMOVEDIR) != 0 && errno != ENOENT && result == 0)
        result = -errno;
    return result;
}

/* The target of the symbolic link NAME in FOLDER; "" if there is no link, NULL if it cannot be read.  The caller frees it. */
static char *read_link(int folder, const char *name) {
    char *target = hl_read_link(folder, name);
    return target != NULL || (errno != ENOENT && errno != EINVAL) ? target : hl_xasprintf("%s", "");
}

void hl_remove_leftovers(const struct hl_store *store) {
    hl_remove_tree(store->folder, HL_NEW_FOLDER, 1);
    hl_remove_tree(store->folder, HL_OLD_FOLDER, 1);
    unlinkat(store->folder, HL_RECORDS_FILE ".new", 0); /* of hl_replace_file */
}

int hl_publish_folder(const struct hl_store *store, const char *key) {
    int folder = store->folder;
    if (renameat(folder, HL_NEW_FOLDER, folder, key) == 0)
        return 0;
    if ((errno != EEXIST && errno != ENOTEMPTY) ||
        renameat2(folder, HL_NEW_FOLDER, folder, key, RENAME_EXCHANGE) != 0)
        return -errno;
    return hl_remove_tree(folder, HL_NEW_FOLDER, 1);
}

int hl_remove_store_item(const struct hl_store *store, const char *key) {
    if (renameat(store->folder, key, store->folder, HL_OLD_FOLDER) != 0)
        return -errno;
    return hl_remove_tree(store->folder, HL_OLD_FOLDER, 1);
}

/* Makes the MARKS in the folder .new. */
static int put_marks(const struct hl_store *store, unsigned marks) {
    int result = 0;
    for (size_t i = 0; i < sizeof mark_names / sizeof mark_names[0] && result == 0; i++) {
        char *path = hl_xasprintf(HL_NEW_FOLDER "/%s", mark_names[i].name);
        if ((marks & mark_names[i].flag) && mkdirat(store->folder, path, 0755) != 0)
            result = -errno;
        free(path);
    }
    return result;
}

int hl_make_new_folder(const struct hl_store *store, unsigned marks) {
    if (mkdirat(store->folder, HL_NEW_FOLDER, 0755) != 0)
        return -errno;
    int folder = openat(store->folder, HL_NEW_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int result = folder < 0 || fchmod(folder, 0755) != 0 ? -errno : put_marks(store, marks); /* umask(2) */
    if (result == 0)
        return folder;
    if (folder >= 0)
        close(folder);
    return result;
}

/* --- looking through it --- */

const char *hl_item_state_name(enum hl_item_state state) {
    static const char *const names[] = {"fresh", "changed", "ctime", "gone", "broken", "unknown", "unknown"};
    return names[state];
}

/* Whether KEY is STATE's except for the ctime. */
static bool is_same_inode(const char *key, const struct hl_file_state *state) {
    uint64_t device, inode, bytes;
    return sscanf(key, "0x%" SCNx64 "-0x%" SCNx64 "-0x%" SCNx64 "-", &device, &inode, &bytes) == 3 &&
           device == state->device && inode == state->inode && bytes == state->bytes;
}

/* The state of an original that could not be opened, for the negated errno RESULT. */
static enum hl_item_state judge_error(int result) {
    return result == -EREMOTE                        ? HL_ITEM_REMOTE
           : result == -ENOENT || result == -ENOTDIR ? HL_ITEM_GONE
                                                     : HL_ITEM_UNREADABLE;
}

/* LOCAL: opens the original; NULL: the original is not looked at.  IMAGE_TIME: the modification time of the original when its image
   was made, which the image has kept. */
static enum hl_item_state compare_origin(struct hl_local *local, const struct hl_store_item *item,
                                         const struct timespec *image_time) {
    struct hl_file_state state;
    struct hl_line key;
    struct stat stat;
    int file = local != NULL ? hl_open_local(local, item->origin, true, &stat) : -EREMOTE;
    if (file < 0)
        return judge_error(file);
    int result = hl_read_file_state(&state, file);
    bool is_unwritten =
        stat.st_mtim.tv_sec == image_time->tv_sec && stat.st_mtim.tv_nsec == image_time->tv_nsec;
    close(file);
    if (result != 0)
        return HL_ITEM_UNREADABLE;
    hl_set_image_key(&key, &state);
    if (strcmp(key.at, item->key) == 0)
        return HL_ITEM_FRESH;
    return is_same_inode(item->key, &state) && is_unwritten ? HL_ITEM_TOUCHED : HL_ITEM_CHANGED;
}

/* Notes the image that FOLDER has.  False: there is none, or it is not to be trusted. */
static bool note_image(const struct hl_store *store, struct hl_store_item *item, int folder,
                       struct timespec *time) {
    struct stat stat;
    if (fstatat(folder, HL_IMAGE_LINK, &stat, 0) != 0 || !S_ISREG(stat.st_mode) ||
        !hl_only_writable_by(&stat, store->owner))
        return false;
    *time = stat.st_mtim;
    item->bytes = (uint64_t)stat.st_size;
    item->huge_pages = (uint64_t)stat.st_blocks * 512 / store->geometry.huge_page_bytes;
    item->inode = stat.st_ino;
    return true;
}

/* Reads the marks in the FOLDER of an image.  False: they cannot be read. */
static bool read_marks(struct hl_store_item *item, int folder) {
    DIR *entries = hl_open_list(folder, ".");
    if (entries == NULL)
        return false;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL; errno = 0)
        for (size_t i = 0; i < sizeof mark_names / sizeof mark_names[0]; i++)
            if (strcmp(entry->d_name, mark_names[i].name) == 0)
                item->marks |= mark_names[i].flag;
    bool read_all = errno == 0;
    closedir(entries);
    return read_all;
}

/* The state of the image in FOLDER. */
static enum hl_item_state read_image(const struct hl_store *store, struct hl_local *local,
                                     struct hl_store_item *item, int folder) {
    struct timespec time = {0};
    struct stat stat;
    bool is_open = !store->for_all || (fstat(folder, &stat) == 0 && (stat.st_mode & S_IXOTH) != 0);
    bool is_complete = note_image(store, item, folder, &time);
    enum hl_item_state state = compare_origin(local, item, &time);
    if (state == HL_ITEM_REMOTE) /* regardless of other problems: no image can be made from it now */
        return state;
    return is_complete && is_open ? state : HL_ITEM_BROKEN;
}

/* The state of a file in place, which is known by its path: every version of it counts. */
static enum hl_item_state read_file_in_place(struct hl_local *local, struct hl_store_item *item) {
    struct stat stat;
    int result = local != NULL ? hl_stat_local(local, item->origin, true, &stat) : -EREMOTE;
    if (result != 0)
        return judge_error(result);
    item->inode = stat.st_ino;
    item->device = stat.st_dev;
    return HL_ITEM_FRESH;
}

static void read_item(const struct hl_store *store, struct hl_local *local, struct hl_store_item *item,
                      const char *key) {
    memset(item, 0, sizeof *item);
    item->key = hl_xasprintf("%s", key);
    item->device = store->device;
    int folder = openat(store->folder, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char *origin = folder >= 0 ? read_link(folder, HL_ORIGIN_LINK) : NULL;
    char *image = folder >= 0 ? read_link(folder, HL_IMAGE_LINK) : NULL;
    char *digest = folder >= 0 ? read_link(folder, HL_DIGEST_LINK) : NULL;
    bool is_known = origin != NULL && image != NULL && read_marks(item, folder);
    item->origin = origin != NULL ? origin : hl_xasprintf("%s", "");
    item->image = hl_xasprintf("%s/%s/%s", store->path, key, image != NULL ? image : "");
    item->digest = digest != NULL ? digest : hl_xasprintf("%s", "");
    item->is_in_place = is_known && image[0] == '\0' && (item->marks & HL_ADD_IN_PLACE) != 0;
    item->state = !is_known           ? HL_ITEM_UNREADABLE
                  : origin[0] != '/'  ? HL_ITEM_BROKEN
                  : item->is_in_place ? read_file_in_place(local, item)
                                      : read_image(store, local, item, folder);
    free(image);
    if (folder >= 0)
        close(folder);
}

static int compare_items(const void *a, const void *b) {
    const struct hl_store_item *x = a, *y = b;
    int order = strcmp(x->origin, y->origin);
    return order != 0 ? order : strcmp(x->key, y->key);
}

typedef bool takes_origin(const void *data, const char *origin);

static bool is_equal(const void *path, const char *origin) { return strcmp(path, origin) == 0; }

/* Whether TAKES accepts the original of the folder KEY. */
static bool is_taken(const struct hl_store *store, const char *key, takes_origin *takes, const void *data) {
    char *link = hl_xasprintf("%s/" HL_ORIGIN_LINK, key), *origin = read_link(store->folder, link);
    bool is = origin != NULL && takes(data, origin);
    free(origin);
    free(link);
    return is;
}

/* TAKES: which originals' items are read; NULL: all. */
static bool read_store(const struct hl_store *store, struct hl_local *local, takes_origin *takes,
                       const void *data, struct hl_store_item **items, size_t *n) {
    DIR *entries = hl_open_list(store->folder, ".");
    *items = NULL;
    *n = 0;
    errno = entries != NULL ? 0 : errno;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL; errno = 0) {
        if (strncmp(entry->d_name, KEY_BEGINS, strlen(KEY_BEGINS)) != 0 ||
            (takes != NULL && !is_taken(store, entry->d_name, takes, data)))
            continue;
        if (*n % 64 == 0)
            *items = hl_xrealloc(*items, (*n + 64) * sizeof **items);
        read_item(store, local, &(*items)[(*n)++], entry->d_name);
    }
    int error = errno;
    if (entries != NULL)
        closedir(entries);
    if (*n > 0)
        qsort(*items, *n, sizeof **items, compare_items);
    if (error != 0)
        hl_warn("%s: the store cannot be read: %s; make it anew: hugeld reset, hugeld apply", store->path,
                strerror(error));
    return error == 0;
}

bool hl_read_items_of(const struct hl_store *store, const char *path, struct hl_store_item **items,
                      size_t *n) {
    struct hl_local local = {0};
    *items = NULL;
    *n = 0;
    if (store->folder < 0)
        return true; /* a dry run, where there is no store */
    bool is_read = read_store(store, &local, path != NULL ? is_equal : NULL, path, items, n);
    hl_close_local(&local);
    return is_read;
}

bool hl_list_store(const struct hl_store *store, takes_origin *takes, const void *data,
                   struct hl_store_item **items, size_t *n) {
    return read_store(store, NULL, takes, data, items, n);
}

void hl_free_store_items(struct hl_store_item *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(items[i].key);
        free(items[i].origin);
        free(items[i].image);
        free(items[i].digest);
    }
    free(items);
}
