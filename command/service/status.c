/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld service status, hugeld service undo. */
#include "command/service/service.h"
#include "command/base/common.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FILES_SHOWN 20

/* --- what was observed --- */

static json_int_t read_integer(const json_t *object, const char *name) {
    return json_integer_value(json_object_get(object, name));
}

static double read_number(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

static void print_file(const json_t *file) {
    const char *obstacle = json_string_value(json_object_get(file, "obstacle"));
    double samples = read_number(file, "samples");
    hl_print("%8.0f %4.0f%% %8" PRIu64 " %8" PRIu64 "  %s%s%s", samples,
             samples > 0 ? 100 * read_number(file, "huge_samples") / samples : 0,
             (uint64_t)read_integer(file, "huge_bytes") >> 10,
             (uint64_t)read_integer(file, "possible_bytes") >> 10,
             json_string_value(json_object_get(file, "path")), obstacle != NULL ? ": " : "",
             obstacle != NULL ? obstacle : "");
}

static void print_acts(const json_t *acts) {
    const char *reason = json_string_value(json_object_get(acts, "reason"));
    if (read_integer(acts, "huge") + read_integer(acts, "failed") > 0)
        hl_print("put in place: %lld huge pages, of which %lld were lost again; %lld could not be",
                 read_integer(acts, "huge"), read_integer(acts, "lost"), read_integer(acts, "failed"));
    if (reason != NULL)
        hl_print("nothing is put in place now: %s", reason);
}

void hl_print_observed(const json_t *observed) {
    const json_t *files = json_object_get(observed, "files"), *acts = json_object_get(observed, "acts");
    hl_print("observed in %lld windows: %lld samples, %lld on huge pages, %lld lost, %lld in files that are "
             "not eligible",
             read_integer(observed, "windows"), read_integer(observed, "samples"),
             read_integer(observed, "huge"), read_integer(observed, "lost"),
             read_integer(observed, "ineligible"));
    if (acts != NULL)
        print_acts(acts);
    if (json_array_size(files) > 0)
        hl_print("%8s %5s %8s %8s  %s", "SAMPLES", "HUGE", "KIB HUGE", "POSSIBLE", "FILE");
    for (size_t i = 0; i < json_array_size(files) && i < FILES_SHOWN; i++)
        print_file(json_array_get(files, i));
}

/* --- status --- */

/* The process that has locked the service's file as the staying service does, which every user may know; 0: none is seen from
   here. */
static pid_t find_service(void) {
    struct stat lock;
    char *line = NULL;
    size_t size = 0;
    pid_t found = 0;
    FILE *locks = stat(HL_SERVICE_LOCK, &lock) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks != NULL && found == 0 && getline(&line, &size, locks) >= 0) {
        unsigned device_major, device_minor;
        uint64_t inode;
        pid_t pid;
        if (sscanf(line, "%*u: POSIX %*s WRITE %d %x:%x:%" SCNu64, &pid, &device_major, &device_minor,
                   &inode) == 4 &&
            inode == lock.st_ino && makedev(device_major, device_minor) == lock.st_dev && pid > 0)
            found = pid;
    }
    free(line);
    if (locks != NULL)
        fclose(locks);
    return found;
}

struct status {
    pid_t process;
    bool is_stopped;
    size_t n;
    struct hl_store_item *items;
    json_t *observed; /* or null */
};

static void read_status(struct status *status) {
    struct hl_store store;
    *status = (struct status){.process = find_service(), .is_stopped = hl_is_service_stopped()};
    status->observed = status->process != 0 ? json_load_file(HL_SERVICE_OBSERVED, 0, NULL) : NULL;
    if (!json_is_object(status->observed)) {
        json_decref(status->observed);
        status->observed = json_null();
    }
    if (hl_find_store(&store, HL_SYSTEM_STORE) != 0)
        return;
    hl_read_store(&store, &status->items, &status->n);
    hl_count_processes(status->items, status->n);
    hl_close_store(&store);
}

static const char *name_way(const struct hl_store_item *item) {
    return item->is_in_place ? "place" : "image";
}

static json_t *make_json(const struct status *status, const struct hl_configuration *configuration,
                         const char *path) {
    json_t *enabled = json_array(), *files = json_array();
    for (size_t i = 0; i < configuration->enabled.n; i++)
        json_array_append_new(enabled, hl_json_text(configuration->enabled.text[i]));
    for (size_t i = 0; i < status->n; i++) {
        const struct hl_store_item *item = &status->items[i];
        json_array_append_new(
            files, json_pack("{s:o, s:s, s:s, s:I, s:I}", "path", hl_json_text(item->origin), "way",
                             name_way(item), "state", hl_item_state_name(item->state), "huge_pages",
                             (json_int_t)item->huge_pages, "processes", (json_int_t)item->processes));
    }
    return json_pack("{s:o, s:b, s:o, s:o, s:o, s:O}", "process",
                     status->process != 0 ? json_integer(status->process) : json_null(), "stopped",
                     status->is_stopped, "configuration", hl_json_text(path), "enabled", enabled, "files",
                     files, "observed", status->observed);
}

static void print_status(const struct status *status, const struct hl_configuration *configuration,
                         const char *path) {
    if (status->process != 0)
        hl_print("the service runs, process %d", status->process);
    else
        hl_print("the service does not run; start it: systemctl enable --now hugeld");
    if (status->is_stopped)
        hl_print("it does nothing as long as " HL_SERVICE_STOP " is there");
    hl_print("%s: %zu enabled", path, configuration->enabled.n);
    for (size_t i = 0; i < configuration->enabled.n; i++)
        hl_print("    %s", configuration->enabled.text[i]);
    if (status->n > 0)
        hl_print("%-5s %-8s %10s %9s %s", "WAY", "STATE", "PAGES", "PROCESSES", "FILE");
    for (size_t i = 0; i < status->n; i++) {
        const struct hl_store_item *item = &status->items[i];
        hl_print("%-5s %-8s %10" PRIu64 " %9u %s", name_way(item), hl_item_state_name(item->state),
                 item->huge_pages, item->processes, item->origin);
    }
    if (json_is_object(status->observed))
        hl_print_observed(status->observed);
}

int hl_show_service(const struct hl_configuration *configuration, const char *path, bool json) {
    struct status status;
    read_status(&status);
    json_t *answer = make_json(&status, configuration, path);
    if (json)
        hl_print_json(json_incref(answer));
    else
        print_status(&status, configuration, path);
    json_decref(answer);
    hl_free_store_items(status.items, status.n);
    json_decref(status.observed);
    return status.process != 0 ? HL_EXIT_DONE : HL_EXIT_NO;
}

/* --- undo --- */

static bool stop_service(void) {
    if (mkdir(HL_SERVICE_FOLDER, 0755) != 0 && errno != EEXIST) {
        hl_warn("service undo: " HL_SERVICE_FOLDER ": %s; make /run writable, and undo again",
                strerror(errno));
        return false;
    }
    int file = open(HL_SERVICE_STOP, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0)
        hl_warn("service undo: " HL_SERVICE_STOP ": %s; make it by hand, and undo again", strerror(errno));
    else
        close(file);
    return file >= 0;
}

int hl_undo_service(double seconds) {
    if (geteuid() != 0) {
        hl_warn("service undo: the service is the administrator's; run it as root");
        return HL_EXIT_NO;
    }
    if (!stop_service())
        return HL_EXIT_NO;
    bool was_there, fine = hl_remove_all_images();
    int result = hl_unmount_store(seconds, false, &was_there);
    if (result == -EBUSY)
        hl_warn("service undo: after %.0f s processes still have pages of removed images, or files of "
                "them open; undo again when they have ended",
                seconds);
    else if (result != 0)
        hl_warn("service undo: " HL_SYSTEM_STORE ": %s; umount " HL_SYSTEM_STORE, strerror(-result));
    if (!fine || result != 0)
        return HL_EXIT_NO;
    hl_print("all is back: no process has a page of an image, and the store is unmounted");
    hl_print("the service does nothing until you remove " HL_SERVICE_STOP " and reload it");
    return HL_EXIT_DONE;
}
