/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld reset: gives back what hugeld holds: processes that were attached go back to their own files, and images, the store that
   they are in, links for units and what was measured of the machine go away.  It changes nothing that a package brought. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/tlb/curve.h"
#include "command/service/keep.h"
#include "command/service/service.h"
#include "command/proc/process.h"
#include "command/image/store.h"
#include "command/base/subprocess.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

static const struct argp_option argp_options[] = {
    HL_HELP_OPTION,
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    (void)argument;
    return hl_parse_common(key, state, "hugeld reset", false);
}

/* Whether a service keeps making what is taken away. */
static bool service_runs(void) {
    int lock = open(HL_SERVICE_LOCK, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    bool runs = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (lock >= 0)
        close(lock);
    if (runs)
        hl_say(
            "reset: the service runs, and would make everything anew; stop it first: systemctl disable --now "
            "hugeld");
    return runs;
}

/* Whether PROCESS has this mount namespace. */
static bool is_beside(const struct hl_process *process) {
    struct stat own, its;
    return stat("/proc/self/ns/mnt", &own) == 0 && fstatat(process->folder, "ns/mnt", &its, 0) == 0 &&
           own.st_ino == its.st_ino && own.st_dev == its.st_dev;
}

/* Whether PID executes images of the store on DEVICE, or, where it has our mounts, a copy that was made for it.  What is done in
   a container or sandbox with a store of its own is reset there. */
static bool maps_images(pid_t pid, uint64_t device, const struct hl_geometry *geometry) {
    struct hl_process process = {0};
    bool maps = false;
    if (hl_open_process(&process, pid) != 0)
        return false;
    if (hl_read_process(&process) == 0)
        hl_find_loaded(&process, geometry);
    for (size_t i = 0; i < process.n_regions && !maps; i++) {
        const struct hl_region *region = &process.region[i];
        maps = (region->flags & PF_X) && region->of_image &&
               (hl_is_own_image(region) ? is_beside(&process) : region->device == device);
    }
    hl_close_process(&process);
    return maps;
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

/* What cannot be detached keeps its pages until it ends; unmount_store says so. */
static void detach_processes(void) {
    struct hl_geometry geometry;
    struct stat store = {0};
    char *path = hl_default_store();
    if (path != NULL)
        stat(path, &store);
    free(path);
    DIR *folder = opendir("/proc");
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t pid = hl_parse_pid(entry->d_name);
        if (pid == 0 || pid == getpid() || !maps_images(pid, store.st_dev, &geometry))
            continue;
        const char *const argv[] = {"hugeld", "detach", "--json", "-p", "*", entry->d_name, NULL};
        struct hl_answer answer;
        hl_ask_itself(&answer, argv);
        print_detached(answer.output);
        hl_free_answer(&answer);
    }
    if (folder != NULL)
        closedir(folder);
}

bool hl_remove_all_images(void) {
    const char *const argv[] = {"hugeld", "share", "remove", "--all", "--force", NULL};
    struct hl_answer answer;
    hl_ask_itself(&answer, argv);
    fputs(answer.output, stdout);
    fputs(answer.errors, stderr);
    bool fine = answer.succeeded;
    hl_free_answer(&answer);
    return fine;
}

/* The system's store itself, which is a mount, and is empty by now.  A process that still maps an image keeps it. */
static bool unmount_store(void) {
    struct hl_store store;
    if (geteuid() != 0)
        return true;
    if (hl_find_store(&store, HL_SYSTEM_STORE) == 0) {
        hl_close_store(&store);
        if (umount2(HL_SYSTEM_STORE, UMOUNT_NOFOLLOW) != 0) {
            hl_say(HL_SYSTEM_STORE
                   ": it stays mounted: %s; reset again when the processes that use it have ended",
                   strerror(errno));
            return false;
        }
        hl_print(HL_SYSTEM_STORE ": unmounted");
    }
    unlink(HL_SYSTEM_STORE "/.lock"); /* of the time before the mount */
    rmdir(HL_SYSTEM_STORE);
    return true;
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
        hl_say("%s: it cannot be removed: %s", path, strerror(errno));
    free(path);
    return fine;
}

/* What was measured of this machine; its folder may have other things. */
static void forget_measurement(void) {
    char *path = hl_curve_path();
    if (path == NULL)
        return;
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    free(path);
}

static int reset(void) {
    if (geteuid() == 0 && service_runs())
        return HL_EXIT_NO;
    detach_processes();
    bool fine = hl_remove_all_images();
    fine &= unmount_store();
    if (geteuid() == 0)
        fine &= remove_folder(hl_format("/run/hugeld-units"));
    forget_measurement();
    return fine ? HL_EXIT_DONE : HL_EXIT_NO;
}

int hl_reset_machine(int argc, char **argv) {
    static const struct argp argp = {
        argp_options,
        parse_argument,
        "",
        "Gives back what hugeld holds.\v"
        "It detaches processes, removes all images, unmounts the store, and forgets what was measured of "
        "this "
        "machine.  Programs that were executed from an image keep it until they end.  As root it is about "
        "the "
        "system's store, otherwise about your own.",
        NULL,
        NULL,
        NULL,
    };
    if (argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, NULL) != 0)
        return HL_EXIT_USAGE;
    return reset();
}
