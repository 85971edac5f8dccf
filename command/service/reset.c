/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld reset: gives back everything that hugeld holds: attached processes go back to their own files, and the images, their
   store, the links for units and the measurements of the machine are removed.  It changes no file of a package. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/base/lock.h"
#include "command/service/service.h"
#include "command/proc/process.h"
#include "command/proc/reading.h"
#include "command/image/store.h"
#include "command/base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 200
#define LOOK_SECONDS_MAX 5
#define LOST_MS_MAX 60e3
#define MAPS 10 /* the exit code of a process that looks */

/* Takes the lock of the service, which would make the removed images anew.  A descriptor, or a negated errno, after a line. */
static int keep_service_out(void) {
    mkdir(HL_SERVICE_FOLDER, 0755);
    int lock = hl_lock_path(AT_FDCWD, HL_SERVICE_LOCK, false);
    if (lock == -EWOULDBLOCK)
        hl_warn(
            "reset: the service runs, and would make everything anew; stop it first: systemctl disable --now "
            "hugeld (or another reset is under way)");
    else if (lock < 0)
        hl_warn("reset: " HL_SERVICE_LOCK " cannot be locked: %s; make /run writable", strerror(-lock));
    return lock;
}

/* Whether the process whose folder of /proc is the open FOLDER has this mount namespace, and is in no other chroot. */
static bool has_our_mounts(int folder) {
    return hl_has_same(folder, "ns/mnt") == 1 && hl_has_same(folder, "root") == 1;
}

/* Whether PID executes images of the STORE, which may be NULL, or, if it has our mounts, a copy that was made for it.  In a
   container or sandbox with a store of its own, hugeld reset has to be run there.  No file of the process is opened: a FUSE may
   not answer. */
static bool maps_images(pid_t pid, const struct stat *store) {
    struct hl_process process = {0};
    bool maps = false;
    if (hl_open_process(&process, pid) != 0)
        return false;
    hl_read_process_map(&process);
    for (size_t i = 0; i < process.n_regions && !maps; i++) {
        const struct hl_region *region = &process.region[i];
        maps = (region->flags & PF_X) &&
               (hl_is_own_image(region) ? has_our_mounts(process.folder)
                                        : store != NULL && region->device == store->st_dev);
    }
    hl_close_process(&process);
    return maps;
}

/* The same in a process of its own, which a clock ends: a memory map may stay locked (command/proc/reading.h).  False: no answer
   came in time. */
static bool answers_in_time(pid_t pid, const struct stat *store, bool *maps) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        hl_limit_readings();
        alarm(LOOK_SECONDS_MAX);
        _exit(maps_images(pid, store) ? MAPS : 0);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    *maps = WIFEXITED(status) && WEXITSTATUS(status) == MAPS;
    return WIFEXITED(status);
}

static void print_detached(const char *answer) {
    json_t *json = json_loads(answer, 0, NULL), *process, *object;
    size_t i, j;
    json_array_foreach(json_object_get(json, "processes"), i, process) {
        json_array_foreach(json_object_get(process, "objects"), j, object) {
            const char *name = json_string_value(json_object_get(process, "name"));
            const char *path = json_string_value(json_object_get(object, "path"));
            if (json_is_true(json_object_get(object, "moves")) && name != NULL && path != NULL)
                hl_print("%d %s: %s: back on its own file",
                         (int)json_integer_value(json_object_get(process, "pid")), name, path);
        }
    }
    json_decref(json);
}

static void detach(pid_t pid) {
    char *number = hl_xasprintf("%d", pid);
    const char *const argv[] = {"hugeld", "detach", "--json", "-p", "*", number, NULL};
    struct hl_answer answer;
    hl_ask_program(&answer, "/proc/self/exe", (char *const *)argv, (uid_t)-1);
    print_detached(answer.output);
    hl_free_answer(&answer);
    free(number);
}

/* A process that cannot be detached keeps its pages until it ends; unmount_store prints that.  A process may be stuck, so it
   gets 30 seconds. */
static void detach_processes(void) {
    double lost_ms = 0; /* with processes that did not answer */
    struct stat store;
    char *path = hl_default_store();
    bool has_store = path != NULL && stat(path, &store) == 0;
    free(path);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would take the exit status away */
    DIR *proc = NULL;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        if (pid == getpid())
            continue;
        if (lost_ms >= LOST_MS_MAX) {
            hl_warn("reset: no other process is looked at after a minute of that; they keep their huge pages "
                    "until they end");
            break;
        }
        bool maps;
        double begin = hl_now_ms();
        if (!answers_in_time(pid, has_store ? &store : NULL, &maps))
            hl_warn("reset: process %d keeps its huge pages: to read its mappings took more than %d s, as "
                    "with a FUSE that does not answer; end it",
                    pid, LOOK_SECONDS_MAX);
        else if (maps)
            detach(pid);
        double ms = hl_now_ms() - begin;
        lost_ms += ms >= LOOK_SECONDS_MAX * 1e3 ? ms : 0;
    }
    if (proc != NULL)
        closedir(proc);
}

bool hl_remove_all_images(void) {
    const char *const argv[] = {"hugeld", "share", "remove", "--all", "--force", NULL};
    return hl_run_itself(argv);
}

/* Whether this is the mount namespace of process 1. */
static bool is_of_the_machine(void) {
    int folder = open("/proc/1", O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool is = folder >= 0 && has_our_mounts(folder);
    if (folder >= 0)
        close(folder);
    return is;
}

/* Another namespace may have the store mounted where this one sees an empty folder; removing the folder would remove that mount,
   too. */
static int remove_store_folder(bool was_unmounted) {
    if (!was_unmounted && !is_of_the_machine())
        return 0;
    unlink(HL_SYSTEM_STORE "/.lock"); /* a file from before the mount */
    return rmdir(HL_SYSTEM_STORE) == 0 || errno == ENOENT ? 0 : -errno;
}

int hl_unmount_store(double seconds, bool detaches, bool *was_there) {
    double end = hl_now_ms() + 1e3 * seconds;
    const struct timespec pause = {0, LOOK_MS * 1000000L};
    struct hl_store store;
    int busy = 0, result = hl_find_store(&store, HL_SYSTEM_STORE);
    *was_there = result == 0;
    if (result == 0)
        hl_close_store(&store);
    else if (result != -ENOENT)
        return result;
    while (*was_there && umount2(HL_SYSTEM_STORE, UMOUNT_NOFOLLOW | (busy != 0 ? MNT_DETACH : 0)) != 0) {
        if (errno != EBUSY)
            return -errno;
        if (hl_now_ms() < end)
            nanosleep(&pause, NULL);
        else if (detaches && busy == 0)
            busy = -EBUSY;
        else
            return -EBUSY;
    }
    result = remove_store_folder(*was_there);
    return result != 0 ? result : busy;
}

/* Unmounts the system's store, which is empty by now.  A process that still maps an image keeps that. */
static bool unmount_store(void) {
    bool was_there;
    int result = hl_unmount_store(0, true, &was_there);
    if (result == -EBUSY)
        hl_print(HL_SYSTEM_STORE ": unmounted; processes that run from its images keep these until they end");
    else if (result != 0)
        hl_warn(HL_SYSTEM_STORE ": it cannot be unmounted and removed: %s", strerror(-result));
    else if (was_there)
        hl_print(HL_SYSTEM_STORE ": unmounted");
    return result == 0 || result == -EBUSY;
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *place) {
    (void)stat;
    (void)type;
    (void)place;
    return remove(path);
}

/* Removes the folder PATH, which is hugeld's own, and everything in it. */
static bool remove_folder(char *path) {
    int result = nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    bool fine = result == 0 || errno == ENOENT;
    if (!fine)
        hl_warn("%s: it cannot be removed: %s", path, strerror(errno));
    free(path);
    return fine;
}

static bool reset_own(void) {
    detach_processes();
    return hl_remove_all_images();
}

static bool reset_system(void) {
    int lock = keep_service_out();
    if (lock < 0)
        return false;
    bool fine = reset_own();
    fine &= unmount_store();
    fine &= remove_folder(hl_xasprintf("/run/hugeld-units"));
    hl_forget_observed();
    unlink(HL_SERVICE_READING);
    hl_drop_lock(HL_SERVICE_LOCK, lock);
    rmdir(
        HL_SERVICE_FOLDER); /* unless it has the switch that stops the service, which belongs to the administrator */
    return fine;
}

static int reset(void) {
    bool fine = geteuid() == 0 ? reset_system() : reset_own();
    return fine ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_reset_machine(int argc, char **argv) {
    static const struct hl_flag command_flags[] = {{NULL, 0, "", "none", .kind = HL_FLAG_NONE}};
    static const struct hl_command command = {
        "reset",
        "Gives back everything that hugeld holds.\v"
        "It detaches processes, removes all images, unmounts the store, and forgets the measurements of this "
        "machine.  Programs that were executed from an image keep it until they end.  For root it acts on "
        "the system's store, for other users on their own.",
        command_flags, false};
    int code = hl_read_flags(&command, argc, argv, NULL);
    return code == 0 ? reset() : code;
}
