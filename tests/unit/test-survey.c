/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: what it makes of samples, and what it says where there are none; the clock and the samples are made up. */
#include "unit.h"

#include "command/measure/survey.h"
#include "command/measure/sample-read.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define T_PID (1 << 22) /* no process has this number (PID_MAX_LIMIT), or a larger one */
#define T_TEXT ((uint64_t)32 << 20)
#define T_PLACES 60000

struct hl_sampler {
    int unused;
};

/* A sample at MS after the beginning of the window. */
struct t_sample {
    double ms;
    uint64_t page_bytes;
    struct hl_resolved_sample resolved;
};

static struct {
    double ms, last_rest;
    int result[2]; /* of the calls of open */
    unsigned opened, reads, closed;
    struct hl_sampler_request request; /* of the last one */
    bool samples_waiting;
    struct hl_sampler sampler;
    struct hl_sampler_counts counts;
    size_t n, given;
    struct t_sample sample[T_PLACES];
} t;

static pid_t t_waiting; /* a child that waits, or 0 */

static double t_now(void) { return 5000 + t.ms; }

static int t_open(struct hl_sampler **opened, const struct hl_sampler_request *request) {
    t.request = *request;
    t.samples_waiting = false;
    for (size_t i = 0; i < request->n_threads; i++)
        t.samples_waiting |= request->thread[i] == t_waiting;
    int result = t.result[t.opened++];
    if (result == 0)
        *opened = &t.sampler;
    return result;
}

static void t_read(struct hl_sampler *sampler, double ms, void (*handle)(void *, const struct hl_sample *),
                   void *data) {
    assert_ptr_equal(sampler, &t.sampler);
    t.last_rest = ms;
    t.ms += ms < HL_SAMPLER_READ_MS ? ms : HL_SAMPLER_READ_MS;
    t.reads++;
    for (; t.given < t.n && t.sample[t.given].ms <= t.ms; t.given++) {
        const struct t_sample *from = &t.sample[t.given];
        handle(data, &(struct hl_sample){.address = t.given,
                                         .process = from->resolved.process,
                                         .page_bytes = from->page_bytes});
    }
}

static const struct hl_sampler_counts *t_count(struct hl_sampler *sampler) {
    (void)sampler;
    return &t.counts;
}

static void t_close(struct hl_sampler *sampler) { t.closed += sampler != NULL; }

static void t_resolve(struct hl_resolver *resolver, const struct hl_sample *sample,
                      struct hl_resolved_sample *resolved) {
    (void)resolver;
    *resolved = t.sample[sample->address].resolved;
}

static const struct hl_sample_source t_source = {t_now, t_open, t_read, t_count, t_close, t_resolve};

/* The only program that is looked at, unless a test says otherwise: no other process of this machine has it. */
static struct stat t_program = {.st_dev = 0xfffff, .st_ino = 77};

static struct t_sample t_sample_in(const char *file, uint64_t offset, uint64_t page_bytes) {
    return (struct t_sample){
        .page_bytes = page_bytes,
        .resolved = {.kind = HL_RESOLVED_FILE,
                     .process = T_PID,
                     .started = 1,
                     .owner = geteuid(),
                     .program = {t_program.st_dev, t_program.st_ino},
                     .program_path = "/bin/program",
                     .file = {1, (ino_t)file[strlen(file) - 1]},
                     .path = file,
                     .offset = offset,
                     .start = 1 << 30,
                     .end = (1 << 30) + T_TEXT},
    };
}

static void t_add(struct t_sample sample, unsigned times) {
    for (; times > 0; times--) {
        assert_true(t.n < T_PLACES);
        t.sample[t.n++] = sample;
    }
}

static int t_survey(struct hl_survey *survey, double seconds, const struct hl_survey_filter *filter) {
    const struct hl_survey_filter own = {.n_programs = 1, .program = &t_program};
    *survey = (struct hl_survey){0};
    return hl_watch_processes(survey, filter != NULL ? filter : &own, seconds, &t_source);
}

static int t_begin(void **state) {
    (void)state;
    memset(&t, 0, sizeof t);
    return 0;
}

/* Samples until the end of the window and those that are left in the rings then, none of later; rests never reach beyond it. */
static void test_window(void **state) {
    (void)state;
    struct hl_survey survey;
    for (unsigned i = 0; i <= 60; i++) {
        struct t_sample sample = t_sample_in("/a", UINT64_C(4096) * i, T_PAGE);
        sample.ms = 5 * i;
        t_add(sample, 1);
    }
    assert_int_equal(t_survey(&survey, 0.105, NULL), 0);
    assert_float_equal(survey.seconds, 0.105, 1e-9);
    assert_int_equal(t.reads, 11 + 1);
    assert_float_equal(t.last_rest, 0, 1e-9);
    assert_int_equal(t.closed, 1);
    assert_int_equal(survey.n_programs, 1);
    assert_int_equal(survey.program[0].samples, 22);
    assert_int_equal(survey.hz, HL_SAMPLER_HZ);
    assert_int_equal(t.request.n_threads, 0);
    assert_false(survey.of_threads);
    hl_free_survey(&survey);
}

static const struct hl_hot_object *t_find_object(const struct hl_surveyed *program, const char *path) {
    for (size_t i = 0; i < program->n_objects; i++)
        if (strcmp(program->object[i].path, path) == 0)
            return &program->object[i];
    return NULL;
}

/* By files, the busiest one first, and in each of these by 2 MiB; huge ones beside small ones; memory without a file. */
static void test_pages(void **state) {
    (void)state;
    struct hl_survey survey;
    struct t_sample memory = t_sample_in("/b", 7 * T_HUGE, T_HUGE);
    memory.resolved.kind = HL_RESOLVED_MEMORY;
    t_add(t_sample_in("/b", T_HUGE + 8, T_PAGE), 1);
    t_add(t_sample_in("/b", 5 * T_HUGE + 4096, T_HUGE), 4);
    t_add(t_sample_in("/b", 5 * T_HUGE + 8192, T_HUGE), 1);
    t_add(memory, 3);
    memory.page_bytes = T_PAGE;
    t_add(memory, 2);
    t_add(t_sample_in("/a", 3 * T_HUGE + 4096, T_PAGE), 5);
    t_add(t_sample_in("/a", 3 * T_HUGE + 8191, T_PAGE), 1);
    t_add(t_sample_in("/a", 3 * T_HUGE + 8192, T_PAGE), 1);
    assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
    assert_int_equal(survey.n_programs, 1);
    const struct hl_surveyed *program = &survey.program[0];
    assert_string_equal(program->path, "/bin/program");
    assert_int_equal(program->samples, 18);
    assert_int_equal(program->huge_samples, 8);
    assert_int_equal(program->memory_samples, 2);
    assert_int_equal(program->n_objects, 3);
    const struct hl_hot_object *a = &program->object[0], *b = &program->object[1],
                               *huge = t_find_object(program, "text on huge pages");
    assert_string_equal(a->path, "/a");
    assert_string_equal(b->path, "/b");
    assert_non_null(huge);
    assert_true(a->samples == 7 && a->huge_samples == 0 && a->hot_bytes == 2 * T_PAGE);
    assert_true(a->n_chunks == 1 && a->chunk[0].offset == 3 * T_HUGE && a->chunk[0].samples == 7);
    assert_int_equal(a->chunk[0].pages, 2);
    assert_true(b->samples == 6 && b->huge_samples == 5 && b->hot_bytes == T_PAGE);
    assert_true(b->huge_bytes == T_HUGE && b->n_chunks == 2);
    assert_true(huge->samples == 3 && huge->huge_samples == 3 && huge->huge_bytes == T_HUGE);
    assert_float_equal(a->share, 7 / 8.0, 1e-9);
    assert_int_equal(program->hot_bytes, 3 * T_PAGE);
    assert_int_equal(program->huge_bytes, 2 * T_HUGE);
    hl_free_survey(&survey);
}

/* Text that was moved has another address in each process, and is one object. */
static void test_moved_text_of_processes(void **state) {
    (void)state;
    struct hl_survey survey;
    for (unsigned i = 0; i < 3; i++) {
        struct t_sample sample = t_sample_in("/a", (100 + i) * T_HUGE + 64, T_HUGE);
        sample.resolved.kind = HL_RESOLVED_MEMORY;
        sample.resolved.mapping_offset = (100 + i) * T_HUGE;
        sample.resolved.process = T_PID + (int)i;
        t_add(sample, 2);
    }
    assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
    assert_int_equal(survey.program[0].processes, 3);
    assert_int_equal(survey.program[0].n_objects, 1);
    assert_int_equal(survey.program[0].huge_bytes, T_HUGE);
    hl_free_survey(&survey);
}

/* More pages than are kept apart until they are put together, in two programs, against a plain count. */
static void test_many_pages(void **state) {
    (void)state;
    struct hl_survey survey;
    static unsigned count[2][T_TEXT / T_PAGE];
    struct stat both[2] = {t_program, t_program};
    const struct hl_survey_filter filter = {.n_programs = 2, .program = both};
    uint64_t seed = 7, samples[2] = {0}, pages[2] = {0}, once[2] = {0}, twice[2] = {0};
    both[1].st_ino++;
    for (unsigned i = 0; i < T_PLACES; i++) {
        unsigned which = t_random(&seed) % 4 == 0;
        uint64_t page = t_random(&seed) % (T_TEXT / T_PAGE);
        struct t_sample sample = t_sample_in("/a", page * T_PAGE, T_PAGE);
        sample.resolved.program.inode += which;
        sample.resolved.process += (int)which;
        sample.resolved.program_path = which ? "/bin/other" : "/bin/program";
        t_add(sample, 1);
        count[which][page]++;
        samples[which]++;
    }
    for (unsigned which = 0; which < 2; which++)
        for (size_t page = 0; page < T_TEXT / T_PAGE; page++) {
            pages[which] += count[which][page] > 0;
            once[which] += count[which][page] == 1;
            twice[which] += count[which][page] == 2;
        }
    assert_int_equal(t_survey(&survey, 1, &filter), 0);
    assert_int_equal(survey.n_programs, 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct hl_surveyed *program = &survey.program[i];
        unsigned which = strcmp(program->path, "/bin/other") == 0;
        uint64_t likely = (uint64_t)hl_estimate_seen(pages[which], once[which], twice[which]) * T_PAGE,
                 sum = 0;
        assert_int_equal(program->samples, samples[which]);
        assert_int_equal(program->hot_bytes, pages[which] * T_PAGE);
        assert_int_equal(program->likely_bytes, likely < T_TEXT ? likely : T_TEXT);
        assert_int_equal(program->object[0].n_chunks, T_TEXT / T_HUGE);
        for (size_t j = 0; j < program->object[0].n_chunks; j++)
            sum += program->object[0].chunk[j].samples;
        assert_int_equal(sum, samples[which]);
    }
    hl_free_survey(&survey);
}

/* Pages with one sample each say that there are many more; but not more than the text that is mapped. */
static void test_likely_text(void **state) {
    (void)state;
    struct hl_survey survey;
    for (unsigned i = 0; i < 1000; i++)
        t_add(t_sample_in("/a", i * T_PAGE, T_PAGE), 1);
    assert_int_equal(t_survey(&survey, 1, NULL), 0);
    assert_int_equal(survey.program[0].text_bytes, T_TEXT);
    assert_int_equal(survey.program[0].hot_bytes, 1000 * T_PAGE);
    assert_int_equal(survey.program[0].likely_bytes, T_TEXT);
    hl_free_survey(&survey);
}

/* More than one in a hundred decides nothing. */
static void test_lost(void **state) {
    (void)state;
    static const struct {
        uint64_t samples, lost;
        bool undecided;
    } rows[] = {{0, 0, false},      {99, 1, false},    {98, 2, true},
                {9900, 100, false}, {9900, 101, true}, {0, 1, true}};
    for (size_t i = 0; i < T_COUNT(rows); i++) {
        struct hl_survey survey;
        t_begin(state);
        t.counts = (struct hl_sampler_counts){.samples = rows[i].samples, .lost = rows[i].lost};
        assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
        assert_int_equal(survey.undecided, rows[i].undecided);
        assert_int_equal(survey.sampled.lost, rows[i].lost);
        hl_free_survey(&survey);
    }
}

/* What is not of a wanted process counts nowhere, or as refused or ended. */
static void test_of_others(void **state) {
    (void)state;
    struct hl_survey survey;
    enum { OTHER_PROGRAM, OTHER_USER, ITSELF, ENDED, REFUSED, REFUSED_OTHER, OTHER_NAMESPACE, ROWS };
    for (unsigned i = 0; i < ROWS; i++) {
        struct t_sample sample = t_sample_in("/a", 0, T_PAGE);
        struct hl_resolved_sample *resolved = &sample.resolved;
        resolved->program.inode += i == OTHER_PROGRAM;
        resolved->owner += i == OTHER_USER || i == REFUSED_OTHER;
        if (i == ITSELF)
            resolved->process = getpid();
        if (i == ENDED || i == OTHER_NAMESPACE)
            resolved->kind = HL_RESOLVED_ENDED;
        if (i == REFUSED || i == REFUSED_OTHER)
            resolved->kind = HL_RESOLVED_REFUSED;
        if (i == OTHER_NAMESPACE)
            resolved->process = 0;
        t_add(sample, 1);
    }
    t_add(t_sample_in("/a", 0, T_PAGE), 1);
    assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
    assert_int_equal(survey.n_programs, 1);
    assert_int_equal(survey.program[0].samples, 1);
    assert_int_equal(survey.samples_ended, 1);
    assert_int_equal(survey.samples_refused, 2);
    hl_free_survey(&survey);
}

/* A process that has ended is known by its samples, and is none that has its number now. */
static void test_ended(void **state) {
    (void)state;
    struct hl_survey survey;
    struct t_sample sample = t_sample_in("/a", 0, T_PAGE);
    t_add(sample, HL_SAMPLER_HZ);
    sample.resolved.started++;
    t_add(sample, 2 * HL_SAMPLER_HZ);
    assert_int_equal(t_survey(&survey, 10, NULL), 0);
    assert_int_equal(survey.n_programs, 1);
    assert_int_equal(survey.program[0].processes, 2);
    assert_int_equal(survey.program[0].pid_started, 2);
    assert_float_equal(survey.program[0].cpu_share, 0.3, 1e-9);
    hl_free_survey(&survey);
}

/* --- without samples, in a process that waits --- */

static int t_start(void **state) {
    t_waiting = fork();
    if (t_waiting == 0)
        for (;;)
            pause();
    assert_return_code(t_waiting, errno);
    assert_int_equal(stat("/proc/self/exe", &t_program), 0);
    return t_begin(state);
}

static int t_end(void **state) {
    (void)state;
    kill(t_waiting, SIGKILL);
    waitpid(t_waiting, NULL, 0);
    t_waiting = 0;
    return 0;
}

/* A user who may not sample everything samples the threads of the wanted processes, to which other tests may belong (valgrind). */
static void test_of_threads(void **state) {
    struct hl_survey survey;
    (void)state;
    t.result[0] = -EACCES;
    assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
    assert_int_equal(t.opened, 2);
    assert_true(t.samples_waiting);
    assert_true(survey.of_threads);
    assert_int_equal(survey.hz, HL_SAMPLER_HZ);
    hl_free_survey(&survey);
}

static void test_of_one_process(void **state) {
    struct hl_survey survey;
    const struct hl_survey_filter filter = {.pid = t_waiting};
    (void)state;
    assert_int_equal(t_survey(&survey, 0.01, &filter), 0);
    assert_int_equal(t.opened, 1);
    assert_true(t.samples_waiting);
    assert_int_equal(survey.hz, HL_SAMPLER_HZ_ONE);
    assert_int_equal(survey.n_programs, 1);
    assert_int_equal(survey.program[0].samples, 0);
    hl_free_survey(&survey);
}

static void test_refused(void **state) {
    static const struct {
        int all, threads;
        const char *says;
    } rows[] = {
        {-ENOSYS, 0, "CONFIG_PERF_EVENTS"},
        {-ENODEV, 0, "nohz_full"},
        {-EACCES, -EACCES, "perf_event"},
        {-EPERM, -EMFILE, "Too many open files"},
    };
    for (size_t i = 0; i < T_COUNT(rows); i++) {
        struct hl_survey survey;
        t_begin(state);
        t.result[0] = rows[i].all;
        t.result[1] = rows[i].threads;
        assert_int_equal(t_survey(&survey, 0.01, NULL), HL_EXIT_NO);
        assert_non_null(strstr(hl_last_warning(), "survey: there are no samples: "));
        assert_non_null(strstr(hl_last_warning(), rows[i].says));
        assert_int_equal(t.reads, 0);
        hl_free_survey(&survey);
    }
}

/* There is no wanted process whose threads could be sampled: that is an answer, unless a user has named one. */
static void test_no_process(void **state) {
    (void)state;
    struct hl_survey survey;
    const struct hl_survey_filter filter = {.pid = T_PID};
    t.result[0] = -EACCES;
    assert_int_equal(t_survey(&survey, 0.01, NULL), 0);
    assert_int_equal(t.reads, 0);
    hl_free_survey(&survey);
    t_begin(state);
    assert_int_equal(t_survey(&survey, 0.01, &filter), HL_EXIT_NO);
    assert_non_null(strstr(hl_last_warning(), "no such process"));
    hl_free_survey(&survey);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_window, t_begin),
        cmocka_unit_test_setup(test_pages, t_begin),
        cmocka_unit_test_setup(test_moved_text_of_processes, t_begin),
        cmocka_unit_test_setup(test_many_pages, t_begin),
        cmocka_unit_test_setup(test_likely_text, t_begin),
        cmocka_unit_test(test_lost),
        cmocka_unit_test_setup(test_of_others, t_begin),
        cmocka_unit_test_setup(test_ended, t_begin),
        cmocka_unit_test_setup(test_no_process, t_begin),
        cmocka_unit_test_setup_teardown(test_of_threads, t_start, t_end),
        cmocka_unit_test_setup_teardown(test_of_one_process, t_start, t_end),
        cmocka_unit_test_setup_teardown(test_refused, t_start, t_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
