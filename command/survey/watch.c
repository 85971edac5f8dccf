/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: which processes are looked at, and which programs they run.

   Of a sampled process only files are read that take none of its locks: stat, exe, and at the end, for one process of each
   program that was seen, maps.  All files of one process are read through one descriptor of /proc/PID. */
#include "command/survey/watch.h"
#include "command/base/progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- which processes --- */

bool hl_is_owner_wanted(const struct hl_watch *watch, uid_t owner) {
    const struct hl_survey_filter *filter = watch->filter;
    return filter->all_users || filter->child != 0 || filter->pid != 0 || owner == geteuid();
}

static bool is_ours(const struct hl_watch *watch, const struct hl_process *process) {
    struct stat folder;
    return fstat(process->folder, &folder) == 0 && hl_is_owner_wanted(watch, folder.st_uid);
}

/* Whether a process whose parent is PARENT descends from filter->child.  This process is the parent of those whose own has ended
   (PR_SET_CHILD_SUBREAPER). */
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

bool hl_is_program_wanted(const struct hl_watch *watch, const struct hl_file_id *id) {
    const struct hl_survey_filter *filter = watch->filter;
    for (size_t i = 0; i < filter->n_programs; i++)
        if (filter->program[i].st_dev == id->device && filter->program[i].st_ino == id->inode)
            return true;
    return filter->n_programs == 0;
}

struct hl_watched *hl_find_watched(struct hl_watch *watch, pid_t pid, uint64_t started) {
    for (size_t i = watch->n; i-- > 0;)
        if (watch->process[i].pid == pid && watch->process[i].first.started == started)
            return &watch->process[i];
    return NULL;
}

struct hl_watched *hl_add_watched(struct hl_watch *watch, const struct hl_watched *watched) {
    if (watch->n % 64 == 0)
        watch->process = hl_xrealloc(watch->process, (watch->n + 64) * sizeof *watched);
    watch->process[watch->n] = *watched;
    watch->survey->watched++;
    return &watch->process[watch->n++];
}

int hl_note_executable(struct hl_watched *watched, const struct hl_process *process) {
    char *path = hl_read_link(process->folder, "exe");
    int result = path != NULL ? hl_read_file_id(&watched->id, process->folder, "exe", path) : -errno;
    if (result != 0) {
        free(path);
        return result;
    }
    free(watched->path);
    watched->path = path;
    return 0;
}

/* Begins to watch PROCESS. */
static void consider_process(struct hl_watch *watch, const struct hl_process *process,
                             const struct hl_usage *usage,
                             bool (*begin)(struct hl_watch *, const struct hl_process *)) {
    struct hl_survey *survey = watch->survey;
    struct hl_watched watched = {.pid = process->pid, .first = *usage, .last = *usage};
    int result = hl_note_executable(&watched, process);
    survey->refused += result == -EACCES || result == -EPERM;
    survey->ended += result == -ENOENT || result == -ESRCH;
    if (result != 0 || !hl_is_program_wanted(watch, &watched.id) ||
        (begin != NULL && !begin(watch, process))) {
        free(watched.path);
        return;
    }
    if (survey->no_counters == NULL)
        watched.counters = hl_open_watch_counters(process->pid);
    hl_add_watched(watch, &watched);
}

static bool is_selected(const struct hl_survey_filter *filter, pid_t pid, const struct hl_usage *usage) {
    return (filter->pid == 0 || pid == filter->pid) &&
           (filter->child == 0 || is_descendant(pid, usage->parent, filter->child));
}

void hl_find_processes(struct hl_watch *watch, bool (*begin)(struct hl_watch *, const struct hl_process *)) {
    struct hl_survey *survey = watch->survey;
    DIR *proc = NULL;
    survey->kernel_threads = survey->zombies = survey->others = survey->refused = survey->too_large = 0;
    for (pid_t pid; watch->code == 0 && (pid = hl_next_process(&proc)) != 0;) {
        struct hl_process process;
        struct hl_usage usage;
        if (pid == getpid() || hl_read_usage(pid, &usage) != 0 || !is_selected(watch->filter, pid, &usage) ||
            hl_find_watched(watch, pid, usage.started) != NULL || hl_open_process(&process, pid) != 0)
            continue;
        if (usage.flags & HL_KERNEL_THREAD)
            survey->kernel_threads++;
        else if (usage.state == 'Z' || usage.state == 'X')
            survey->zombies++;
        else if (!is_ours(watch, &process))
            survey->others++;
        else
            consider_process(watch, &process, &usage, begin);
        hl_close_process(&process);
        hl_show_progress(0, "%zu processes found", watch->n);
    }
    if (proc != NULL) {
        closedir(proc);
    } else if (errno != 0) {
        hl_warn("/proc cannot be read: %s; mount it", strerror(errno));
        watch->code = HL_EXIT_NO;
    }
}

void hl_refuse_process(struct hl_watch *watch) {
    const struct hl_survey *survey = watch->survey;
    watch->code = HL_EXIT_NO;
    hl_say_unreadable(watch->filter->pid, survey->refused > 0          ? -EACCES
                                          : survey->kernel_threads > 0 ? -ENODATA
                                                                       : -ESRCH);
}

bool hl_has_child_ended(const struct hl_survey_filter *filter) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)filter->child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* --- programs --- */

struct hl_surveyed *hl_find_surveyed(struct hl_survey *survey, const struct hl_file_id *id,
                                     const char *path) {
    for (size_t i = 0; i < survey->n_programs; i++)
        if (hl_is_same_file_id(&survey->program[i].id, id))
            return &survey->program[i];
    if (survey->n_programs % 64 == 0)
        survey->program = hl_xrealloc(survey->program, (survey->n_programs + 64) * sizeof *survey->program);
    struct hl_surveyed *program = &survey->program[survey->n_programs++];
    *program = (struct hl_surveyed){.id = *id, .path = hl_xasprintf("%s", path)};
    return program;
}

struct hl_hot_object *hl_find_hot_object(struct hl_hot_object **object, size_t *n,
                                         const struct hl_file_id *id, const char *path) {
    for (size_t i = 0; i < *n; i++)
        if (hl_is_same_file_id(&(*object)[i].id, id))
            return &(*object)[i];
    *object = hl_xrealloc(*object, (*n + 1) * sizeof **object);
    struct hl_hot_object *last = &(*object)[(*n)++];
    *last = (struct hl_hot_object){.id = *id, .path = hl_xasprintf("%s", path)};
    return last;
}

void hl_free_hot_objects(struct hl_hot_object *object, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(object[i].path);
        free(object[i].chunk);
    }
    free(object);
}

void hl_raise_to(uint64_t *value, uint64_t candidate) { *value = candidate > *value ? candidate : *value; }

/* Adds WATCHED's usage to its program, and notes which process used most. */
static void add_to_program(struct hl_survey *survey, struct hl_watched *watched) {
    struct hl_surveyed *program = hl_find_surveyed(survey, &watched->id, watched->path);
    const struct hl_usage *first = &watched->first, *last = &watched->last;
    double ms = last->user_ms + last->system_ms - first->user_ms - first->system_ms;
    if (program->processes++ == 0 || ms > program->pid_ms) {
        program->pid = watched->pid;
        program->pid_started = first->started;
        program->pid_ms = ms;
    }
    program->cpu_ms += ms;
    program->minor_faults += last->minor_faults - first->minor_faults;
    program->major_faults += last->major_faults - first->major_faults;
    hl_close_watch_counters(watched->counters, &program->counts);
    watched->counters = NULL;
    if (survey->exact)
        hl_add_exact(program, watched);
}

static int compare_objects(const void *a, const void *b) {
    const struct hl_hot_object *x = a, *y = b;
    if (x->samples != y->samples)
        return x->samples < y->samples ? 1 : -1;
    return (x->hot_bytes < y->hot_bytes) - (x->hot_bytes > y->hot_bytes);
}

static void sum_up(struct hl_surveyed *program, bool exact) {
    uint64_t small_samples = 0;
    if (program->n_objects > 0)
        qsort(program->object, program->n_objects, sizeof *program->object, compare_objects);
    for (size_t i = 0; i < program->n_objects; i++) {
        program->text_bytes += program->object[i].text_bytes;
        program->huge_bytes += program->object[i].huge_bytes;
        program->hot_bytes += program->object[i].hot_bytes;
        small_samples += program->object[i].samples - program->object[i].huge_samples;
    }
    for (size_t i = 0; i < program->n_objects; i++) {
        struct hl_hot_object *object = &program->object[i];
        double part = exact ? (double)object->hot_bytes : (double)(object->samples - object->huge_samples),
               whole = exact ? (double)program->hot_bytes : (double)small_samples;
        object->share = whole > 0 ? part / whole : 0;
    }
    if (!exact && program->likely_bytes > program->text_bytes)
        program->likely_bytes = program->text_bytes;
    hl_raise_to(&program->likely_bytes, program->hot_bytes);
}

static void make_programs(struct hl_watch *watch) {
    struct hl_survey *survey = watch->survey;
    for (size_t i = 0; i < watch->n; i++) {
        struct hl_watched *watched = &watch->process[i];
        if (watched->has_text)
            add_to_program(survey, watched);
        else
            survey->ended++;
        struct hl_event_counts nothing = {0};
        hl_close_watch_counters(watched->counters, &nothing);
        hl_free_hot_objects(watched->object, watched->n_objects);
        free(watched->path);
    }
    for (size_t i = 0; i < survey->n_programs; i++) {
        if (!survey->exact)
            hl_measure_text(&survey->program[i]);
        sum_up(&survey->program[i], survey->exact);
    }
    free(watch->process);
}

int hl_watch_processes(struct hl_survey *survey, const struct hl_survey_filter *filter, double seconds) {
    struct hl_watch watch = {.survey = survey, .filter = filter};
    survey->no_counters = hl_try_watch_counters();
    if (survey->no_counters == NULL)
        hl_raise_file_limit();
    if (survey->exact)
        hl_watch_exactly(&watch, seconds);
    else
        hl_watch_by_samples(&watch, seconds);
    hl_hide_progress();
    make_programs(&watch);
    return watch.code;
}

void hl_free_survey(struct hl_survey *survey) {
    for (size_t i = 0; i < survey->n_programs; i++) {
        struct hl_surveyed *program = &survey->program[i];
        hl_free_hot_objects(program->object, program->n_objects);
        free(program->path);
        free(program->advice.reason);
        for (unsigned j = 0; j < 2; j++)
            free(program->advice.command[j]);
    }
    free(survey->program);
    free(survey->costs_problem);
}
