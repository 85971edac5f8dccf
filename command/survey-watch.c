/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: which pages of text the processes execute.

   The processor notes in each translation that it was used.  Writing 3 to /proc/PID/clear_refs takes the note away from
   all pages of files, and smaps counts afterwards how many have it again (Referenced).  That costs the process nothing
   but the walks that set the notes anew, and it belongs to its own page tables: what other processes do with the same
   file does not show in it.  Not exact, in ways that the manual names: a translation that stays in the TLB all the time
   is not noted again, so up to as many pages as the TLB holds may be missing; where the kernel has put pages of a file
   together, they count together.

   Processes of one program share their pages.  Referenced says how many, and not which; so the largest number among
   them is taken for each file, and what another one executes beside that is not counted.  Idle page tracking would
   count each page once, but few kernels have it.

   Everything of one process is read through one descriptor of /proc/PID. */
#include "survey.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How often a program that the survey has started is looked at, since it may end. */
#define LOOK_MS 100
/* Between two words of progress on a terminal. */
#define PROGRESS_MS 100

/* One process. */
struct watched {
    pid_t pid;
    struct hl_usage first, last;
    bool has_text; /* it could be read */
    bool is_new;   /* seen for the first time */
    struct stat executable;
    char *path;
    struct hl_watch_counters *counters;
    size_t n_objects;
    struct hl_hot_object *object;
};

struct watch {
    struct hl_survey *survey;
    const struct hl_survey_filter *filter;
    size_t n;
    struct watched *process;
    double told_ms;
    bool no_notes; /* this kernel has no clear_refs */
};

/* On a terminal only, and not too often: "N of ALL WHAT". */
static void tell_progress(struct watch *watch, const char *format, size_t done, size_t all) {
    if (!isatty(STDERR_FILENO) || hl_now_ms() - watch->told_ms < PROGRESS_MS)
        return;
    watch->told_ms = hl_now_ms();
    fputs("\r\033[K", stderr);
    fprintf(stderr, format, done, all);
}

static void clear_progress(void) {
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* --- which processes --- */

static bool is_ours(const struct watch *watch, const struct hl_process *process) {
    struct stat folder;
    if (watch->filter->all_users || watch->filter->child != 0)
        return true;
    return fstat(process->folder, &folder) == 0 && folder.st_uid == geteuid();
}

/* Whether a process whose parent is PARENT belongs to what filter->child has started.  This process is the parent of
   those whose own has ended (PR_SET_CHILD_SUBREAPER). */
static bool is_descendant(pid_t pid, pid_t parent, pid_t child) {
    for (unsigned steps = 0; steps < 64; steps++) {
        struct hl_usage usage;
        if (pid == child || parent == child || parent == getpid())
            return true;
        if (parent <= 1 || hl_read_usage(parent, &usage) != 0)
            return false;
        pid = parent;
        parent = usage.parent;
    }
    return false;
}

static bool is_wanted_program(const struct watch *watch, const struct stat *executable) {
    const struct hl_survey_filter *filter = watch->filter;
    for (size_t i = 0; i < filter->n_programs; i++)
        if (filter->program[i].st_dev == executable->st_dev &&
            filter->program[i].st_ino == executable->st_ino)
            return true;
    return filter->n_programs == 0;
}

static struct watched *find_watched(struct watch *watch, pid_t pid, uint64_t started) {
    for (size_t i = watch->n; i-- > 0;)
        if (watch->process[i].pid == pid && watch->process[i].first.started == started)
            return &watch->process[i];
    return NULL;
}

/* --- one process --- */

/* 0, or a negated errno. */
static int clear_notes(const struct hl_process *process) {
    int file = openat(process->folder, "clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -errno;
    int result = write(file, "3", 1) == 1 ? 0 : -errno;
    close(file);
    return result;
}

static char *read_path(const struct hl_process *process) {
    char path[PATH_MAX];
    ssize_t bytes = readlinkat(process->folder, "exe", path, sizeof path - 1);
    return hl_format("%.*s", bytes > 0 ? (int)bytes : 1, bytes > 0 ? path : "?");
}

/* Begins to watch PROCESS. */
static void add_process(struct watch *watch, const struct hl_process *process, const struct hl_usage *usage) {
    struct hl_survey *survey = watch->survey;
    struct watched watched = {.pid = process->pid, .first = *usage, .last = *usage, .is_new = true};
    if (fstatat(process->folder, "exe", &watched.executable, 0) != 0) {
        survey->refused += errno == EACCES || errno == EPERM;
        survey->ended += errno != EACCES && errno != EPERM;
        return;
    }
    if (!is_wanted_program(watch, &watched.executable))
        return;
    double start = hl_now_ms();
    int result = clear_notes(process);
    survey->clear_ms_max = fmax(survey->clear_ms_max, hl_now_ms() - start);
    if (result == -ENOENT && access("/proc/self/clear_refs", F_OK) != 0)
        watch->no_notes = true;
    survey->refused += result == -EACCES || result == -EPERM;
    survey->ended += result == -ESRCH || (result == -ENOENT && !watch->no_notes);
    if (result != 0)
        return;
    watched.path = read_path(process);
    if (survey->no_counters == NULL)
        watched.counters = hl_open_watch_counters(process->pid);
    if (watch->n % 64 == 0)
        watch->process = hl_resize(watch->process, (watch->n + 64) * sizeof watched);
    watch->process[watch->n++] = watched;
    survey->watched++;
}

static struct hl_hot_object *find_object(struct hl_hot_object **object, size_t *n, dev_t device, ino_t inode,
                                         const char *path) {
    for (size_t i = 0; i < *n; i++)
        if ((*object)[i].inode == inode && (*object)[i].device == device)
            return &(*object)[i];
    *object = hl_resize(*object, (*n + 1) * sizeof **object);
    struct hl_hot_object *last = &(*object)[(*n)++];
    *last = (struct hl_hot_object){.device = device, .inode = inode, .path = hl_format("%s", path)};
    return last;
}

static void free_objects(struct hl_hot_object *object, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(object[i].path);
    free(object);
}

/* Anonymous text on small pages is a JIT compiler's, which clear_refs was not asked about; on huge pages it is moved
   text. */
static void add_region(struct watched *watched, const struct hl_region *region) {
    uint64_t thp = region->anon_huge_bytes + region->file_pmd_bytes + region->shmem_pmd_bytes,
             huge = thp + hl_hugetlb_bytes(region), small = hl_subtract(region->resident_bytes, thp);
    if (!(region->flags & PF_X) || region->name[0] == '[' || (region->inode == 0 && huge == 0))
        return;
    struct hl_hot_object *object = find_object(
        &watched->object, &watched->n_objects, region->device, region->inode,
        region->inode != 0 && hl_hugetlb_bytes(region) == 0 ? region->name : "text on huge pages");
    object->text_bytes += region->end - region->start;
    object->huge_bytes += huge;
    if (region->inode != 0)
        object->hot_bytes += region->referenced_bytes < small ? region->referenced_bytes : small;
}

/* Reads what WATCHED has executed since it was added, and what it has used. */
static void look_at(struct watch *watch, struct watched *watched) {
    struct hl_process process;
    struct hl_usage usage;
    if (hl_open_process(&process, watched->pid) != 0)
        return;
    double start = hl_now_ms();
    int result = hl_read_regions(&process);
    watch->survey->read_ms_max = fmax(watch->survey->read_ms_max, hl_now_ms() - start);
    /* Read last: if it still is the same process then, the regions were that process's. */
    if (result == 0 && hl_read_usage(watched->pid, &usage) == 0 && usage.started == watched->first.started) {
        free_objects(watched->object, watched->n_objects);
        watched->object = NULL;
        watched->n_objects = 0;
        for (size_t i = 0; i < process.n_regions; i++)
            add_region(watched, &process.region[i]);
        watched->last = usage;
        watched->has_text = true;
    }
    hl_close_process(&process);
}

/* --- all of them --- */

/* Looks through /proc for processes that are not watched yet.  False: it can't be read. */
static bool find_processes(struct watch *watch) {
    struct hl_survey *survey = watch->survey;
    const struct hl_survey_filter *filter = watch->filter;
    DIR *folder = opendir("/proc");
    if (folder == NULL)
        return false;
    survey->kernel_threads = survey->zombies = survey->others = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL && !watch->no_notes; entry = readdir(folder)) {
        struct hl_process process;
        struct hl_usage usage;
        pid_t pid = hl_parse_pid(entry->d_name);
        if (pid == 0 || pid == getpid() || hl_read_usage(pid, &usage) != 0 ||
            (filter->child != 0 && !is_descendant(pid, usage.parent, filter->child)) ||
            find_watched(watch, pid, usage.started) != NULL || hl_open_process(&process, pid) != 0)
            continue;
        if (usage.flags & HL_KERNEL_THREAD)
            survey->kernel_threads++;
        else if (usage.state == 'Z' || usage.state == 'X')
            survey->zombies++;
        else if (!is_ours(watch, &process))
            survey->others++;
        else
            add_process(watch, &process, &usage);
        hl_close_process(&process);
        tell_progress(watch, "%zu processes found", watch->n, 0);
    }
    closedir(folder);
    return true;
}

/* Whether filter->child has ended; its other children end unseen. */
static bool has_ended(const struct hl_survey_filter *filter) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)filter->child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

static void look_at_all(struct watch *watch) {
    for (size_t i = 0; i < watch->n; i++) {
        look_at(watch, &watch->process[i]);
        if (watch->filter->child == 0)
            tell_progress(watch, "%zu of %zu processes read", i + 1, watch->n);
    }
}

/* Lets SECONDS pass. */
static bool wait_and_look(struct watch *watch, double seconds) {
    double start = hl_now_ms(), end = start + seconds * 1e3, rest;
    bool there = true;
    while (there && !watch->no_notes && (rest = end - hl_now_ms()) > 0) {
        tell_progress(watch, "%zu processes, %zu s to go", watch->n, (size_t)(rest / 1e3) + 1);
        if (watch->filter->child != 0 && has_ended(watch->filter))
            break;
        poll(NULL, 0, (int)(rest < LOOK_MS ? rest : LOOK_MS) + 1);
        if (watch->filter->child != 0) {
            there = find_processes(watch);
            look_at_all(watch);
        }
    }
    watch->survey->seconds = (hl_now_ms() - start) / 1e3;
    return there;
}

/* --- programs --- */

static struct hl_surveyed *find_program(struct hl_survey *survey, const struct watched *watched) {
    for (size_t i = 0; i < survey->n_programs; i++)
        if (survey->program[i].inode == watched->executable.st_ino &&
            survey->program[i].device == watched->executable.st_dev)
            return &survey->program[i];
    if (survey->n_programs % 64 == 0)
        survey->program = hl_resize(survey->program, (survey->n_programs + 64) * sizeof *survey->program);
    struct hl_surveyed *program = &survey->program[survey->n_programs++];
    *program = (struct hl_surveyed){.device = watched->executable.st_dev,
                                    .inode = watched->executable.st_ino,
                                    .path = hl_format("%s", watched->path)};
    return program;
}

static void raise_to(uint64_t *value, uint64_t candidate) {
    *value = candidate > *value ? candidate : *value;
}

static void add_to_program(struct hl_survey *survey, struct watched *watched) {
    struct hl_surveyed *program = find_program(survey, watched);
    const struct hl_usage *first = &watched->first, *last = &watched->last;
    double ms = last->user_ms + last->system_ms - first->user_ms - first->system_ms;
    if (program->processes++ == 0 || ms > program->pid_ms) {
        program->pid = watched->pid;
        program->pid_ms = ms;
    }
    program->cpu_ms += ms;
    program->minor_faults += last->minor_faults - first->minor_faults;
    program->major_faults += last->major_faults - first->major_faults;
    hl_close_watch_counters(watched->counters, &program->counts);
    watched->counters = NULL;
    for (size_t i = 0; i < watched->n_objects; i++) {
        const struct hl_hot_object *from = &watched->object[i];
        struct hl_hot_object *to =
            find_object(&program->object, &program->n_objects, from->device, from->inode, from->path);
        raise_to(&to->text_bytes, from->text_bytes);
        raise_to(&to->huge_bytes, from->huge_bytes);
        raise_to(&to->hot_bytes, from->hot_bytes);
    }
}

static int compare_objects(const void *a, const void *b) {
    const struct hl_hot_object *x = a, *y = b;
    return (x->hot_bytes < y->hot_bytes) - (x->hot_bytes > y->hot_bytes);
}

static void sum_up(struct hl_surveyed *program) {
    if (program->n_objects > 0)
        qsort(program->object, program->n_objects, sizeof *program->object, compare_objects);
    for (size_t i = 0; i < program->n_objects; i++) {
        program->text_bytes += program->object[i].text_bytes;
        program->huge_bytes += program->object[i].huge_bytes;
        program->hot_bytes += program->object[i].hot_bytes;
    }
}

static void make_programs(struct watch *watch) {
    struct hl_survey *survey = watch->survey;
    for (size_t i = 0; i < watch->n; i++) {
        struct watched *watched = &watch->process[i];
        if (watched->has_text)
            add_to_program(survey, watched);
        else
            survey->ended++;
        struct hl_event_counts nothing = {0};
        hl_close_watch_counters(watched->counters, &nothing);
        free_objects(watched->object, watched->n_objects);
        free(watched->path);
    }
    for (size_t i = 0; i < survey->n_programs; i++)
        sum_up(&survey->program[i]);
    free(watch->process);
}

int hl_watch_processes(struct hl_survey *survey, const struct hl_survey_filter *filter, double seconds) {
    struct watch watch = {.survey = survey, .filter = filter};
    struct rlimit files;
    survey->no_counters = hl_try_watch_counters();
    if (survey->no_counters == NULL && getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    bool there = find_processes(&watch) && wait_and_look(&watch, seconds);
    if (there && filter->child == 0)
        look_at_all(&watch);
    clear_progress();
    make_programs(&watch);
    if (!there)
        hl_say("/proc cannot be read: %s; mount it", strerror(errno));
    else if (watch.no_notes)
        hl_say("this kernel cannot tell which pages were executed; boot one with CONFIG_PROC_PAGE_MONITOR");
    return there && !watch.no_notes ? 0 : HL_EXIT_NO;
}

void hl_free_survey(struct hl_survey *survey) {
    for (size_t i = 0; i < survey->n_programs; i++) {
        struct hl_surveyed *program = &survey->program[i];
        free_objects(program->object, program->n_objects);
        free(program->path);
        free(program->advice.reason);
        for (unsigned j = 0; j < 2; j++)
            free(program->advice.command[j]);
    }
    free(survey->program);
    free(survey->curve_problem);
}
