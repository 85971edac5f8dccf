/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that is started for the first time does not wait for its image, which takes about a millisecond for each MiB: another
   process makes the image meanwhile, for the next start.

   That process must not be noticed.  It is no child of the program's, since it is begun by a process that ends at once and sends no
   signal, and it goes on only if its new parent expects the children of others.  It has none of this process's descriptors, because
   the reader of a pipe would wait for it; of the environment, which may make a library write its file, it has only the variables
   that it needs; it is in a session of its own; and it comes after everything else: on processors (SCHED_IDLE, even if this process
   is a real-time one, and its session counts no more than that) and on disks.  hl_add_image does the rest: it touches no memory
   limit, waits for no lock and makes no image of a file that has just been built.

   It puts nothing in place (image/in-place.h): that would make other processes wait, and nothing would notice when the kernel drops
   the huge pages, while the record of it would keep the program from ever getting an image.

   If it fails, it would fail at each start.  So the modification time of the store's lock says when it may be tried again. */
#include "command/run/later.h"
#include "command/base/basics.h"
#include "command/image/store.h"
#include "command/proc/process.h"
#include "elf/status.h"
#include "elf/sys.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Smaller programs get an image only if the user asks for one. */
#define WORTH_BYTES ((off_t)2 << 20)
#define PAUSE_SECONDS 10
#define PAUSE_SHARE 100
/* A time farther away was set by another clock. */
#define PAUSE_MAX_SECONDS 86400
#define NICEST 19
/* For ioprio_set(2); libcs do not have these names. */
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_CLASS_IDLE (3 << 13)

/* --- when --- */

/* The path of the lock of the store that this user fills, which the caller frees; NULL: there is no such store, or the user named
   another one, which is filled by hand. */
static char *find_lock(const struct hl_options *options) {
    char *store = options->store.bytes == 0 ? hl_default_store() : NULL;
    char *path = store != NULL ? hl_xasprintf("%s/" HL_LOCK_FILE, store) : NULL;
    free(store);
    return path;
}

/* Opens the lock, which only the store's owner can.  With CREATES: makes it, and its folder, on a tmpfs. */
static int open_lock(const char *path, bool creates) {
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    if (!creates)
        return open(path, flags);
    char *store = hl_xasprintf("%.*s", (int)(hl_base_name(path) - path) - 1, path);
    char *parent = hl_xasprintf("%.*s", (int)(hl_base_name(store) - store), store);
    struct statfs fs;
    bool is_there = statfs(parent, &fs) == 0 && (unsigned)fs.f_type == TMPFS_MAGIC &&
                    (mkdir(store, 0700) == 0 || errno == EEXIST);
    free(parent);
    free(store);
    return is_there ? open(path, flags | O_CREAT, 0600) : -1;
}

static bool is_due(int lock) {
    struct stat stat;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return fstat(lock, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid() &&
           (stat.st_mtim.tv_sec <= now.tv_sec || stat.st_mtim.tv_sec > now.tv_sec + PAUSE_MAX_SECONDS);
}

static void set_time(int lock, time_t from_now) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {0}};
    clock_gettime(CLOCK_REALTIME, &times[1]);
    times[1].tv_sec += from_now;
    futimens(lock, times);
}

void hl_note_sharing(const struct hl_options *options, double ms) {
    char *path = find_lock(options);
    int lock = path != NULL ? open_lock(path, false) : -1;
    time_t seconds = (time_t)(ms * PAUSE_SHARE / 1e3);
    if (lock >= 0) {
        set_time(lock, seconds > PAUSE_SECONDS ? seconds : PAUSE_SECONDS);
        close(lock);
    }
    free(path);
}

/* --- how --- */

/* Whether the file that the kernel runs is large enough. */
static bool is_large(const struct hl_program *program) {
    struct stat stat;
    return program->fd >= 0 && fstat(program->fd, &stat) == 0 && stat.st_size >= WORTH_BYTES;
}

/* Whether this process is part of a service of systemd's: systemd would mistake another process in the unit for the service's main
   one (Type=forking), and wait for it when the service ends. */
static bool is_service(void) {
    static const char suffix[] = ".service";
    char groups[4096];
    const char *pid = getenv("SYSTEMD_EXEC_PID"); /* systemd 248 */
    long bytes = hl_read_file("/proc/self/cgroup", groups, sizeof groups);
    bool is = bytes == -EFBIG || getppid() == 1 || (pid != NULL && strtol(pid, NULL, 10) == getpid());
    if (bytes <= 0)
        groups[0] = '\0';
    for (char *end, *line = groups; !is && (end = strchr(line, '\n')) != NULL;
         line = end + 1) /* one for each hierarchy */
        is = end - line >= (ptrdiff_t)sizeof suffix - 1 &&
             strncmp(end - (sizeof suffix - 1), suffix, sizeof suffix - 1) == 0;
    return is;
}

/* Whether another process may be begun, and will become the child of another one: not if orphans become this process's children,
   not in a service, not under a filter, which may kill this process for it, and not if a tracer follows it, unless it is the tracer
   of an exec stop (HAS_STOP).  In a container no image could be made, and its process 1 may leave zombies. */
static bool may_begin(bool has_stop) {
    struct hl_status status;
    int is_subreaper = 0;
    hl_read_status(&status, &hl_system_roots);
    return hl_is_outermost() && getpid() != 1 && !is_service() && status.filters == 0 &&
           (has_stop || !status.is_traced) && prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper, 0, 0, 0) == 0 &&
           is_subreaper == 0;
}

/* fork(2), but the parent gets no signal when the child ends. */
static long begin_process(void) { return HL_CALL(__NR_clone, 0, 0, 0, 0, 0, 0); }

static void write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return;
    (void)!write(file, text, strlen(text));
    close(file);
}

static void come_last(void) {
    const struct sched_param param = {0};
    const struct rlimit none = {0, 0};
    syscall(SYS_sched_setscheduler, 0, SCHED_IDLE, &param); /* musl's function does nothing */
    setpriority(PRIO_PROCESS, 0, NICEST);
    write_text("/proc/self/autogroup",
               "19"); /* a session is a group (sched_autogroup_enabled), and nice counts only within it */
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
    write_text("/proc/self/oom_score_adj", "1000");
    setrlimit(RLIMIT_CORE, &none);
}

/* The VARIABLES that the maker needs. */
static char **list_needed(char **variables) {
    static const char *const needed[] = {
        "PATH=", "XDG_RUNTIME_DIR=", "LD_HUGEPAGES=", "LD_HUGEPAGES_OPTIONS="};
    size_t n = 0;
    char **found = hl_xmalloc((sizeof needed / sizeof needed[0] + 1) * sizeof *found);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        for (char **variable = variables; *variable != NULL; variable++)
            if (strncmp(*variable, needed[i], strlen(needed[i])) == 0) {
                found[n++] = *variable;
                break;
            }
    return found;
}

/* Becomes the COMMAND, without any open file of this process. */
static void become_maker(const char *command, char **arguments, char **variables) {
    sigset_t none;
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        if (null < 0 || dup2(null, fd) < 0)
            return;
    if (syscall(SYS_close_range, 3U, ~0U, 0U) != 0)
        return;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    come_last();
    execve(command, arguments, list_needed(variables));
}

/* "hugeld run --first-use", and ARGUMENTS. */
static char **complete(char **arguments) {
    static const char *const first[] = {"hugeld", "run", ("--" HL_FIRST_USE)};
    size_t n = 0;
    while (arguments[n] != NULL)
        n++;
    char **all = hl_xmalloc((n + 4) * sizeof *all);
    memcpy(all, first, sizeof first);
    memcpy(all + 3, arguments, (n + 1) * sizeof *all);
    return all;
}

/* Waits until STARTER, which began this process, has ended.  Then: whether the new parent expects the children of others, as
   process 1 and a user's systemd do.  Any other one that asked for them (PR_SET_CHILD_SUBREAPER), such as a build's sandbox, may
   wait for all. */
static bool is_given_away(pid_t starter) {
    char name[32], path[32];
    pid_t parent = getppid();
    for (; parent == starter; parent = getppid())
        sched_yield();
    snprintf(path, sizeof path, "/proc/%d/comm", parent);
    return parent == 1 || (hl_read_file(path, name, sizeof name) > 0 && strcmp(name, "systemd\n") == 0);
}

static bool begin_maker(const char *command, char **arguments, char **variables) {
    long child = begin_process();
    if (child == 0) {
        pid_t starter = getpid();
        setsid();
        if (begin_process() == 0 && is_given_away(starter))
            become_maker(command, arguments, variables);
        _exit(0);
    }
    while (!hl_is_error(child) && waitpid((pid_t)child, NULL, __WALL) < 0 && errno == EINTR)
        ;
    return !hl_is_error(child);
}

/* Whether it is time for another attempt, for PROGRAM; if so, not again for a while.  The check that fails in most starts comes
   first. */
static bool claim_turn(const char *lock_path, const struct hl_program *program, bool has_stop) {
    int lock = open_lock(lock_path, false);
    bool is_missing = lock < 0 && errno == ENOENT && geteuid() != 0;
    bool takes = (is_missing || (lock >= 0 && is_due(lock))) && (program == NULL || is_large(program)) &&
                 may_begin(has_stop);
    if (takes && is_missing)
        lock = open_lock(lock_path, true);
    if (takes && lock >= 0)
        set_time(lock, PAUSE_SECONDS);
    if (lock >= 0)
        close(lock);
    return takes && lock >= 0;
}

bool hl_share_later(const struct hl_options *options, const struct hl_program *program, char **arguments,
                    char **variables, bool has_stop) {
    char *lock = hl_uses_images(options->backend) ? find_lock(options) : NULL;
    bool takes = lock != NULL && claim_turn(lock, program, has_stop);
    free(lock);
    if (!takes)
        return false;
    char *command = hl_find_part("hugeld-command", NULL, X_OK), **all = complete(arguments);
    bool has_begun = command != NULL && begin_maker(command, all, variables);
    free(all);
    free(command);
    return has_begun;
}
