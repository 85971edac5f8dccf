/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld reset: gives back all huge pages of hugeld: the images, their store and the links for units.  What is enabled stays
   enabled; the timer is stopped until the next boot.  Only --detach touches processes.  It changes no file of a package. */
#include "command/inject/leftovers.h"
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/lock.h"
#include "command/lib/subprocess.h"
#include "command/keep/keep.h"
#include "command/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define MAPPED_MAX 65536
#define TRIES 100 /* to lock a store that other processes make and remove */

struct request {
    bool detaches;
};

/* Whether the process whose folder of /proc is the open FOLDER has this mount namespace, and is in no other chroot. */
static bool has_our_mounts(int folder) {
    return hl_has_same(folder, "ns/mnt") == 1 && hl_has_same(folder, "root") == 1;
}

struct look {
    bool has_store;
    dev_t store;
    size_t n;
    pid_t pid[MAPPED_MAX]; /* that map images */
};

/* Notes the process if it executes images of the store, or, if it has our mounts, a copy that was made for it, or has leftovers of a
   killed attach.  In a container or sandbox with a store of its own, hugeld reset has to be run there.  No file of the process is
   opened: a FUSE may not answer. */
static void note_mapping(void *look_, pid_t pid) {
    struct look *look = look_;
    struct hl_process process = {0};
    bool maps = false;
    if (look->n == MAPPED_MAX || hl_open_process(&process, pid) != 0)
        return;
    hl_read_process_map(&process);
    for (size_t i = 0; i < process.n_regions && !maps; i++) {
        const struct hl_region *region = &process.region[i];
        bool is_removed = /* from its store, and perhaps the store with it */
            strstr(region->name, "/" HL_OLD_FOLDER "/") != NULL && hl_ends_in(region->name, HL_DELETED);
        maps = (region->flags & PF_X) &&
               (hl_is_own_image(region) || is_removed ? has_our_mounts(process.folder)
                                                      : look->has_store && region->device == look->store);
    }
    struct hl_leftovers left;
    hl_find_leftovers(&left, &process);
    maps = maps || (hl_has_leftovers(&left) && has_our_mounts(process.folder));
    hl_close_process(&process);
    if (maps)
        look->pid[look->n++] = pid;
}

/* Says what hugeld detach has moved, and why it could not move the rest.  Whether it has moved all. */
static bool detach(pid_t pid) {
    char *number = hl_xasprintf("%d", pid);
    const char *const argv[] = {"hugeld", "detach", number, NULL};
    struct hl_answer answer;
    hl_ask_program(&answer, "/proc/self/exe", (char *const *)argv, false, NULL);
    if (hl_prints_text())
        printf("%s", answer.output); /* by hl_print */
    fprintf(stderr, "%s", answer.errors);
    bool moved = answer.succeeded;
    hl_free_answer(&answer);
    free(number);
    return moved;
}

/* Finds which processes still map images, and with --detach moves them back to their own files.  How many keep their pages until they
   end. */
static size_t find_mapping(const struct request *request, json_t *mapped) {
    struct look *look = hl_xmalloc(sizeof *look);
    struct stat store;
    size_t kept = 0;
    char *path = hl_default_store();
    look->has_store = path != NULL && stat(path, &store) == 0;
    look->store = look->has_store ? store.st_dev : 0;
    free(path);
    hl_visit_processes(note_mapping, look, sizeof *look);
    for (size_t i = 0; i < look->n; i++) {
        json_array_append_new(mapped, json_integer(look->pid[i]));
        if (request->detaches)
            kept += !detach(look->pid[i]);
        else
            hl_print(
                "process %d still maps huge pages of hugeld; it keeps them until it ends, or: hugeld reset "
                "--detach",
                look->pid[i]);
    }
    free(look);
    return request->detaches ? kept : json_array_size(mapped);
}

/* Opens and locks this user's store.  While another process had the lock, it may have unmounted that store, and a third one may have
   mounted a new one.  0; -ENOENT: there is none; or another negated errno, which was reported. */
static int lock_store(struct hl_store *store) {
    char *path = hl_default_store();
    int result = path != NULL ? -ESTALE : -ENOENT;
    for (int i = 0; i < TRIES && result == -ESTALE; i++) {
        result = hl_find_store(store, path);
        if (result != 0)
            break;
        result = hl_lock_store(store);
        if (result == 0 && !hl_is_at(store->folder, AT_FDCWD, path))
            result = -ESTALE;
        if (result != 0)
            hl_close_store(store);
    }
    if (result == -ESTALE)
        hl_warn("%s: other processes make and remove this store all the time; try again later", path);
    free(path);
    return result;
}

/* Removes every image of the locked STORE, and what was tried. */
static bool remove_images(const struct hl_store *store, unsigned *removed) {
    struct hl_store_item *items = NULL;
    size_t n = 0;
    bool fine = hl_list_store(store, NULL, NULL, &items, &n);
    for (size_t i = 0; i < n && fine; i++) {
        int result = hl_remove_store_item(store, items[i].key);
        if (result == 0 && items[i].is_in_place)
            hl_drop_pages(items[i].origin);
        *removed += result == 0;
        if (result != 0 && result != -ENOENT) {
            hl_warn("%s: its image cannot be removed: %s; make the store writable", items[i].origin,
                    strerror(-result));
            fine = false;
        }
    }
    hl_free_store_items(items, n);
    if (fine)
        unlinkat(store->folder, HL_RECORDS_FILE, 0);
    return fine;
}

/* Removes the folder of the system's store, unless another process mounts a new store there meanwhile, which has the folder's lock then.
   Another namespace may have the store mounted where this one sees an empty folder; removing the folder would remove that mount,
   too. */
static int remove_store_folder(bool was_unmounted) {
    int machine = open("/proc/1", O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool is_seen = was_unmounted || (machine >= 0 && has_our_mounts(machine));
    if (machine >= 0)
        close(machine);
    int folder = is_seen ? open(HL_SYSTEM_STORE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (folder < 0)
        return !is_seen || errno == ENOENT ? 0 : -errno;
    int lock = hl_is_mount(folder) == 0 ? hl_lock_path(folder, HL_LOCK_FILE, &hl_lock_clock) : -EBUSY;
    int result = lock < 0 && lock != -EWOULDBLOCK && lock != -ENOENT ? lock : 0;
    if (lock >= 0 && hl_is_at(folder, AT_FDCWD, HL_SYSTEM_STORE)) {
        unlinkat(folder, HL_MOUNTED_MARK, AT_REMOVEDIR);
        unlinkat(folder, HL_LOCK_FILE, 0);
        result = rmdir(HL_SYSTEM_STORE) == 0 ? 0 : -errno;
        if (faccessat(folder, HL_LOCK_FILE, F_OK, 0) == 0) /* of the next one, which has just begun */
            result = 0;
    }
    if (lock >= 0)
        close(lock);
    close(folder);
    return result;
}

/* Unmounts the system's store, which is empty and locked, so no process begins to fill it before it is out of reach.  WAS_THERE: there
   was one.  KEPT processes map images, which they keep. */
static bool unmount_store(bool was_there, size_t kept) {
    int result = was_there && umount2(HL_SYSTEM_STORE, UMOUNT_NOFOLLOW | MNT_DETACH) != 0 ? -errno : 0;
    if (result == 0)
        result = remove_store_folder(was_there);
    if (result == -EBUSY)
        hl_warn(HL_SYSTEM_STORE ": another store is mounted there by now; run hugeld reset again");
    else if (result != 0)
        hl_warn(HL_SYSTEM_STORE ": it cannot be unmounted and removed: %s", strerror(-result));
    else
        hl_print(HL_SYSTEM_STORE ": %s",
                 !was_there ? "there is no store"
                 : kept > 0 ? "unmounted; processes that run from its images keep these until they end"
                            : "unmounted");
    return result == 0;
}

static int reset(const struct request *request) {
    bool is_root = geteuid() == 0;
    json_t *mapped = json_array();
    unsigned removed = 0;
    hl_ask_manager("stop", "hugeld.timer", "hugeld.service");
    size_t kept = find_mapping(request, mapped);
    struct hl_store store;
    int found = lock_store(&store);
    bool fine = found == 0 ? remove_images(&store, &removed) : found == -ENOENT;
    if (is_root && fine) {
        fine = unmount_store(found == 0, kept);
        int result = hl_remove_tree(AT_FDCWD, HL_UNIT_LINKS, 1);
        if (result == -ENOTDIR && unlink(HL_UNIT_LINKS) == 0) /* a link, which is not followed */
            result = 0;
        if (result != 0 && result != -ENOENT)
            hl_warn(HL_UNIT_LINKS ": it cannot be removed: %s", strerror(-result));
        fine &= result == 0 || result == -ENOENT;
    }
    if (found == 0)
        hl_close_store(&store);
    hl_print_answer(json_pack("{s:I, s:o}", "removed", (json_int_t)removed, "processes", mapped), !fine);
    return fine ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_reset_machine(int argc, char **argv) {
    static const struct hl_flag command_flags[] = {{"detach", 0, NULL,
                                                    "Move running processes back to their own files, too",
                                                    HL_SWITCH(struct request, detaches)},
                                                   HL_NO_ARGUMENTS};
    static const struct hl_command command = {
        "reset",
        "Gives back all huge pages of hugeld.\v"
        "It stops the timer until the next boot, removes all images, and unmounts the store.  What is "
        "enabled stays enabled.  Programs that run from an image keep it until they end.  For root it acts "
        "on the machine's store, for other users on their own.",
        command_flags, false};
    struct request request = {0};
    int code = hl_read_flags(&command, argc, argv, &request);
    return code == 0 ? reset(&request) : code;
}
