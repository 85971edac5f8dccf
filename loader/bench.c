/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: is it worth it?

   The program runs plainly and on huge pages in turns, so that whatever else the machine does falls on both
   alike.  Two runs of each side come first and don't count.  They are traced once each: smaps, read as the
   program exits, says what really was on huge pages.  Each later run on huge pages must have reported some,
   and write what the plain one wrote.

   --json: program, loader, patterns and options (or null), pairs, machine: {kernel, cpu, cpus}, output
   ("same", or "differs from run to run": then it was not compared), verdict ("faster", "slower", "no
   difference"), sentence, plain_huge_bytes: what the plain run had on huge pages of the page cache, runs:
   {plain, huge: {wall_ms, user_ms, system_ms, minor_faults, major_faults, peak_rss_kib, pages: an array
   each}}, median: {plain, huge: {the same}}, ratio: {wall, user, system: {ratio, low, high} or null},
   counters: {plain, huge: {EVENT: number}} or null, no_counters: why, or null,
   maps: {plain, huge: [executable, objects (hl_map_process)]}

   --pid --json: pid, name, seconds, user_ms, system_ms, minor_faults, major_faults, rss_kib, counters,
   no_counters, map (or null) */
#include "bench.h"
#include "process.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAIRS_DEFAULT 20
/* With fewer the 95 % interval of a median is wider than all of them. */
#define PAIRS_MIN 6
#define PAIRS_MAX 10000
#define SECONDS_MAX 86400
/* Between two lines of progress where no terminal shows it. */
#define PROGRESS_SECONDS 10

static const struct {
    const char *key, *name, *unit;
} metrics[HL_METRICS] = {
    {"wall_ms", "wall", "ms"},
    {"user_ms", "user", "ms"},
    {"system_ms", "system", "ms"},
    {"minor_faults", "minor faults", ""},
    {"major_faults", "major faults", ""},
    {"peak_rss_kib", "peak RSS", "KiB"},
    {"pages", "huge pages", ""},
};
static const char *const side_keys[HL_SIDES] = {"plain", "huge"};

struct request {
    struct hl_subject subject;
    size_t pairs;
    bool json, ignore_failure, has_pairs;
    const char *report;
    pid_t pid;
    const char *seconds;
    int program; /* the index of PROGRAM in argv, or 0 */
};

struct bench {
    struct request *request;
    struct hl_trial reference; /* the first plain run */
    bool comparable;           /* plainly it writes the same each time */
    double *value[HL_SIDES][HL_METRICS];
    json_t *maps[HL_SIDES], *counts[HL_SIDES];
    struct hl_counters counters;
    double started_ms, told_ms;
};

const char *hl_metric_key(enum hl_metric metric) { return metrics[metric].key; }
const char *hl_metric_name(enum hl_metric metric) { return metrics[metric].name; }
const char *hl_metric_unit(enum hl_metric metric) { return metrics[metric].unit; }

enum { OPTION_PID = 0x100, OPTION_SECONDS, OPTION_REPORT };

static const struct argp_option argp_options[] = {
    {"pairs", 'n', "N", 0, "Measure N runs of each side (20)", 0},
    HL_RUN_OPTIONS,
    {"ignore-failure", 'i', NULL, 0, "The program may exit with another status than 0", 0},
    {"json", 'j', NULL, 0, "Print JSON", 0},
    {"report", OPTION_REPORT, "FILE.html", 0, "Write a page with a plot of all runs", 0},
    {"pid", OPTION_PID, "PID", 0, "Run nothing: count in a process that runs", 0},
    {"seconds", OPTION_SECONDS, "S", 0, "With --pid: for S seconds (10)", 0},
    HL_HELP_OPTION,
    {NULL, 0, NULL, 0, NULL, 0},
};

/* A whole number from MIN to MAX, or 0. */
static size_t parse_number(const char *text, size_t min, size_t max) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    bool is_number = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
    return is_number && number >= min && number <= max ? number : 0;
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct request *request = state->input;
    switch (key) {
    case 'n':
        request->pairs = parse_number(argument, PAIRS_MIN, PAIRS_MAX);
        request->has_pairs = true;
        if (request->pairs == 0)
            hl_say("bench: -n %s: give a number of pairs from %d to %d", argument, PAIRS_MIN, PAIRS_MAX);
        return request->pairs == 0 ? EINVAL : 0;
    case 'i':
        request->ignore_failure = true;
        return 0;
    case 'j':
        request->json = true;
        return 0;
    case OPTION_REPORT:
        request->report = argument;
        return 0;
    case OPTION_PID:
        request->pid = hl_parse_pid(argument);
        if (request->pid == 0)
            hl_say("bench: '%s' is not a process ID; give a number as ps prints it", argument);
        return request->pid == 0 ? EINVAL : 0;
    case OPTION_SECONDS:
        request->seconds = argument;
        if (parse_number(argument, 1, SECONDS_MAX) != 0)
            return 0;
        hl_say("bench: --seconds %s: give a whole number from 1 to %d", argument, SECONDS_MAX);
        return EINVAL;
    case ARGP_KEY_ARG: /* what follows is the program's */
        request->program = state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        break;
    }
    error_t result = hl_parse_run(&request->subject.run, key, argument);
    return result == ARGP_ERR_UNKNOWN ? hl_parse_common(key, state, "hugeld bench", true) : result;
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* --- what each run must be --- */

static char *describe_status(int status) {
    if (WIFSIGNALED(status))
        return hl_format("signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return hl_format("exit status %d", WEXITSTATUS(status));
}

/* The line of hugeld's that says most about TRIAL, without its prefix, or what there is to say instead; the
   caller frees it. */
static char *choose_line(const struct hl_trial *trial) {
    const char *line = trial->said, *first = line;
    if (line[0] == '\0')
        return hl_format("libhugeld.so said nothing: it was not loaded, or only= leaves this program out");
    while (*line != '\0') { /* wrappers and small children have nothing to move */
        size_t bytes = strcspn(line, "\n");
        if (memmem(line, bytes, hl_skip_sentence(HL_SKIP_TOO_SMALL),
                   strlen(hl_skip_sentence(HL_SKIP_TOO_SMALL))) == NULL)
            first = line;
        line += bytes + (line[bytes] == '\n');
    }
    first += strlen("hugeld: ");
    return hl_format("%.*s", (int)strcspn(first, "\n"), first);
}

static bool same_bytes(const struct hl_bytes *a, const struct hl_bytes *b) {
    return a->bytes == b->bytes && memcmp(a->at, b->at, a->bytes) == 0;
}

static const char *find_difference(const struct hl_trial *a, const struct hl_trial *b) {
    if (!same_bytes(&a->stream[0], &b->stream[0]))
        return "standard output";
    return same_bytes(&a->stream[1], &b->stream[1]) ? NULL : "standard error";
}

/* 0, or the exit code after one line. */
static int check_status(const struct bench *bench, enum hl_side side, const struct hl_trial *trial) {
    const char *name = bench->request->subject.argv[0];
    if (trial->status == bench->reference.status)
        return 0;
    char *plain = describe_status(bench->reference.status), *now = describe_status(trial->status);
    char *line = side == HL_ON_HUGE ? choose_line(trial) : NULL;
    if (side == HL_PLAIN)
        hl_say("%s: it ends differently from run to run (%s, then %s); give it work that can be repeated",
               name, plain, now);
    else
        hl_say("%s: %s on huge pages, %s plainly; hugeld said: %s", name, now, plain, line);
    free(plain);
    free(now);
    free(line);
    return HL_EXIT_NO;
}

static int check_output(struct bench *bench, enum hl_side side, const struct hl_trial *trial) {
    const char *different = find_difference(&bench->reference, trial);
    if (side == HL_PLAIN && different != NULL)
        bench->comparable = false;
    if (side == HL_PLAIN || different == NULL || !bench->comparable)
        return 0;
    hl_say("%s: %s differs on huge pages; plainly it is the same from run to run: this is a bug of hugeld's "
           "or a "
           "program that looks at its own memory",
           bench->request->subject.argv[0], different);
    return HL_EXIT_NO;
}

static int check_pages(const struct bench *bench, enum hl_side side, const struct hl_trial *trial) {
    if (side == HL_PLAIN || trial->value[HL_PAGES] > 0)
        return 0;
    char *line = choose_line(trial);
    hl_say("%s: nothing to measure, nothing moved: %s", bench->request->subject.argv[0], line);
    free(line);
    return HL_EXIT_NO;
}

/* Runs SIDE once.  0, or the exit code after one line. */
static int try_side(struct bench *bench, enum hl_side side, json_t *maps, struct hl_trial *trial) {
    int result = hl_try_program(&bench->request->subject, side, maps, -1, trial);
    if (result != 0) {
        hl_say("%s: cannot be started: %s; free memory or processes", bench->request->subject.argv[0],
               strerror(-result));
        return HL_EXIT_NO;
    }
    if (bench->reference.said == NULL) /* this is the first */
        return 0;
    result = check_status(bench, side, trial);
    if (result == 0)
        result = check_pages(bench, side, trial);
    return result != 0 ? result : check_output(bench, side, trial);
}

/* The first plain run, with which all others are compared. */
static int try_first(struct bench *bench) {
    struct hl_trial trial;
    int code = try_side(bench, HL_PLAIN, bench->maps[HL_PLAIN], &trial);
    bench->reference = trial;
    if (code != 0 || trial.status == 0 || (bench->request->ignore_failure && WIFEXITED(trial.status)))
        return code;
    char *how = describe_status(trial.status);
    hl_say("%s: %s when run plainly; give it work that succeeds, or --ignore-failure",
           bench->request->subject.argv[0], how);
    free(how);
    return HL_EXIT_NO;
}

static int warm_up(struct bench *bench) {
    static const enum hl_side sides[] = {HL_PLAIN, HL_ON_HUGE, HL_ON_HUGE};
    int code = try_first(bench);
    bench->comparable = true;
    for (size_t i = 0; code == 0 && i < sizeof sides / sizeof sides[0]; i++) {
        struct hl_trial trial;
        code = try_side(bench, sides[i], i == 1 ? bench->maps[HL_ON_HUGE] : NULL, &trial);
        hl_free_trial(&trial);
    }
    return code;
}

/* --- measuring --- */

/* After DONE pairs. */
static void tell_progress(struct bench *bench, size_t done) {
    bool terminal = isatty(STDERR_FILENO);
    double now = now_ms(),
           rest = (now - bench->started_ms) / (double)done * (double)(bench->request->pairs - done);
    double plain = hl_median(bench->value[HL_PLAIN][HL_WALL], done);
    double ratio = hl_median(bench->value[HL_ON_HUGE][HL_WALL], done) / (plain > 0 ? plain : 1);
    if (terminal)
        fprintf(stderr, "\r\033[Kpair %zu of %zu, %.3f of the time so far, %.0f s to go", done,
                bench->request->pairs, ratio, rest / 1e3);
    else if (now - bench->told_ms >= PROGRESS_SECONDS * 1e3)
        hl_say("pair %zu of %zu, %.3f of the time so far, %.0f s to go", done, bench->request->pairs, ratio,
               rest / 1e3);
    else
        return;
    bench->told_ms = now;
}

static void clear_progress(void) {
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* One pair, the sides taking turns in going first. */
static int measure_pair(struct bench *bench, size_t pair) {
    int code = 0;
    for (unsigned i = 0; code == 0 && i < HL_SIDES; i++) {
        enum hl_side side = (pair + i) % 2 == 0 ? HL_PLAIN : HL_ON_HUGE;
        struct hl_trial trial;
        code = try_side(bench, side, NULL, &trial);
        for (unsigned metric = 0; code == 0 && metric < HL_METRICS; metric++)
            bench->value[side][metric][pair] = trial.value[metric];
        hl_free_trial(&trial);
    }
    return code;
}

static int measure_pairs(struct bench *bench) {
    int code = 0;
    bench->started_ms = bench->told_ms = now_ms();
    for (size_t pair = 0; code == 0 && pair < bench->request->pairs; pair++) {
        code = measure_pair(bench, pair);
        if (code == 0)
            tell_progress(bench, pair + 1);
    }
    clear_progress();
    return code;
}

static void count_sides(struct bench *bench) {
    hl_find_counters(&bench->counters);
    if (bench->counters.events == NULL)
        return;
    for (unsigned side = 0; side < HL_SIDES; side++)
        bench->counts[side] = hl_count_run(&bench->counters, &bench->request->subject, (enum hl_side)side);
    if (bench->counts[HL_PLAIN] == NULL || bench->counts[HL_ON_HUGE] == NULL)
        bench->counters.reason = hl_format("perf stat failed");
}

/* --- the answer --- */

/* Text that a run without hugeld had on huge pages: the kernel's page cache can do that by itself. */
static uint64_t count_plain_bytes(const json_t *maps) {
    uint64_t bytes = 0;
    size_t i, j;
    const json_t *map, *object;
    json_array_foreach((json_t *)maps, i, map) json_array_foreach(json_object_get(map, "objects"), j, object)
        bytes += (uint64_t)json_integer_value(json_object_get(object, "text_huge_bytes"));
    return bytes;
}

static const char *find_verdict(const struct hl_ratio *wall) {
    if (wall->known && wall->high < 1)
        return "faster";
    return wall->known && wall->low > 1 ? "slower" : "no difference";
}

static char *make_sentence(const struct bench *bench, const struct hl_ratio *wall) {
    const char *verdict = find_verdict(wall);
    size_t pairs = bench->request->pairs;
    if (!wall->known)
        return hl_format("no difference seen in %zu pairs: the program is too short to be timed", pairs);
    return hl_format(
        "%s%s in %zu pairs: on huge pages it takes %.3f times as long, 95 %% interval %.3f to %.3f", verdict,
        verdict[0] == 'n' ? " seen" : "", pairs, wall->ratio, wall->low, wall->high);
}

static json_t *make_json_machine(void) {
    struct utsname name;
    char *line = NULL, *cpu = NULL;
    size_t size = 0;
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && cpu == NULL && getline(&line, &size, file) >= 0)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL)
            cpu = hl_format("%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
    if (file != NULL)
        fclose(file);
    free(line);
    uname(&name);
    json_t *machine = json_pack("{s:s, s:o, s:I}", "kernel", name.release, "cpu",
                                cpu != NULL ? hl_json_text(cpu) : json_null(), "cpus",
                                (json_int_t)sysconf(_SC_NPROCESSORS_ONLN));
    free(cpu);
    return machine;
}

static json_t *make_json_ratio(const struct hl_ratio *ratio) {
    if (!ratio->known)
        return json_null();
    return json_pack("{s:f, s:f, s:f}", "ratio", ratio->ratio, "low", ratio->low, "high", ratio->high);
}

/* Times have decimals; the rest is counted. */
static json_t *make_json_value(unsigned metric, double value) {
    return metric < HL_TIMES ? json_real(value) : json_integer((json_int_t)value);
}

/* Adds the runs and medians of each side, and the ratios. */
static void add_json_runs(json_t *answer, const struct bench *bench, const struct hl_ratio *ratios) {
    json_t *runs = json_object(), *medians = json_object(), *ratio = json_object();
    for (unsigned side = 0; side < HL_SIDES; side++) {
        json_t *arrays = json_object(), *middle = json_object();
        for (unsigned metric = 0; metric < HL_METRICS; metric++) {
            const double *value = bench->value[side][metric];
            json_t *array = json_array();
            for (size_t i = 0; i < bench->request->pairs; i++)
                json_array_append_new(array, make_json_value(metric, value[i]));
            json_object_set_new(arrays, metrics[metric].key, array);
            json_object_set_new(middle, metrics[metric].key,
                                json_real(hl_median(value, bench->request->pairs)));
        }
        json_object_set_new(runs, side_keys[side], arrays);
        json_object_set_new(medians, side_keys[side], middle);
    }
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        json_object_set_new(ratio, metrics[metric].name, make_json_ratio(&ratios[metric]));
    json_object_set_new(answer, "runs", runs);
    json_object_set_new(answer, "median", medians);
    json_object_set_new(answer, "ratio", ratio);
}

static json_t *json_text_or_null(const char *text) { return text != NULL ? hl_json_text(text) : json_null(); }

static json_t *make_answer(const struct bench *bench, const struct hl_ratio *ratios) {
    const struct request *request = bench->request;
    const struct hl_run *run = &request->subject.run;
    json_t *program = json_array();
    for (char **word = request->subject.argv; *word != NULL; word++)
        json_array_append_new(program, hl_json_text(*word));
    char *sentence = make_sentence(bench, &ratios[HL_WALL]);
    json_t *answer =
        json_pack("{s:o, s:s, s:o, s:o, s:I, s:o, s:s, s:s, s:s, s:I}", "program", program, "loader",
                  run->use_ldso ? "ldso" : "preload", "patterns", json_text_or_null(run->patterns), "options",
                  json_text_or_null(run->options), "pairs", (json_int_t)request->pairs, "machine",
                  make_json_machine(), "output", bench->comparable ? "same" : "differs from run to run",
                  "verdict", find_verdict(&ratios[HL_WALL]), "sentence", sentence, "plain_huge_bytes",
                  (json_int_t)count_plain_bytes(bench->maps[HL_PLAIN]));
    free(sentence);
    add_json_runs(answer, bench, ratios);
    bool counted = bench->counters.reason == NULL;
    json_object_set_new(
        answer, "counters",
        counted ? json_pack("{s:O, s:O}", "plain", bench->counts[HL_PLAIN], "huge", bench->counts[HL_ON_HUGE])
                : json_null());
    json_object_set_new(answer, "no_counters", json_text_or_null(bench->counters.reason));
    json_object_set_new(
        answer, "maps",
        json_pack("{s:O, s:O}", "plain", bench->maps[HL_PLAIN], "huge", bench->maps[HL_ON_HUGE]));
    return answer;
}

static void print_counters(const json_t *plain, const json_t *huge) {
    const char *event;
    json_t *value;
    json_object_foreach((json_t *)plain, event, value) {
        double a = json_number_value(value), b = json_number_value(json_object_get(huge, event));
        hl_print("%-30s %14.0f  %14.0f  %7.3f", event, a, b, a > 0 ? b / a : 0);
    }
}

static void print_answer(const struct bench *bench, const struct hl_ratio *ratios, const json_t *answer) {
    size_t pairs = bench->request->pairs;
    hl_print("%-16s %15s  %15s    ratio  95 %% interval", "", "plain", "huge pages");
    for (unsigned metric = 0; metric < HL_METRICS; metric++) {
        double plain = hl_median(bench->value[HL_PLAIN][metric], pairs),
               huge = hl_median(bench->value[HL_ON_HUGE][metric], pairs);
        int decimals = metric < HL_TIMES ? 3 : 0;
        char *ratio = metric < HL_TIMES && ratios[metric].known
                          ? hl_format("%7.3f  %.3f to %.3f", ratios[metric].ratio, ratios[metric].low,
                                      ratios[metric].high)
                          : hl_format("%s", "");
        hl_print("%-12s %3s %15.*f  %15.*f  %s", metrics[metric].name, metrics[metric].unit, decimals, plain,
                 decimals, huge, ratio);
        free(ratio);
    }
    if (bench->counters.reason == NULL)
        print_counters(bench->counts[HL_PLAIN], bench->counts[HL_ON_HUGE]);
    else
        hl_print("TLB misses and walks: not counted: %s", bench->counters.reason);
    if (!bench->comparable)
        hl_print("its output differs from run to run, so it was not compared");
    uint64_t plain_bytes = count_plain_bytes(bench->maps[HL_PLAIN]);
    if (plain_bytes > 0)
        hl_print("the plain run has %" PRIu64 " KiB of text on huge pages of the page cache already",
                 plain_bytes / 1024);
    hl_print("%s", json_string_value(json_object_get(answer, "sentence")));
}

/* Prints and writes what was measured; the exit code. */
static int tell_answer(struct bench *bench) {
    struct hl_ratio ratios[HL_TIMES];
    int code = HL_EXIT_DONE;
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        ratios[metric] = hl_compare_pairs(bench->value[HL_PLAIN][metric], bench->value[HL_ON_HUGE][metric],
                                          bench->request->pairs);
    json_t *answer = make_answer(bench, ratios);
    if (strcmp(find_verdict(&ratios[HL_WALL]), "faster") != 0)
        code = HL_EXIT_NO;
    int result = bench->request->report != NULL ? hl_write_page(bench->request->report, answer) : 0;
    if (result != 0) {
        hl_say("%s: the page cannot be written: %s; name another file", bench->request->report,
               strerror(-result));
        code = HL_EXIT_NO;
    }
    if (bench->request->json)
        hl_print_json(json_incref(answer));
    else
        print_answer(bench, ratios, answer);
    json_decref(answer);
    return code;
}

static int measure_program(struct request *request) {
    struct bench bench = {.request = request};
    for (unsigned side = 0; side < HL_SIDES; side++) {
        bench.maps[side] = json_array();
        for (unsigned metric = 0; metric < HL_METRICS; metric++)
            bench.value[side][metric] = hl_allocate(request->pairs * sizeof(double));
    }
    char *asked = request->subject.run.options;
    request->subject.run.options = hl_join_options(asked, "verbose=2");
    int code = warm_up(&bench);
    if (code == 0)
        code = measure_pairs(&bench);
    free(request->subject.run.options);
    request->subject.run.options = asked;
    if (code == 0) {
        count_sides(&bench);
        code = tell_answer(&bench);
    }
    for (unsigned side = 0; side < HL_SIDES; side++) {
        json_decref(bench.maps[side]);
        json_decref(bench.counts[side]);
        for (unsigned metric = 0; metric < HL_METRICS; metric++)
            free(bench.value[side][metric]);
    }
    hl_free_counters(&bench.counters);
    hl_free_trial(&bench.reference);
    return code;
}

/* --- a process that runs already --- */

/* What /proc/PID/stat has counted; times in ms. */
struct usage {
    double user_ms, system_ms;
    unsigned long minor_faults, major_faults;
    long rss_pages;
};

static int read_usage(pid_t pid, struct usage *usage) {
    char *path = hl_format("/proc/%d/stat", pid), *line = NULL;
    unsigned long user = 0, kernel = 0;
    size_t size = 0;
    int result = -ESRCH;
    FILE *file = fopen(path, "re");
    free(path);
    if (file == NULL)
        return errno == ENOENT ? -ESRCH : -errno;
    ssize_t bytes = getdelim(&line, &size, '\0', file); /* a name may hold newlines and parentheses */
    const char *at = bytes > 0 ? strrchr(line, ')') : NULL;
    if (at != NULL &&
        sscanf(at,
               ") %*c %*d %*d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld",
               &usage->minor_faults, &usage->major_faults, &user, &kernel, &usage->rss_pages) == 5)
        result = 0;
    double tick_ms = 1e3 / (double)sysconf(_SC_CLK_TCK);
    usage->user_ms = (double)user * tick_ms;
    usage->system_ms = (double)kernel * tick_ms;
    free(line);
    fclose(file);
    return result;
}

static char *read_name(pid_t pid) {
    struct hl_process process;
    if (hl_open_process(&process, pid) != 0)
        return hl_format("?");
    char *name = hl_format("%s", process.name);
    hl_close_process(&process);
    return name;
}

static void print_process(const json_t *answer, const struct hl_counters *counters) {
    const char *event;
    json_t *value, *object;
    size_t i;
    hl_print("%d %s, %s s", (int)json_integer_value(json_object_get(answer, "pid")),
             json_string_value(json_object_get(answer, "name")),
             json_string_value(json_object_get(answer, "seconds")));
    hl_print("  user %.0f ms, system %.0f ms, minor faults %.0f, major faults %.0f, RSS %.0f KiB (without "
             "hugetlb)",
             json_number_value(json_object_get(answer, "user_ms")),
             json_number_value(json_object_get(answer, "system_ms")),
             json_number_value(json_object_get(answer, "minor_faults")),
             json_number_value(json_object_get(answer, "major_faults")),
             json_number_value(json_object_get(answer, "rss_kib")));
    json_array_foreach(json_object_get(json_object_get(answer, "map"), "objects"), i, object) {
        double text = json_number_value(json_object_get(object, "text_bytes"));
        double huge = json_number_value(json_object_get(object, "text_huge_bytes"));
        hl_print("  %s: %.1f %% of %.0f KiB of text on huge pages",
                 json_string_value(json_object_get(object, "path")), text > 0 ? 100 * huge / text : 0,
                 text / 1024);
    }
    json_object_foreach(json_object_get(answer, "counters"), event, value)
        hl_print("  %-30s %14.0f", event, json_number_value(value));
    if (counters->reason != NULL)
        hl_print("  TLB misses and walks: not counted: %s", counters->reason);
}

static int count_process(const struct request *request) {
    struct usage before = {0}, after = {0};
    struct hl_counters counters = {0};
    json_t *counts = NULL;
    char *name = read_name(request->pid);
    int result = read_usage(request->pid, &before);
    if (result == 0) {
        hl_find_counters(&counters);
        result = read_usage(request->pid, &before);
        if (counters.events != NULL)
            counts = hl_count_process(&counters, request->pid, request->seconds);
        else
            sleep((unsigned)strtoul(request->seconds, NULL, 10));
        if (counts == NULL && counters.reason == NULL)
            counters.reason = hl_format("perf stat failed");
    }
    if (result == 0)
        result = read_usage(request->pid, &after);
    if (result == 0) {
        json_t *map = hl_map_process(request->pid);
        json_t *answer =
            json_pack("{s:i, s:o, s:s, s:f, s:f, s:I, s:I, s:I, s:o, s:o, s:o}", "pid", (int)request->pid,
                      "name", hl_json_text(name), "seconds", request->seconds, "user_ms",
                      after.user_ms - before.user_ms, "system_ms", after.system_ms - before.system_ms,
                      "minor_faults", (json_int_t)(after.minor_faults - before.minor_faults), "major_faults",
                      (json_int_t)(after.major_faults - before.major_faults), "rss_kib",
                      (json_int_t)after.rss_pages * (json_int_t)sysconf(_SC_PAGESIZE) / 1024, "counters",
                      counts != NULL ? json_incref(counts) : json_null(), "no_counters",
                      json_text_or_null(counters.reason), "map", map != NULL ? map : json_null());
        if (request->json)
            hl_print_json(json_incref(answer));
        else
            print_process(answer, &counters);
        json_decref(answer);
    } else {
        hl_say_unreadable(request->pid, result);
    }
    json_decref(counts);
    hl_free_counters(&counters);
    free(name);
    return result == 0 ? HL_EXIT_DONE : HL_EXIT_NO;
}

/* --- wrong use --- */

/* 0, or the exit code after one line. */
static int check_request(const struct request *request) {
    bool run = request->has_pairs || request->ignore_failure || request->report != NULL ||
               request->subject.run.patterns != NULL || request->subject.run.options != NULL ||
               request->subject.run.use_ldso;
    if (request->program == 0 && request->pid == 0)
        hl_say("bench: no program given; try 'hugeld bench -- PROGRAM ARGS', or --pid PID");
    else if (request->program != 0 && request->pid != 0)
        hl_say("bench: give a program or --pid, not both");
    else if (request->pid != 0 && run)
        hl_say("bench: --pid runs nothing: it goes with --seconds and --json alone");
    else if (request->program != 0 && request->seconds != NULL)
        hl_say("bench: --seconds goes with --pid; -n says how many runs");
    else
        return 0;
    return HL_EXIT_USAGE;
}

/* A page that can't be written should not cost an hour of measuring. */
static int check_report(const char *path) {
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (path == NULL)
        return 0;
    if (fd < 0) {
        hl_say("%s: the page cannot be written: %s; name another file", path, strerror(errno));
        return HL_EXIT_USAGE;
    }
    close(fd);
    return 0;
}

/* Every run reads the same: a file is read from where it stands, of anything else there is only one. */
static void take_input(struct hl_subject *subject) {
    struct stat stat_buffer;
    subject->input = -1;
    if (fstat(STDIN_FILENO, &stat_buffer) != 0 || !S_ISREG(stat_buffer.st_mode))
        return;
    subject->input = STDIN_FILENO;
    subject->input_from = lseek(STDIN_FILENO, 0, SEEK_CUR);
}

int hl_measure_program(int argc, char **argv) {
    static const struct argp argp = {
        argp_options,
        parse_argument,
        "[--] PROGRAM [ARGUMENT...]",
        "Runs PROGRAM plainly and on huge pages in turns, and says whether it is faster.\v"
        "Its standard input is read anew for each run if it is a file, and is empty otherwise; its output is "
        "compared, "
        "not shown.  Exit status: 0 when it is faster, 1 when it isn't or nothing could be measured.",
        NULL,
        NULL,
        NULL,
    };
    struct request request = {.pairs = PAIRS_DEFAULT};
    int code = HL_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL, &request) != 0)
        goto out;
    code = check_request(&request);
    if (code != 0)
        goto out;
    if (request.pid != 0) {
        request.seconds = request.seconds != NULL ? request.seconds : "10";
        code = count_process(&request);
        goto out;
    }
    request.subject.argv = argv + request.program;
    request.subject.path = hl_find_program(request.subject.argv[0]);
    code = request.subject.path == NULL ? hl_refuse_program(request.subject.argv[0])
                                        : check_report(request.report);
    if (code == 0) {
        take_input(&request.subject);
        code = measure_program(&request);
    }
out:
    free(request.subject.path);
    free(request.subject.run.options);
    return code;
}
