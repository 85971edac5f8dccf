/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: is it worth it?

   The program runs without hugeld and by `hugeld run` in turns, so that other load on the machine falls on both alike, or, with
   --at-once, at the same time.  Two runs of each side come first and don't count.  They are traced once each: smaps, read as the
   program exits, shows the memory on huge pages, and hugeld says what it moved; a run after all others shows that it still does.  The output of
   each run on huge pages must equal the plain run's. */
#include "command/measure/bench-answer.h"
#include "command/measure/counters.h"
#include "command/measure/own-store.h"
#include "command/measure/toggle.h"
#include "command/measure/trace.h"
#include "command/measure/trial.h"
#include "command/command.h"
#include "command/lib/flags.h"
#include "command/lib/html.h"
#include "command/lib/progress.h"
#include "command/lib/program.h"
#include "elf/reason.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS_DEFAULT 20
/* With fewer pairs the 95 % interval of a median is wider than all of them. */
#define PAIRS_MIN 6
#define PAIRS_MAX 10000

struct request {
    struct hl_subject subject;
    size_t pairs; /* 0: not given */
    bool ignore_failure, at_once;
    const char *report;
    pid_t pid;
    double seconds; /* 0: not given */
    bool toggles;
    struct hl_toggle_settings settings;
    char **program; /* or NULL */
};

static const struct hl_flag command_flags[] = {
    {"pairs", 'n', "N", "Measure N runs of each side (20; with --toggle, until it is known within 2 %)",
     HL_COUNT(struct request, pairs, PAIRS_MIN, PAIRS_MAX)},
    {"at-once", 0, NULL, "Run both sides of a pair at the same time", HL_SWITCH(struct request, at_once)},
    HL_RUN_FLAGS(struct request, subject.run),
    {"ignore-failure", 'i', NULL, "Accept a non-zero exit status", HL_SWITCH(struct request, ignore_failure)},
    {"report", 0, "FILE.html", "Write a report with a plot of all runs", HL_STRING(struct request, report)},
    {"pid", 0, "PID", "With --toggle: measure a running process", HL_PID(struct request, pid)},
    {"toggle", 0, NULL, "With --pid: attach and detach in turns", HL_SWITCH(struct request, toggles)},
    {"seconds", 0, "S", "With --toggle: every S seconds (10)", HL_SECONDS(struct request, seconds)},
    {"metric", 0, "COMMAND", "With --toggle: it prints the work done so far",
     HL_STRING(struct request, settings.metric)},
    {NULL, 0, "[--] PROGRAM [ARGUMENT...]", NULL, HL_PROGRAM(struct request, program)},
};

/* --- conditions on each run --- */

static bool says(const char *line, size_t bytes, enum hl_reason reason) {
    const char *sentence = hl_reason_sentence(reason);
    return memmem(line, bytes, sentence, strlen(sentence)) != NULL;
}

/* Whether LINE says that a process has no object of some name. */
static bool is_about_name(const char *line) {
    static const char start[] = "hugeld: LD_HUGEPAGES: ";
    return strncmp(line, start, strlen(start)) == 0;
}

/* The line of hugeld's that says most about TRIAL, without its prefix, or another sentence if there is none; the caller frees
   it. */
static char *choose_line(const struct hl_trial *trial) {
    const char *line = trial->said, *first = line;
    if (line[0] == '\0')
        return hl_xasprintf("libhugeld.so said nothing: it was not loaded, LD_HUGEPAGES or exe= leaves this "
                            "program out, or its standard error is redirected");
    while (*line != '\0') { /* wrappers and small children have nothing to move, and lack the libraries */
        size_t bytes = strcspn(line, "\n");
        if (!says(line, bytes, HL_REASON_TOO_SMALL) && !says(line, bytes, HL_REASON_SPARSE_TEXT) &&
            (is_about_name(first) || !is_about_name(line)))
            first = line;
        line += bytes + (line[bytes] == '\n');
    }
    const char *more = is_about_name(first) ? ", or its standard error is redirected" : "";
    first += strlen("hugeld: ");
    return hl_xasprintf("%.*s%s", (int)strcspn(first, "\n"), first, more);
}

static bool same_bytes(const struct hl_bytes *a, const struct hl_bytes *b) {
    return a->bytes == b->bytes && memcmp(a->at, b->at, a->bytes) == 0;
}

/* 0, or the exit code after one line. */
static int check_status(const struct hl_bench *bench, enum hl_side side, const struct hl_trial *trial) {
    const char *name = bench->subject->argv[0];
    if (trial->status == bench->reference.status)
        return 0;
    char *plain = hl_describe_status(bench->reference.status), *now = hl_describe_status(trial->status);
    char *line = trial->said[0] != '\0' ? choose_line(trial) : hl_xasprintf("nothing");
    if (side == HL_PLAIN)
        hl_warn("%s: it ends differently from run to run (%s, then %s); give it work that can be repeated",
                name, plain, now);
    else
        hl_warn("%s: %s on huge pages, %s without hugeld; hugeld said: %s", name, now, plain, line);
    free(plain);
    free(now);
    free(line);
    return HL_EXIT_NO;
}

static int check_output(struct hl_bench *bench, enum hl_side side, const struct hl_trial *trial) {
    const struct hl_bytes *wanted = bench->reference.stream;
    const char *different = !same_bytes(&wanted[0], &trial->stream[0])   ? "standard output"
                            : !same_bytes(&wanted[1], &trial->stream[1]) ? "standard error"
                                                                         : NULL;
    if (side == HL_PLAIN && different != NULL)
        bench->comparable = false;
    if (side == HL_PLAIN || different == NULL || !bench->comparable)
        return 0;
    hl_warn("%s: %s differs on huge pages; it is the same in all plain runs, so this is a bug in hugeld, "
            "or the program looks at its own memory",
            bench->subject->argv[0], different);
    return HL_EXIT_NO;
}

/* Whether hugeld SAID that it moved something: "main: text 12 pages hugetlb".  Pages that are only advised are none. */
static bool says_moved(const char *said) {
    regex_t move;
    regcomp(&move, "[0-9] pages? (hugetlb|thp|image)([^ ]|$)", REG_EXTENDED | REG_NOSUB);
    bool is_there = regexec(&move, said, 0, NULL, 0) == 0;
    regfree(&move);
    return is_there;
}

/* Whether the traced TRIAL on huge pages has moved to some: it says so, or, where its standard error is redirected, MAPS has more of
   them than the plain run's.  A short program may end before it can be traced.  0, or the exit code after one line. */
static int check_pages(const struct hl_bench *bench, const json_t *maps, const struct hl_trial *trial) {
    if (says_moved(trial->said) ||
        hl_sum_huge_bytes(maps, HL_MOVED, 'r') > hl_sum_huge_bytes(bench->maps[HL_PLAIN], HL_MOVED, 'r'))
        return 0;
    bool is_cached = trial->said[0] == '\0' && hl_sum_huge_bytes(bench->maps[HL_PLAIN], "file", 'x') > 0;
    char *line = is_cached ? hl_xasprintf("%s", hl_reason_sentence(HL_REASON_IN_PLACE)) : choose_line(trial);
    const char *lack =
        strstr(line, hl_reason_sentence(HL_REASON_IN_PLACE)) != NULL
            ? "its plain runs are on huge pages, too; to measure it: hugeld disable, then bench"
        : strstr(line, hl_reason_sentence(HL_REASON_DRIVER)) != NULL
            ? "to measure it: hugeld bench --children"
        : bench->lack != NULL ? bench->lack
                              : "";
    hl_warn("bench: nothing moved: %s%s%s", line, lack[0] != '\0' ? "; " : "", lack);
    free(line);
    return HL_EXIT_NO;
}

/* Prints that nothing ran, for the reason ERROR; the exit code. */
static int refuse_start(const struct hl_bench *bench, int error) {
    hl_warn("%s: cannot be started: %s; free memory or processes", bench->subject->argv[0], strerror(error));
    return HL_EXIT_NO;
}

/* Whether TRIAL meets the conditions for SIDE; MAPS: as it was traced, or NULL.  0, or the exit code after one line. */
static int check_trial(struct hl_bench *bench, enum hl_side side, const json_t *maps,
                       const struct hl_trial *trial) {
    int code = check_status(bench, side, trial);
    if (code == 0 && side == HL_ON_HUGE && maps != NULL)
        code = check_pages(bench, maps, trial);
    return code != 0 ? code : check_output(bench, side, trial);
}

/* Runs SIDE once.  0, or the exit code after one line. */
static int try_side(struct hl_bench *bench, enum hl_side side, json_t *maps, struct hl_trial *trial) {
    int result = bench->try_program(bench->subject, side, maps, -1, trial);
    if (result != 0)
        return refuse_start(bench, -result);
    if (bench->reference.said == NULL) /* this is the first run */
        return 0;
    return check_trial(bench, side, maps, trial);
}

/* Runs the program on huge pages, traced into MAPS, and lets hugeld say what it did.  0, or the exit code after one line. */
static int try_traced(struct hl_bench *bench, json_t *maps) {
    struct hl_trial trial;
    char *asked = bench->subject->run.options;
    bench->subject->run.options = hl_join_options(asked, "verbose=2");
    int code = try_side(bench, HL_ON_HUGE, maps, &trial);
    hl_free_trial(&trial);
    free(bench->subject->run.options);
    bench->subject->run.options = asked;
    return code;
}

/* The first plain run, with which all others are compared. */
static int try_first(struct hl_bench *bench, bool ignore_failure) {
    struct hl_trial trial;
    int code = try_side(bench, HL_PLAIN, bench->maps[HL_PLAIN], &trial);
    bench->reference = trial;
    if (code != 0 || trial.status == 0 || (ignore_failure && WIFEXITED(trial.status)))
        return code;
    if (trial.said[0] != '\0' && WIFEXITED(trial.status) &&
        (WEXITSTATUS(trial.status) == HL_EXIT_CANNOT_RUN || WEXITSTATUS(trial.status) == HL_EXIT_NOT_FOUND)) {
        char *line = choose_line(&trial); /* hl_refuse_program's line: it was not started */
        hl_warn("%s", line);
        free(line);
        return HL_EXIT_NO;
    }
    char *how = hl_describe_status(trial.status);
    hl_warn("%s: %s when run without hugeld; give it work that succeeds, or --ignore-failure",
            bench->subject->argv[0], how);
    free(how);
    return HL_EXIT_NO;
}

/* The same, without a trace, for a run that does not count. */
static int try_untraced(struct hl_bench *bench, enum hl_side side) {
    struct hl_trial trial;
    int code = try_side(bench, side, NULL, &trial);
    hl_free_trial(&trial);
    return code;
}

/* --- measuring --- */

static void record_values(struct hl_bench *bench, enum hl_side side, size_t pair,
                          const struct hl_trial *trial) {
    for (unsigned metric = 0; metric < HL_METRICS; metric++)
        bench->value[side][metric][pair] = trial->value[metric];
}

/* Measures one pair, the sides taking turns in going first. */
static int measure_in_turns(struct hl_bench *bench, size_t pair) {
    int code = 0;
    for (unsigned i = 0; code == 0 && i < HL_SIDES; i++) {
        enum hl_side side = (pair + i) % 2 == 0 ? HL_PLAIN : HL_ON_HUGE;
        struct hl_trial trial;
        code = try_side(bench, side, NULL, &trial);
        if (code == 0)
            record_values(bench, side, pair, &trial);
        hl_free_trial(&trial);
    }
    return code;
}

/* Measures one pair at the same time: the sides swap processors each time, and the first place every second time. */
static int measure_at_once(struct hl_bench *bench, size_t pair) {
    const struct hl_runner runners[HL_SIDES] = {
        {bench->subject, HL_PLAIN, bench->processors[pair % 2]},
        {bench->subject, HL_ON_HUGE, bench->processors[(pair + 1) % 2]},
    };
    struct hl_trial trials[HL_SIDES];
    int result = hl_try_pair(runners, pair / 2 % 2, trials);
    int code = result != 0 ? refuse_start(bench, -result) : 0;
    for (int side = 0; side < HL_SIDES; side++) {
        if (code == 0)
            code = check_trial(bench, (enum hl_side)side, NULL, &trials[side]);
        if (code == 0)
            record_values(bench, (enum hl_side)side, pair, &trials[side]);
        hl_free_trial(&trials[side]);
    }
    return code;
}

static int measure_pairs(struct hl_bench *bench) {
    int code = 0;
    double started = hl_now_ms();
    for (size_t done = 0; code == 0 && done < bench->pairs;) {
        code = bench->at_once ? measure_at_once(bench, done) : measure_in_turns(bench, done);
        double each = (hl_now_ms() - started) / (double)++done;
        hl_show_progress(0, "pair %zu of %zu, %.0f s to go", done, bench->pairs,
                         each * (double)(bench->pairs - done) / 1e3);
    }
    hl_hide_progress();
    return code;
}

int hl_measure_sides(struct hl_bench *bench, struct hl_own_store *own, bool ignore_failure) {
    json_t *maps = json_array();
    int code = try_first(bench, ignore_failure);
    bench->comparable = true;
    if (code == 0)
        bench->lack = hl_make_own_images(own, bench->subject, bench->maps[HL_PLAIN], bench->own_images);
    if (code == 0)
        code = try_untraced(bench, HL_PLAIN);
    if (code == 0)
        code = try_traced(bench, bench->maps[HL_ON_HUGE]);
    if (code == 0)
        code = try_untraced(bench, HL_ON_HUGE);
    if (code == 0)
        code = measure_pairs(bench);
    if (code == 0)
        code = try_traced(bench, maps); /* it still is on huge pages */
    json_decref(maps);
    return code;
}

static void count_sides(struct hl_bench *bench) {
    const char *event;
    json_t *unused;
    void *next;
    hl_find_counters(&bench->counters);
    if (bench->counters.events == NULL)
        return;
    for (unsigned side = 0; side < HL_SIDES; side++)
        bench->counts[side] = hl_count_run(&bench->counters, bench->subject, (enum hl_side)side);
    if (bench->counts[HL_PLAIN] == NULL || bench->counts[HL_ON_HUGE] == NULL)
        bench->counters.reason = hl_xasprintf("perf stat failed");
    /* perf may count less of a short run. */
    json_object_foreach_safe(bench->counts[HL_PLAIN], next, event, unused) {
        if (json_object_get(bench->counts[HL_ON_HUGE], event) == NULL)
            json_object_del(bench->counts[HL_PLAIN], event);
    }
}

static int measure_program(struct request *request) {
    struct hl_bench bench = {
        .subject = &request->subject,
        .try_program = hl_try_program,
        .pairs = request->pairs,
        .at_once = request->at_once,
        .own_images = json_array(),
    };
    struct hl_own_store own = {0};
    if (bench.at_once && !hl_find_processors(bench.processors))
        return HL_EXIT_NO;
    for (unsigned side = 0; side < HL_SIDES; side++) {
        bench.maps[side] = json_array();
        for (unsigned metric = 0; metric < HL_METRICS; metric++)
            bench.value[side][metric] = hl_xmalloc(request->pairs * sizeof(double));
    }
    char *asked = request->subject.run.options;
    request->subject.run.options = hl_join_options(asked, NULL); /* the store is added */
    int code = hl_measure_sides(&bench, &own, request->ignore_failure);
    if (code == 0)
        count_sides(&bench);
    hl_remove_own_store(&own);
    free(request->subject.run.options);
    request->subject.run.options = asked;
    if (code == 0)
        code = hl_tell_answer(&bench, request->report);
    for (unsigned side = 0; side < HL_SIDES; side++) {
        json_decref(bench.maps[side]);
        json_decref(bench.counts[side]);
        for (unsigned metric = 0; metric < HL_METRICS; metric++)
            free(bench.value[side][metric]);
    }
    hl_free_counters(&bench.counters);
    hl_free_trial(&bench.reference);
    json_decref(bench.own_images);
    free(bench.lack);
    return code;
}

/* --- wrong use --- */

/* 0, or the exit code after one line. */
static int check_request(const struct request *request) {
    const struct hl_run *how = &request->subject.run;
    bool run = request->ignore_failure || request->report != NULL || request->at_once || how->copies ||
               how->children || how->options != NULL || how->via != HL_VIA_AUTO || how->patterns != NULL;
    if (request->program == NULL && request->pid == 0)
        hl_warn("bench: no program given; try 'hugeld bench -- PROGRAM ARGS', or --pid PID --toggle");
    else if (request->program != NULL && request->pid != 0)
        hl_warn("bench: give a program or --pid, not both");
    else if (request->toggles != (request->pid != 0))
        hl_warn(
            "bench: --pid goes with --toggle, which attaches and detaches in turns; 'perf stat -p' counts "
            "in a process as it is");
    else if (hl_is_contradictory(how))
        hl_warn("bench: --children takes images alone; leave out --copy, --via and --ld-so");
    else if (request->toggles && run)
        hl_warn("bench: --toggle goes with --json, --seconds, -n and --metric");
    else if (!request->toggles && (request->settings.metric != NULL || request->seconds > 0))
        hl_warn("bench: --metric and --seconds go with --toggle; -n says how many runs");
    else
        return 0;
    return HL_EXIT_USAGE;
}

/* Every run reads the same input: a file from the position at which it stands; any other input exists only once. */
static void find_input(struct hl_subject *subject) {
    struct stat stat_buffer;
    subject->input = -1;
    if (fstat(STDIN_FILENO, &stat_buffer) != 0 || !S_ISREG(stat_buffer.st_mode))
        return;
    subject->input = STDIN_FILENO;
    subject->input_from = lseek(STDIN_FILENO, 0, SEEK_CUR);
}

int hl_measure_program(int argc, char **argv) {
    static const struct hl_command command = {
        "bench",
        "Runs PROGRAM, which must end by itself, in turns as it is and as 'hugeld run' with these options "
        "does, and says whether that is faster.  For a server there is --pid.\v"
        "Where there is no image, one is made for the measurement.  Its standard input is read anew for each "
        "run if it is a file, and is empty otherwise; its output is compared, not shown.  Exit status: 0 "
        "when "
        "it takes less time or less processor time, 1 when it doesn't or nothing could be measured.",
        command_flags, true};
    struct request request = {0};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        goto out;
    code = check_request(&request);
    if (code != 0)
        goto out;
    if (request.toggles) {
        request.settings.pairs = request.pairs;
        request.settings.seconds = request.seconds > 0 ? request.seconds : 10;
        code = hl_bench_toggle(request.pid, &request.settings);
        goto out;
    }
    if (request.pairs == 0)
        request.pairs = PAIRS_DEFAULT;
    request.subject.argv = request.program;
    code = hl_open_program(&request.subject.program, request.subject.argv[0])
               ? hl_check_report(request.report)
               : hl_refuse_program(request.subject.argv[0]);
    if (code == 0) {
        find_input(&request.subject);
        code = measure_program(&request);
    }
out:
    hl_close_program(&request.subject.program);
    free(request.subject.run.options);
    return code;
}
