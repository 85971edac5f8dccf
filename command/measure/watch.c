/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the text that processes execute, by samples (sample.h).

   A sample says in which page of which file a processor was, and whether that page was small or huge.  The samples in each page
   are counted; everything else follows from these counts at the end.  The number of pages that were executed without a sample is
   estimated from the pages with just one or two.

   Of a sampled process only files are read that take none of its locks: stat, exe, and at the end, for one process of each
   program that was seen, maps.  All files of one process are read through one descriptor of /proc/PID. */
#include "command/measure/survey.h"
#include "command/lib/progress.h"
#include "command/measure/sample-read.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SMALL_SHIFT 12
#define HUGE_SHIFT 21
/* The name of text on huge pages that no file has. */
#define HOT_MEMORY "text on huge pages"

/* One process. */
struct watched {
    pid_t pid;
    struct hl_usage first, last;
    bool is_counted;      /* LAST was read, or it is known from samples */
    struct hl_file_id id; /* its executable */
    char *path;
    uint64_t samples;
};

/* Samples in one page. */
struct spot {
    uint32_t program, object;
    uint64_t is_huge, page; /* PAGE: in the file, in units of its size */
    uint64_t samples;
};

struct watch {
    struct hl_survey *survey;
    const struct hl_survey_filter *filter;
    const struct hl_sample_source *source;
    size_t n;
    struct watched *process;
    int code;       /* 0, or the exit code: one line was printed */
    uint64_t began; /* ticks since boot */
    struct hl_resolver *resolver;
    size_t n_spots, spots_max;
    struct spot *spot;
};

static void raise_to(uint64_t *value, uint64_t candidate) {
    *value = candidate > *value ? candidate : *value;
}

/* --- which processes --- */

static bool is_owner_wanted(const struct watch *watch, uid_t owner) {
    const struct hl_survey_filter *filter = watch->filter;
    return filter->all_users || filter->pid != 0 || owner == geteuid();
}

static bool is_program_wanted(const struct watch *watch, const struct hl_file_id *id) {
    const struct hl_survey_filter *filter = watch->filter;
    for (size_t i = 0; i < filter->n_programs; i++)
        if (filter->program[i].st_dev == id->device && filter->program[i].st_ino == id->inode)
            return true;
    return filter->n_programs == 0;
}

/* The process that had the number PID and STARTED then; NULL if it is not watched. */
static struct watched *find_watched(struct watch *watch, pid_t pid, uint64_t started) {
    for (size_t i = watch->n; i-- > 0;)
        if (watch->process[i].pid == pid && watch->process[i].first.started == started)
            return &watch->process[i];
    return NULL;
}

static struct watched *add_watched(struct watch *watch, const struct watched *watched) {
    if (watch->n % 64 == 0)
        watch->process = hl_xrealloc(watch->process, (watch->n + 64) * sizeof *watched);
    watch->process[watch->n] = *watched;
    watch->survey->watched++;
    return &watch->process[watch->n++];
}

/* Sets WATCHED to PROCESS's present executable.  0, or a negated errno, and WATCHED is unchanged. */
static int note_executable(struct watched *watched, const struct hl_process *process) {
    char *path = hl_read_link(process->folder, "exe");
    int result = path != NULL ? hl_read_file_id(&watched->id, process->folder, "exe") : -errno;
    if (result != 0) {
        free(path);
        return result;
    }
    free(watched->path);
    watched->path = path;
    return 0;
}

/* Begins to watch PROCESS if its owner and program are wanted. */
static void consider_process(struct watch *watch, const struct hl_process *process,
                             const struct hl_usage *usage) {
    struct hl_survey *survey = watch->survey;
    struct watched watched = {.pid = process->pid, .first = *usage, .last = *usage};
    struct stat folder;
    if (usage->flags & HL_KERNEL_THREAD || usage->state == 'Z' || usage->state == 'X')
        return;
    if (fstat(process->folder, &folder) != 0 || !is_owner_wanted(watch, folder.st_uid)) {
        survey->others++;
        return;
    }
    int result = note_executable(&watched, process);
    survey->refused += result == -EACCES || result == -EPERM;
    survey->ended += result == -ENOENT || result == -ESRCH;
    if (result == 0 && is_program_wanted(watch, &watched.id))
        add_watched(watch, &watched);
    else
        free(watched.path);
}

/* Looks through /proc for processes that are not watched yet.  Sets watch->code if /proc cannot be read. */
static void find_processes(struct watch *watch) {
    struct hl_survey *survey = watch->survey;
    DIR *proc = NULL;
    survey->others = survey->refused = 0;
    for (pid_t pid; (pid = hl_next_process(&proc)) != 0;) {
        struct hl_process process;
        struct hl_usage usage;
        if (pid == getpid() || hl_read_usage(pid, &usage) != 0 ||
            (watch->filter->pid != 0 && pid != watch->filter->pid) ||
            find_watched(watch, pid, usage.started) != NULL || hl_open_process(&process, pid) != 0)
            continue;
        consider_process(watch, &process, &usage);
        hl_close_process(&process);
    }
    if (proc != NULL) {
        closedir(proc);
    } else if (errno != 0) {
        hl_warn("/proc cannot be read: %s; mount it", strerror(errno));
        watch->code = HL_EXIT_NO;
    }
}

/* Prints why there are no samples. */
static void refuse(struct watch *watch, int result) {
    watch->code = HL_EXIT_NO;
    if (watch->filter->pid != 0 && (watch->n == 0 || result == -ESRCH)) {
        hl_say_unreadable(watch->filter->pid, watch->survey->refused > 0                           ? -EACCES
                                              : kill(watch->filter->pid, 0) == 0 || errno == EPERM ? -ENODATA
                                                                                                   : -ESRCH);
        return;
    }
    char *reason = hl_explain_no_samples(result);
    hl_warn("survey: there are no samples: %s", reason);
    free(reason);
}

/* --- one sample --- */

static struct hl_surveyed *find_program(struct hl_survey *survey, const struct hl_file_id *id,
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

static struct hl_hot_object *find_object(struct hl_surveyed *program, const struct hl_file_id *id,
                                         const char *path) {
    for (size_t i = 0; i < program->n_objects; i++)
        if (hl_is_same_file_id(&program->object[i].id, id))
            return &program->object[i];
    program->object = hl_xrealloc(program->object, (program->n_objects + 1) * sizeof *program->object);
    struct hl_hot_object *last = &program->object[program->n_objects++];
    *last = (struct hl_hot_object){.id = *id, .path = hl_xasprintf("%s", path)};
    return last;
}

/* The process of RESOLVED, which may be new. */
static struct watched *find_process(struct watch *watch, const struct hl_resolved_sample *resolved) {
    struct watched *watched = find_watched(watch, resolved->process, resolved->started);
    if (watched != NULL)
        return watched;
    struct watched fresh = {.pid = resolved->process, .path = hl_xasprintf("%s", resolved->program_path)};
    struct hl_usage usage;
    if (resolved->started < watch->began && hl_read_usage(resolved->process, &usage) == 0 &&
        usage.started == resolved->started)
        fresh.first = usage;
    fresh.first.started = resolved->started;
    fresh.last = fresh.first;
    return add_watched(watch, &fresh);
}

static bool is_wanted(const struct watch *watch, const struct hl_resolved_sample *resolved) {
    const struct hl_survey_filter *filter = watch->filter;
    return is_owner_wanted(watch, resolved->owner) &&
           (filter->pid == 0 || resolved->process == filter->pid) &&
           is_program_wanted(watch, &resolved->program);
}

static int compare_spots(const void *a, const void *b) {
    return memcmp(a, b, offsetof(struct spot, samples));
}

/* Sorts the spots, and puts the samples of one page together. */
static void merge_spots(struct watch *watch) {
    size_t n = 0;
    if (watch->n_spots > 0)
        qsort(watch->spot, watch->n_spots, sizeof *watch->spot, compare_spots);
    for (size_t i = 0; i < watch->n_spots; i++)
        if (n > 0 && compare_spots(&watch->spot[n - 1], &watch->spot[i]) == 0)
            watch->spot[n - 1].samples += watch->spot[i].samples;
        else
            watch->spot[n++] = watch->spot[i];
    watch->n_spots = n;
}

static void add_spot(struct watch *watch, const struct spot *spot) {
    if (watch->n_spots == watch->spots_max) {
        merge_spots(watch);
        if (2 * watch->n_spots >= watch->spots_max) {
            watch->spots_max = watch->spots_max > 0 ? 2 * watch->spots_max : 4096;
            watch->spot = hl_xrealloc(watch->spot, watch->spots_max * sizeof *watch->spot);
        }
    }
    watch->spot[watch->n_spots++] = *spot;
}

static void count_resolved(struct watch *watch, const struct hl_resolved_sample *resolved,
                           uint64_t page_bytes) {
    struct hl_survey *survey = watch->survey;
    struct watched *watched = find_process(watch, resolved);
    struct hl_surveyed *program = find_program(survey, &resolved->program, resolved->program_path);
    bool is_huge = page_bytes >= (uint64_t)1 << HUGE_SHIFT, is_file = resolved->kind == HL_RESOLVED_FILE;
    static const struct hl_file_id memory = {0};
    watched->samples++;
    watched->id = resolved->program;
    program->samples++;
    program->huge_samples += is_huge;
    program->memory_samples += !is_huge && !is_file;
    if (!is_huge && !is_file)
        return;
    struct hl_hot_object *object =
        find_object(program, is_file ? &resolved->file : &memory, is_file ? resolved->path : HOT_MEMORY);
    /* Memory is known by its offset in its mapping, which has another address in each process of a program. */
    uint64_t at = is_file ? resolved->offset : resolved->offset - resolved->mapping_offset;
    object->samples++;
    object->huge_samples += is_huge;
    raise_to(&object->text_bytes, resolved->end - resolved->start);
    add_spot(watch,
             &(struct spot){(uint32_t)(program - survey->program), (uint32_t)(object - program->object),
                            is_huge, at >> (is_huge ? HUGE_SHIFT : SMALL_SHIFT), 1});
}

static void count_sample(void *data, const struct hl_sample *sample) {
    struct watch *watch = data;
    struct hl_survey *survey = watch->survey;
    struct hl_resolved_sample resolved;
    if (sample->process == getpid())
        return;
    watch->source->resolve(watch->resolver, sample, &resolved);
    /* Process 0 is one in another PID namespace. */
    survey->samples_ended += resolved.kind == HL_RESOLVED_ENDED && sample->process != 0;
    survey->samples_refused += sample->process == 0 || (resolved.kind == HL_RESOLVED_REFUSED &&
                                                        is_owner_wanted(watch, resolved.owner));
    if ((resolved.kind == HL_RESOLVED_FILE || resolved.kind == HL_RESOLVED_MEMORY) &&
        is_wanted(watch, &resolved))
        count_resolved(watch, &resolved, sample->page_bytes);
}

/* --- the window --- */

/* Adds the threads that PID has now to the *N of *TIDS. */
static void add_threads(pid_t **tids, size_t *n, pid_t pid) {
    char *path = hl_xasprintf("/proc/%d/task", pid);
    DIR *folder = opendir(path);
    free(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t tid = hl_parse_pid(entry->d_name);
        if (tid == 0)
            continue;
        if (*n % 64 == 0)
            *tids = hl_xrealloc(*tids, (*n + 64) * sizeof **tids);
        (*tids)[(*n)++] = tid;
    }
    if (folder != NULL)
        closedir(folder);
}

/* Samples the present threads of the watched processes. */
static int sample_threads(struct watch *watch, struct hl_sampler **sampler, unsigned hz) {
    struct hl_sampler_request request = {.hz = hz};
    pid_t *thread = NULL;
    for (size_t i = 0; i < watch->n; i++)
        add_threads(&thread, &request.n_threads, watch->process[i].pid);
    request.thread = thread;
    watch->survey->of_threads = true;
    watch->survey->hz = hz;
    int result = request.n_threads > 0 ? watch->source->open(sampler, &request) : -ESRCH;
    free(thread);
    return result;
}

/* 0, or a negated errno. */
static int begin_to_sample(struct watch *watch, struct hl_sampler **sampler) {
    struct hl_sampler_request request = {.hz = HL_SAMPLER_HZ};
    if (watch->filter->pid != 0)
        return sample_threads(watch, sampler, HL_SAMPLER_HZ_ONE);
    watch->survey->hz = request.hz;
    int result = watch->source->open(sampler, &request);
    if (result == -EACCES || result == -EPERM)
        result = sample_threads(watch, sampler, HL_SAMPLER_HZ);
    return result;
}

/* SAMPLER: NULL if there is no process to sample. */
static void sample_window(struct watch *watch, struct hl_sampler *sampler, double seconds) {
    struct hl_survey *survey = watch->survey;
    const struct hl_sample_source *source = watch->source;
    double start = source->now_ms(), end = start + seconds * 1e3, rest;
    while (sampler != NULL && (rest = end - source->now_ms()) > 0) {
        hl_show_progress(0, "%zu processes, %zu s to go", watch->n, (size_t)(rest / 1e3) + 1);
        source->read(sampler, rest, count_sample, watch);
    }
    hl_hide_progress();
    survey->seconds = (source->now_ms() - start) / 1e3;
    if (sampler == NULL)
        return;
    source->read(sampler, 0, count_sample, watch);
    survey->sampled = *source->count(sampler);
    survey->undecided = hl_lost_too_many(&survey->sampled);
}

/* --- programs --- */

/* Reads what WATCHED has used until now.  A process that has ended is known only from its samples. */
static void read_usage(const struct hl_survey *survey, struct watched *watched) {
    struct hl_process process;
    struct hl_usage usage;
    if (hl_open_process(&process, watched->pid) == 0 && hl_read_usage(watched->pid, &usage) == 0 &&
        usage.started == watched->first.started && usage.state != 'Z' && usage.state != 'X') {
        watched->last = usage;
        watched->is_counted = true;
        note_executable(watched, &process);
    } else if (watched->samples > 0) {
        watched->last.user_ms = watched->first.user_ms + 1e3 * (double)watched->samples / survey->hz;
        watched->is_counted = true;
    }
    if (process.folder >= 0)
        hl_close_process(&process);
}

/* Adds WATCHED's usage to its program, and notes which process used most. */
static void add_to_program(struct hl_survey *survey, const struct watched *watched) {
    struct hl_surveyed *program = find_program(survey, &watched->id, watched->path);
    const struct hl_usage *first = &watched->first, *last = &watched->last;
    double ms = last->user_ms + last->system_ms - first->user_ms - first->system_ms;
    if (program->processes++ == 0 || ms > program->pid_ms) {
        program->pid = watched->pid;
        program->pid_started = first->started;
        program->pid_ms = ms;
    }
    program->cpu_share += ms / (survey->seconds * 1e3);
}

static struct hl_hot_chunk *find_chunk(struct hl_hot_object *object, uint64_t offset) {
    for (size_t i = object->n_chunks; i-- > 0;)
        if (object->chunk[i].offset == offset)
            return &object->chunk[i];
    if (object->n_chunks % 16 == 0)
        object->chunk = hl_xrealloc(object->chunk, (object->n_chunks + 16) * sizeof *object->chunk);
    object->chunk[object->n_chunks] = (struct hl_hot_chunk){.offset = offset};
    return &object->chunk[object->n_chunks++];
}

static void add_to_chunk(struct hl_hot_object *object, const struct spot *spot) {
    unsigned shift = spot->is_huge ? 0 : HUGE_SHIFT - SMALL_SHIFT;
    struct hl_hot_chunk *chunk = find_chunk(object, spot->page >> shift << HUGE_SHIFT);
    chunk->samples += spot->samples;
    chunk->huge_samples += spot->is_huge ? spot->samples : 0;
    chunk->pages += !spot->is_huge;
    if (spot->is_huge)
        object->huge_bytes += (uint64_t)1 << HUGE_SHIFT;
    else
        object->hot_bytes += (uint64_t)1 << SMALL_SHIFT;
}

/* Finds how much text of its objects PROGRAM has mapped, from maps of its busiest process, if that lives. */
static void measure_text(struct hl_surveyed *program) {
    struct hl_process opened, process;
    struct hl_usage usage;
    if (program->samples == 0 || hl_open_process(&opened, program->pid) != 0)
        return;
    bool is_same = hl_read_mappings(&process, &opened) == 0 && hl_read_usage(program->pid, &usage) == 0 &&
                   usage.started == program->pid_started;
    for (size_t i = 0; is_same && i < program->n_objects; i++) {
        struct hl_hot_object *object = &program->object[i];
        uint64_t bytes = 0;
        for (size_t j = 0; object->id.inode != 0 && j < process.n_regions; j++) {
            const struct hl_region *region = &process.region[j];
            if (region->inode == object->id.inode && region->device == object->id.device &&
                region->flags & PF_X)
                bytes += region->end - region->start;
        }
        raise_to(&object->text_bytes, bytes);
    }
    hl_close_process(&process);
    hl_close_process(&opened);
}

static int compare_objects(const void *a, const void *b) {
    const struct hl_hot_object *x = a, *y = b;
    return (x->samples < y->samples) - (x->samples > y->samples);
}

/* Adds up the objects of PROGRAM, and sorts them.  SEEN small pages had samples, ONCE of these one and TWICE two. */
static void sum_up(struct hl_surveyed *program, uint64_t seen, uint64_t once, uint64_t twice) {
    uint64_t small_samples = 0;
    if (program->n_objects > 0)
        qsort(program->object, program->n_objects, sizeof *program->object, compare_objects);
    for (size_t i = 0; i < program->n_objects; i++) {
        struct hl_hot_object *object = &program->object[i];
        program->text_bytes += object->text_bytes;
        program->huge_bytes += object->huge_bytes;
        program->hot_bytes += object->hot_bytes;
        small_samples += object->samples - object->huge_samples;
    }
    for (size_t i = 0; i < program->n_objects && small_samples > 0; i++) {
        struct hl_hot_object *object = &program->object[i];
        object->share = (double)(object->samples - object->huge_samples) / (double)small_samples;
    }
    program->likely_bytes = (uint64_t)hl_estimate_seen(seen, once, twice) << SMALL_SHIFT;
    if (program->likely_bytes > program->text_bytes)
        program->likely_bytes = program->text_bytes;
    raise_to(&program->likely_bytes, program->hot_bytes);
}

static void make_programs(struct watch *watch) {
    struct hl_survey *survey = watch->survey;
    for (size_t i = 0; i < watch->n; i++) {
        read_usage(survey, &watch->process[i]);
        if (watch->process[i].is_counted)
            add_to_program(survey, &watch->process[i]);
        else
            survey->ended++;
        free(watch->process[i].path);
    }
    struct frequency {
        uint64_t seen, once, twice;
    } *frequency = hl_xmalloc((survey->n_programs + 1) * sizeof *frequency);
    merge_spots(watch);
    for (size_t i = 0; i < watch->n_spots; i++) {
        const struct spot *spot = &watch->spot[i];
        struct frequency *of_program = &frequency[spot->program];
        add_to_chunk(&survey->program[spot->program].object[spot->object], spot);
        of_program->seen += !spot->is_huge;
        of_program->once += !spot->is_huge && spot->samples == 1;
        of_program->twice += !spot->is_huge && spot->samples == 2;
    }
    for (size_t i = 0; i < survey->n_programs; i++) {
        measure_text(&survey->program[i]);
        sum_up(&survey->program[i], frequency[i].seen, frequency[i].once, frequency[i].twice);
    }
    free(frequency);
}

int hl_watch_processes(struct hl_survey *survey, const struct hl_survey_filter *filter, double seconds,
                       const struct hl_sample_source *source) {
    struct watch watch = {.survey = survey, .filter = filter, .source = source};
    struct hl_sampler *sampler = NULL;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    watch.began = (uint64_t)now.tv_sec * (uint64_t)sysconf(_SC_CLK_TCK);
    find_processes(&watch);
    int result = watch.code == 0 ? begin_to_sample(&watch, &sampler) : 0;
    if (result != 0 && (result != -ESRCH || filter->pid != 0))
        refuse(&watch, result);
    if (watch.code == 0) {
        watch.resolver = hl_open_resolver();
        sample_window(&watch, sampler, seconds);
        source->close(sampler);
        hl_close_resolver(watch.resolver);
        find_processes(&watch);
    }
    make_programs(&watch);
    free(watch.process);
    free(watch.spot);
    return watch.code;
}

void hl_free_survey(struct hl_survey *survey) {
    for (size_t i = 0; i < survey->n_programs; i++) {
        struct hl_surveyed *program = &survey->program[i];
        for (size_t j = 0; j < program->n_objects; j++) {
            free(program->object[j].path);
            free(program->object[j].chunk);
        }
        free(program->object);
        free(program->path);
        free(program->advice.reason);
        free(program->advice.command);
    }
    free(survey->program);
}
