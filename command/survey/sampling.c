/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the text that processes execute, by samples (sample.h).

   A sample says in which page of which file a processor was, and whether that page was small or huge.  The samples in each page
   are counted; everything else follows from these counts at the end.  The number of pages that were executed without a sample is
   estimated from the pages with just one or two. */
#include "command/survey/watch.h"
#include "command/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How often the survey checks whether the program that it has started has ended. */
#define LOOK_MS 100
#define TURN_MS_MAX 1000
#define TURN_MS_MIN 100
#define SMALL_SHIFT 12
#define HUGE_SHIFT 21

/* Samples in one page. */
struct spot {
    uint32_t program, object;
    bool huge;
    uint64_t page, samples; /* in the file, in units of its size; 0 samples: an empty spot */
};

/* Spots in an open hash table, at most half full. */
struct tally {
    struct hl_watch *watch;
    struct hl_resolver *resolver;
    uint64_t began; /* ticks since boot */
    struct hl_file_id own;
    size_t n, size;
    struct spot *spot;
};

/* --- the table --- */

static bool is_same_spot(const struct spot *a, const struct spot *b) {
    return a->program == b->program && a->object == b->object && a->page == b->page && a->huge == b->huge;
}

static struct spot *find_spot(struct spot *table, size_t size, const struct spot *wanted) {
    uint64_t at = (wanted->page * 0x9e3779b97f4a7c15) ^ ((uint64_t)wanted->program << 40) ^
                  ((uint64_t)wanted->object << 20) ^ wanted->huge;
    for (at ^= at >> 29;; at++) {
        struct spot *spot = &table[at & (size - 1)];
        if (spot->samples == 0 || is_same_spot(spot, wanted))
            return spot;
    }
}

static void grow(struct tally *tally) {
    size_t size = tally->size > 0 ? 2 * tally->size : 1024;
    struct spot *table = hl_xmalloc(size * sizeof *table);
    for (size_t i = 0; i < tally->size; i++)
        if (tally->spot[i].samples > 0)
            *find_spot(table, size, &tally->spot[i]) = tally->spot[i];
    free(tally->spot);
    tally->spot = table;
    tally->size = size;
}

static void count_spot(struct tally *tally, const struct spot *wanted) {
    if (2 * tally->n >= tally->size)
        grow(tally);
    struct spot *spot = find_spot(tally->spot, tally->size, wanted);
    uint64_t samples = spot->samples;
    tally->n += samples == 0;
    *spot = *wanted;
    spot->samples = samples + 1;
}

/* --- one sample --- */

/* The process of PLACE, which may be new. */
static struct hl_watched *find_process(struct tally *tally, const struct hl_sample_place *place) {
    struct hl_watch *watch = tally->watch;
    struct hl_watched *watched = hl_find_watched(watch, place->process, place->started);
    if (watched != NULL)
        return watched;
    struct hl_watched fresh = {.pid = place->process, .path = hl_xasprintf("%s", place->program_path)};
    struct hl_usage usage;
    if (place->started < tally->began && hl_read_usage(place->process, &usage) == 0 &&
        usage.started == place->started)
        fresh.first = usage;
    fresh.first.started = place->started;
    fresh.last = fresh.first;
    return hl_add_watched(watch, &fresh);
}

static bool is_wanted(const struct tally *tally, const struct hl_sample_place *place) {
    const struct hl_survey_filter *filter = tally->watch->filter;
    bool is_own = hl_is_same_file_id(&place->program, &tally->own);
    return hl_is_owner_wanted(tally->watch, place->owner) &&
           (filter->pid == 0 || place->process == filter->pid) &&
           !(is_own && place->process == filter->child) &&
           hl_is_program_wanted(tally->watch, &place->program);
}

static void count_place(struct tally *tally, const struct hl_sample_place *place, uint64_t page_bytes) {
    struct hl_survey *survey = tally->watch->survey;
    struct hl_watched *watched = find_process(tally, place);
    struct hl_surveyed *program = hl_find_surveyed(survey, &place->program, place->program_path);
    bool huge = page_bytes >= (uint64_t)1 << HUGE_SHIFT, is_file = place->kind == HL_PLACE_FILE;
    static const struct hl_file_id memory = {0};
    watched->samples++;
    watched->id = place->program;
    program->samples++;
    program->huge_samples += huge;
    program->memory_samples += !huge && !is_file;
    if (!huge && !is_file)
        return;
    struct hl_hot_object *object =
        hl_find_hot_object(&program->object, &program->n_objects, is_file ? &place->file : &memory,
                           is_file ? place->path : HL_HOT_MEMORY);
    /* Memory is known by its offset in its mapping, which has another address in each process of a program. */
    uint64_t at = is_file ? place->offset : place->offset - place->mapping_offset;
    object->samples++;
    object->huge_samples += huge;
    hl_raise_to(&object->text_bytes, place->end - place->start);
    count_spot(tally,
               &(struct spot){(uint32_t)(program - survey->program), (uint32_t)(object - program->object),
                              huge, at >> (huge ? HUGE_SHIFT : SMALL_SHIFT), 0});
}

static void count_sample(void *data, const struct hl_sample *sample) {
    struct tally *tally = data;
    struct hl_sample_place place;
    if (sample->process == getpid())
        return;
    hl_resolve_sample(tally->resolver, sample, &place);
    /* Process 0 is one in another PID namespace. */
    tally->watch->survey->samples_ended += place.kind == HL_PLACE_ENDED && sample->process != 0;
    if (sample->process == 0 ||
        (place.kind == HL_PLACE_REFUSED && hl_is_owner_wanted(tally->watch, place.owner)))
        tally->watch->survey->samples_refused++;
    if ((place.kind == HL_PLACE_FILE || place.kind == HL_PLACE_MEMORY) && is_wanted(tally, &place))
        count_place(tally, &place, sample->page_bytes);
}

/* --- all of them --- */

static struct hl_hot_chunk *find_chunk(struct hl_hot_object *object, uint64_t offset) {
    for (size_t i = object->n_chunks; i-- > 0;)
        if (object->chunk[i].offset == offset)
            return &object->chunk[i];
    if (object->n_chunks % 16 == 0)
        object->chunk = hl_xrealloc(object->chunk, (object->n_chunks + 16) * sizeof *object->chunk);
    object->chunk[object->n_chunks] = (struct hl_hot_chunk){.offset = offset};
    return &object->chunk[object->n_chunks++];
}

static int compare_chunks(const void *a, const void *b) {
    const struct hl_hot_chunk *x = a, *y = b;
    if (x->samples != y->samples)
        return x->samples < y->samples ? 1 : -1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void add_spot(struct hl_surveyed *program, const struct spot *spot) {
    struct hl_hot_object *object = &program->object[spot->object];
    struct hl_hot_chunk *chunk =
        find_chunk(object, spot->page >> (spot->huge ? 0 : HUGE_SHIFT - SMALL_SHIFT) << HUGE_SHIFT);
    chunk->samples += spot->samples;
    chunk->huge_samples += spot->huge ? spot->samples : 0;
    chunk->pages += !spot->huge;
    if (spot->huge)
        object->huge_bytes += (uint64_t)1 << HUGE_SHIFT;
    else
        object->hot_bytes += (uint64_t)1 << SMALL_SHIFT;
}

/* Adds up the spots of each program. */
static void sum_up(struct tally *tally) {
    struct hl_survey *survey = tally->watch->survey;
    struct frequency {
        uint64_t seen, once, twice;
    } *frequency = hl_xmalloc((survey->n_programs + 1) * sizeof *frequency);
    for (size_t i = 0; i < tally->size; i++) {
        const struct spot *spot = &tally->spot[i];
        if (spot->samples == 0)
            continue;
        add_spot(&survey->program[spot->program], spot);
        frequency[spot->program].seen += !spot->huge;
        frequency[spot->program].once += !spot->huge && spot->samples == 1;
        frequency[spot->program].twice += !spot->huge && spot->samples == 2;
    }
    for (size_t i = 0; i < survey->n_programs; i++) {
        struct hl_surveyed *program = &survey->program[i];
        program->likely_bytes =
            (uint64_t)hl_estimate_seen(frequency[i].seen, frequency[i].once, frequency[i].twice)
            << SMALL_SHIFT;
        for (size_t j = 0; j < program->n_objects; j++)
            if (program->object[j].n_chunks > 0)
                qsort(program->object[j].chunk, program->object[j].n_chunks, sizeof *program->object[j].chunk,
                      compare_chunks);
    }
    free(frequency);
    free(tally->spot);
}

/* Reads what the processes have used until now.  Processes that have ended are known only from their samples. */
static void read_usages(struct hl_watch *watch) {
    for (size_t i = 0; i < watch->n; i++) {
        struct hl_watched *watched = &watch->process[i];
        struct hl_process process;
        struct hl_usage usage;
        if (hl_open_process(&process, watched->pid) == 0 && hl_read_usage(watched->pid, &usage) == 0 &&
            usage.started == watched->first.started && usage.state != 'Z' && usage.state != 'X') {
            watched->last = usage;
            watched->has_text = true;
            hl_note_executable(watched, &process);
        } else if (watched->samples > 0) {
            watched->last.user_ms =
                watched->first.user_ms + 1e3 * (double)watched->samples / watch->survey->hz;
            watched->has_text = true;
        }
        if (process.folder >= 0)
            hl_close_process(&process);
    }
}

void hl_measure_text(struct hl_surveyed *program) {
    struct hl_process opened, process;
    struct hl_usage usage;
    if (program->samples == 0 || hl_open_process(&opened, program->pid) != 0)
        return;
    if (hl_read_mappings(&process, &opened) == 0 && hl_read_usage(program->pid, &usage) == 0 &&
        usage.started == program->pid_started)
        for (size_t i = 0; i < program->n_objects; i++) {
            struct hl_hot_object *object = &program->object[i];
            uint64_t bytes = 0;
            for (size_t j = 0; object->id.inode != 0 && j < process.n_regions; j++)
                if (process.region[j].inode == object->id.inode &&
                    process.region[j].device == object->id.device && process.region[j].flags & PF_X)
                    bytes += process.region[j].end - process.region[j].start;
            hl_raise_to(&object->text_bytes, bytes);
        }
    hl_close_process(&process);
    hl_close_process(&opened);
}

/* --- the window --- */

/* Samples the present threads of the watched processes. */
static int sample_threads(struct hl_watch *watch, struct hl_sampler **sampler, unsigned hz) {
    struct hl_sampler_request request = {.hz = hz};
    pid_t *thread = NULL;
    for (size_t i = 0; i < watch->n && watch->filter->child == 0; i++)
        hl_add_threads(&thread, &request.n_threads, watch->process[i].pid);
    if (watch->filter->child != 0) /* it still executes hugeld, which may not be a wanted program */
        hl_add_threads(&thread, &request.n_threads, watch->filter->child);
    request.thread = thread;
    watch->survey->of_threads = true;
    watch->survey->hz = hz;
    int result = request.n_threads > 0 ? hl_open_sampler(sampler, &request) : -ESRCH;
    free(thread);
    return result;
}

/* 0, or a negated errno. */
static int begin_to_sample(struct hl_watch *watch, struct hl_sampler **sampler, double seconds) {
    const struct hl_survey_filter *filter = watch->filter;
    struct hl_survey *survey = watch->survey;
    /* Each processor has a turn, even if there are many: 256 take 32 turns. */
    double turns = ceil((double)sysconf(_SC_NPROCESSORS_ONLN) / HL_SAMPLER_PROCESSORS);
    struct hl_sampler_request request = {
        .hz = HL_SAMPLER_HZ, .turn_ms = fmax(TURN_MS_MIN, fmin(TURN_MS_MAX, seconds * 1e3 / turns))};
    if (filter->child != 0 || filter->pid != 0)
        return sample_threads(watch, sampler, HL_SAMPLER_HZ_ONE);
    survey->hz = request.hz;
    int result = hl_open_sampler(sampler, &request);
    if (result == -EACCES || result == -EPERM)
        result = sample_threads(watch, sampler, HL_SAMPLER_HZ);
    return result;
}

static void refuse(struct hl_watch *watch, int result) {
    watch->code = HL_EXIT_NO;
    if (watch->filter->pid != 0 && (watch->n == 0 || result == -ESRCH)) {
        hl_refuse_process(watch);
        return;
    }
    char *reason = hl_explain_no_samples(result);
    hl_warn("survey: there are no samples: %s, or count pages by --exact", reason);
    free(reason);
}

static void sample_window(struct tally *tally, struct hl_sampler *sampler, double seconds) {
    struct hl_watch *watch = tally->watch;
    double end = hl_now_ms() + seconds * 1e3, rest;
    int result = 0;
    while (result == 0 && (rest = end - hl_now_ms()) > 0) {
        hl_show_progress(0, "%zu processes, %zu s to go", watch->n, (size_t)(rest / 1e3) + 1);
        if (watch->filter->child != 0 && hl_has_child_ended(watch->filter))
            break;
        result = hl_read_samples(sampler, fmin(rest, LOOK_MS), count_sample, tally);
    }
    hl_read_samples(sampler, 0, count_sample, tally);
    watch->survey->sampled = *hl_count_samples(sampler);
}

void hl_watch_by_samples(struct hl_watch *watch, double seconds) {
    struct hl_survey *survey = watch->survey;
    struct hl_sampler *sampler = NULL;
    struct tally tally = {.watch = watch};
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    tally.began =
        (uint64_t)((double)now.tv_sec + 1e-9 * (double)now.tv_nsec) * (uint64_t)sysconf(_SC_CLK_TCK);
    hl_read_file_id(&tally.own, AT_FDCWD, "/proc/self/exe", "");
    hl_find_processes(watch, NULL);
    int result = watch->code == 0 ? begin_to_sample(watch, &sampler, seconds) : 0;
    if (watch->code != 0 || (result != 0 && !(result == -ESRCH && watch->filter->pid == 0))) {
        if (watch->code == 0)
            refuse(watch, result);
        return;
    }
    double start = hl_now_ms();
    tally.resolver = hl_open_resolver();
    if (watch->filter->child != 0)
        close(watch->filter->go);
    if (sampler != NULL) /* else there is no process to sample */
        sample_window(&tally, sampler, seconds);
    survey->seconds = (hl_now_ms() - start) / 1e3;
    survey->undecided = hl_lost_too_many(&survey->sampled);
    hl_close_sampler(sampler);
    hl_close_resolver(tally.resolver);
    hl_find_processes(watch, NULL);
    read_usages(watch);
    sum_up(&tally);
}
