/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds, makes, mounts, sweeps, lists and empties a store.

   A folder under a name that ends is either wholly there or not: it is made as .new-XXXXXX and renamed, and
   renamed to .old-KEY before anything in it is removed.  Who works on such a folder holds a lock on it, which
   the kernel drops when the process ends, however it ends; so what is not locked is a leftover. */
#include "store.h"
#include "common.h"
#include "kernel.h"
#include "sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MOUNT_SOURCE "hugeld"
#define DEFAULT_SIZE "25%"
#define LINKS_SIZE "16M" /* of the tmpfs around a hugetlbfs */
#define KEY_BEGINS "0x"

char *hl_default_store(void) {
    return geteuid() == 0 ? hl_format("%s", HL_SYSTEM_STORE) : hl_format("%s%u", HL_USER_STORE, geteuid());
}

static bool is_system_store(const char *path) { return geteuid() == 0 && strcmp(path, HL_SYSTEM_STORE) == 0; }

/* Why the folder at PATH could not be opened. */
static void say_unusable(const char *path, int result) {
    switch (-result) {
    case EACCES:
        hl_say("%s: another user owns it or can write to it, or this user may not read it, so it is not used "
               "as a "
               "store; remove it, or name another with --store",
               path);
        break;
    case ENOTDIR:
    case ELOOP:
        hl_say(
            "%s: a store is a folder, and no symbolic link to one; remove it, or name another with --store",
            path);
        break;
    default:
        hl_say("%s: the store cannot be opened: %s; name another with --store", path, strerror(-result));
    }
}

/* Opens the hugetlbfs in STORE, if it has one. */
static int open_pages(struct hl_store *store) {
    struct statfs fs;
    struct stat stat;
    store->pages = openat(store->folder, HL_STORE_PAGES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (store->pages < 0)
        return 0;
    if (fstatfs(store->pages, &fs) != 0 || fstat(store->pages, &stat) != 0 || fs.f_type != HUGETLBFS_MAGIC) {
        hl_say("%s/" HL_STORE_PAGES ": it is no hugetlbfs; remove it, or name another store with --store",
               store->path);
        return -ENOTSUP;
    }
    store->hugetlb = true;
    store->device = stat.st_dev;
    store->geometry.huge_page_bytes = (uint64_t)fs.f_bsize;
    return 0;
}

/* What the open folder lies on decides what images there are made of. */
static int examine_folder(struct hl_store *store) {
    struct statfs fs;
    struct statvfs flags;
    struct stat stat;
    if (fstatfs(store->folder, &fs) != 0 || fstatvfs(store->folder, &flags) != 0 ||
        fstat(store->folder, &stat) != 0) {
        int error = errno;
        hl_say("%s: the store cannot be examined: %s; name another with --store", store->path,
               strerror(error));
        return -error;
    }
    store->device = stat.st_dev;
    store->owner = geteuid();
    store->for_all = store->owner == 0 && (stat.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    if (fs.f_type != TMPFS_MAGIC) {
        hl_say("%s: it does not lie on tmpfs, where pages can be huge; name a folder in /dev/shm, or mount a "
               "store "
               "there as root: --pages=tmpfs or --pages=hugetlb",
               store->path);
        return -ENOTSUP;
    }
    if (flags.f_flag & ST_NOEXEC) {
        hl_say(
            "%s: it is mounted noexec, so no program can use what is in it; mount -o remount,exec its file "
            "system, or name another store with --store",
            store->path);
        return -EPERM;
    }
    return open_pages(store);
}

/* Opens what is at PATH, of whatever file system.  Nothing is said. */
static int open_folder(struct hl_store *store, const char *path) {
    memset(store, 0, sizeof *store);
    store->folder = store->pages = -1;
    long pinned = hl_open_store(path, geteuid());
    if (pinned < 0)
        return (int)pinned;
    store->folder = openat((int)pinned, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    close((int)pinned);
    if (store->folder < 0)
        return -error;
    store->path = hl_format("%s", path);
    hl_set_geometry(&store->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    return 0;
}

void hl_close_store(struct hl_store *store) {
    if (store->folder >= 0)
        close(store->folder);
    if (store->pages >= 0)
        close(store->pages);
    free(store->path);
    store->folder = store->pages = -1;
    store->path = NULL;
}

/* Whether something is mounted at the open FOLDER, and which mount that is. */
static bool is_mount(int folder, uint64_t *mount) {
    struct statx status;
    if (statx(folder, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) != 0)
        return false;
    *mount = status.stx_mnt_id;
    return (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* Whether the system's store is only the empty folder that a mount was on. */
static bool is_bare(const struct hl_store *store) {
    uint64_t mount;
    return is_system_store(store->path) && !is_mount(store->folder, &mount);
}

int hl_find_store(struct hl_store *store, const char *path) {
    int result = open_folder(store, path);
    if (result == -ENOENT)
        return result;
    if (result != 0) {
        say_unusable(path, result);
        return result;
    }
    result = is_bare(store) ? -ENOENT : examine_folder(store);
    if (result != 0)
        hl_close_store(store);
    return result;
}

/* --- making one --- */

/* mount(2) at the open FOLDER, whatever its path means by now. */
static int mount_at(int folder, const char *type, unsigned long flags, const char *data) {
    char target[64];
    snprintf(target, sizeof target, "/proc/self/fd/%d", folder);
    return mount(MOUNT_SOURCE, target, type, MS_NOSUID | MS_NODEV | flags, data) == 0 ? 0 : -errno;
}

static int say_no_mount(const struct hl_store *store, bool hugetlb, int result) {
    if (result == -EPERM)
        hl_say("%s: a store cannot be mounted here: %s; run it as root, outside of containers", store->path,
               strerror(EPERM));
    else if (result != 0)
        hl_say("%s: %s cannot be mounted there: %s; boot a kernel with CONFIG_%s", store->path,
               hugetlb ? "hugetlbfs" : "a tmpfs with huge pages", strerror(-result),
               hugetlb ? "HUGETLBFS" : "TRANSPARENT_HUGEPAGE");
    return result;
}

/* Mounts a tmpfs of SIZE with huge pages at the open STORE; swapped text stalls, so without swap (Linux 6.4). */
static int mount_tmpfs(const struct hl_store *store, const char *size) {
    const char *mode = is_system_store(store->path) ? "0755" : "0700";
    char *data = hl_format("mode=%s,huge=always,size=%s", mode, size), *noswap = hl_format("%s,noswap", data);
    int result = mount_at(store->folder, "tmpfs", 0, noswap);
    if (result == -EINVAL)
        result = mount_at(store->folder, "tmpfs", 0, data);
    free(noswap);
    free(data);
    return say_no_mount(store, false, result);
}

/* Mounts a hugetlbfs inside STORE, which must be a tmpfs, because hugetlbfs has no symbolic links. */
static int mount_hugetlb(const struct hl_store *store, const char *size) {
    char *data = hl_format("mode=0755,pagesize=%" PRIu64 "%s%s", store->geometry.huge_page_bytes,
                           size != NULL ? ",size=" : "", size != NULL ? size : "");
    int result = mkdirat(store->folder, HL_STORE_PAGES, 0755) == 0 || errno == EEXIST ? 0 : -errno;
    int folder = openat(store->folder, HL_STORE_PAGES, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (result == 0)
        result = folder >= 0 ? mount_at(folder, "hugetlbfs", 0, data) : -errno;
    if (folder >= 0)
        close(folder);
    if (result != 0)
        unlinkat(store->folder, HL_STORE_PAGES, AT_REMOVEDIR);
    free(data);
    return say_no_mount(store, true, result);
}

/* Gives the mounted STORE the size that is wished. */
static int resize(const struct hl_store *store, const char *size) {
    char *data = hl_format("size=%s", size);
    bool hugetlb = faccessat(store->folder, HL_STORE_PAGES, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    int result = hugetlb ? -EINVAL : mount_at(store->folder, NULL, MS_REMOUNT, data);
    free(data);
    if (result != 0)
        hl_say("%s: its size cannot become %s: %s; empty it first: hugeld share remove --all", store->path,
               size, hugetlb ? "hugetlbfs keeps the size that it was mounted with" : strerror(-result));
    return result;
}

static bool wants_mount(const char *path, const struct hl_store_wishes *wishes) {
    return is_system_store(path) || wishes->pages != NULL || wishes->size != NULL;
}

/* STORE is what is at PATH: mounts what is missing there, once, however many do so at the same time. */
static int ensure_mount(struct hl_store *store, const struct hl_store_wishes *wishes) {
    uint64_t mount;
    if (is_mount(store->folder, &mount))
        return wishes->size != NULL ? resize(store, wishes->size) : 0;
    struct hl_store below = *store; /* its lock is held until the mount is there */
    below.path = hl_format("%s", store->path);
    free(store->path);
    flock(below.folder, LOCK_EX);
    int result = open_folder(store, below.path);
    if (result == 0 && !is_mount(store->folder, &mount)) {
        bool hugetlb = wishes->pages != NULL && strcmp(wishes->pages, "hugetlb") == 0;
        result = mount_tmpfs(&below, hugetlb                ? LINKS_SIZE
                                     : wishes->size != NULL ? wishes->size
                                                            : DEFAULT_SIZE);
        hl_close_store(store);
        if (result == 0)
            result = open_folder(store, below.path);
        if (result == 0 && hugetlb)
            result = mount_hugetlb(store, wishes->size);
    }
    hl_close_store(&below);
    return result;
}

static int check_wishes(const struct hl_store *store, const struct hl_store_wishes *wishes) {
    if (wishes->pages == NULL || (strcmp(wishes->pages, "hugetlb") == 0) == store->hugetlb)
        return 0;
    hl_say("%s: the store lies on %s already; empty it first: hugeld share remove --all", store->path,
           store->hugetlb ? "hugetlbfs" : "tmpfs");
    return -EEXIST;
}

static int refuse_mount(const char *path) {
    hl_say("%s: only root can mount a store, so --pages and --size are for root; leave them out", path);
    return -EPERM;
}

int hl_make_store(struct hl_store *store, const char *path, const struct hl_store_wishes *wishes) {
    bool mounts = wants_mount(path, wishes);
    if (mounts && geteuid() != 0)
        return refuse_mount(path);
    if (mkdir(path, is_system_store(path) ? 0755 : 0700) != 0 && errno != EEXIST) {
        int error = errno;
        hl_say("%s: the store cannot be made: %s; name another with --store", path, strerror(error));
        return -error;
    }
    int result = open_folder(store, path);
    if (result != 0) {
        say_unusable(path, result);
        return result;
    }
    if (mounts)
        result = ensure_mount(store, wishes);
    if (result == 0)
        result = examine_folder(store);
    if (result == 0)
        result = check_wishes(store, wishes);
    if (result != 0)
        hl_close_store(store);
    return result;
}

uint64_t hl_store_room(const struct hl_store *store) {
    struct statvfs fs;
    if (fstatvfs(store->hugetlb ? store->pages : store->folder, &fs) != 0 || fs.f_blocks == 0 ||
        fs.f_blocks == (fsblkcnt_t)-1)
        return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* Whether the mount with this number is one of ours: its source says so. */
static bool is_our_mount(uint64_t mount) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t size = 0;
    bool ours = false;
    while (file != NULL && !ours && getline(&line, &size, file) >= 0) {
        uint64_t number;
        char source[64];
        const char *behind = strstr(line, " - ");
        ours = sscanf(line, "%" SCNu64, &number) == 1 && number == mount && behind != NULL &&
               sscanf(behind, " - %*s %63s", source) == 1 && strcmp(source, MOUNT_SOURCE) == 0;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return ours;
}

void hl_dissolve_store(struct hl_store *store) {
    uint64_t mount;
    struct hl_stored *stored;
    size_t n = hl_read_store(store, &stored);
    hl_free_stored(stored, n);
    if (n > 0)
        return;
    if (is_mount(store->folder, &mount)) {
        if (!is_our_mount(mount))
            return;
        if (store->hugetlb) {
            char *pages = hl_format("%s/" HL_STORE_PAGES, store->path);
            close(store->pages); /* else it is busy */
            store->pages = -1;
            bool unmounted = umount2(pages, UMOUNT_NOFOLLOW) == 0;
            free(pages);
            if (!unmounted)
                return;
        }
        close(store->folder);
        store->folder = -1;
        if (umount2(store->path, UMOUNT_NOFOLLOW) != 0)
            return;
    }
    rmdir(store->path);
}

/* --- removing --- */

/* Removes everything in the folder NAME of FOLDER, one folder deep, and itself. */
static int remove_tree(int folder, const char *name, bool deep) {
    int inside = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inside < 0)
        return -errno;
    DIR *entries = fdopendir(inside);
    int result = 0;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(inside, entry->d_name, 0) != 0) {
            int error = errno;
            int below = deep && (error == EISDIR || error == EPERM)
                            ? remove_tree(inside, entry->d_name, false)
                            : -error;
            result = result != 0 ? result : below;
        }
    }
    if (entries != NULL)
        closedir(entries);
    if (unlinkat(folder, name, AT_REMOVEDIR) != 0 && errno != ENOENT && result == 0)
        result = -errno;
    return result;
}

/* What the symbolic link NAME in FOLDER points to; "" if there is none.  The caller frees it. */
static char *read_link(int folder, const char *name) {
    char target[PATH_MAX];
    ssize_t bytes = readlinkat(folder, name, target, sizeof target - 1);
    target[bytes > 0 ? bytes : 0] = '\0';
    return hl_format("%s", target);
}

/* Removes the folder NAME of STORE, which is open as FOLDER.  Its pages on hugetlbfs go first: as long as they are
   there, something in the store tells of them. */
static int remove_folder(const struct hl_store *store, const char *name, int folder) {
    char *target = read_link(folder, HL_IMAGE_LINK), *pages = NULL;
    size_t bytes = strlen("../" HL_STORE_PAGES "/");
    if (strncmp(name, ".new-", 5) == 0)
        pages = hl_format("%s", name + 5);
    else if (strncmp(target, "../" HL_STORE_PAGES "/", bytes) == 0)
        pages = hl_format("%.*s", (int)strcspn(target + bytes, "/"), target + bytes);
    if (store->hugetlb && pages != NULL && pages[0] != '\0' && pages[0] != '.')
        remove_tree(store->pages, pages, true);
    free(pages);
    free(target);
    return remove_tree(store->folder, name, true);
}

/* Locks the folder NAME of STORE if nobody works on it: a descriptor, or -1. */
static int lock_leftover(const struct hl_store *store, const char *name) {
    struct stat named, held;
    int folder = openat(store->folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return -1;
    /* Its maker may have renamed it since. */
    if (flock(folder, LOCK_EX | LOCK_NB) == 0 && fstat(folder, &held) == 0 &&
        fstatat(store->folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == held.st_ino)
        return folder;
    close(folder);
    return -1;
}

unsigned hl_sweep_store(const struct hl_store *store) {
    unsigned swept = 0;
    int again = openat(store->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again >= 0 ? fdopendir(again) : NULL;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (strncmp(entry->d_name, ".new-", 5) != 0 && strncmp(entry->d_name, ".old-", 5) != 0)
            continue;
        int locked = lock_leftover(store, entry->d_name);
        if (locked < 0)
            continue;
        swept += remove_folder(store, entry->d_name, locked) == 0;
        close(locked);
    }
    if (entries != NULL)
        closedir(entries);
    return swept;
}

void hl_remove_unfinished(const struct hl_store *store, const char *name, int folder) {
    remove_folder(store, name, folder);
}

int hl_remove_stored(const struct hl_store *store, const char *key) {
    char *aside = hl_format(".old-%s", key);
    int result = 0, locked = openat(store->folder, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (locked < 0 || flock(locked, LOCK_EX) != 0 || renameat(store->folder, key, store->folder, aside) != 0)
        result = -errno;
    if (result == -ENOTEMPTY || result == -EEXIST) { /* one died while it removed an image of that key */
        hl_sweep_store(store);
        result = renameat(store->folder, key, store->folder, aside) == 0 ? 0 : -errno;
    }
    if (result == 0)
        result = remove_folder(store, aside, locked);
    if (locked >= 0)
        close(locked);
    free(aside);
    return result;
}

/* --- looking through it --- */

const char *hl_freshness_name(enum hl_freshness freshness) {
    static const char *const names[] = {"fresh", "changed", "gone", "broken"};
    return names[freshness];
}

static enum hl_freshness compare_origin(const struct hl_stored *stored) {
    struct hl_file_state state;
    struct hl_line key;
    int file = open(stored->origin, O_PATH | O_CLOEXEC);
    if (file < 0)
        return HL_GONE;
    int result = hl_read_file_state(&state, file);
    close(file);
    if (result != 0)
        return HL_GONE;
    hl_set_image_key(&key, &state);
    return strcmp(key.at, stored->key) == 0 ? HL_FRESH : HL_CHANGED;
}

/* Adds the image that LINK in FOLDER points to.  False: there is none, or it is not to be trusted. */
static bool add_replica(const struct hl_store *store, struct hl_stored *stored, int folder,
                        const char *link) {
    struct stat stat;
    if (fstatat(folder, link, &stat, 0) != 0 || !S_ISREG(stat.st_mode) ||
        (stat.st_mode & (S_IWGRP | S_IWOTH)) || (stat.st_uid != store->owner && stat.st_uid != 0))
        return false;
    stored->bytes = (uint64_t)stat.st_size;
    stored->huge_pages += (uint64_t)stat.st_blocks * 512 / store->geometry.huge_page_bytes;
    stored->inode = hl_resize(stored->inode, (stored->n_inodes + 1) * sizeof *stored->inode);
    stored->inode[stored->n_inodes++] = stat.st_ino;
    return true;
}

static void read_image(const struct hl_store *store, struct hl_stored *stored, int folder) {
    bool whole = true;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again >= 0 ? fdopendir(again) : NULL;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (strncmp(entry->d_name, HL_IMAGE_LINK "-", strlen(HL_IMAGE_LINK "-")) != 0)
            continue;
        stored->replicas++;
        whole &= add_replica(store, stored, folder, entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
    if (stored->replicas == 0)
        whole = add_replica(store, stored, folder, HL_IMAGE_LINK);
    stored->freshness = whole ? compare_origin(stored) : HL_BROKEN;
}

static void read_stored(const struct hl_store *store, struct hl_stored *stored, const char *key) {
    memset(stored, 0, sizeof *stored);
    stored->key = hl_format("%s", key);
    int folder = openat(store->folder, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    stored->freshness = HL_BROKEN;
    stored->origin = read_link(folder, ".origin");
    char *image = read_link(folder, HL_IMAGE_LINK);
    stored->image = strncmp(image, "../", 3) == 0 ? hl_format("%s/%s", store->path, image + 3)
                                                  : hl_format("%s/%s/%s", store->path, key, image);
    free(image);
    if (folder < 0)
        return;
    read_image(store, stored, folder);
    close(folder);
}

static int compare_stored(const void *a, const void *b) {
    const struct hl_stored *x = a, *y = b;
    int order = strcmp(x->origin, y->origin);
    return order != 0 ? order : strcmp(x->key, y->key);
}

size_t hl_read_store(const struct hl_store *store, struct hl_stored **stored) {
    size_t n = 0;
    int again = openat(store->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again >= 0 ? fdopendir(again) : NULL;
    *stored = NULL;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (strncmp(entry->d_name, KEY_BEGINS, strlen(KEY_BEGINS)) != 0)
            continue;
        if (n % 64 == 0)
            *stored = hl_resize(*stored, (n + 64) * sizeof **stored);
        read_stored(store, &(*stored)[n++], entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
    if (n > 0)
        qsort(*stored, n, sizeof **stored, compare_stored);
    return n;
}

void hl_free_stored(struct hl_stored *stored, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(stored[i].key);
        free(stored[i].origin);
        free(stored[i].image);
        free(stored[i].inode);
    }
    free(stored);
}

/* --- who uses it --- */

/* The image that a line of maps is of; NULL: none of these. */
static struct hl_stored *find_mapped(const struct hl_store *store, struct hl_stored *stored, size_t n,
                                     const char *line) {
    unsigned device_major, device_minor;
    uint64_t inode;
    if (sscanf(line, "%*x-%*x %*s %*x %x:%x %" SCNu64, &device_major, &device_minor, &inode) != 3 ||
        makedev(device_major, device_minor) != store->device)
        return NULL;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < stored[i].n_inodes; j++)
            if (stored[i].inode[j] == inode)
                return &stored[i];
    return NULL;
}

static void count_process(const struct hl_store *store, struct hl_stored *stored, size_t n, FILE *maps) {
    bool *seen = hl_allocate(n * sizeof *seen);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, maps) >= 0) {
        struct hl_stored *found = find_mapped(store, stored, n, line);
        if (found == NULL || seen[found - stored])
            continue;
        seen[found - stored] = true;
        found->processes++;
    }
    free(line);
    free(seen);
}

void hl_count_processes(const struct hl_store *store, struct hl_stored *stored, size_t n) {
    DIR *folder = n > 0 ? opendir("/proc") : NULL;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (hl_parse_pid(entry->d_name) == 0)
            continue;
        char *path = hl_format("/proc/%s/maps", entry->d_name);
        FILE *maps = fopen(path, "re");
        free(path);
        if (maps == NULL)
            continue;
        count_process(store, stored, n, maps);
        fclose(maps);
    }
    if (folder != NULL)
        closedir(folder);
}
