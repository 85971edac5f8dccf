/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: the answer at the end. */
#include "command/measure/bench-answer.h"
#include "command/measure/counters.h"
#include "command/measure/statistics.h"
#include "command/measure/trace.h"
#include "command/measure/trial.h"
#include "command/lib/html.h"
#include "command/measure/tlb.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Per cent to each side: more hides what huge pages mostly gain. */
#define HALF_WIDTH_MAX 5.0

static const struct {
    const char *key, *name, *unit;
} metrics[HL_METRICS] = {
    {"wall_ms", "wall", "ms"},
    {"processor_ms", "processor", "ms"},
    {"user_ms", "user", "ms"},
    {"system_ms", "system", "ms"},
    {"minor_faults", "minor faults", ""},
    {"major_faults", "major faults", ""},
    {"peak_rss_kib", "peak RSS", "KiB"},
};
static const char *const side_keys[HL_SIDES] = {"plain", "huge"};

/* Text that a run without hugeld had on huge pages: the kernel's page cache can do that by itself. */
static uint64_t count_plain_bytes(const json_t *maps) {
    uint64_t bytes = 0;
    size_t i, j;
    const json_t *map, *object;
    json_array_foreach((json_t *)maps, i, map) json_array_foreach(json_object_get(map, "objects"), j, object)
        bytes += (uint64_t)json_integer_value(json_object_get(object, "text_huge_bytes"));
    return bytes;
}

/* The kind of huge pages that the text in MAPS is on; static. */
static const char *find_pages(const json_t *maps) {
    bool is_copied = hl_sum_huge_bytes(maps, "hugetlb thp", 'x') > 0;
    if (hl_sum_huge_bytes(maps, "image", 'x') > 0)
        return is_copied ? " of images and private copies" : " of images";
    return is_copied ? " of private copies" : "";
}

static const char *find_verdict(const struct hl_ratio *ratios) {
    return hl_find_verdict(&ratios[HL_WALL], &ratios[HL_PROCESSOR]);
}

/* "uses 8.7 % less processor time", "wall time: no difference seen (±20 %)"; the caller frees it. */
static char *describe_ratio(const struct hl_ratio *ratio, const char *verb, const char *what) {
    if (!ratio->known)
        return hl_xasprintf("%s: too short to be timed", what);
    if (hl_name_ratio(ratio)[0] == 'n')
        return hl_xasprintf("%s: no difference seen (±%.1f %%)", what, hl_half_width(ratio));
    return hl_xasprintf("%s %.1f %% %s %s", verb, 100 * fabs(1 - ratio->ratio),
                        ratio->ratio < 1 ? "less" : "more", what);
}

static char *make_sentence(const struct hl_bench *bench, const struct hl_ratio *ratios) {
    const char *verdict = find_verdict(ratios);
    char *processor = describe_ratio(&ratios[HL_PROCESSOR], "uses", "processor time"),
         *wall = describe_ratio(&ratios[HL_WALL], "takes", "wall time");
    char *sentence =
        hl_xasprintf("%s%s in %zu pairs on huge pages%s: %s; %s", verdict, verdict[0] == 'n' ? " seen" : "",
                     bench->pairs, find_pages(bench->maps[HL_ON_HUGE]), processor, wall);
    free(processor);
    free(wall);
    return sentence;
}

/* What to say if the interval is too wide to see what huge pages mostly gain; NULL: it is not.  The caller frees it. */
static char *describe_noise(const struct hl_bench *bench, const struct hl_ratio *wall) {
    if (!wall->known || hl_half_width(wall) <= HALF_WIDTH_MAX)
        return NULL;
    return hl_xasprintf("the machine is busy: the wall time is only known to ±%.1f %%; %s",
                        hl_half_width(wall),
                        bench->at_once ? "measure when it has less to do, or give the program more to do"
                                       : "try --at-once, if two runs do not disturb each other");
}

/* The commands to type next; NULL: there are none.  The caller frees it. */
static char *compose_next(const struct hl_bench *bench, const struct hl_ratio *ratios, bool is_restless) {
    const char *verdict = find_verdict(ratios);
    bool measures_again = verdict[0] == 'n' && is_restless && !bench->at_once;
    if (strcmp(verdict, "faster") != 0 && !measures_again)
        return NULL;
    char *next = hl_xasprintf("%s", ""),
         **words = hl_list_run_words(&bench->subject->run, bench->subject->argv, -1);
    size_t i;
    json_t *file;
    if (json_array_size(bench->own_images) > 0 && !measures_again) {
        hl_add_word(&next, "hugeld");
        hl_add_word(&next, "enable");
        json_array_foreach(bench->own_images, i, file) hl_add_word(&next, json_string_value(file));
        hl_append(&next, " &&");
    }
    for (char **word = words; *word != NULL; word++) {
        bool is_command = word == words + 1 && measures_again;
        hl_add_word(&next, is_command ? "bench" : *word);
        if (is_command)
            hl_add_word(&next, "--at-once");
    }
    free(words);
    return next;
}

static json_t *make_json_machine(const struct hl_tlb *tlb) {
    struct utsname name;
    char *cpu = hl_read_cpuinfo("model name");
    uname(&name);
    json_t *machine = json_pack("{s:s, s:o, s:I, s:o}", "kernel", name.release, "cpu", hl_json_text(cpu),
                                "cpus", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "tlb", hl_json_tlb(tlb));
    free(cpu);
    return machine;
}

json_t *hl_json_ratio(const struct hl_ratio *ratio) {
    if (!ratio->known)
        return json_null();
    return json_pack("{s:f, s:f, s:f}", "ratio", ratio->ratio, "low", ratio->low, "high", ratio->high);
}

/* Both values of METRIC that the answer shows, for SIDE: the times of which the ratio is made, else a median. */
static double find_middle(const struct hl_bench *bench, const struct hl_ratio *ratios, unsigned metric,
                          unsigned side) {
    if (metric < HL_TIMES && ratios[metric].known)
        return side == HL_PLAIN ? ratios[metric].plain : ratios[metric].huge;
    return hl_median(bench->value[side][metric], bench->pairs);
}

/* Adds the runs and the middle of each side, and the ratios. */
static void add_json_runs(json_t *answer, const struct hl_bench *bench, const struct hl_ratio *ratios) {
    json_t *runs = json_object(), *middles = json_object(), *ratio = json_object();
    for (unsigned side = 0; side < HL_SIDES; side++) {
        json_t *arrays = json_object(), *middle = json_object();
        for (unsigned metric = 0; metric < HL_METRICS; metric++) {
            const double *value = bench->value[side][metric];
            json_t *array = json_array();
            for (size_t i = 0; i < bench->pairs; i++) /* all but times are counts */
                json_array_append_new(array, metric < HL_TIMES ? json_real(value[i])
                                                               : json_integer((json_int_t)value[i]));
            json_object_set_new(arrays, metrics[metric].key, array);
            json_object_set_new(middle, metrics[metric].key,
                                json_real(find_middle(bench, ratios, metric, side)));
        }
        json_object_set_new(runs, side_keys[side], arrays);
        json_object_set_new(middles, side_keys[side], middle);
    }
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        json_object_set_new(ratio, metrics[metric].name, hl_json_ratio(&ratios[metric]));
    json_object_set_new(answer, "runs", runs);
    json_object_set_new(answer, "middle", middles);
    json_object_set_new(answer, "ratio", ratio);
}

static json_t *make_answer(const struct hl_bench *bench, const struct hl_ratio *ratios,
                           const struct hl_tlb *tlb) {
    const struct hl_run *run = &bench->subject->run;
    json_t *program = json_array();
    for (char **word = bench->subject->argv; *word != NULL; word++)
        json_array_append_new(program, hl_json_text(*word));
    char *sentence = make_sentence(bench, ratios);
    json_t *answer = json_pack(
        "{s:o, s:s, s:o, s:o, s:I, s:o, s:s, s:s, s:s, s:I}", "program", program, "loader", hl_via_name(run),
        "patterns", hl_json_text(run->patterns), "options", hl_json_text(run->options), "pairs",
        (json_int_t)bench->pairs, "machine", make_json_machine(tlb), "output",
        bench->comparable ? "same" : "differs from run to run", "verdict", find_verdict(ratios), "sentence",
        sentence, "plain_huge_bytes", (json_int_t)count_plain_bytes(bench->maps[HL_PLAIN]));
    free(sentence);
    json_object_set_new(answer, "method", json_string(bench->at_once ? "at once" : "in turns"));
    char *restless = describe_noise(bench, &ratios[HL_WALL]);
    json_object_set_new(answer, "restless", hl_json_text(restless));
    char *next = compose_next(bench, ratios, restless != NULL);
    json_object_set_new(answer, "next", hl_json_text(next));
    json_object_set(answer, "own_images", bench->own_images);
    free(next);
    free(restless);
    add_json_runs(answer, bench, ratios);
    bool counted = bench->counters.reason == NULL;
    json_object_set_new(
        answer, "counters",
        counted ? json_pack("{s:O, s:O}", "plain", bench->counts[HL_PLAIN], "huge", bench->counts[HL_ON_HUGE])
                : json_null());
    json_object_set_new(answer, "no_counters", hl_json_text(bench->counters.reason));
    json_object_set_new(
        answer, "maps",
        json_pack("{s:O, s:O}", "plain", bench->maps[HL_PLAIN], "huge", bench->maps[HL_ON_HUGE]));
    return answer;
}

static void print_answer(const struct hl_bench *bench, const struct hl_ratio *ratios,
                         const struct hl_tlb *tlb, const json_t *answer) {
    if (hl_note_on_tlb(tlb) != NULL)
        hl_print("%s", hl_note_on_tlb(tlb));
    hl_print("%-16s %15s  %15s    ratio  95 %% interval", "", "plain", "huge pages");
    for (unsigned metric = 0; metric < HL_METRICS; metric++) {
        double plain = find_middle(bench, ratios, metric, HL_PLAIN),
               huge = find_middle(bench, ratios, metric, HL_ON_HUGE);
        int decimals = metric < HL_TIMES ? 3 : 0;
        char *ratio = metric < HL_TIMES && ratios[metric].known
                          ? hl_xasprintf("%7.3f  %.3f to %.3f", ratios[metric].ratio, ratios[metric].low,
                                         ratios[metric].high)
                          : hl_xasprintf("%s", "");
        hl_print("%-12s %3s %15.*f  %15.*f  %s", metrics[metric].name, metrics[metric].unit, decimals, plain,
                 decimals, huge, ratio);
        free(ratio);
    }
    const char *event;
    json_t *value;
    json_object_foreach(bench->counters.reason == NULL ? bench->counts[HL_PLAIN] : NULL, event, value) {
        double a = json_number_value(value),
               b = json_number_value(json_object_get(bench->counts[HL_ON_HUGE], event));
        hl_print("%-30s %14.0f  %14.0f  %7.3f", event, a, b, a > 0 ? b / a : 0);
    }
    if (bench->counters.reason != NULL)
        hl_print("TLB misses and walks were not counted: %s", bench->counters.reason);
    if (!bench->comparable)
        hl_print("its output differs from run to run, so it was not compared");
    uint64_t plain_bytes = count_plain_bytes(bench->maps[HL_PLAIN]);
    if (plain_bytes > 0)
        hl_print("without hugeld, %" PRIu64 " KiB of text are on huge pages of the page cache already",
                 plain_bytes / 1024);
    size_t i;
    json_t *file;
    json_array_foreach(bench->own_images, i, file)
        hl_print("%s: no image; one was made for this measurement alone", json_string_value(file));
    static const char *const last[] = {"restless", "sentence", "next"};
    for (i = 0; i < sizeof last / sizeof last[0]; i++)
        if (json_is_string(json_object_get(answer, last[i])))
            hl_print("%s", json_string_value(json_object_get(answer, last[i])));
}

int hl_tell_answer(const struct hl_bench *bench, const char *report) {
    struct hl_ratio ratios[HL_TIMES];
    int code = HL_EXIT_DONE;
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        ratios[metric] =
            hl_compare_pairs(bench->value[HL_PLAIN][metric], bench->value[HL_ON_HUGE][metric], bench->pairs);
    struct hl_tlb tlb;
    hl_check_tlb(&tlb);
    json_t *answer = make_answer(bench, ratios, &tlb);
    if (strcmp(find_verdict(ratios), "faster") != 0)
        code = HL_EXIT_NO;
    if (!hl_write_report(report, answer))
        code = HL_EXIT_NO;
    print_answer(bench, ratios, &tlb, answer);
    hl_print_answer(answer, false);
    return code;
}
