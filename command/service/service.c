/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld service: stays, and keeps the images of all enabled files up to date.

   It makes these images by the command `hugeld share refresh`, and then holds and watches all images of the system's store
   (keep.h).  It never traces or attaches, and starts no program but hugeld itself and, to find the programs of enabled units,
   systemctl. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/base/html.h"
#include "command/base/local.h"
#include "command/proc/reading.h"
#include "command/base/lock.h"
#include "command/file/elf-file.h"
#include "command/image/eligible.h"
#include "command/image/layout.h"
#include "command/service/act.h"
#include "command/service/keep.h"
#include "command/service/metrics.h"
#include "command/service/observe.h"
#include "command/service/service.h"
#include "command/image/store.h"
#include "elf/reason.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOUR 3600000.0
#define METRICS_MS 60000.0
#define SECONDS_TO_UNDO 60

struct service {
    bool once, keeps_only, only_says, json;
    double seconds;
    const char *action, *path, *report; /* PATH is the configuration's */
    struct hl_configuration configuration;
    int lock, signals, switches; /* the last: inotify, of the kill switch's folder */
    struct hl_keeper *keeper;
    struct hl_observer *observer;
    struct hl_actor *actor;
    int metrics_said;    /* the error of writing them; printed once */
    double next_metrics; /* hl_now_ms */
    int (*sd_notify)(int unset_environment,
                     const char *state); /* sd_notify(3); NULL: systemd did not start it */
    double watchdog_ms,
        next_watchdog; /* systemd ends it if it is silent for so long, 0: it does not; hl_now_ms */
    char *notified;    /* the last state that was sent */
    double next_round; /* hl_now_ms */
};

static const struct hl_flag command_flags[] = {
    {"once", 0, NULL, "Put everything enabled on huge pages, and end", HL_SWITCH(struct service, once)},
    {"dry-run", 0, NULL, "Show what would be made, change nothing, and end",
     HL_SWITCH(struct service, only_says)},
    {"config", 0, "FILE", "This configuration, not " HL_CONFIGURATION, HL_STRING(struct service, path)},
    {"json", 'j', NULL, "status: print JSON", HL_SWITCH(struct service, json)},
    {"report", 0, "FILE.html", "status: write a report", HL_STRING(struct service, report)},
    {"seconds", 0, "N", "undo: wait so long at most (60)", HL_SECONDS(struct service, seconds)},
    {"keep-only", 0, NULL, "Only hold and watch: share refresh is run by something else",
     HL_SWITCH(struct service, keeps_only)},
    {NULL, 0, "\nstatus\nundo", "one action", HL_STRING(struct service, action), .most = 1},
};

/* Sends systemd a new state, if that started the service. libsystemd brings six other libraries, and `hugeld run` must not wait
   for those, so only this command loads it. */
static void notify(struct service *service, const char *state) {
    struct hl_keeper_counts counts = {0};
    if (service->sd_notify == NULL)
        return;
    if (service->keeper != NULL)
        hl_read_keeper(service->keeper, &counts);
    char *text = hl_xasprintf(
        "%s\nSTATUS=%s%u images on %" PRIu64 " huge pages; %u made anew, %u removed, %u could not be made",
        state, hl_is_service_stopped() ? "stopped by " HL_SERVICE_STOP "; " : "", counts.images,
        counts.huge_pages, counts.refreshed, counts.removed, counts.failed);
    if (service->notified == NULL || strcmp(service->notified, text) != 0)
        service->sd_notify(0, text);
    free(service->notified);
    service->notified = text;
}

static void load_systemd(struct service *service) {
    int (*watchdog_enabled)(int unset_environment, uint64_t *microseconds) = NULL;
    uint64_t microseconds = 0;
    if (getenv("NOTIFY_SOCKET") == NULL)
        return;
    void *library = dlopen("libsystemd.so.0", RTLD_NOW);
    if (library == NULL) {
        hl_warn("service: libsystemd.so.0 is missing, so systemd is not told that the service has begun; "
                "install it");
        return;
    }
    *(void **)&service->sd_notify = dlsym(library, "sd_notify");
    *(void **)&watchdog_enabled = dlsym(library, "sd_watchdog_enabled");
    if (watchdog_enabled != NULL && watchdog_enabled(0, &microseconds) > 0)
        service->watchdog_ms = 1e-3 * (double)microseconds;
}

/* Tells systemd's watchdog that this process goes on, twice in the time that it has. */
static void feed_watchdog(struct service *service) {
    double now = hl_now_ms();
    if (service->watchdog_ms <= 0 || now < service->next_watchdog)
        return;
    service->sd_notify(0, "WATCHDOG=1");
    service->next_watchdog = now + service->watchdog_ms / 2;
}

/* Runs `hugeld share refresh` in a process of its own, whose output goes to the service's.  False: it failed. */
static bool refresh_all(struct service *service) {
    int status = -1;
    sigset_t none;
    pid_t child = fork();
    if (child == 0) {
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl("/proc/self/exe", "hugeld", "share", "refresh", "--unattended", "--config", service->path,
              (char *)NULL);
        hl_warn("share refresh cannot be run: %s", strerror(errno));
        _exit(HL_EXIT_NO);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        hl_warn("service: share refresh was ended: to read the mappings of a process took more than half a "
                "minute, as with a FUSE that does not answer");
    notify(service, "");
    return status == 0;
}

/* Reads the configuration again; if it has a mistake, which is printed, the old one stays.  False then. */
static bool read_configuration(struct service *service) {
    struct hl_configuration fresh;
    const char *metrics = service->configuration.metrics;
    if (hl_read_configuration(&fresh, service->path) != 0)
        return false;
    if (metrics != NULL && (fresh.metrics == NULL || strcmp(metrics, fresh.metrics) != 0)) {
        hl_remove_metrics(metrics);
        service->metrics_said = 0;
    }
    hl_free_configuration(&service->configuration);
    service->configuration = fresh;
    return true;
}

/* --- the plan --- */

/* Why no text of the open FILE can be on huge pages, by its headers; or NULL.  The caller frees it. */
static char *explain_text(int file) {
    struct hl_elf_file elf;
    struct hl_geometry geometry;
    struct hl_reach reach;
    char *path = hl_xasprintf("/proc/self/fd/%d", file);
    enum hl_elf_problem problem = hl_open_elf(&elf, AT_FDCWD, path);
    free(path);
    if (problem != HL_ELF_FINE)
        return hl_xasprintf("%s%s", problem != HL_ELF_UNREADABLE ? "it " : "",
                            hl_elf_problem_sentence(problem));
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    int reason = hl_find_reach(&reach, &elf, &geometry);
    hl_close_elf(&elf);
    if (reason == 0 && reach.mapped_bytes + reach.executed_bytes == 0)
        reason = HL_REASON_TOO_SMALL;
    return reason != 0 ? hl_xasprintf("%s", hl_reason_sentence((enum hl_reason)reason)) : NULL;
}

/* Why the file at PATH is in no store; NULL: it is in the store of ITEMS, or would be.  The caller frees it. */
static char *explain_file(const char *path, bool any_disk, bool *is_there, const struct hl_store_item *items,
                          size_t n) {
    struct stat status;
    int file = hl_open_local_path(path, true, &status);
    *is_there = false;
    if (file < 0)
        return hl_xasprintf("%s", file == -EREMOTE ? HL_LOCAL_PROBLEM : strerror(-file));
    char *real = hl_find_file_path(file);
    for (size_t i = 0; i < n && real != NULL; i++)
        *is_there |= strcmp(items[i].origin, real) == 0 && items[i].state == HL_ITEM_FRESH;
    char *sentence = *is_there ? NULL : hl_explain_unsteady(file, any_disk);
    if (!*is_there && sentence == NULL)
        sentence = hl_explain_private(file, real != NULL ? real : path, NULL);
    if (!*is_there && sentence == NULL)
        sentence = explain_text(file);
    free(real);
    close(file);
    return sentence;
}

static void tell_file(const char *path, bool any_disk, const struct hl_store_item *items, size_t n) {
    bool is_there;
    char *sentence = explain_file(path, any_disk, &is_there, items, n);
    if (sentence != NULL)
        hl_print("%s: nothing would be done: %s", path, sentence);
    else
        hl_print("%s: %s", path, is_there ? "it is shared already" : "it would be put on huge pages");
    free(sentence);
}

/* Observes one window, and prints it. */
static void tell_observed(const struct service *service) {
    struct hl_observer *observer = hl_start_observing();
    hl_observe_once(observer, &service->configuration);
    json_t *observed = hl_json_observed(observer);
    hl_print_observed(observed);
    json_decref(observed);
    hl_stop_observing(observer);
}

/* Prints the plan: changes nothing, and reads headers only.  The exit code. */
static int tell(const struct service *service) {
    const struct hl_texts *enabled = &service->configuration.enabled;
    struct hl_store_item *items = NULL;
    struct hl_store store;
    size_t n = 0;
    bool fine = true;
    if (hl_find_store(&store, HL_SYSTEM_STORE) == 0) {
        hl_read_store(&store, &items, &n);
        hl_close_store(&store);
    }
    for (size_t i = 0; i < enabled->n; i++) {
        struct hl_texts files;
        fine &= hl_expand_enabled(&files, enabled->text[i], service->path);
        for (size_t j = 0; j < files.n; j++)
            tell_file(files.text[j], service->configuration.any_disk, items, n);
        hl_free_texts(&files);
    }
    if (enabled->n == 0)
        hl_print("%s: nothing is enabled; enable programs: hugeld enable PROGRAM", service->path);
    hl_free_store_items(items, n);
    if (service->configuration.observes)
        tell_observed(service);
    return fine ? HL_EXIT_DONE : HL_EXIT_NO;
}

/* --- staying --- */

static bool prepare(struct service *service) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    hl_watch_readings(HL_SERVICE_READING);
    service->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    /* Without this, the switch is seen only at the next event. */
    service->switches = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    inotify_add_watch(service->switches, HL_SERVICE_FOLDER,
                      IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR);
    service->keeper = service->signals >= 0
                          ? hl_start_keeping(HL_SYSTEM_STORE, &service->configuration, service->path)
                          : NULL;
    service->observer = service->keeper != NULL ? hl_start_observing() : NULL;
    service->actor = service->observer != NULL ? hl_start_acting() : NULL;
    return service->actor != NULL;
}

/* Publishes the observations where every user can read them, until the next window or act; a file that cannot be written is left
   out. */
static void publish_observed(const struct service *service) {
    json_t *observed = hl_json_observed(service->observer);
    json_object_set_new(observed, "acts", hl_json_acts(service->actor, &service->configuration));
    if (json_dump_file(observed, HL_SERVICE_OBSERVED_NEW, JSON_COMPACT) == 0)
        rename(HL_SERVICE_OBSERVED_NEW, HL_SERVICE_OBSERVED);
    json_decref(observed);
}

void hl_forget_observed(void) {
    unlink(HL_SERVICE_OBSERVED_NEW);
    unlink(HL_SERVICE_OBSERVED);
}

/* False: the service has to end. */
static bool read_signals(struct service *service) {
    struct signalfd_siginfo info;
    bool goes_on = true;
    while (read(service->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGHUP) {
            goes_on = false;
            continue;
        }
        notify(service, "RELOADING=1");
        bool is_read = read_configuration(service);
        hl_keep_configured(service->keeper);
        service->next_metrics = 0;
        hl_observe_anew(service->observer, &service->configuration);
        hl_act_anew(service->actor);
        if (!service->configuration.observes)
            hl_forget_observed();
        else if (access(HL_SERVICE_OBSERVED, F_OK) == 0)
            publish_observed(service); /* it may begin to act, or cease */
        if (is_read && !service->keeps_only)
            refresh_all(service);
        hl_keep_all_anew(service->keeper, true);
        notify(service, "READY=1");
    }
    return goes_on;
}

static void write_metrics(struct service *service) {
    struct hl_keeper_counts counts;
    const char *path = service->configuration.metrics;
    service->next_metrics = hl_now_ms() + METRICS_MS;
    if (path == NULL)
        return;
    hl_read_keeper(service->keeper, &counts);
    char *text =
        hl_format_metrics(&counts, service->observer, hl_read_acts(service->actor), hl_is_service_stopped());
    int result = hl_write_metrics(path, text);
    if (result != 0 && result != service->metrics_said)
        hl_warn("service: %s: the metrics cannot be written: %s%s", path,
                result == -EREMOTE ? HL_LOCAL_PROBLEM
                : result == -ELOOP ? "a symbolic link in its path is another user's"
                                   : strerror(-result),
                result == -EACCES || result == -EROFS || result == -ELOOP
                    ? "; use a folder of root's that ReadWritePaths= of hugeld.service has"
                : result == -ENOENT ? "; make the folder"
                : result == -ENOSPC ? "; free space there"
                                    : "; name another file with metrics=");
    service->metrics_said = result;
    free(text);
}

static int find_wait(const struct service *service) {
    double left = service->next_round - hl_now_ms();
    int wait = left > 0 ? (int)left + 1 : 0;
    double metrics = service->configuration.metrics != NULL ? service->next_metrics - hl_now_ms() : HOUR;
    double watchdog = service->watchdog_ms > 0 ? service->next_watchdog - hl_now_ms() : HOUR;
    const int others[] = {metrics > 0 ? (int)metrics + 1 : 0, watchdog > 0 ? (int)watchdog + 1 : 0,
                          hl_keeper_timeout(service->keeper),
                          hl_observer_timeout(service->observer, &service->configuration),
                          hl_actor_timeout(service->actor, &service->configuration)};
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] >= 0 && others[i] < wait)
            wait = others[i];
    return wait;
}

static int stay(struct service *service) {
    notify(service, "READY=1");
    service->next_round = hl_now_ms() + HOUR;
    while (read_signals(service)) {
        feed_watchdog(service);
        /* Found first: if the pause of the keeper's events ends after that, they are polled, and none waits for the next look. */
        int wait = find_wait(service);
        struct pollfd fds[] = {{service->signals, POLLIN, 0},
                               {service->switches, POLLIN, 0},
                               {hl_keeper_events(service->keeper), POLLIN, 0}};
        char changes[sizeof(struct inotify_event) + NAME_MAX + 1];
        poll(fds, 3, wait);
        while (read(service->switches, changes, sizeof changes) > 0)
            ;
        if (hl_now_ms() >= service->next_round) {
            hl_keep_all_anew(service->keeper, false);
            service->next_round = hl_now_ms() + HOUR;
        }
        bool may = !hl_is_service_stopped();
        hl_keep(service->keeper, may);
        bool has_ended = hl_observe(service->observer, &service->configuration, may);
        if (has_ended)
            hl_look_for_acts(service->actor);
        if (hl_act(service->actor, service->observer, &service->configuration, may) || has_ended)
            publish_observed(service);
        if (hl_now_ms() >= service->next_metrics)
            write_metrics(service);
        if (hl_observer_timeout(service->observer, &service->configuration) != 0)
            notify(service, ""); /* not after each turn of a window */
    }
    notify(service, "STOPPING=1");
    free(service->notified);
    if (service->configuration.metrics != NULL)
        hl_remove_metrics(service->configuration.metrics);
    hl_stop_keeping(service->keeper);
    hl_stop_acting(service->actor);
    hl_stop_observing(service->observer);
    hl_forget_observed();
    unlink(HL_SERVICE_READING);
    return HL_EXIT_DONE;
}

/* Prints a line if files are enabled, but --keep-only makes no image and there is no store to keep: in a container, say. */
static void tell_keeping(const struct service *service) {
    struct hl_store store;
    if (!service->keeps_only || service->configuration.enabled.n == 0 || hl_is_service_stopped())
        return;
    if (hl_find_store(&store, HL_SYSTEM_STORE) == 0)
        hl_close_store(&store);
    else
        hl_warn("service: %s: enabled: --keep-only makes nothing, and there is no store to keep; run hugeld "
                "share refresh on the machine itself",
                service->path);
}

static int serve(struct service *service) {
    /* This lock tells `service status` that it is the service, not --once or `hugeld reset`, which have the other one, too. */
    struct flock stays = {.l_type = F_WRLCK};
    if (geteuid() != 0) {
        hl_warn("service: only root can keep the system's store; run it as root");
        return HL_EXIT_NO;
    }
    if (!read_configuration(service))
        return HL_EXIT_USAGE; /* systemd does not start it again after this status */
    if (service->only_says)
        return tell(service);
    mkdir(HL_SERVICE_FOLDER, 0755);
    int result = service->lock = hl_lock_path(AT_FDCWD, HL_SERVICE_LOCK, false); /* only one can be there */
    if (result == -EWOULDBLOCK)
        hl_warn("service: another one runs already; stop it first: systemctl stop hugeld");
    else if (result < 0)
        hl_warn("service: " HL_SERVICE_LOCK " cannot be locked: %s; make /run writable", strerror(-result));
    if (result < 0)
        return HL_EXIT_NO;
    if (!service->once)
        fcntl(service->lock, F_SETLK, &stays);
    hl_forget_observed(); /* left by a service that was killed */
    tell_keeping(service);
    load_systemd(service);
    bool fine = service->keeps_only || refresh_all(service);
    if (service->once)
        return fine ? HL_EXIT_DONE : HL_EXIT_NO;
    return prepare(service) ? stay(service) : HL_EXIT_NO;
}

/* What is wrong with the arguments, or NULL. */
static const char *find_misuse(const struct service *service) {
    bool undoes = service->action != NULL && strcmp(service->action, "undo") == 0;
    bool shows = service->action != NULL && strcmp(service->action, "status") == 0;
    if (service->action != NULL && !undoes && !shows)
        return "the action is status or undo";
    if (service->action != NULL && (service->once || service->only_says || service->keeps_only))
        return "--once, --dry-run and --keep-only go without an action";
    if (!shows && service->json)
        return "--json is for status";
    if (!shows && service->report != NULL)
        return "--report is for status";
    if (!undoes && service->seconds > 0)
        return "--seconds is for undo";
    if (undoes && service->path != NULL)
        return "undo takes back everything, so it reads no configuration";
    return NULL;
}

int hl_serve(int argc, char **argv) {
    static const struct hl_command command = {
        "service",
        "Keeps everything that " HL_CONFIGURATION " enables on huge pages.\v"
        "It makes images at its start and at SIGHUP, holds them in memory, and watches the files that they "
        "were made of: "
        "a file that has changed gets a new image, and one that not all users can read any more loses its "
        "image.  "
        "hugeld.service runs it; it is off until you enable it.",
        command_flags, false};
    struct service service = {.lock = -1, .signals = -1, .switches = -1};
    if (hl_read_flags(&command, argc, argv, &service) != 0)
        return HL_EXIT_USAGE;
    const char *misuse = find_misuse(&service);
    if (misuse != NULL) {
        hl_warn("service: %s; 'hugeld service --help' says more", misuse);
        return HL_EXIT_USAGE;
    }
    if (service.path == NULL)
        service.path = HL_CONFIGURATION;
    if (service.action != NULL && strcmp(service.action, "undo") == 0)
        return hl_undo_service(service.seconds > 0 ? service.seconds : SECONDS_TO_UNDO);
    if (service.action != NULL) {
        if (hl_check_report(service.report) != 0 || !read_configuration(&service))
            return HL_EXIT_USAGE;
        int shown = hl_show_service(&service.configuration, service.path, service.json, service.report);
        hl_free_configuration(&service.configuration);
        return shown;
    }
    int code = serve(&service);
    hl_free_configuration(&service.configuration);
    hl_drop_lock(HL_SERVICE_LOCK, service.lock);
    return code;
}
