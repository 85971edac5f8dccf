/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench --pid --toggle: is it worth it for a running process?

   Its text is attached and detached in turns, and each time its processor time for a unit of work is measured.  A pair is one block
   of each, in an order that is drawn, so that any growth in the process or the machine falls on both.  The process serves its users
   meanwhile, so its units of work have to be counted: by the number that a command prints, such as transactions so far.  Without a
   command the unit is an instruction, if perf can count those, and its cost is cycles.

   The process is left as it was found. */
#include "command/measure/toggle.h"
#include "command/measure/counters.h"
#include "command/measure/bench-answer.h"
#include "command/measure/statistics.h"
#include "command/inject/attachment.h"
#include "elf/reason.h"
#include "command/lib/remedy.h"
#include "command/lib/subprocess.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The first touches of the new pages, right after a toggle, belong to no block. */
#define SETTLE_NS 200000000L
/* A block with fewer units of work cannot be judged. */
#define UNITS_MIN 10
/* How long a number may stay the same in a process that works: PostgreSQL's backends report once in a second. */
#define STEP_MS 2000
#define STEP_PAUSE_S 0.01
/* Without -n: pairs are measured until half of the interval is at most so many per cent of the ratio, and so many at least and at most. */
#define HALF_WIDTH 2.0
#define NARROW_PAIRS_MIN 10
#define NARROW_PAIRS_MAX 60

struct toggle {
    const struct hl_toggle_settings *settings;
    struct hl_attach_request request;
    pid_t pid;
    uint64_t started; /* with PID it names one process */
    clockid_t clock;
    struct hl_counters counters; /* only if instructions are the units of work */
    bool was_attached, is_attached;
    size_t pairs; /* measured so far */
    double *value[HL_SIDES];
};

static volatile sig_atomic_t interrupted;

static void note_interruption(int number) { interrupted = number; }

/* --- on and off --- */

/* Whether the process is there, and its number is not a later one's. */
static bool is_there(const struct toggle *toggle) {
    struct hl_usage usage;
    return hl_read_usage(toggle->pid, &usage) == 0 && usage.started == toggle->started;
}

/* Attaches or detaches.  A thread may be in the wrong call at that moment, so it is tried more than once. */
static bool set(struct toggle *toggle, bool attach) {
    int reason = -ESRCH;
    toggle->request.is_detach = !attach;
    for (unsigned tries = 0; tries < 5 && is_there(toggle); tries++) {
        struct hl_attachment attachment;
        hl_plan_attachment(&attachment, &toggle->request, toggle->pid);
        hl_fill_own_image(&attachment);
        hl_move_attachment(&attachment);
        reason = attachment.reason;
        hl_free_attachment(&attachment);
        if (reason == 0 || reason == HL_REASON_ATTACH_DETACHED ||
            (reason == HL_REASON_HUGE_ALREADY && toggle->is_attached)) {
            toggle->is_attached = attach;
            return true;
        }
        nanosleep(&(struct timespec){0, SETTLE_NS}, NULL);
    }
    if (reason < 0) {
        hl_say_unreadable(toggle->pid, reason);
        return false;
    }
    char *why = hl_explain_reason((enum hl_reason)reason, "FILE");
    hl_warn("%d: its text %s: %s", toggle->pid, attach ? "stays" : "cannot be moved back", why);
    free(why);
    return false;
}

/* Whether it was attached already: otherwise it cannot be detached. */
static bool is_attached(struct toggle *toggle) {
    struct hl_attachment attachment;
    toggle->request.is_detach = toggle->request.dry_run = true;
    hl_plan_attachment(&attachment, &toggle->request, toggle->pid);
    bool any = attachment.reason == 0;
    hl_free_attachment(&attachment);
    toggle->request.dry_run = false;
    return any;
}

/* --- work --- */

static bool read_processor_ms(const struct toggle *toggle, double *ms) {
    struct timespec time;
    if (clock_gettime(toggle->clock, &time) != 0)
        return false;
    *ms = (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
    return true;
}

/* The number that the command prints. */
static bool run_metric(const char *command, double *units) {
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)command, NULL};
    struct hl_answer answer;
    char *end;
    hl_ask_program(&answer, "/bin/sh", argv, false, NULL);
    *units = strtod(answer.output, &end);
    bool fine = answer.succeeded && end != answer.output && isfinite(*units);
    if (!fine && !interrupted)
        hl_warn("bench: --metric: the command printed no number; it has to print the work done so far");
    hl_free_answer(&answer);
    return fine;
}

static void sleep_for(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (!interrupted && nanosleep(&time, &time) != 0 && errno == EINTR)
        continue;
}

/* Reduces COUNTERS to those needed for the cost of an instruction.  False, after one line: perf has none. */
static bool find_counters(struct hl_counters *counters) {
    static const char wanted[] = "cycles,instructions"; /* the order in which they are searched */
    hl_find_counters(counters);
    if (counters->events == NULL || strstr(counters->events, wanted) == NULL) {
        hl_warn(
            "bench: no instructions can be counted here: %s; --metric COMMAND prints the work done so far",
            counters->reason != NULL ? counters->reason : "perf counts other events alone");
        return false;
    }
    free(counters->events);
    counters->events = hl_xasprintf("%s", wanted);
    return true;
}

/* Cycles for each instruction. */
static bool measure_instructions(const struct toggle *toggle, double *value) {
    json_t *counts = hl_count_process(&toggle->counters, toggle->pid, toggle->settings->seconds);
    double instructions = json_number_value(json_object_get(counts, "instructions"));
    *value = instructions > 0 ? json_number_value(json_object_get(counts, "cycles")) / instructions : 0;
    json_decref(counts);
    if (instructions > 0 || interrupted)
        return !interrupted;
    hl_warn("bench: perf has counted nothing in %d; --metric COMMAND prints the work done so far",
            toggle->pid);
    return false;
}

/* Runs the command, and reads the processor time of the process in the middle of that. */
static bool read_work(const struct toggle *toggle, double *units, double *ms) {
    double before = 0, after = 0;
    bool fine = read_processor_ms(toggle, &before) && run_metric(toggle->settings->metric, units) &&
                read_processor_ms(toggle, &after);
    *ms = (before + after) / 2;
    return fine && !interrupted;
}

/* The same, as soon as the number has changed: it may be one of some time ago, but then it has just been brought up to date. */
static bool read_work_at_step(const struct toggle *toggle, double *units, double *ms) {
    double begun = hl_now_ms(), first = 0;
    bool fine = read_work(toggle, &first, ms);
    *units = first;
    while (fine && *units == first && hl_now_ms() - begun < STEP_MS) {
        sleep_for(STEP_PAUSE_S);
        fine = read_work(toggle, units, ms);
    }
    return fine;
}

/* Processor time for each unit of work. */
static bool measure_work(const struct toggle *toggle, double *value) {
    double ms[2], units[2];
    bool fine = read_work_at_step(toggle, &units[0], &ms[0]);
    if (fine)
        sleep_for(toggle->settings->seconds);
    fine = fine && read_work_at_step(toggle, &units[1], &ms[1]);
    if (fine && units[1] - units[0] < UNITS_MIN) {
        hl_warn("bench: %d did %.0f units of work in %g s, too few to measure by; give it more time "
                "(--seconds), or let --metric count smaller units",
                toggle->pid, units[1] - units[0], toggle->settings->seconds);
        return false;
    }
    if (fine)
        *value = (ms[1] - ms[0]) / (units[1] - units[0]);
    else if (!interrupted && !is_there(toggle))
        hl_warn("%d: it has ended", toggle->pid);
    return fine;
}

/* The cost of a unit of work, in a block on SIDE. */
static bool measure_block(struct toggle *toggle, enum hl_side side) {
    double *value = &toggle->value[side][toggle->pairs];
    if (interrupted || !set(toggle, side == HL_ON_HUGE))
        return false;
    nanosleep(&(struct timespec){0, SETTLE_NS}, NULL);
    return toggle->counters.events != NULL ? measure_instructions(toggle, value)
                                           : measure_work(toggle, value);
}

static struct hl_ratio compare(const struct toggle *toggle) {
    return hl_compare_pairs(toggle->value[HL_PLAIN], toggle->value[HL_ON_HUGE], toggle->pairs);
}

/* Whether another pair is to be measured. */
static bool wants_more(const struct toggle *toggle) {
    if (toggle->settings->pairs > 0)
        return toggle->pairs < toggle->settings->pairs;
    if (toggle->pairs < NARROW_PAIRS_MIN || toggle->pairs == NARROW_PAIRS_MAX)
        return toggle->pairs < NARROW_PAIRS_MIN;
    struct hl_ratio ratio = compare(toggle);
    return hl_half_width(&ratio) > HALF_WIDTH;
}

static bool measure_pairs(struct toggle *toggle) {
    for (; wants_more(toggle); toggle->pairs++) {
        unsigned char first = 0;
        if (getentropy(&first, 1) != 0)
            first = (unsigned char)toggle->pairs;
        enum hl_side side = first & 1 ? HL_ON_HUGE : HL_PLAIN;
        for (unsigned s = 0; s < HL_SIDES; s++)
            toggle->value[s] =
                hl_xrealloc(toggle->value[s], (toggle->pairs + 1) * sizeof toggle->value[s][0]);
        if (!measure_block(toggle, side) || !measure_block(toggle, side == HL_PLAIN ? HL_ON_HUGE : HL_PLAIN))
            return false;
    }
    return true;
}

/* --- the answer --- */

static json_t *make_json_values(const struct toggle *toggle, enum hl_side side) {
    json_t *values = json_array();
    for (size_t i = 0; i < toggle->pairs; i++)
        json_array_append_new(values, json_real(toggle->value[side][i]));
    return values;
}

static int show_answer(const struct toggle *toggle) {
    struct hl_ratio ratio = compare(toggle);
    const char *verdict = hl_name_ratio(&ratio);
    bool cycles = toggle->counters.events != NULL;
    hl_print_answer(json_pack("{s:i, s:I, s:f, s:s, s:s, s:b, s:o, s:{s:o, s:o}}", "pid", (int)toggle->pid,
                              "pairs", (json_int_t)toggle->pairs, "seconds", toggle->settings->seconds,
                              "unit", cycles ? "instructions" : "metric", "verdict", verdict, "attached",
                              toggle->is_attached, "ratio", hl_json_ratio(&ratio), "for_each_unit", "plain",
                              make_json_values(toggle, HL_PLAIN), "huge",
                              make_json_values(toggle, HL_ON_HUGE)),
                    false);
    if (ratio.known)
        hl_print("%s%s in %zu pairs: on huge pages %s takes %.3f times the %s, 95 %% interval %.3f to %.3f",
                 verdict, verdict[0] == 'n' ? " seen" : "", toggle->pairs,
                 cycles ? "an instruction" : "a unit of work", ratio.ratio,
                 cycles ? "cycles" : "processor time", ratio.low, ratio.high);
    else
        hl_print("no difference seen: it took no processor time");
    return strcmp(verdict, "faster") == 0 ? HL_EXIT_DONE : HL_EXIT_NO;
}

/* Whether the process can be read and measured.  0, or a negated errno. */
static int check_process(struct toggle *toggle) {
    struct hl_process process;
    struct hl_usage usage = {0};
    int result = hl_open_process(&process, toggle->pid);
    if (result == 0) {
        result = hl_read_process_map(&process);
        hl_close_process(&process);
    }
    result = result != 0 ? result : hl_read_usage(toggle->pid, &usage);
    toggle->started = usage.started;
    return result != 0 ? result : -clock_getcpuclockid(toggle->pid, &toggle->clock);
}

int hl_bench_toggle(pid_t pid, const struct hl_toggle_settings *settings) {
    struct toggle toggle = {.settings = settings, .pid = pid};
    struct sigaction action = {.sa_handler = note_interruption}, inherited;
    int error = check_process(&toggle);
    if (error != 0) {
        hl_say_unreadable(pid, error);
        return HL_EXIT_NO;
    }
    if (settings->metric == NULL && !find_counters(&toggle.counters)) {
        hl_free_counters(&toggle.counters);
        return HL_EXIT_NO;
    }
    toggle.request.geometry = hl_read_geometry();
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (sigaction(ends[i], NULL, &inherited) == 0 && inherited.sa_handler == SIG_DFL)
            sigaction(ends[i], &action, NULL);
    toggle.was_attached = toggle.is_attached = is_attached(&toggle);
    bool done = measure_pairs(&toggle);
    bool restored =
        toggle.is_attached == toggle.was_attached || !is_there(&toggle) || set(&toggle, toggle.was_attached);
    int code = done && restored ? show_answer(&toggle) : HL_EXIT_NO;
    for (unsigned side = 0; side < HL_SIDES; side++)
        free(toggle.value[side]);
    hl_free_counters(&toggle.counters);
    hl_free_own_images(&toggle.request);
    return code;
}
