/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: the answer at the end. */
#include "command/bench/answer.h"
#include "command/bench/counters.h"
#include "command/bench/statistics.h"
#include "command/base/html.h"
#include "command/tlb/tlb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

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
    bool is_copied = false, is_of_image = false;
    size_t i, j, k;
    const json_t *map, *object, *range;
    json_array_foreach((json_t *)maps, i, map) json_array_foreach(json_object_get(map, "objects"), j, object)
        json_array_foreach(json_object_get(object, "ranges"), k, range) {
        const char *backend = json_string_value(json_object_get(range, "backend"));
        if (strchr(json_string_value(json_object_get(range, "flags")), 'x') == NULL)
            continue;
        is_of_image |= backend != NULL && strcmp(backend, "image") == 0;
        is_copied |= backend != NULL && (strcmp(backend, "hugetlb") == 0 || strcmp(backend, "thp") == 0);
    }
    if (is_of_image)
        return is_copied ? " of images and private copies" : " of images";
    return is_copied ? " of private copies" : "";
}

const char *hl_name_ratio(const struct hl_ratio *ratio) {
    if (ratio->known && ratio->high < 1)
        return "faster";
    return ratio->known && ratio->low > 1 ? "slower" : "no difference";
}

static const char *options_text(const char *options) {
    return options != NULL && options[0] != '\0' ? options : "the default";
}

static char *make_sentence(const struct hl_bench *bench, const struct hl_ratio *wall) {
    const char *verdict = hl_name_ratio(wall);
    size_t pairs = bench->pairs;
    if (!wall->known)
        return hl_xasprintf("no difference seen in %zu pairs: the program is too short to be timed", pairs);
    const struct hl_subject *subject = bench->subject;
    bool is_seen = verdict[0] != 'n';
    char *how = is_seen ? hl_xasprintf("takes %.3f", wall->ratio)
                        : hl_xasprintf("may take %.3f to %.3f", wall->low, wall->high),
         *interval = is_seen ? hl_xasprintf(", 95 %% interval %.3f to %.3f", wall->low, wall->high)
                             : hl_xasprintf(" (95 %% interval)"),
         *with = subject->against != NULL
                     ? hl_xasprintf("with %s", options_text(subject->run.options))
                     : hl_xasprintf("on huge pages%s", find_pages(bench->maps[HL_ON_HUGE])),
         *against = subject->against != NULL ? hl_xasprintf(" as with %s", options_text(subject->against))
                                             : hl_xasprintf("%s", "");
    char *sentence = hl_xasprintf("%s%s in %zu pairs: %s it %s times as long%s%s", verdict,
                                  is_seen ? "" : " seen", pairs, with, how, against, interval);
    free(how);
    free(interval);
    free(with);
    free(against);
    return sentence;
}

/* What to say if the interval is wider than asked for, or NULL; the caller frees it. */
static char *describe_noise(const struct hl_bench *bench, const struct hl_ratio *wall) {
    if (bench->precision == 0 || (wall->known && hl_half_width(wall) <= bench->precision))
        return NULL;
    return hl_xasprintf(
        "the machine is too restless for %.4g %%: after %zu pairs the interval still has %.2g "
        "%% to each side; "
        "%s",
        bench->precision, bench->pairs, hl_half_width(wall),
        bench->at_once ? "measure when it has less to do, or give the program more to do"
                       : "try --at-once, if two runs don't get into each other's way");
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

/* Times have decimals; all other values are counts. */
static json_t *make_json_value(unsigned metric, double value) {
    return metric < HL_TIMES ? json_real(value) : json_integer((json_int_t)value);
}

/* Adds the runs and medians of each side, and the ratios. */
static void add_json_runs(json_t *answer, const struct hl_bench *bench, const struct hl_ratio *ratios) {
    json_t *runs = json_object(), *medians = json_object(), *ratio = json_object();
    for (unsigned side = 0; side < HL_SIDES; side++) {
        json_t *arrays = json_object(), *middle = json_object();
        for (unsigned metric = 0; metric < HL_METRICS; metric++) {
            const double *value = bench->value[side][metric];
            json_t *array = json_array();
            for (size_t i = 0; i < bench->pairs; i++)
                json_array_append_new(array, make_json_value(metric, value[i]));
            json_object_set_new(arrays, metrics[metric].key, array);
            json_object_set_new(middle, metrics[metric].key, json_real(hl_median(value, bench->pairs)));
        }
        json_object_set_new(runs, side_keys[side], arrays);
        json_object_set_new(medians, side_keys[side], middle);
    }
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        json_object_set_new(ratio, metrics[metric].name, hl_json_ratio(&ratios[metric]));
    json_object_set_new(answer, "runs", runs);
    json_object_set_new(answer, "median", medians);
    json_object_set_new(answer, "ratio", ratio);
}

static json_t *make_answer(const struct hl_bench *bench, const struct hl_ratio *ratios,
                           const struct hl_tlb *tlb) {
    const struct hl_run *run = &bench->subject->run;
    json_t *program = json_array();
    for (char **word = bench->subject->argv; *word != NULL; word++)
        json_array_append_new(program, hl_json_text(*word));
    char *sentence = make_sentence(bench, &ratios[HL_WALL]);
    json_t *answer = json_pack(
        "{s:o, s:s, s:o, s:o, s:I, s:o, s:s, s:s, s:s, s:I}", "program", program, "loader", hl_via_name(run),
        "patterns", hl_json_text(run->patterns), "options", hl_json_text(run->options), "pairs",
        (json_int_t)bench->pairs, "machine", make_json_machine(tlb), "output",
        bench->comparable ? "same" : "differs from run to run", "verdict", hl_name_ratio(&ratios[HL_WALL]),
        "sentence", sentence, "plain_huge_bytes", (json_int_t)count_plain_bytes(bench->maps[HL_PLAIN]));
    free(sentence);
    json_object_set_new(answer, "against", hl_json_text(bench->subject->against));
    json_object_set_new(answer, "method", json_string(bench->at_once ? "at once" : "in turns"));
    json_object_set_new(answer, "precision",
                        bench->precision > 0 ? json_real(bench->precision) : json_null());
    char *restless = describe_noise(bench, &ratios[HL_WALL]);
    json_object_set_new(answer, "restless", hl_json_text(restless));
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

static void print_counters(const json_t *plain, const json_t *huge) {
    const char *event;
    json_t *value;
    json_object_foreach((json_t *)plain, event, value) {
        double a = json_number_value(value), b = json_number_value(json_object_get(huge, event));
        hl_print("%-30s %14.0f  %14.0f  %7.3f", event, a, b, a > 0 ? b / a : 0);
    }
}

static void print_answer(const struct hl_bench *bench, const struct hl_ratio *ratios,
                         const struct hl_tlb *tlb, const json_t *answer) {
    size_t pairs = bench->pairs;
    const struct hl_subject *subject = bench->subject;
    bool has_two = subject->against != NULL;
    if (hl_note_on_tlb(tlb) != NULL)
        hl_print("%s", hl_note_on_tlb(tlb));
    hl_print("%-16s %15.15s  %15.15s    ratio  95 %% interval", "",
             has_two ? options_text(subject->against) : "plain",
             has_two ? options_text(subject->run.options) : "huge pages");
    for (unsigned metric = 0; metric < HL_METRICS; metric++) {
        double plain = hl_median(bench->value[HL_PLAIN][metric], pairs),
               huge = hl_median(bench->value[HL_ON_HUGE][metric], pairs);
        int decimals = metric < HL_TIMES ? 3 : 0;
        char *ratio = metric < HL_TIMES && ratios[metric].known
                          ? hl_xasprintf("%7.3f  %.3f to %.3f", ratios[metric].ratio, ratios[metric].low,
                                         ratios[metric].high)
                          : hl_xasprintf("%s", "");
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
    if (plain_bytes > 0 && !has_two)
        hl_print("the plain run has %" PRIu64 " KiB of text on huge pages of the page cache already",
                 plain_bytes / 1024);
    const char *restless = json_string_value(json_object_get(answer, "restless"));
    if (restless != NULL)
        hl_print("%s", restless);
    hl_print("%s", json_string_value(json_object_get(answer, "sentence")));
}

int hl_tell_answer(const struct hl_bench *bench, const char *report, bool json) {
    struct hl_ratio ratios[HL_TIMES];
    int code = HL_EXIT_DONE;
    for (unsigned metric = 0; metric < HL_TIMES; metric++)
        ratios[metric] =
            hl_compare_pairs(bench->value[HL_PLAIN][metric], bench->value[HL_ON_HUGE][metric], bench->pairs);
    struct hl_tlb tlb;
    hl_check_tlb(&tlb);
    json_t *answer = make_answer(bench, ratios, &tlb);
    if (strcmp(hl_name_ratio(&ratios[HL_WALL]), "faster") != 0)
        code = HL_EXIT_NO;
    if (!hl_write_report(report, answer))
        code = HL_EXIT_NO;
    if (json)
        hl_print_json(json_incref(answer));
    else
        print_answer(bench, ratios, &tlb, answer);
    json_decref(answer);
    return code;
}
