/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: its answer, as JSON and in text.  Both have the numbers of a program from one table. */
#include "command/survey/survey.h"

#include <inttypes.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB (1 << 20)
/* Objects with a smaller part of the samples are not listed. */
#define PART_MIN 0.05

enum kind { COUNT, AMOUNT, KNOWN, NUMBER }; /* KNOWN: an amount, unless it is 0 */

/* HEAD: the column's head in text; NULL: only in JSON.  UNIT: by which the column's numbers are divided. */
#define FIELD(member) offsetof(struct hl_surveyed, member)
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *head;
    double unit;
    int decimals;
} fields[] = {
    {"cpu_share", NUMBER, FIELD(cpu_share), "CPU %", 0.01, 0},
    {"likely_hot_bytes", AMOUNT, FIELD(likely_bytes), "PAGES", 4096, 0},
    {"frames", KNOWN, FIELD(frames), "FRAMES", 1, 0},
    {"samples", AMOUNT, FIELD(samples), "SAMPLES", 1, 0},
    {"huge_samples", AMOUNT, FIELD(huge_samples), "ON HUGE", 1, 0},
    {"processes", COUNT, FIELD(processes), "PROCS", 1, 0},
    {"memory_samples", AMOUNT, FIELD(memory_samples), NULL, 1, 0},
    {"hot_bytes", AMOUNT, FIELD(hot_bytes), NULL, 1, 0},
    {"text_bytes", AMOUNT, FIELD(text_bytes), NULL, 1, 0},
    {"huge_bytes", AMOUNT, FIELD(huge_bytes), NULL, 1, 0},
};
#define FIELDS (sizeof fields / sizeof fields[0])

static double read_field(const struct hl_surveyed *program, const struct field *field) {
    const char *at = (const char *)program + field->offset;
    switch (field->kind) {
    case COUNT:
        return *(const unsigned *)(const void *)at;
    case AMOUNT:
    case KNOWN:
        return (double)*(const uint64_t *)(const void *)at;
    default:
        return *(const double *)(const void *)at;
    }
}

/* --- text --- */

static const char *processes(unsigned n) { return n == 1 ? "process" : "processes"; }

/* Whether PROGRAM has a row of its own. */
static bool is_shown(const struct hl_surveyed *program) {
    return hl_may_gain(program) || program->huge_bytes > HL_HOT_MIN;
}

static bool is_known(const struct hl_surveyed *program, const struct field *field) {
    return field->kind != KNOWN || read_field(program, field) > 0;
}

/* A warning where the samples are not of everything. */
static void print_sampling(const struct hl_survey *survey) {
    const struct hl_sampler_counts *sampled = &survey->sampled;
    uint64_t unknown = survey->samples_ended + survey->samples_refused;
    if (survey->of_threads && survey->hz == HL_SAMPLER_HZ)
        hl_print("samples are of processes that ran already, and of their children; fix: run hugeld as root");
    if (sampled->threads_refused > 0)
        hl_print("%zu threads were not sampled: too many files would have been open (ulimit -n)",
                 sampled->threads_refused);
    if (sampled->left_out > 0)
        hl_print("%u processors are isolated or without a tick, and were left alone", sampled->left_out);
    if (unknown > 0 && (double)unknown >= PART_MIN * (double)sampled->samples)
        hl_print("%.0f %% of the samples are of processes that had ended, or may not be looked at",
                 100 * (double)unknown / (double)sampled->samples);
}

/* The processes that were not looked at. */
static void print_left_out(const struct hl_survey *survey) {
    if (survey->others > 0)
        hl_print("%u %s of other users left out; fix: run hugeld survey --all-users%s", survey->others,
                 processes(survey->others), geteuid() == 0 ? "" : " as root");
    if (survey->refused > 0 && (geteuid() != 0 || !hl_has_capability(CAP_SYS_PTRACE)))
        hl_print("%u %s may not be looked at; fix: run hugeld survey %s", survey->refused,
                 processes(survey->refused), geteuid() != 0 ? "as root" : "with CAP_SYS_PTRACE");
}

static void print_head(void) {
    char *row = hl_xasprintf("%s", "");
    for (size_t i = 0; i < FIELDS && fields[i].head != NULL; i++) {
        char *longer = hl_xasprintf("%s%8s ", row, fields[i].head);
        free(row);
        row = longer;
    }
    hl_print("%s%6s %-8s %s", row, "PLAN %", "WAY", "PROGRAM");
    free(row);
}

static void print_row(const struct hl_surveyed *program) {
    const struct hl_advice *advice = &program->advice;
    char *row = hl_xasprintf("%s", "");
    for (size_t i = 0; i < FIELDS && fields[i].head != NULL; i++) {
        double value = read_field(program, &fields[i]) / fields[i].unit;
        char *longer = is_known(program, &fields[i])
                           ? hl_xasprintf("%s%8.*f ", row, fields[i].decimals, value)
                           : hl_xasprintf("%s%8s ", row, "-");
        free(row);
        row = longer;
    }
    hl_print("%s%6.0f %-8s %s", row, 100 * advice->share,
             advice->already_huge ? "(huge)" : hl_way_name(advice->way), program->path);
    free(row);
}

/* Prints where in OBJECT the samples of PROGRAM are. */
static void print_object(const struct hl_surveyed *program, const struct hl_hot_object *object) {
    double all = (double)program->samples;
    if ((double)object->samples < PART_MIN * all)
        return;
    hl_print("  %.0f %%: %s", 100 * (double)object->samples / all, object->path);
}

/* Says which of the two is large that make translations miss. */
static void print_misses(const struct hl_surveyed *program) {
    const char *many = hl_has_many_pages(program) ? "many pages" : "some pages";
    char *where = program->frames > 0
                      ? hl_xasprintf("%s %" PRIu64 " frames of 2 MiB of memory",
                                     hl_has_many_frames(program) ? "scattered over" : "which lie together in",
                                     program->frames)
                      : hl_xasprintf("in unknown frames of memory; fix: run hugeld as root");
    hl_print("%s: executes %s of text (likely %" PRIu64 " of %" PRIu64 " on small ones), %s", program->path,
             many, program->likely_bytes / 4096, program->text_bytes / 4096, where);
    free(where);
}

static void print_details(const struct hl_surveyed *program) {
    const struct hl_advice *advice = &program->advice;
    hl_print("%s", "");
    print_misses(program);
    if ((double)program->memory_samples >= PART_MIN * (double)program->samples)
        hl_print("  %.0f %%: text that no file has, as JIT compilers make it",
                 100 * (double)program->memory_samples / (double)program->samples);
    for (size_t i = 0; i < program->n_objects; i++)
        print_object(program, &program->object[i]);
    if (advice->way != HL_WAY_NOTHING)
        hl_print("  %s: %.0f %% of that on %" PRIu64 " huge pages for all processes together",
                 hl_way_name(advice->way), 100 * advice->share, advice->pages);
    if (advice->reason != NULL)
        hl_print("  %s%s", advice->way == HL_WAY_NOTHING ? "nothing: " : "", advice->reason);
    if (advice->command != NULL)
        hl_print("%s", advice->command);
}

/* The one line if there is nothing to gain; false: there is. */
static bool print_no_gain(const struct hl_survey *survey) {
    size_t huge = 0;
    for (size_t i = 0; i < survey->n_programs; i++) {
        huge += survey->program[i].advice.already_huge;
        if (hl_may_gain(&survey->program[i]))
            return false;
    }
    char *more = huge == 0 ? hl_xasprintf("%s", "")
                           : hl_xasprintf("; %zu %s on huge pages already", huge, huge == 1 ? "is" : "are");
    hl_print("no program here executes more than 2 MiB of text on small pages%s", more);
    free(more);
    return true;
}

void hl_print_survey(const struct hl_survey *survey) {
    const char *note = hl_note_on_tlb(&survey->tlb);
    size_t shown = 0;
    if (survey->undecided) {
        hl_print("%" PRIu64 " samples were lost, of %" PRIu64
                 ": this window decides nothing; fix: try again while less runs",
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
    print_head();
    for (size_t i = 0; i < survey->n_programs; i++)
        if (is_shown(&survey->program[i])) {
            print_row(&survey->program[i]);
            shown++;
        }
    if (survey->n_programs > shown)
        hl_print("%zu more: no more than 2 MiB of text", survey->n_programs - shown);
    print_left_out(survey);
    for (size_t i = 0; i < survey->n_programs; i++)
        if (is_shown(&survey->program[i]))
            print_details(&survey->program[i]);
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
    json_t *json = json_pack("{s:o, s:i, s:o, s:{s:s, s:b, s:o, s:o, s:f, s:I}}", "path",
                             hl_json_text(program->path), "pid", (int)program->pid, "objects", objects,
                             "advice", "way", hl_way_name(advice->way), "already_huge", advice->already_huge,
                             "reason", hl_json_text(advice->reason), "command", hl_json_text(advice->command),
                             "hot_share", advice->share, "pages", (json_int_t)advice->pages);
    for (size_t i = 0; i < FIELDS; i++) {
        double value = read_field(program, &fields[i]);
        json_object_set_new(json, fields[i].name,
                            !is_known(program, &fields[i]) ? json_null()
                            : fields[i].kind == NUMBER     ? json_real(value)
                                                           : json_integer((json_int_t)value));
    }
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
