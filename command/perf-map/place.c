/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folder and the file of another process's perf map.

   perf looks for /tmp/perf-PID.map in the mount namespace of the process, with its number in its own PID namespace.  That /tmp
   belongs to another user, and all users may write to it.  So its root is entered through /proc/PID/root, "tmp" is resolved
   inside that root, and then only single names are opened in it, never through a link.  The file is made with the rights of the
   process's user, also by root: every obstacle to that user stops root, too, and the file belongs to the right user, in a user
   namespace as well. */
#include "command/base/common.h"
#include "command/perf-map/perf-map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The beginning of an appended map if the process goes on writing at its own offset: it overwrites this before it comes to our
   lines. */
#define ROOM_BYTES ((size_t)1 << 20)

int hl_write_all(int fd, const char *at, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* "NSpid: 4711 17", the innermost last; "Uid: real effective saved filesystem". */
static int read_status(struct hl_map_place *place, int folder) {
    FILE *text = hl_open_text(folder, "status");
    if (text == NULL)
        return -errno;
    size_t size = 0;
    char *line = NULL;
    unsigned id;
    while (getline(&line, &size, text) >= 0) {
        if (strncmp(line, "NSpid:", 6) == 0 || strncmp(line, "Pid:", 4) == 0) {
            const char *last = strrchr(line, '\t');
            place->inner_pid = last != NULL ? (pid_t)strtol(last, NULL, 10) : 0;
        } else if (sscanf(line, "Uid: %*u %*u %*u %u", &id) == 1) {
            place->uid = id;
        } else if (sscanf(line, "Gid: %*u %*u %*u %u", &id) == 1) {
            place->gid = id;
        }
    }
    free(line);
    fclose(text);
    return place->inner_pid > 0 ? 0 : -ESRCH;
}

/* Opens the process's /tmp; a link there leads nowhere but into its root. */
static int open_folder(int folder) {
    if (hl_has_same(folder, "ns/mnt") != 0) { /* one that cannot be read is taken for our own */
        int fd = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd >= 0 ? fd : -errno;
    }
    int root = openat(folder, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return -errno;
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    long fd = syscall(SYS_openat2, root, "tmp", &how, sizeof how);
    if (fd < 0 && errno == ENOSYS) /* before Linux 5.6 */
        fd = openat(root, "tmp", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int result = fd >= 0 ? (int)fd : -errno;
    close(root);
    return result;
}

int hl_find_place(struct hl_map_place *place, const struct hl_process *process) {
    *place = (struct hl_map_place){.folder = -1, .uid = geteuid(), .gid = getegid()};
    int result = read_status(place, process->folder);
    if (result != 0)
        return result;
    place->folder = open_folder(process->folder);
    return place->folder < 0 ? place->folder : 0;
}

void hl_close_place(struct hl_map_place *place) {
    if (place->folder >= 0)
        close(place->folder);
    place->folder = -1;
}

/* Takes the file system rights of USER and GROUP, as far as that is allowed; with our own, gives them
   back. */
static void act_as(uid_t user, gid_t group) {
    setfsgid(group);
    setfsuid(user);
}

static int write_new_map(const struct hl_map_place *place, const struct hl_map_text *text) {
    struct hl_new_map map;
    int result = hl_create_map(&map, place->folder, (uint64_t)place->inner_pid);
    if (result != 0)
        return result;
    result = hl_write_all(map.fd, text->at, text->filled);
    if (result == 0)
        return hl_place_map(&map);
    hl_drop_map(&map);
    return result;
}

/* Opens the map for appending unless another user can have planted it. */
static int open_own_map(const struct hl_map_place *place, struct stat *stat) {
    char name[HL_MAP_NAME_BYTES];
    hl_name_map(name, (uint64_t)place->inner_pid);
    int fd = openat(place->folder, name, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP ? -EPERM : -errno;
    int result = fstat(fd, stat) != 0 ? -errno : 0;
    if (result == 0 && (!S_ISREG(stat->st_mode) || stat->st_nlink != 1 ||
                        (stat->st_uid != place->uid && stat->st_uid != geteuid())))
        result = -EPERM;
    if (result == 0)
        return fd;
    close(fd);
    return result;
}

/* Whether the process has the file open and does not append to it. */
static bool is_overwritten(const struct hl_process *process, const struct stat *map) {
    bool found = false;
    DIR *folder = hl_open_list(process->folder, "fd");
    if (folder == NULL)
        return false;
    for (struct dirent *entry = readdir(folder); entry != NULL && !found; entry = readdir(folder)) {
        struct stat stat;
        unsigned flags = O_APPEND;
        if (fstatat(dirfd(folder), entry->d_name, &stat, 0) != 0 || stat.st_ino != map->st_ino ||
            stat.st_dev != map->st_dev)
            continue;
        char *name = hl_xasprintf("fdinfo/%s", entry->d_name), *line = NULL;
        size_t size = 0;
        FILE *text = hl_open_text(process->folder, name);
        while (text != NULL && getline(&line, &size, text) >= 0)
            if (sscanf(line, "flags: %o", &flags) == 1)
                break;
        if (text != NULL)
            fclose(text);
        free(line);
        free(name);
        found = (flags & O_ACCMODE) != O_RDONLY && !(flags & O_APPEND);
    }
    closedir(folder);
    return found;
}

/* Whether LINE names moved text, as every line of ours does, or is the mark. */
static bool is_own_line(const char *line, const struct hl_moved *moved, size_t n) {
    char *end;
    if (strcmp(line, HL_MAP_MARK) == 0)
        return true;
    uint64_t start = strtoull(line, &end, 16), bytes = strtoull(end, &end, 16);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < moved[i].n_ranges; j++)
            if (start >= moved[i].range[j].start && start < moved[i].range[j].end &&
                bytes <= moved[i].range[j].end - start)
                return true;
    return line[0] == '\n';
}

static bool has_other_lines(int fd, const struct hl_moved *moved, size_t n) {
    FILE *text = fdopen(dup(fd), "r");
    char *line = NULL;
    size_t size = 0;
    bool found = text == NULL;
    while (!found && getline(&line, &size, text) >= 0)
        found = !is_own_line(line, moved, n);
    free(line);
    if (text != NULL)
        fclose(text);
    return found;
}

/* 0 if no other program's file would be lost.  A link is not followed, and is replaced itself. */
static int check_old_map(const struct hl_map_place *place, const struct hl_process *process,
                         const struct hl_moved *moved, size_t n) {
    char name[HL_MAP_NAME_BYTES];
    struct stat stat;
    hl_name_map(name, (uint64_t)place->inner_pid);
    int fd = openat(place->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ELOOP ? 0 : -errno;
    int result = fstat(fd, &stat) != 0 ? -errno : 0;
    if (result == 0 && S_ISREG(stat.st_mode) &&
        (has_other_lines(fd, moved, n) || is_overwritten(process, &stat)))
        result = stat.st_uid == place->uid || stat.st_uid == geteuid() ? -EBUSY : -EPERM;
    close(fd);
    return result;
}

int hl_replace_map(const struct hl_map_place *place, const struct hl_process *process,
                   const struct hl_moved *moved, size_t n, const struct hl_map_text *text) {
    act_as(place->uid, place->gid);
    int result = moved != NULL ? check_old_map(place, process, moved, n) : 0;
    if (result == 0)
        result = write_new_map(place, text);
    act_as(geteuid(), getegid());
    return result;
}

/* Whether the file has the lines of TEXT already, one after the other. */
static int has_lines(int fd, off_t bytes, const struct hl_map_text *text, bool *known) {
    *known = false;
    if ((uint64_t)bytes < text->filled)
        return 0;
    char *all = malloc((size_t)bytes + 1);
    if (all == NULL)
        return -ENOMEM;
    ssize_t n = 0;
    size_t done = 0;
    while (done < (size_t)bytes && (n = pread(fd, all + done, (size_t)bytes - done, (off_t)done)) > 0)
        done += (size_t)n;
    *known = memmem(all, done, text->at, text->filled) != NULL;
    free(all);
    return n < 0 ? -errno : 0;
}

/* One write, so that no other writer's line gets in between. */
static int append_text(int fd, const struct hl_map_text *text, size_t room) {
    char *block = hl_xmalloc(room + text->filled);
    memset(block, '\n', room);
    memcpy(block + room, text->at, text->filled);
    int result = hl_write_all(fd, block, room + text->filled);
    free(block);
    return result;
}

int hl_append_map(const struct hl_map_place *place, const struct hl_process *process,
                  const struct hl_map_text *text, bool *known) {
    struct stat stat = {0};
    act_as(place->uid, place->gid);
    int fd = open_own_map(place, &stat);
    int result = fd < 0 ? fd : 0;
    *known = false;
    if (fd == -ENOENT)
        result = write_new_map(place, text);
    act_as(geteuid(), getegid());
    if (fd < 0)
        return result;
    result = has_lines(fd, stat.st_size, text, known);
    if (result == 0 && !*known) /* its last line may be half written */
        result = append_text(fd, text, is_overwritten(process, &stat) ? ROOM_BYTES : 1);
    close(fd);
    return result;
}

/* The process of the map, or of the unfinished map, NAME: "perf-N.map", ".perf-N.map.HEX"; 0 if it is neither. */
static pid_t map_owner(const char *name) {
    bool unfinished = name[0] == '.';
    const char *at = name + unfinished;
    if (strncmp(at, "perf-", 5) != 0)
        return 0;
    char *number = strndup(at + 5, strspn(at + 5, "0123456789"));
    const char *rest = at + 5 + strlen(number);
    pid_t pid = hl_parse_pid(number);
    free(number);
    if (strncmp(rest, ".map", 4) != 0)
        return 0;
    rest += 4;
    if (!unfinished)
        return *rest == '\0' ? pid : 0;
    return rest[0] == '.' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789abcdef")] == '\0' ? pid
                                                                                                       : 0;
}

/* Whether hugeld wrote all of the map NAME: each line is between two marks, or empty.  An unfinished one is ours by its
   name. */
static bool is_own_map(int folder, const char *name) {
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *text = fd >= 0 ? fdopen(fd, "r") : NULL;
    char *line = NULL;
    size_t size = 0;
    bool inside = false, has_mark = false, has_other = text == NULL;
    while (!has_other && getline(&line, &size, text) >= 0) {
        bool is_mark = strcmp(line, HL_MAP_MARK) == 0;
        has_mark |= is_mark;
        inside ^= is_mark;
        has_other = !is_mark && !inside && line[0] != '\n';
    }
    free(line);
    if (text != NULL)
        fclose(text);
    else if (fd >= 0)
        close(fd);
    return has_mark && !inside && !has_other;
}

/* Every number that a process has in any PID namespace: a container may share our /tmp. */
struct numbers {
    size_t n;
    pid_t *pid;
};

static int read_numbers(struct numbers *numbers) {
    DIR *proc = NULL;
    size_t size = 0;
    char *line = NULL;
    for (pid_t process; (process = hl_next_process(&proc)) != 0;) {
        char *name = hl_xasprintf("%d/status", process);
        FILE *text = hl_open_text(dirfd(proc), name);
        free(name);
        while (text != NULL && getline(&line, &size, text) >= 0) {
            if (strncmp(line, "NSpid:", 6) != 0)
                continue;
            char *end = line + 6;
            for (long pid = strtol(end, &end, 10); pid > 0; pid = strtol(end, &end, 10)) {
                if (numbers->n % 256 == 0)
                    numbers->pid = hl_xrealloc(numbers->pid, (numbers->n + 256) * sizeof *numbers->pid);
                numbers->pid[numbers->n++] = (pid_t)pid;
            }
            break;
        }
        if (text != NULL)
            fclose(text);
    }
    int result = -errno;
    free(line);
    return result;
}

static bool is_gone(const struct numbers *numbers, pid_t pid) {
    for (size_t i = 0; i < numbers->n; i++)
        if (numbers->pid[i] == pid)
            return false;
    return kill(pid, 0) != 0 && errno == ESRCH; /* also where /proc hides it */
}

long hl_remove_stale_maps(void) {
    struct numbers numbers = {0};
    long removed = 0;
    DIR *folder = opendir("/tmp");
    if (folder == NULL)
        return -errno;
    int result = read_numbers(&numbers);
    for (struct dirent *entry = readdir(folder); result == 0 && entry != NULL; entry = readdir(folder)) {
        struct stat stat;
        pid_t pid = map_owner(entry->d_name);
        if (pid == 0 || fstatat(dirfd(folder), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(stat.st_mode) || (stat.st_uid != geteuid() && geteuid() != 0) ||
            !is_gone(&numbers, pid) || (entry->d_name[0] != '.' && !is_own_map(dirfd(folder), entry->d_name)))
            continue;
        if (unlinkat(dirfd(folder), entry->d_name, 0) == 0)
            removed++;
        else if (errno != ENOENT)
            hl_warn("/tmp/%s: not removed: %s; remove it as its owner", entry->d_name, strerror(errno));
    }
    free(numbers.pid);
    closedir(folder);
    return result != 0 ? result : removed;
}
