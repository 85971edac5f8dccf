/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Windows, the samples in them, and the table of files.

   The cost of a window is limited: eight processors at a time (sample.h), a part of this process's own time, and a table of a
   fixed number of files.  The counts of one window count half in the next, so that a file that is not used any more leaves the
   table. */
#include "command/service/observe.h"
#include "command/base/common.h"
#include "command/base/local.h"
#include "elf/kernel.h"
#include "command/survey/sample.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 1024
#define CHUNKS_MAX 1024
#define EXAMINED_MAX 16 /* after a window */
/* A window may take this part of its length in processor time; if it takes more, the time between windows is doubled, up to this
   many times. */
#define OWN_SHARE 0.05
#define BACK_OFF_MAX 16
/* The time of this process before that is judged. */
#define OWN_MS_MIN 50
#define JITTER 0.5

struct hl_observer {
    unsigned long long huge_page_bytes;
    /* The window, or until the next one. */
    struct hl_sampler *sampler; /* NULL: there is none */
    struct hl_resolver *resolver;
    double begins, ends; /* hl_now_ms */
    double own_ms;       /* this process's time when it began */
    double back_off;
    int said; /* why there are no samples; printed once */
    const struct hl_configuration *configuration;
    struct hl_observed_counts counts, window; /* the latter: of the present window, until it has ended */
    size_t n;
    struct hl_observed_file file[FILES_MAX];
};

/* --- the table --- */

static void forget(struct hl_observer *observer, struct hl_observed_file *file) {
    free(file->path);
    free(file->chunk);
    free(file->obstacle);
    *file = observer->file[--observer->n];
}

/* Halves each count, and forgets files whose count is used up. */
static void age(struct hl_observer *observer) {
    for (size_t i = observer->n; i-- > 0;) {
        struct hl_observed_file *file = &observer->file[i];
        file->samples /= 2;
        file->huge /= 2;
        for (size_t j = 0; j < file->n_chunks; j++) {
            file->chunk[j].samples /= 2;
            file->chunk[j].huge /= 2;
        }
        if (file->samples < 0.5)
            forget(observer, file);
    }
}

static bool matches(const struct hl_texts *patterns, const char *path) {
    bool found = false;
    for (size_t i = 0; i < patterns->n && !found; i++)
        found = fnmatch(patterns->text[i], path, 0) == 0;
    return found;
}

bool hl_is_eligible_path(const struct hl_configuration *configuration, const char *path) {
    return path[0] == '/' && matches(&configuration->eligible, path) &&
           !matches(&configuration->excluded, path);
}

static bool is_same_file(int descriptor, const struct hl_file_id *wanted) {
    char *name = hl_xasprintf("/proc/self/fd/%d", descriptor);
    struct hl_file_id id;
    bool is_same = hl_read_file_id(&id, AT_FDCWD, name) == 0 && hl_is_same_file_id(&id, wanted);
    free(name);
    return is_same;
}

/* Whether the file of PLACE is this machine's own, under the same path, and no user but root can write it.  The path has no
   symbolic link, which a user may have made: another user's mount namespace can have a folder where this one has a link. */
static bool is_eligible(const struct hl_observer *observer, const struct hl_sample_place *place) {
    struct stat stat;
    if (!hl_is_eligible_path(observer->configuration, place->path))
        return false;
    int file = hl_open_local_path(place->path, false, &stat);
    if (file < 0)
        return false;
    char *real = hl_find_file_path(file);
    bool is = real != NULL && strcmp(real, place->path) == 0 && S_ISREG(stat.st_mode) &&
              hl_only_writable_by(&stat, 0) && is_same_file(file, &place->file);
    free(real);
    close(file);
    return is;
}

/* A place in the table: a new one, or that of the file with fewest samples, if it has hardly any; NULL: there is none. */
static struct hl_observed_file *make_room(struct hl_observer *observer) {
    struct hl_observed_file *least = &observer->file[0];
    if (observer->n == FILES_MAX) {
        for (size_t i = 1; i < observer->n; i++)
            if (observer->file[i].samples < least->samples)
                least = &observer->file[i];
        if (least->samples > 1)
            return NULL;
        forget(observer, least);
    }
    return &observer->file[observer->n++];
}

/* The entry for the file of PLACE; NULL: it has none, and that was counted. */
static struct hl_observed_file *find_file(struct hl_observer *observer, const struct hl_sample_place *place) {
    for (size_t i = 0; i < observer->n; i++) {
        struct hl_observed_file *file = &observer->file[i];
        if (hl_is_same_file_id(&file->id, &place->file))
            return file;
    }
    if (!is_eligible(observer, place)) {
        observer->window.ineligible++;
        return NULL;
    }
    struct hl_observed_file *file = make_room(observer);
    if (file == NULL) {
        observer->window.unlisted++;
        return NULL;
    }
    *file = (struct hl_observed_file){.id = place->file, .path = hl_xasprintf("%s", place->path)};
    return file;
}

static void count_chunk(struct hl_observed_file *file, uint64_t offset, bool is_huge) {
    size_t i = 0;
    while (i < file->n_chunks && file->chunk[i].offset != offset)
        i++;
    if (i == CHUNKS_MAX)
        return;
    if (i == file->n_chunks) {
        file->chunk = hl_xrealloc(file->chunk, (i + 1) * sizeof *file->chunk);
        file->chunk[file->n_chunks++] = (struct hl_observed_chunk){.offset = offset};
    }
    file->chunk[i].samples++;
    file->chunk[i].huge += is_huge;
}

static void note_sample(void *data, const struct hl_sample *sample) {
    struct hl_observer *observer = data;
    struct hl_sample_place place;
    bool is_huge = sample->page_bytes >= observer->huge_page_bytes;
    if (sample->process == getpid())
        return;
    observer->window.huge += is_huge;
    hl_resolve_sample(observer->resolver, sample, &place);
    observer->window.ended += place.kind == HL_PLACE_ENDED;
    observer->window.refused += place.kind == HL_PLACE_REFUSED;
    observer->window.memory += place.kind == HL_PLACE_MEMORY;
    struct hl_observed_file *file = place.kind == HL_PLACE_FILE ? find_file(observer, &place) : NULL;
    if (file == NULL)
        return;
    file->samples++;
    file->huge += is_huge;
    count_chunk(file, place.offset - place.offset % observer->huge_page_bytes, is_huge);
}

static int compare_files(const void *a, const void *b) {
    const struct hl_observed_file *x = a, *y = b;
    return (x->samples < y->samples) - (x->samples > y->samples);
}

/* --- windows --- */

double hl_draw_share(void) {
    uint32_t random = 0;
    bool is_drawn = getrandom(&random, sizeof random, GRND_NONBLOCK) == (ssize_t)sizeof random;
    return is_drawn ? random / 4294967296.0 : 0.5;
}

static double draw_pause(const struct hl_observer *observer, const struct hl_configuration *configuration) {
    return 1e3 * configuration->interval_seconds * observer->back_off *
           (1 - JITTER / 2 + JITTER * hl_draw_share());
}

static void begin_window(struct hl_observer *observer, const struct hl_configuration *configuration) {
    struct hl_sampler_request request = {.hz = HL_SAMPLER_HZ};
    double now = hl_now_ms();
    observer->begins = now + draw_pause(observer, configuration);
    int result = hl_open_sampler(&observer->sampler, &request);
    if (result != 0) {
        observer->sampler = NULL;
        char *reason = result != observer->said ? hl_explain_no_samples(result) : NULL;
        if (reason != NULL)
            hl_warn("service: nothing can be observed: %s", reason);
        free(reason);
        observer->said = result;
        return;
    }
    observer->said = 0;
    observer->resolver = hl_open_resolver();
    observer->ends = now + 1e3 * configuration->window_seconds;
    observer->own_ms = hl_processor_ms();
    observer->window = (struct hl_observed_counts){0};
    age(observer);
}

/* Adds a window at its end only: counters that were read in between must not go back. */
static void add_window(struct hl_observed_counts *counts, const struct hl_observed_counts *window) {
    counts->huge += window->huge;
    counts->ended += window->ended;
    counts->refused += window->refused;
    counts->memory += window->memory;
    counts->ineligible += window->ineligible;
    counts->unlisted += window->unlisted;
}

/* A window that has lost too many samples does not count. */
static void end_window(struct hl_observer *observer) {
    struct hl_sampler_counts counted = *hl_count_samples(observer->sampler);
    hl_close_sampler(observer->sampler);
    hl_close_resolver(observer->resolver);
    observer->sampler = NULL;
    if (hl_lost_too_many(&counted)) {
        while (observer->n > 0)
            forget(observer, &observer->file[observer->n - 1]);
        observer->counts.windows_lost++;
    } else {
        add_window(&observer->counts, &observer->window);
    }
    observer->counts.windows++;
    observer->counts.samples += counted.samples;
    observer->counts.lost += counted.lost;
    qsort(observer->file, observer->n, sizeof observer->file[0], compare_files);
    for (size_t i = 0; i < observer->n && i < EXAMINED_MAX; i++)
        hl_examine_observed(&observer->file[i]);
}

/* Whether the window has used up its share of this process's time. */
static bool is_too_costly(const struct hl_observer *observer, const struct hl_configuration *configuration) {
    double used = hl_processor_ms() - observer->own_ms;
    return used > OWN_MS_MIN && used > OWN_SHARE * 1e3 * configuration->window_seconds;
}

static bool is_over(struct hl_observer *observer, const struct hl_configuration *configuration, bool may) {
    if (is_too_costly(observer, configuration)) {
        observer->counts.windows_cut++;
        observer->back_off = fmin(2 * observer->back_off, BACK_OFF_MAX);
        return true;
    }
    if (hl_now_ms() < observer->ends)
        return !may || !configuration->observes;
    observer->back_off = fmax(observer->back_off / 2, 1);
    return true;
}

/* --- the interface --- */

struct hl_observer *hl_start_observing(void) {
    struct hl_geometry geometry;
    struct hl_observer *observer = hl_xmalloc(sizeof *observer);
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    observer->huge_page_bytes = geometry.huge_page_bytes;
    observer->back_off = 1;
    return observer;
}

void hl_stop_observing(struct hl_observer *observer) {
    if (observer->sampler != NULL) {
        hl_close_sampler(observer->sampler);
        hl_close_resolver(observer->resolver);
    }
    while (observer->n > 0)
        forget(observer, &observer->file[observer->n - 1]);
    free(observer);
}

int hl_observer_timeout(const struct hl_observer *observer, const struct hl_configuration *configuration) {
    double wait = observer->begins - hl_now_ms();
    if (observer->sampler != NULL)
        return 0;
    if (!configuration->observes)
        return -1;
    return wait > 0 ? (int)wait + 1 : 0;
}

bool hl_observe(struct hl_observer *observer, const struct hl_configuration *configuration, bool may) {
    observer->configuration = configuration;
    if (observer->sampler == NULL && configuration->observes && may && hl_now_ms() >= observer->begins)
        begin_window(observer, configuration);
    if (observer->sampler == NULL) {
        if (!may && hl_now_ms() >= observer->begins)
            observer->begins = hl_now_ms() + draw_pause(observer, configuration);
        return false;
    }
    hl_read_samples(observer->sampler, HL_SAMPLER_READ_MS, note_sample, observer);
    if (!is_over(observer, configuration, may))
        return false;
    end_window(observer);
    return true;
}

void hl_observe_anew(struct hl_observer *observer, const struct hl_configuration *configuration) {
    observer->begins = fmin(observer->begins, hl_now_ms() + draw_pause(observer, configuration));
}

void hl_observe_once(struct hl_observer *observer, const struct hl_configuration *configuration) {
    observer->begins = 0;
    while (!hl_observe(observer, configuration, true) && observer->sampler != NULL)
        ;
}

const struct hl_observed_counts *hl_read_observed(const struct hl_observer *observer) {
    return &observer->counts;
}

struct hl_observed_file *hl_list_observed(struct hl_observer *observer, size_t *n) {
    *n = observer->n;
    return observer->file;
}

bool hl_is_observing(const struct hl_observer *observer) { return observer->sampler != NULL; }

bool hl_is_observed(const struct hl_observed_file *file, int descriptor) {
    return is_same_file(descriptor, &file->id);
}

static json_t *make_json_chunks(const struct hl_observed_file *file) {
    json_t *chunks = json_array();
    for (size_t i = 0; i < file->n_chunks; i++)
        json_array_append_new(
            chunks, json_pack("{s:I, s:f, s:f, s:b, s:b}", "offset", (json_int_t)file->chunk[i].offset,
                              "samples", file->chunk[i].samples, "huge_samples", file->chunk[i].huge,
                              "can_be_huge", file->chunk[i].can_be_huge, "is_huge", file->chunk[i].is_huge));
    return chunks;
}

static json_t *make_json_file(const struct hl_observed_file *file) {
    return json_pack("{s:o, s:f, s:f, s:I, s:I, s:I, s:o, s:o}", "path", hl_json_text(file->path), "samples",
                     file->samples, "huge_samples", file->huge, "text_bytes", (json_int_t)file->text_bytes,
                     "huge_bytes", (json_int_t)file->huge_bytes, "possible_bytes",
                     (json_int_t)file->possible_bytes, "obstacle", hl_json_text(file->obstacle), "chunks",
                     make_json_chunks(file));
}

json_t *hl_json_observed(const struct hl_observer *observer) {
    const struct hl_observed_counts *c = &observer->counts;
    json_t *files = json_array();
    for (size_t i = 0; i < observer->n; i++)
        if (observer->file[i].is_examined)
            json_array_append_new(files, make_json_file(&observer->file[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "windows",
                     (json_int_t)c->windows, "windows_lost", (json_int_t)c->windows_lost, "windows_cut",
                     (json_int_t)c->windows_cut, "samples", (json_int_t)c->samples, "lost",
                     (json_int_t)c->lost, "huge", (json_int_t)c->huge, "ended", (json_int_t)c->ended,
                     "refused", (json_int_t)c->refused, "memory", (json_int_t)c->memory, "ineligible",
                     (json_int_t)c->ineligible, "unlisted", (json_int_t)c->unlisted, "files", files);
}
