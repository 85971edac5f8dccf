/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld doctor: the stores of images.  The same code as in a process decides whether it would use one; the properties of the file
   system are read from mountinfo, and image/store.c checks whether an image is still good. */
#include "command/ask/doctor-store.h"
#include "command/image/store.h"
#include "command/lib/local.h"
#include "command/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* "42 23 0:31 / /run/hugeld rw,nosuid - tmpfs hugeld rw,huge=always,noswap": the options of the mount that the open FOLDER is on.
   hl_open_store takes no other file system; a chroot may hide the mount. */
static void read_mount(struct hl_store_state *state, int folder) {
    struct statx status;
    bool is_known =
        statx(folder, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) == 0 && (status.stx_mask & STATX_MNT_ID) != 0;
    char *line = is_known ? hl_find_mount("/proc/self/mountinfo", status.stx_mnt_id) : NULL;
    char *rest = line != NULL ? strstr(line, " - ") : NULL;
    if (rest != NULL) {
        rest += strlen(" - ");
        rest[strcspn(rest, "\n")] = '\0';
        strsep(&rest, " "); /* the type, and the source */
        strsep(&rest, " ");
        for (char *option = NULL; rest != NULL && (option = strsep(&rest, ",")) != NULL;) {
            state->noswap = state->noswap || strcmp(option, "noswap") == 0;
            if (strncmp(option, "huge=", strlen("huge=")) == 0 && state->huge == NULL)
                state->huge = hl_xasprintf("%s", option + strlen("huge="));
        }
        if (state->huge == NULL)
            state->huge = hl_xasprintf("never"); /* the default is not written */
    }
    free(line);
    state->type = hl_xasprintf("tmpfs");
}

/* Examines the store at PATH, as a process of this user would. */
static void examine_store(struct hl_store_state *state, const char *path,
                          const struct hl_geometry *geometry) {
    uint64_t owner = hl_find_store_owner();
    struct hl_store_item *items = NULL;
    size_t n;
    *state = (struct hl_store_state){.path = hl_xasprintf("%s", path)};
    state->is_system = strcmp(path, HL_SYSTEM_STORE) == 0;
    long pinned = hl_open_store(path, owner);
    if (pinned < 0) {
        state->result = (int)pinned;
        return;
    }
    int folder = openat((int)pinned, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    state->result = folder < 0 ? -errno : 0;
    close((int)pinned);
    if (folder < 0)
        return;
    struct stat status;
    struct statvfs fs;
    uint64_t used;
    if (fstat(folder, &status) == 0)
        state->device = status.st_dev;
    read_mount(state, folder);
    state->noexec = fstatvfs(folder, &fs) == 0 && (fs.f_flag & ST_NOEXEC) != 0;
    struct hl_store store = {.path = state->path,
                             .folder = folder,
                             .lock = -1,
                             .owner = owner,
                             .device = state->device,
                             .geometry = *geometry};
    hl_measure_store(&store, &state->bytes, &used);
    state->bytes = state->bytes > 0 ? state->bytes : UINT64_MAX;
    state->free_bytes = hl_store_free_bytes(&store);
    hl_read_items_of(&store, NULL, &items, &n);
    for (size_t i = 0; i < n; i++) {
        state->images += !items[i].is_in_place;
        state->stale += items[i].state != HL_ITEM_FRESH;
    }
    hl_free_store_items(items, n);
    close(folder);
}

void hl_free_store_state(struct hl_store_state *state) {
    free(state->path);
    free(state->type);
    free(state->huge);
}

unsigned hl_examine_stores(struct hl_store_state *state, const struct hl_options *options,
                           const struct hl_geometry *geometry) {
    char *own = hl_choose_store(options);
    bool is_system = own == NULL || strcmp(own, HL_SYSTEM_STORE) == 0;
    unsigned n = 0;
    if (!is_system)
        examine_store(&state[n++], own, geometry);
    examine_store(&state[n], HL_SYSTEM_STORE, geometry);
    /* If the user has named another store, a missing system's store is not reported. */
    if (options->store.bytes > 0 && !is_system && state[n].result == -ENOENT)
        hl_free_store_state(&state[n]);
    else
        n++;
    free(own);
    return n;
}

/* Whether the process whose folder of /proc is FOLDER has a mount of DEVICE that may be written to. */
static bool has_writable_mount(int folder, dev_t device) {
    char *line = NULL;
    FILE *text = hl_open_text(folder, "mountinfo");
    size_t size = 0;
    bool found = false;
    while (text != NULL && !found && getline(&line, &size, text) >= 0) {
        unsigned device_major, device_minor;
        char options[64];
        found = sscanf(line, "%*d %*d %u:%u %*s %*s %63s", &device_major, &device_minor, options) == 3 &&
                makedev(device_major, device_minor) == device && strncmp(options, "rw", 2) == 0;
    }
    free(line);
    if (text != NULL)
        fclose(text);
    return found;
}

/* A container has mounts of its own and, unlike a service, also a PID namespace or a / of its own.  Its root can write here only if
   the user namespace is this machine's.  Anything that cannot be read counts as this machine's. */
static bool is_writing_container(int folder, dev_t device) {
    return hl_has_same(folder, "ns/mnt") == 0 &&
           (hl_has_same(folder, "ns/pid") == 0 || hl_has_same(folder, "root") == 0) &&
           hl_has_same(folder, "ns/user") != 0 && has_writable_mount(folder, device);
}

/* Finds a container in which the store of STATE is mounted so that its root can write to it, and so change code that this machine's
   processes execute: the ID of a process in it, or 0. */
static pid_t find_writing_container(const struct hl_store_state *state) {
    DIR *proc = NULL;
    pid_t pid = 0;
    bool found = false;
    if (state->result != 0 || !state->is_system || geteuid() != 0)
        return 0;
    while (!found && (pid = hl_next_process(&proc)) != 0) {
        char name[16];
        snprintf(name, sizeof name, "%d", pid);
        int folder = openat(dirfd(proc), name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        found = folder >= 0 && is_writing_container(folder, state->device);
        if (folder >= 0)
            close(folder);
    }
    if (proc != NULL)
        closedir(proc);
    return pid;
}

/* "tmpfs, huge=always, noswap, 366 of 400 MiB free" */
static char *describe_space(const struct hl_store_state *state) {
    char *text = hl_xasprintf("%s", state->type);
    if (state->huge != NULL)
        hl_append(&text, ", huge=%s, %s", state->huge, state->noswap ? "noswap" : "may be swapped");
    if (state->bytes != UINT64_MAX)
        hl_append(&text, ", %" PRIu64 " of %" PRIu64 " MiB free", state->free_bytes >> 20,
                  state->bytes >> 20);
    return text;
}

/* The remedy for the problem of an existing store; NULL if there is no problem. */
static char *find_remedy(const struct hl_store_state *state, const struct hl_geometry *geometry) {
    const char *path = state->path;
    if (state->noexec)
        return hl_xasprintf("mount -o remount,exec %s", path);
    if (state->is_system && state->huge != NULL && strcmp(state->huge, "always") != 0)
        return hl_xasprintf("mount -o remount,huge=always %s; hugeld apply", path);
    if (state->stale > 0)
        return hl_xasprintf("hugeld apply");
    if (state->free_bytes < geometry->huge_page_bytes)
        return hl_xasprintf("disable files (hugeld disable)%s",
                            state->is_system ? ", or set store_size in hugeld.conf" : "");
    return NULL;
}

char *hl_describe_store(const struct hl_store_state *state, const struct hl_geometry *geometry,
                        char **remedy) {
    *remedy = NULL;
    if (state->result == -ENOENT)
        return hl_xasprintf("%s is not there: nothing has an image; hugeld enable makes it", state->path);
    const char *why = state->result == -EACCES ? "another user owns it, or can write to it"
                      : state->result == -EOVERFLOW
                          ? "it belongs to a user that this user namespace does not map"
                      : state->result == -EOPNOTSUPP ? "it does not lie on tmpfs"
                                                     : strerror(-state->result);
    if (state->result != 0 && state->result != -EOVERFLOW && state->result != -EOPNOTSUPP)
        *remedy = hl_xasprintf("rm -r %s; hugeld enable FILE", state->path);
    if (state->result != 0)
        return hl_xasprintf("%s is used by no process: %s", state->path, why);
    char *space = describe_space(state);
    char *text = hl_xasprintf("%s: %" PRIu64 " image%s, %" PRIu64 " stale; %s%s", state->path, state->images,
                              hl_plural(state->images), state->stale, space,
                              state->noexec ? ", noexec: no process can map text from it" : "");
    free(space);
    *remedy = find_remedy(state, geometry);
    pid_t container = find_writing_container(state);
    if (container == 0)
        return text;
    hl_append(&text, "; the container of process %d can write to it", container);
    free(*remedy);
    *remedy = hl_xasprintf("start that container with %s:%s:ro", state->path, state->path);
    return text;
}

static json_t *limit(uint64_t bytes) {
    return bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

json_t *hl_json_store(const struct hl_store_state *state) {
    bool there = state->result == 0;
    json_t *json = json_pack("{s:o, s:b, s:b, s:b, s:b, s:I, s:I}", "path", hl_json_text(state->path),
                             "exists", state->result != -ENOENT, "safe", there, "executable",
                             there && !state->noexec, "noswap", state->noswap, "images",
                             (json_int_t)state->images, "stale_images", (json_int_t)state->stale);
    json_object_set_new(json, "type", hl_json_text(state->type));
    json_object_set_new(json, "huge", hl_json_text(state->huge));
    json_object_set_new(json, "bytes", there ? limit(state->bytes) : json_null());
    json_object_set_new(json, "free_bytes", there ? limit(state->free_bytes) : json_null());
    return json;
}
