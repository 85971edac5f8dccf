/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: its answer.  No line is wider than the terminal: text is wrapped, names are cut at their beginning, and
   commands go on behind a backslash, so that they can be copied. */
#include "command/survey/survey.h"

#include "command/tlb/jump-costs.h"

#include <inttypes.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1 << 20)
/* The width of all columns of the table, without the bar and the program's name. */
#define COLUMNS_WIDTH 45
#define NAME_WIDTH_MIN 14
#define BAR_WIDTH_MAX 20
/* Objects with a smaller part of the hot text, and chunks of 2 MiB with a smaller part of the samples, are not listed. */
#define PART_MIN 0.05
#define CHUNKS_MAX 4

static double mib(uint64_t bytes) { return (double)bytes / MIB; }

static double cpu_share(const struct hl_survey *survey, const struct hl_surveyed *program) {
    return survey->seconds > 0 ? program->cpu_ms / (survey->seconds * 1e3) : 0;
}

static const char *processes(unsigned n) { return n == 1 ? "process" : "processes"; }

/* Whether PROGRAM has a row of its own. */
static bool is_shown(const struct hl_survey *survey, const struct hl_surveyed *program) {
    return program->likely_bytes > survey->limit_bytes || program->huge_bytes > survey->limit_bytes;
}

/* --- text --- */

/* One line of at most WIDTH columns: only ASCII, so that bytes are columns. */
static void print_line(const char *text, size_t bytes) {
    char *line = hl_xasprintf("%.*s", (int)bytes, text);
    for (char *at = line; *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    hl_print("%s", line);
    free(line);
}

/* How many bytes of TEXT go into WIDTH columns, at a space if there is one. */
static size_t find_break(const char *text, size_t width) {
    size_t bytes = strlen(text);
    if (bytes <= width)
        return bytes;
    for (size_t at = width; at > width / 2; at--)
        if (text[at] == ' ')
            return at;
    return width;
}

/* Prints TEXT in lines, all but the first one indented, and drops it. */
static void print_wrapped(char *text) {
    size_t width = hl_find_width();
    const char *at = text;
    bool indents = width > 20;
    for (bool first = true; first || *at != '\0'; first = false) {
        size_t indent = first || !indents ? 0 : 4, bytes = find_break(at, width - indent);
        char *line = hl_xasprintf("%*s%.*s", (int)indent, "", (int)bytes, at);
        print_line(line, strlen(line));
        free(line);
        at += bytes;
        at += strspn(at, " ");
    }
    free(text);
}

/* Prints a command in lines that a shell puts together again: a continued line begins at the margin, and a backslash stays with
   the character that it quotes. */
static void print_command(const char *command) {
    size_t width = hl_find_width();
    while (strlen(command) > width && width > 8) {
        size_t bytes = width - 1, slashes = 0;
        while (slashes < bytes && command[bytes - slashes - 1] == '\\')
            slashes++;
        bytes -= slashes % 2;
        hl_print("%.*s\\", (int)bytes, command);
        command += bytes;
    }
    hl_print("%s", command);
}

/* The end of PATH in WIDTH columns. */
static const char *cut_path(const char *path, size_t width) {
    size_t bytes = strlen(path), name = strlen(hl_base_name(path));
    if (bytes <= width)
        return path;
    return name <= width ? path + bytes - name : path + bytes - width;
}

/* Which threads the samples are of, and their limits. */
static void print_sampling(const struct hl_survey *survey) {
    const struct hl_sampler_counts *sampled = &survey->sampled;
    uint64_t unknown = survey->samples_ended + survey->samples_refused;
    if (survey->of_threads && survey->hz == HL_SAMPLER_HZ)
        print_wrapped(hl_xasprintf(
            "samples are of processes that ran already, and of their children; fix: run hugeld as root"));
    if (sampled->threads_refused > 0)
        print_wrapped(
            hl_xasprintf("%zu threads were not sampled: too many files would have been open (ulimit -n)",
                         sampled->threads_refused));
    if (!sampled->has_page_bytes)
        print_wrapped(
            hl_xasprintf("text on huge pages is not told from text on small ones: that takes Linux 5.11"));
    if (sampled->left_out > 0)
        print_wrapped(hl_xasprintf("%u processors are isolated or without a tick, and were left alone",
                                   sampled->left_out));
    if (unknown > 0 && (double)unknown >= PART_MIN * (double)sampled->samples)
        print_wrapped(
            hl_xasprintf("%.0f %% of the samples are of processes that had ended, or may not be looked at",
                         100 * (double)unknown / (double)sampled->samples));
}

static void print_heading(const struct hl_survey *survey) {
    const struct hl_tlb_reach *reach = &survey->reach;
    enum hl_tlb_verdict verdict = hl_judge_tlb(&survey->tlb);
    const char *words = hl_tlb_verdict_words(verdict),
               *means = verdict == HL_TLB_PIECES ? ", so gains are small here" : "";
    if (survey->exact)
        print_wrapped(hl_xasprintf("%u %s in %.0f s; %s%s (hugeld doctor)", survey->watched,
                                   processes(survey->watched), survey->seconds, words, means));
    else
        print_wrapped(hl_xasprintf("%u %s in %.0f s, %" PRIu64 " samples; %s%s (hugeld doctor)",
                                   survey->watched, processes(survey->watched), survey->seconds,
                                   survey->sampled.samples, words, means));
    if (!survey->exact)
        print_sampling(survey);
    if (reach->known)
        print_wrapped(hl_xasprintf("the TLB reaches %.1f MiB of text on small pages, %.0f MiB on huge ones",
                                   mib(hl_small_reach_bytes(reach)), mib(hl_huge_reach_bytes(reach))));
    else
        print_wrapped(hl_xasprintf("how much text the TLB reaches is not known; taken is a huge page"));
    if (survey->jump_costs.n == 0)
        print_wrapped(hl_xasprintf(
            "gains are not estimated: nothing could be measured; try hugeld survey --calibrate"));
    else if (!survey->jump_costs.calibrated)
        print_wrapped(hl_xasprintf("gains are estimates, and not calibrated: hugeld survey --calibrate%s%s",
                                   survey->costs_problem != NULL ? "; " : "",
                                   survey->costs_problem != NULL ? survey->costs_problem : ""));
    if (survey->no_counters != NULL)
        print_wrapped(hl_xasprintf("no counters here: %s", survey->no_counters));
}

/* Bars are of hot text; the longest is of MOST. */
static void print_row(const struct hl_survey *survey, const struct hl_surveyed *program, uint64_t most) {
    size_t width = hl_find_width(), bar = 0;
    char bars[BAR_WIDTH_MAX + 1];
    bool wide = width >= COLUMNS_WIDTH + NAME_WIDTH_MIN;
    if (wide)
        bar = (width - COLUMNS_WIDTH - NAME_WIDTH_MIN) / 2;
    bar = bar < BAR_WIDTH_MAX ? bar : BAR_WIDTH_MAX;
    size_t filled = most > 0 ? (size_t)((double)program->likely_bytes / (double)most * (double)bar + 0.5) : 0;
    for (size_t i = 0; i < bar; i++)
        bars[i] = i < filled ? '#' : '.';
    bars[bar] = '\0';
    const struct hl_advice *advice = &program->advice;
    const char *way = advice->already_huge ? "(huge)" : hl_way_name(advice->way);
    char *row;
    if (wide)
        row = hl_xasprintf("%6.1f%% %5.0f%% %8.1f %s %4.0f%% %5u %-7s %s", 100 * advice->gain,
                           100 * cpu_share(survey, program), mib(program->likely_bytes), bars,
                           100 * advice->share, program->processes, way,
                           cut_path(program->path, width - COLUMNS_WIDTH - bar));
    else
        row = hl_xasprintf("%6.1f%% %8.1f %s", 100 * advice->gain, mib(program->likely_bytes),
                           cut_path(program->path, width > 18 ? width - 17 : 1));
    print_line(row, width);
    free(row);
}

static void print_head(void) {
    size_t width = hl_find_width(), bar = 0;
    char *row;
    if (width >= COLUMNS_WIDTH + NAME_WIDTH_MIN) {
        bar = (width - COLUMNS_WIDTH - NAME_WIDTH_MIN) / 2;
        bar = bar < BAR_WIDTH_MAX ? bar : BAR_WIDTH_MAX;
        row = hl_xasprintf("%7s %6s %8s %-*s %5s %5s %-7s %s", "GAIN", "CPU", "HOT MiB", (int)bar, "", "PLAN",
                           "PROCS", "WAY", "PROGRAM");
    } else {
        row = hl_xasprintf("%7s %8s %s", "GAIN", "HOT MiB", "PROGRAM");
    }
    print_line(row, width);
    free(row);
}

static void print_exact_details(const struct hl_surveyed *program) {
    if (program->huge_bytes > 0)
        print_wrapped(hl_xasprintf("  %.1f of %.1f MiB of text on huge pages already",
                                   mib(program->huge_bytes), mib(program->text_bytes)));
    for (size_t i = 0; i < program->n_objects; i++) {
        const struct hl_hot_object *object = &program->object[i];
        if (object->share >= PART_MIN)
            print_wrapped(hl_xasprintf("  hot %.1f of %.1f MiB: %s", mib(object->hot_bytes),
                                       mib(object->text_bytes), object->path));
    }
}

/* Prints where in OBJECT the samples of PROGRAM are. */
static void print_object(const struct hl_surveyed *program, const struct hl_hot_object *object) {
    double all = (double)program->samples;
    if ((double)object->samples < PART_MIN * all)
        return;
    print_wrapped(hl_xasprintf("  %.0f %%: %s", 100 * (double)object->samples / all, object->path));
    for (size_t i = 0; i < object->n_chunks && i < CHUNKS_MAX && object->id.inode != 0; i++) {
        const struct hl_hot_chunk *chunk = &object->chunk[i];
        if ((double)chunk->samples >= PART_MIN * all)
            print_wrapped(hl_xasprintf("    %.0f %% in 2 MiB from 0x%" PRIx64 "%s",
                                       100 * (double)chunk->samples / all, chunk->offset,
                                       2 * chunk->huge_samples > chunk->samples ? ", on a huge page" : ""));
    }
}

static void print_sampled_details(const struct hl_surveyed *program) {
    if (program->samples == 0)
        return;
    print_wrapped(hl_xasprintf(
        "  of %" PRIu64 " samples %.0f %% on huge pages; at least %.1f, and likely %.1f, of %.1f MiB "
        "executed on small ones",
        program->samples, 100 * (double)program->huge_samples / (double)program->samples,
        mib(program->hot_bytes), mib(program->likely_bytes), mib(program->text_bytes)));
    if ((double)program->memory_samples >= PART_MIN * (double)program->samples)
        print_wrapped(hl_xasprintf("  %.0f %%: text that no file has, as JIT compilers make it",
                                   100 * (double)program->memory_samples / (double)program->samples));
    for (size_t i = 0; i < program->n_objects; i++)
        print_object(program, &program->object[i]);
}

static void print_details(const struct hl_survey *survey, const struct hl_surveyed *program) {
    const struct hl_advice *advice = &program->advice;
    const struct hl_event_counts *counts = &program->counts;
    hl_print("%s", "");
    print_wrapped(hl_xasprintf("%s, %u %s: %lu minor and %lu major faults", program->path, program->processes,
                               processes(program->processes), program->minor_faults, program->major_faults));
    if (counts->known && counts->instructions > 0)
        print_wrapped(hl_xasprintf("  %.2f iTLB misses in 1000 instructions",
                                   1e3 * counts->itlb_misses / counts->instructions));
    if (counts->known && counts->has_walks && counts->cycles > 0)
        print_wrapped(hl_xasprintf("  %.1f %% of its cycles in walks for text",
                                   100 * counts->walk_cycles / counts->cycles));
    if (advice->gain > 0 && !advice->by_walks)
        print_wrapped(
            hl_xasprintf("  its gain is a guess, since no counter says how often it jumps to another page"));
    if (survey->exact)
        print_exact_details(program);
    else
        print_sampled_details(program);
    if (advice->way != HL_WAY_NOTHING)
        print_wrapped(hl_xasprintf(
            "  %s: %.0f %% of the hot text on %" PRIu64 " huge pages, %" PRIu64 " for all processes together",
            hl_way_name(advice->way), 100 * advice->share, advice->pages, advice->all_pages));
    if (advice->reason != NULL)
        print_wrapped(
            hl_xasprintf("  %s%s", advice->way == HL_WAY_NOTHING ? "nothing: " : "", advice->reason));
    for (unsigned i = 0; i < 2 && advice->command[i] != NULL; i++)
        print_command(advice->command[i]);
}

static void print_too_large(const struct hl_survey *survey) {
    if (survey->too_large > 0)
        print_wrapped(hl_xasprintf(
            "%u %s left out, with more than 1 GiB of files and shared memory mapped; fix: leave --exact away",
            survey->too_large, processes(survey->too_large)));
}

/* The processes that were not looked at, in one line. */
static void print_others(const struct hl_survey *survey) {
    if (survey->others > 0)
        print_wrapped(hl_xasprintf("%u %s of other users left out; fix: run hugeld survey --all-users%s",
                                   survey->others, processes(survey->others),
                                   geteuid() == 0 ? "" : " as root"));
}

static void print_refused(const struct hl_survey *survey) {
    if (survey->refused > 0)
        print_wrapped(
            hl_xasprintf("%u %s may not be looked at%s", survey->refused, processes(survey->refused),
                         geteuid() != 0                       ? "; fix: run hugeld survey as root"
                         : !hl_has_capability(CAP_SYS_PTRACE) ? "; fix: run hugeld survey with CAP_SYS_PTRACE"
                                                              : ": a policy forbids it"));
}

static void print_left_out(const struct hl_survey *survey) {
    print_others(survey);
    print_refused(survey);
    print_too_large(survey);
    if (survey->ended > 0)
        print_wrapped(hl_xasprintf("%u %s ended meanwhile", survey->ended, processes(survey->ended)));
}

static bool has_gain(const struct hl_survey *survey) {
    for (size_t i = 0; i < survey->n_programs; i++)
        if (survey->program[i].likely_bytes > survey->limit_bytes)
            return true;
    return false;
}

/* The one line if there is nothing to gain. */
static void print_no_gain(const struct hl_survey *survey) {
    size_t n = 0;
    for (size_t i = 0; i < survey->n_programs; i++)
        n += survey->program[i].advice.already_huge;
    if (n == 0)
        hl_print("no program here executes more text than the TLB reaches");
    else
        hl_print("no program here executes more text than the TLB reaches; %zu %s on huge pages already", n,
                 n == 1 ? "is" : "are");
}

void hl_print_survey(const struct hl_survey *survey) {
    uint64_t most = 0;
    size_t shown = 0;
    if (survey->undecided) {
        print_wrapped(hl_xasprintf("%" PRIu64 " samples were lost, of %" PRIu64
                                   ": this window decides nothing; fix: try again while less runs",
                                   survey->sampled.lost, survey->sampled.samples + survey->sampled.lost));
        return;
    }
    if (!has_gain(survey)) {
        print_no_gain(survey);
        print_others(survey);
        if (geteuid() != 0 || !hl_has_capability(CAP_SYS_PTRACE)) /* more could be looked at */
            print_refused(survey);
        print_too_large(survey);
        return;
    }
    print_heading(survey);
    print_head();
    for (size_t i = 0; i < survey->n_programs; i++)
        most = survey->program[i].likely_bytes > most ? survey->program[i].likely_bytes : most;
    for (size_t i = 0; i < survey->n_programs; i++)
        if (is_shown(survey, &survey->program[i])) {
            print_row(survey, &survey->program[i], most);
            shown++;
        }
    if (survey->n_programs > shown)
        print_wrapped(hl_xasprintf("%zu program%s no more text than the TLB reaches",
                                   survey->n_programs - shown,
                                   survey->n_programs - shown == 1 ? " executes" : "s execute"));
    print_left_out(survey);
    for (size_t i = 0; i < survey->n_programs; i++)
        if (is_shown(survey, &survey->program[i]))
            print_details(survey, &survey->program[i]);
}

/* --- JSON --- */

static json_t *bytes_or_null(uint64_t bytes) {
    return bytes > 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* The time that exact counting took. */
static json_t *ms_or_null(const struct hl_survey *survey, double ms) {
    return survey->exact ? json_real(ms) : json_null();
}

static json_t *make_json_counts(const struct hl_event_counts *counts) {
    if (!counts->known)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:o}", "cycles", counts->cycles, "instructions", counts->instructions,
                     "itlb_misses", counts->itlb_misses, "walk_cycles",
                     counts->has_walks ? json_real(counts->walk_cycles) : json_null());
}

static json_t *make_json_advice(const struct hl_advice *advice) {
    json_t *commands = json_array();
    for (unsigned i = 0; i < 2 && advice->command[i] != NULL; i++)
        json_array_append_new(commands, hl_json_text(advice->command[i]));
    return json_pack("{s:s, s:b, s:o, s:o, s:f, s:I, s:I}", "way", hl_way_name(advice->way), "already_huge",
                     advice->already_huge, "reason", hl_json_text(advice->reason), "commands", commands,
                     "hot_share", advice->share, "pages", (json_int_t)advice->pages, "all_pages",
                     (json_int_t)advice->all_pages);
}

static json_t *make_json_chunks(const struct hl_hot_object *object) {
    json_t *chunks = json_array();
    for (size_t i = 0; i < object->n_chunks; i++)
        json_array_append_new(chunks,
                              json_pack("{s:I, s:I, s:I, s:I}", "offset", (json_int_t)object->chunk[i].offset,
                                        "samples", (json_int_t)object->chunk[i].samples, "huge_samples",
                                        (json_int_t)object->chunk[i].huge_samples, "small_pages",
                                        (json_int_t)object->chunk[i].pages));
    return chunks;
}

static json_t *make_json_object(const struct hl_hot_object *object) {
    return json_pack("{s:o, s:I, s:I, s:I, s:f, s:I, s:I, s:o}", "path", hl_json_text(object->path),
                     "text_bytes", (json_int_t)object->text_bytes, "huge_bytes",
                     (json_int_t)object->huge_bytes, "hot_bytes", (json_int_t)object->hot_bytes, "hot_share",
                     object->share, "samples", (json_int_t)object->samples, "huge_samples",
                     (json_int_t)object->huge_samples, "chunks", make_json_chunks(object));
}

static json_t *make_json_program(const struct hl_survey *survey, const struct hl_surveyed *program) {
    json_t *objects = json_array();
    for (size_t i = 0; i < program->n_objects; i++)
        json_array_append_new(objects, make_json_object(&program->object[i]));
    const struct hl_advice *advice = &program->advice;
    json_t *json = json_pack(
        "{s:o, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:s, s:o, s:o}", "path",
        hl_json_text(program->path), "processes", (int)program->processes, "pid", (int)program->pid,
        "cpu_share", cpu_share(survey, program), "minor_faults", (json_int_t)program->minor_faults,
        "major_faults", (json_int_t)program->major_faults, "text_bytes", (json_int_t)program->text_bytes,
        "huge_bytes", (json_int_t)program->huge_bytes, "hot_bytes", (json_int_t)program->hot_bytes,
        "likely_hot_bytes", (json_int_t)program->likely_bytes, "counters", make_json_counts(&program->counts),
        "gain", advice->gain, "gain_from", advice->by_walks ? "counters" : "hot text", "objects", objects,
        "advice", make_json_advice(advice));
    json_object_set_new(json, "samples", json_integer((json_int_t)program->samples));
    json_object_set_new(json, "huge_samples", json_integer((json_int_t)program->huge_samples));
    json_object_set_new(json, "memory_samples", json_integer((json_int_t)program->memory_samples));
    return json;
}

static json_t *make_json_sampling(const struct hl_survey *survey) {
    const struct hl_sampler_counts *sampled = &survey->sampled;
    if (survey->exact)
        return json_null();
    return json_pack("{s:i, s:b, s:i, s:i, s:b, s:I, s:I, s:b, s:I, s:I, s:I}", "hz", (int)survey->hz,
                     "of_threads", survey->of_threads, "processors", (int)sampled->processors,
                     "processors_left_out", (int)sampled->left_out, "has_page_sizes", sampled->has_page_bytes,
                     "samples", (json_int_t)sampled->samples, "lost", (json_int_t)sampled->lost, "decided",
                     !survey->undecided, "ended", (json_int_t)survey->samples_ended, "refused",
                     (json_int_t)survey->samples_refused, "threads_refused",
                     (json_int_t)sampled->threads_refused);
}

json_t *hl_json_survey(const struct hl_survey *survey) {
    json_t *programs = json_array();
    for (size_t i = 0; i < survey->n_programs; i++)
        json_array_append_new(programs, make_json_program(survey, &survey->program[i]));
    json_t *json =
        json_pack("{s:f, s:o, s:o, s:{s:o, s:o}, s:I, s:b, s:o, s:o, s:o}", "seconds", survey->seconds,
                  "sampling", make_json_sampling(survey), "tlb", hl_json_tlb_verdict(&survey->tlb), "reach",
                  "small_bytes", bytes_or_null(hl_small_reach_bytes(&survey->reach)), "huge_bytes",
                  bytes_or_null(hl_huge_reach_bytes(&survey->reach)), "limit_bytes",
                  (json_int_t)survey->limit_bytes, "calibrated", survey->jump_costs.calibrated, "curve",
                  hl_json_jump_costs(&survey->jump_costs), "no_counters", hl_json_text(survey->no_counters),
                  "curve_problem", hl_json_text(survey->costs_problem));
    json_object_set_new(json, "processes",
                        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "watched",
                                  (int)survey->watched, "ended", (int)survey->ended, "kernel_threads",
                                  (int)survey->kernel_threads, "zombies", (int)survey->zombies, "refused",
                                  (int)survey->refused, "others", (int)survey->others, "too_large",
                                  (int)survey->too_large, "clear_ms_max",
                                  ms_or_null(survey, survey->clear_ms_max), "read_ms_max",
                                  ms_or_null(survey, survey->read_ms_max)));
    json_object_set_new(json, "programs", programs);
    return json;
}
