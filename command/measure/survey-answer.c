/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: its answer, as JSON and in text, which has the numbers of a program from the JSON. */
#include "command/measure/survey.h"

#include <inttypes.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <unistd.h>

/* What has a smaller part of the samples is not listed. */
#define PART_MIN 0.05

/* --- text --- */

static const char *processes(unsigned n) { return n == 1 ? "process" : "processes"; }

/* Whether PROGRAM has a row of its own. */
static bool is_shown(const struct hl_surveyed *program) {
    return hl_may_gain(program) || program->huge_bytes > HL_HOT_MIN;
}

/* A warning where the samples are not of everything. */
static void print_sampling(const struct hl_survey *survey) {
    const struct hl_sampler_counts *sampled = &survey->sampled;
    uint64_t unknown = survey->samples_ended + survey->samples_refused;
    if (survey->of_threads && survey->hz == HL_SAMPLER_HZ)
        hl_print("samples are of processes that ran already, and of their children; fix: run hugeld as root");
    if (sampled->threads_refused > 0)
        hl_print("%zu threads were not sampled: too many open files (ulimit -n), or a policy forbids it",
                 sampled->threads_refused);
    if (sampled->left_out > 0)
        hl_print("%u processors are isolated or without a tick, and were not sampled", sampled->left_out);
    if (unknown > 0 && (double)unknown >= PART_MIN * (double)sampled->samples)
        hl_print("%.0f %% of the samples are of processes that had ended, or may not be read",
                 100 * (double)unknown / (double)sampled->samples);
}

/* The processes that were not looked at. */
static void print_left_out(const struct hl_survey *survey) {
    if (survey->others > 0)
        hl_print("%u %s of other users left out; fix: run hugeld survey --all-users%s", survey->others,
                 processes(survey->others), geteuid() == 0 ? "" : " as root");
    if (survey->refused > 0 && (geteuid() != 0 || !hl_has_capability(CAP_SYS_PTRACE)))
        hl_print("%u %s may not be read; fix: run hugeld survey %s", survey->refused,
                 processes(survey->refused), geteuid() != 0 ? "as root" : "with CAP_SYS_PTRACE");
}

static void print_row(const json_t *program) {
    bool is_huge = json_is_true(json_object_get(json_object_get(program, "advice"), "already_huge"));
    hl_print_row(program, is_huge ? "{cpu_share:8%} {likely_hot_bytes:10KiB} {samples:7} {huge_samples:7} "
                                    "{processes:5} (huge)   "
                                  : "{cpu_share:8%} {likely_hot_bytes:10KiB} {samples:7} {huge_samples:7} "
                                    "{processes:5} {advice.way:-8} ");
}

/* Says which of the two is large that make translations miss. */
static void print_misses(const struct hl_surveyed *program, const json_t *json) {
    char *line = hl_xasprintf(
        "{path}: executes %s pages of text (likely {likely_hot_bytes:KiB} of "
        "{text_bytes:KiB} on small ones), %s",
        hl_has_many_pages(program) ? "many" : "some",
        program->frames == 0          ? geteuid() == 0 ? "in unknown frames of memory"
                                                       : "in unknown frames of memory (run hugeld as root)"
        : hl_has_many_frames(program) ? "scattered over {frames} frames of 2 MiB of memory"
                                      : "which lie together in {frames} frames of 2 MiB of memory");
    hl_print_fields(json, line);
    free(line);
}

static void print_details(const struct hl_surveyed *program, const json_t *json) {
    const struct hl_advice *advice = &program->advice;
    size_t i;
    json_t *object;
    hl_print("%s", "");
    print_misses(program, json);
    if ((double)program->memory_samples >= PART_MIN * (double)program->samples)
        hl_print_fields(
            json, "  {memory_samples} of {samples} samples: text that no file has, as JIT compilers make it");
    json_array_foreach(json_object_get(json, "objects"), i, object) if (program->object[i].share >= PART_MIN)
        hl_print_fields(object, "  {hot_share:%}: {path}");
    if (advice->way != HL_WAY_NOTHING)
        hl_print_fields(json, "  {advice.way}: {advice.hot_share:%} of that on {advice.pages} huge "
                              "page{advice.pages:s} for all processes together");
    if (advice->reason != NULL)
        hl_print_fields(json,
                        advice->way == HL_WAY_NOTHING ? "  nothing: {advice.reason}" : "  {advice.reason}");
    if (advice->command != NULL)
        hl_print_fields(json, "{advice.command}");
}

/* The one line if there is nothing to gain; false: there is. */
static bool print_no_gain(const struct hl_survey *survey) {
    for (size_t i = 0; i < survey->n_programs; i++)
        if (hl_may_gain(&survey->program[i]))
            return false;
    hl_print("no program here executes more than 2 MiB of text on small pages");
    return true;
}

void hl_print_survey(const struct hl_survey *survey, const json_t *answer) {
    const json_t *programs = json_object_get(answer, "programs");
    const char *note = hl_note_on_tlb(&survey->tlb);
    size_t shown = 0;
    if (survey->undecided) {
        hl_print("%" PRIu64 " of %" PRIu64
                 " samples were lost, which decides nothing; try again when less runs",
                 survey->sampled.lost, survey->sampled.samples + survey->sampled.lost);
        return;
    }
    if (print_no_gain(survey)) {
        print_left_out(survey);
        return;
    }
    hl_print("%u %s in %.0f s, %" PRIu64 " samples", survey->watched, processes(survey->watched),
             survey->seconds, survey->sampled.samples);
    print_sampling(survey);
    if (note != NULL)
        hl_print("%s", note);
    hl_print("%8s %10s %s %s %s %-8s %s", "CPU", "TEXT", "SAMPLES", "ON HUGE", "PROCS", "WAY", "PROGRAM");
    for (size_t i = 0; i < survey->n_programs; i++)
        if (hl_output.is_verbose || is_shown(&survey->program[i])) {
            print_row(json_array_get(programs, i));
            shown++;
        }
    if (survey->n_programs > shown)
        hl_print("%zu more: no more than 2 MiB of text", survey->n_programs - shown);
    print_left_out(survey);
    for (size_t i = 0; i < survey->n_programs; i++)
        if (is_shown(&survey->program[i]))
            print_details(&survey->program[i], json_array_get(programs, i));
}

/* --- JSON --- */

static json_t *make_json_object(const struct hl_hot_object *object) {
    json_t *chunks = json_array();
    for (size_t i = 0; i < object->n_chunks; i++)
        json_array_append_new(chunks,
                              json_pack("{s:I, s:I, s:I, s:I}", "offset", (json_int_t)object->chunk[i].offset,
                                        "samples", (json_int_t)object->chunk[i].samples, "huge_samples",
                                        (json_int_t)object->chunk[i].huge_samples, "small_pages",
                                        (json_int_t)object->chunk[i].pages));
    return json_pack("{s:o, s:I, s:I, s:I, s:f, s:I, s:I, s:o}", "path", hl_json_text(object->path),
                     "text_bytes", (json_int_t)object->text_bytes, "huge_bytes",
                     (json_int_t)object->huge_bytes, "hot_bytes", (json_int_t)object->hot_bytes, "hot_share",
                     object->share, "samples", (json_int_t)object->samples, "huge_samples",
                     (json_int_t)object->huge_samples, "chunks", chunks);
}

static json_t *make_json_program(const struct hl_surveyed *program) {
    const struct hl_advice *advice = &program->advice;
    json_t *objects = json_array();
    for (size_t i = 0; i < program->n_objects; i++)
        json_array_append_new(objects, make_json_object(&program->object[i]));
    json_t *json = json_pack(
        "{s:o, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "path", hl_json_text(program->path),
        "pid", (int)program->pid, "processes", (int)program->processes, "cpu_share", program->cpu_share,
        "text_bytes", (json_int_t)program->text_bytes, "huge_bytes", (json_int_t)program->huge_bytes,
        "hot_bytes", (json_int_t)program->hot_bytes, "likely_hot_bytes", (json_int_t)program->likely_bytes,
        "samples", (json_int_t)program->samples, "huge_samples", (json_int_t)program->huge_samples,
        "memory_samples", (json_int_t)program->memory_samples, "objects", objects);
    json_object_set_new(json, "frames",
                        program->frames > 0 ? json_integer((json_int_t)program->frames) : json_null());
    json_object_set_new(json, "advice",
                        json_pack("{s:s, s:b, s:o, s:o, s:f, s:I}", "way", hl_way_name(advice->way),
                                  "already_huge", advice->already_huge, "reason",
                                  hl_json_text(advice->reason), "command", hl_json_text(advice->command),
                                  "hot_share", advice->share, "pages", (json_int_t)advice->pages));
    bool pages = hl_has_many_pages(program), frames = hl_has_many_frames(program);
    json_object_set_new(json, "many",
                        hl_json_text(pages && frames ? "both"
                                     : pages         ? "pages"
                                     : frames        ? "frames"
                                                     : NULL));
    return json;
}

json_t *hl_json_survey(const struct hl_survey *survey) {
    const struct hl_sampler_counts *sampled = &survey->sampled;
    json_t *programs = json_array();
    for (size_t i = 0; i < survey->n_programs; i++)
        json_array_append_new(programs, make_json_program(&survey->program[i]));
    json_t *sampling = json_pack(
        "{s:i, s:b, s:i, s:i, s:I, s:I, s:b, s:I, s:I, s:I}", "hz", (int)survey->hz, "of_threads",
        survey->of_threads, "processors", (int)sampled->processors, "processors_left_out",
        (int)sampled->left_out, "samples", (json_int_t)sampled->samples, "lost", (json_int_t)sampled->lost,
        "decided", !survey->undecided, "ended", (json_int_t)survey->samples_ended, "refused",
        (json_int_t)survey->samples_refused, "threads_refused", (json_int_t)sampled->threads_refused);
    json_t *watched =
        json_pack("{s:i, s:i, s:i, s:i}", "watched", (int)survey->watched, "ended", (int)survey->ended,
                  "refused", (int)survey->refused, "others", (int)survey->others);
    return json_pack("{s:f, s:o, s:o, s:o, s:o}", "seconds", survey->seconds, "sampling", sampling, "tlb",
                     hl_json_tlb(&survey->tlb), "processes", watched, "programs", programs);
}
