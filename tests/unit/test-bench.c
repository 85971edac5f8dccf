/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: which runs it makes in which order, what it refuses, and what it makes of their times; the runs are made up. */
#include "unit.h"

#include "command/measure/bench.h"
#include "command/measure/own-store.h"
#include "command/measure/statistics.h"
#include "command/measure/trial.h"

#include <math.h>

#define T_PAIRS 6
#define T_WARM_UP 4
#define T_MOVED "hugeld: main: text 12 pages hugetlb\n"
#define T_STAYS "hugeld: main: text stays: no huge page is free\n"

/* One run, and what came of it. */
struct t_run {
    enum hl_side side;
    bool is_traced, is_verbose;
    double ms;
    int status;
    const char *output, *error, *said;
};

static struct t_run t_runs[2 * T_PAIRS + T_WARM_UP + 1];
static size_t t_n;
/* Changes the run that is made next, which is an ordinary one. */
static void (*t_change)(struct t_run *run, size_t number);

static struct hl_bytes t_bytes(const char *text) {
    return (struct hl_bytes){hl_xasprintf("%s", text), strlen(text)};
}

static int t_try(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                 struct hl_trial *trial) {
    assert_true(t_n < T_COUNT(t_runs));
    assert_int_equal(log, -1);
    struct t_run *run = &t_runs[t_n];
    *run = (struct t_run){side, maps != NULL, false, side == HL_PLAIN ? 200 : 100, 0, "output", "error", ""};
    run->is_verbose = strstr(subject->run.options, "verbose=2") != NULL;
    assert_non_null(strstr(subject->run.options, "data=off"));
    if (side == HL_ON_HUGE && run->is_verbose)
        run->said = T_MOVED;
    if (t_change != NULL)
        t_change(run, t_n);
    t_n++;
    *trial = (struct hl_trial){.status = run->status,
                               .stream = {t_bytes(run->output), t_bytes(run->error)},
                               .said = hl_xasprintf("%s", run->said)};
    for (unsigned metric = 0; metric < HL_METRICS; metric++)
        trial->value[metric] = run->ms + metric;
    return 0;
}

/* The exit code of a whole measurement, in which the runs are changed by CHANGE.  The times of all pairs are left in BENCH. */
static int t_measure(struct hl_bench *bench, void (*change)(struct t_run *, size_t), bool ignores_failure) {
    static double values[HL_SIDES][HL_METRICS][T_PAIRS];
    char *argv[] = {(char *)"true", NULL};
    struct hl_subject subject = {.argv = argv, .run = {.copies = true}};
    struct hl_own_store own = {0};
    assert_true(hl_open_program(&subject.program, argv[0]));
    subject.run.options = hl_join_options("data=off", NULL);
    *bench = (struct hl_bench){
        .subject = &subject, .try_program = t_try, .pairs = T_PAIRS, .own_images = json_array()};
    for (unsigned side = 0; side < HL_SIDES; side++) {
        bench->maps[side] = json_array();
        for (unsigned metric = 0; metric < HL_METRICS; metric++)
            bench->value[side][metric] = values[side][metric];
    }
    t_n = 0;
    t_change = change;
    hl_warn("nothing yet");
    int code = hl_measure_sides(bench, &own, ignores_failure);
    assert_string_equal(subject.run.options, "data=off");
    assert_int_equal(json_array_size(bench->own_images), 0);
    free(subject.run.options);
    hl_close_program(&subject.program);
    hl_free_trial(&bench->reference);
    json_decref(bench->own_images);
    json_decref(bench->maps[HL_PLAIN]);
    json_decref(bench->maps[HL_ON_HUGE]);
    free(bench->lack);
    return code;
}

/* Two runs of each side do not count, of which the first are traced, and so is the last of all; only the traced ones on huge pages say what
   they moved.  The sides take turns in going first. */
static void test_runs(void **state) {
    (void)state;
    struct hl_bench bench;
    static const enum hl_side warm_up[T_WARM_UP] = {HL_PLAIN, HL_PLAIN, HL_ON_HUGE, HL_ON_HUGE};
    assert_int_equal(t_measure(&bench, NULL, false), 0);
    assert_int_equal(t_n, T_COUNT(t_runs));
    for (size_t i = 0; i < t_n; i++) {
        bool is_last = i == t_n - 1;
        size_t at = i - T_WARM_UP;
        enum hl_side side = i < T_WARM_UP            ? warm_up[i]
                            : is_last                ? HL_ON_HUGE
                            : (at / 2 + at) % 2 == 0 ? HL_PLAIN
                                                     : HL_ON_HUGE;
        assert_int_equal(t_runs[i].side, side);
        assert_int_equal(t_runs[i].is_traced, i == 0 || i == 2 || is_last);
        assert_int_equal(t_runs[i].is_verbose, i == 2 || is_last);
    }
    for (unsigned metric = 0; metric < HL_METRICS; metric++)
        for (size_t i = 0; i < T_PAIRS; i++) {
            assert_float_equal(bench.value[HL_PLAIN][metric][i], 200 + metric, 1e-9);
            assert_float_equal(bench.value[HL_ON_HUGE][metric][i], 100 + metric, 1e-9);
        }
    assert_true(bench.comparable);
}

/* Every second run is slow: a side that always went first would look faster. */
static void t_alternate(struct t_run *run, size_t number) { run->ms = number % 2 ? 16 : 4; }

static void test_alternating_program(void **state) {
    (void)state;
    struct hl_bench bench;
    assert_int_equal(t_measure(&bench, t_alternate, false), 0);
    struct hl_ratio ratio =
        hl_compare_pairs(bench.value[HL_PLAIN][HL_WALL], bench.value[HL_ON_HUGE][HL_WALL], T_PAIRS);
    assert_string_equal(hl_name_ratio(&ratio), "no difference");
    assert_true(hl_half_width(&ratio) > 50);
}

static void t_differ(struct t_run *run, size_t number) {
    if (run->side == HL_ON_HUGE)
        run->output = number > 9 ? "other" : run->output;
}

static void t_complain(struct t_run *run, size_t number) {
    (void)number;
    if (run->side == HL_ON_HUGE)
        run->error = "other";
}

static void t_vary(struct t_run *run, size_t number) {
    static char text[2] = "a";
    text[0] = (char)('a' + number);
    run->output = text;
}

static void t_die(struct t_run *run, size_t number) {
    (void)number;
    if (run->side == HL_ON_HUGE) {
        run->status = 11;
        run->said = "hugeld: main: a reason\n";
    }
}

static void t_die_sometimes(struct t_run *run, size_t number) { run->status = number == 1 ? 3 << 8 : 0; }
static void t_fail(struct t_run *run, size_t number) { run->status = number < 100 ? 3 << 8 : 0; }

static void t_move_nothing(struct t_run *run, size_t number) {
    (void)number;
    if (run->side == HL_ON_HUGE && run->is_verbose)
        run->said = "hugeld: LD_HUGEPAGES: no object is named x\n" T_STAYS;
}

/* The pages are there for the warm-up and gone later. */
static void t_run_dry(struct t_run *run, size_t number) {
    if (run->side == HL_ON_HUGE && run->is_verbose && number > T_WARM_UP)
        run->said = T_STAYS;
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        void (*change)(struct t_run *run, size_t number);
        size_t runs;
        const char *says;
    } rows[] = {
        {t_differ, 11, "standard output differs on huge pages"},
        {t_complain, 3, "standard error differs on huge pages"},
        {t_die, 3,
         "signal 11 (Segmentation fault) on huge pages, exit status 0 without hugeld; hugeld said: main: a "
         "reason"},
        {t_die_sometimes, 2, "ends differently from run to run (exit status 0, then exit status 3)"},
        {t_fail, 1, "exit status 3 when run without hugeld"},
        {t_move_nothing, 3, "nothing moved: main: text stays: no huge page is free"},
        {t_run_dry, T_COUNT(t_runs), "nothing moved: main: text stays"},
    };
    for (size_t i = 0; i < T_COUNT(rows); i++) {
        struct hl_bench bench;
        assert_int_equal(t_measure(&bench, rows[i].change, false), HL_EXIT_NO);
        assert_non_null(strstr(hl_last_warning(), rows[i].says));
        assert_int_equal(t_n, rows[i].runs);
    }
}

static void test_accepted(void **state) {
    (void)state;
    struct hl_bench bench;
    assert_int_equal(t_measure(&bench, t_fail, true), 0);
    assert_int_equal(t_measure(&bench, t_vary, false), 0);
    assert_false(bench.comparable);
    assert_string_equal(hl_last_warning(), "nothing yet");
}

/* --- what their times say --- */

static struct hl_ratio t_compare(const double *plain, const double *huge, size_t n) {
    struct hl_ratio ratio = hl_compare_pairs(plain, huge, n);
    assert_true(!ratio.known || (ratio.low <= ratio.ratio && ratio.ratio <= ratio.high));
    return ratio;
}

/* The middle half of the pairs by their ratios: neither the best nor the worst of them counts. */
static void test_ratio(void **state) {
    (void)state;
    const double plain[] = {100, 100, 100, 100, 100, 100, 100, 100},
                 huge[] = {90, 1, 92, 91, 1000, 2, 93, 2000};
    const double same[] = {50, 50, 50, 50, 50, 50, 50, 50};
    struct hl_ratio ratio = t_compare(plain, huge, 8);
    assert_true(ratio.known);
    assert_float_equal(ratio.ratio, 0.915, 1e-9);
    assert_float_equal(ratio.plain, 100, 1e-9);
    assert_float_equal(ratio.huge, 91.5, 1e-9);
    assert_true(ratio.low < 0.5 && ratio.high > 1);
    ratio = t_compare(plain, same, 8);
    assert_float_equal(ratio.low, 0.5, 1e-9);
    assert_float_equal(ratio.high, 0.5, 1e-9);
    assert_string_equal(hl_name_ratio(&ratio), "faster");
    ratio = t_compare(same, plain, 8);
    assert_string_equal(hl_name_ratio(&ratio), "slower");
}

/* Times that are too short to be seen are no times. */
static void test_unknown(void **state) {
    (void)state;
    const double plain[] = {0, 0, 0, 10, 10, 10}, huge[] = {5, 5, 5, 5, 5, 5};
    struct hl_ratio ratio = t_compare(plain, huge, 6);
    assert_false(ratio.known);
    assert_string_equal(hl_name_ratio(&ratio), "no difference");
    ratio = t_compare(plain + 1, huge, 5);
    assert_true(ratio.known);
    assert_float_equal(ratio.ratio, 0.5, 1e-9);
}

/* In a hundred series without any difference, about five intervals leave it out. */
static void test_interval(void **state) {
    (void)state;
    uint64_t seed = 3;
    unsigned wrong = 0;
    for (unsigned i = 0; i < 100; i++) {
        double plain[20], huge[20];
        for (unsigned j = 0; j < 20; j++) {
            plain[j] = 100 + (double)(t_random(&seed) % 1000) / 50;
            huge[j] = 100 + (double)(t_random(&seed) % 1000) / 50;
        }
        struct hl_ratio ratio = t_compare(plain, huge, 20);
        wrong += hl_name_ratio(&ratio)[0] != 'n';
    }
    assert_true(wrong >= 1 && wrong <= 12);
}

static void test_verdict(void **state) {
    (void)state;
    enum { FASTER, SLOWER, SAME, UNKNOWN };
    static const struct hl_ratio ratios[] = {
        {true, 0.9, 0.8, 0.95, 1, 0.9}, {true, 1.1, 1.05, 1.2, 1, 1.1}, {true, 1, 0.9, 1.1, 1, 1}, {0}};
    static const struct {
        unsigned wall, processor;
        const char *verdict;
    } rows[] = {
        {FASTER, SAME, "faster"},      {SAME, FASTER, "faster"},         {SLOWER, FASTER, "faster"},
        {FASTER, SLOWER, "faster"},    {SLOWER, SAME, "slower"},         {SAME, SLOWER, "slower"},
        {SAME, SAME, "no difference"}, {UNKNOWN, SAME, "no difference"}, {UNKNOWN, FASTER, "faster"},
    };
    for (size_t i = 0; i < T_COUNT(rows); i++)
        assert_string_equal(hl_find_verdict(&ratios[rows[i].wall], &ratios[rows[i].processor]),
                            rows[i].verdict);
}

static void test_median(void **state) {
    (void)state;
    const double odd[] = {9, 1, 5}, even[] = {9, 1, 5, 2};
    assert_float_equal(hl_median(odd, 3), 5, 1e-9);
    assert_float_equal(hl_median(even, 4), 3.5, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),     cmocka_unit_test(test_alternating_program),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_ratio),    cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_interval), cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_median),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
