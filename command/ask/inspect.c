/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld inspect: prints the plan of a file, made by the same code that plans at run time.

   A position-independent object gets another address at every start.  A library for which this kernel has a rule (hl_try_load_bias)
   is planned at the address by that rule; for all others the range over all addresses is printed, and one of them as an example.
   --pid uses the address in a process.

   If an image would be mapped (image/find.c), the plan is that for an image. */
#include "command/command.h"
#include "command/ask/parts.h"
#include "command/lib/common.h"
#include "command/lib/flags.h"
#include "command/image/driver.h"
#include "command/image/find.h"
#include "command/lib/file-plan.h"
#include "elf/plan.h"
#include "command/lib/process.h"
#include "command/lib/program.h"
#include "command/lib/remedy.h"
#include "elf/rewrites.h"
#include "elf/reason.h"
#include "command/image/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request {
    char *options_text;
    struct hl_options options;
    pid_t pid; /* 0: none */
    struct hl_process process;
    enum hl_reason obstacle; /* of PROCESS */
    json_t *files;
    bool failed;
    struct hl_list paths; /* the named files */
};

static const struct hl_flag command_flags[] = {
    {"pid", 'P', "PID", "At the addresses that this process has; FILE may be left out: its executable",
     HL_PID(struct request, pid)},
    {"options", 'o', "NAME=VALUE,...", "Plan with these options, as for 'hugeld run'",
     HL_OPTIONS(struct request, options_text)},
    {NULL, 0, "FILE...", NULL, HL_LIST(struct request, paths)},
};

/* The origin of the planned load address. */
enum address { OWN, OF_PROCESS, OF_KERNEL, EXAMPLE };

/* What is known of one file. */
struct inspection {
    struct hl_file_plan plan;
    struct hl_options options; /* of the plan */
    enum address address;
    bool has_range;
    struct hl_starts range; /* over all load addresses */
    uint64_t pool_pages;    /* that a private copy takes at the address that takes most */
    struct hl_found_image image;
    struct hl_verdict verdict;
    char *worker;  /* the program that it only starts, as g++ does; or NULL */
    char *library; /* that has most of its text; or NULL */
    size_t n_parts;
    struct hl_part *part; /* all its segments, by hl_list_parts */
};

static bool is_static(const struct hl_elf_file *file) {
    return !file->has_interpreter && strcmp(hl_elf_type(file), "dso") != 0;
}

/* --- the answer --- */

/* Adds REASON with SENTENCE and REMEDY, each of which may be missing. */
static void add_reason(json_t *to, enum hl_reason reason, const char *sentence, const char *remedy) {
    json_object_set_new(to, "reason", hl_json_text(reason == HL_MOVED ? NULL : hl_reason_name(reason)));
    json_object_set_new(to, "sentence", hl_json_text(sentence));
    json_object_set_new(to, "remedy", hl_json_text(remedy));
}

/* The same as reason.def has them. */
static void add_plain_reason(json_t *to, enum hl_reason reason) {
    bool is_any = reason != HL_MOVED;
    add_reason(to, reason, is_any ? hl_reason_sentence(reason) : NULL,
               is_any ? hl_reason_remedy(reason) : NULL);
}

static json_t *make_spans(const struct hl_plan *plan, const struct hl_geometry *geometry) {
    json_t *spans = json_array();
    for (unsigned i = 0; i < plan->n_spans; i++) {
        const struct hl_span *span = &plan->span[i];
        json_array_append_new(spans,
                              json_pack("{s:o, s:o, s:s, s:s, s:I}", "start", hl_json_hex(span->start), "end",
                                        hl_json_hex(span->end), "kind", hl_kind_name(span->kind), "flags",
                                        hl_flags_text(span->flags), "pages",
                                        (json_int_t)(hl_span_bytes(span) / geometry->huge_page_bytes)));
    }
    return spans;
}

/* The reasons why parts of SEGMENT stay, each with its bytes.  *MOST is that of most bytes; HL_MOVED: some of it is moved. */
static json_t *make_small(const struct inspection *inspection, unsigned segment, enum hl_reason *most) {
    json_t *small = json_array();
    uint64_t most_bytes = 0;
    *most = inspection->plan.plan.reason[segment];
    for (size_t i = 0; i < inspection->n_parts; i++) {
        const struct hl_part *part = &inspection->part[i];
        uint64_t bytes = 0;
        bool is_first = part->segment == segment && part->sentence != NULL;
        for (size_t j = 0; j < inspection->n_parts; j++) {
            const struct hl_part *other = &inspection->part[j];
            bool is_alike = other->segment == segment && other->sentence == part->sentence;
            bytes += is_alike ? other->end - other->start : 0;
            is_first &= !is_alike || j >= i;
        }
        if (!is_first)
            continue;
        json_t *row = json_pack("{s:I}", "bytes", (json_int_t)bytes);
        add_reason(row, part->reason, part->sentence,
                   part->reason != HL_MOVED ? hl_reason_remedy(part->reason) : NULL);
        json_array_append_new(small, row);
        if (*most != HL_MOVED && part->reason != HL_MOVED && bytes > most_bytes) {
            most_bytes = bytes;
            *most = part->reason;
        }
    }
    return small;
}

static json_t *make_plan(const struct inspection *inspection) {
    static const char *const names[] = {"own", "process", "kernel", "example"};
    const struct hl_object *object = &inspection->plan.object;
    const struct hl_plan *plan = &inspection->plan.plan;
    json_t *segments = json_array();
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        enum hl_reason reason;
        json_t *small = make_small(inspection, i, &reason);
        json_t *row = json_pack("{s:o, s:o, s:s, s:I, s:o}", "start", hl_json_hex(segment->start), "end",
                                hl_json_hex(segment->end), "flags", hl_flags_text(segment->flags),
                                "covered_bytes", (json_int_t)plan->covered_bytes[i], "small", small);
        add_plain_reason(row, reason);
        json_array_append_new(segments, row);
    }
    json_t *json =
        json_pack("{s:o, s:s, s:I, s:o, s:I, s:o, s:o}", "load_bias", hl_json_hex(object->load_bias),
                  "load_bias_of", names[inspection->address], "pages", (json_int_t)hl_count_pages(plan),
                  "text_share", hl_json_share(plan->text_covered_bytes, plan->text_bytes),
                  "made_executable_bytes", (json_int_t)plan->made_executable_bytes, "spans",
                  make_spans(plan, &inspection->plan.geometry), "segments", segments);
    add_plain_reason(json, (enum hl_reason)inspection->plan.reason);
    return json;
}

static json_t *make_image(const struct inspection *inspection) {
    const struct hl_found_image *image = &inspection->image;
    const struct hl_plan *plan = &image->plan;
    char *remedy = hl_format_image_remedy(image, inspection->plan.path);
    json_t *json =
        json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "path", hl_json_text(image->path), "bytes",
                  image->path != NULL ? json_integer((json_int_t)image->bytes) : json_null(), "used",
                  image->use == HL_IMAGE_DEPENDS ? json_null() : json_boolean(image->use == HL_IMAGE_USED),
                  "needed_pages", (json_int_t)image->needed_pages, "pages", (json_int_t)hl_count_pages(plan),
                  "text_share", hl_json_share(plan->text_covered_bytes, plan->text_bytes), "spans",
                  make_spans(plan, &inspection->plan.geometry));
    add_reason(json, image->reason, image->reason != HL_MOVED ? hl_reason_sentence(image->reason) : NULL,
               remedy);
    free(remedy);
    return json;
}

static json_t *make_answer(const struct inspection *inspection) {
    const struct hl_file_plan *plan = &inspection->plan;
    const struct hl_starts *range = &inspection->range;
    const struct hl_elf_file *file = plan->file;
    const struct hl_mark *mark = hl_find_mark(file->fd);
    unsigned of = file->header.e_machine;
    const char *machine = of == EM_X86_64 ? "x86-64" : of == EM_AARCH64 ? "aarch64" : "unknown";
    json_t *json = json_pack(
        "{s:o, s:s, s:s, s:b, s:I, s:I, s:I, s:o, s:o, s:I, s:o, s:o}", "path", hl_json_text(plan->path),
        "type", hl_elf_type(file), "machine", machine, "static", is_static(file), "page_bytes",
        (json_int_t)plan->geometry.page_bytes, "huge_page_bytes", (json_int_t)plan->geometry.huge_page_bytes,
        "text_bytes", (json_int_t)plan->plan.text_bytes, "plan", make_plan(inspection), "rewrites",
        mark == NULL ? json_null() : json_pack("{s:s, s:s}", "section", mark->section, "what", mark->what),
        "pool_pages", (json_int_t)inspection->pool_pages, "verdict", hl_json_verdict(&inspection->verdict),
        "image", make_image(inspection));
    json_object_set_new(json, "worker", hl_json_text(inspection->worker));
    json_object_set_new(json, "library", hl_json_text(inspection->library));
    if (inspection->has_range)
        json_object_set_new(
            json, "range",
            json_pack("{s:I, s:I, s:I, s:o, s:o, s:I, s:o}", "starts", (json_int_t)range->starts, "pages_min",
                      (json_int_t)range->pages_min, "pages_max", (json_int_t)range->pages_max,
                      "text_share_min", hl_json_share(range->covered_min, plan->plan.text_bytes),
                      "text_share_max", hl_json_share(range->covered_max, plan->plan.text_bytes),
                      "made_executable_bytes_max", (json_int_t)range->made_executable_max,
                      "starts_full_share", hl_json_share(range->full_starts, range->starts)));
    return json;
}

/* --- in text --- */

/* The line on the image, or NULL: there is none, and the verdict says it, or the file is just too small, as most are. */
static const char *choose_image_line(const struct inspection *inspection) {
    const struct hl_found_image *image = &inspection->image;
    bool is_lack_worth_a_line = inspection->verdict.image_reason != HL_MOVED && image->reason != HL_MOVED &&
                                image->reason != HL_REASON_TOO_SMALL &&
                                image->reason != HL_REASON_SPARSE_TEXT;
    if (image->path == NULL)
        return is_lack_worth_a_line ? "  image: {image.sentence}{image.remedy:()}" : NULL;
    if (image->use == HL_IMAGE_USED)
        return "  image: text and read-only data are mapped from {image.path}, of which all processes share "
               "one copy";
    if (image->use == HL_IMAGE_DEPENDS && inspection->has_range)
        return "  image: mapped from {image.path} if it is loaded at a multiple of {huge_page_bytes:KiB}: "
               "always by the patched linker, else at one of {range.starts} load addresses";
    if (image->is_unwanted)
        return inspection->options.backend == HL_BACKEND_THP
                   ? "  image: {image.path} is not used with backend=thp{image.remedy:()}"
                   : "  image: {image.path} is not used with backend=hugetlb{image.remedy:()}";
    if (image->is_placed_anywhere && image->reason == HL_REASON_IMAGE_PLACE)
        return "  image: {image.path}, on which it begins where hugeld run starts it";
    return "  image: {image.path} is not used: {image.sentence}{image.remedy:()}";
}

static void print_verdict(const struct hl_verdict *verdict) {
    char *words = hl_format_verdict(verdict), *now = hl_describe_now(verdict);
    char *obstacle =
        verdict->obstacle != HL_MOVED ? hl_explain_reason(verdict->obstacle, verdict->path) : NULL;
    if (verdict->now != HL_NOW_UNKNOWN)
        hl_print("  now: %s%s%s", now, obstacle != NULL ? ": " : "", obstacle != NULL ? obstacle : "");
    if (verdict->now == HL_NOW_UNKNOWN && verdict->best != HL_WAY_NOTHING && !verdict->is_library) {
        char *why = hl_explain_reason(verdict->reason, verdict->path);
        hl_print("  started as it is: %s", why);
        free(why);
    }
    hl_print("  best: %s", words);
    free(obstacle);
    free(now);
    free(words);
}

#define PLAN                                                                                                 \
    ": {plan.pages} huge page{plan.pages:s} of {huge_page_bytes:KiB}; {plan.text_share:%} of the text; "     \
    "{plan.made_executable_bytes:KiB} of read-only data become executable"

/* Prints how much a private copy, or the existing image, brings onto huge pages. */
static void print_plan(const struct inspection *inspection, const json_t *answer) {
    static const char *const lines[] = {
        [OWN] = "  plan" PLAN,
        [OF_PROCESS] = "  plan" PLAN,
        [OF_KERNEL] = "  where this kernel puts it in each start, tried out" PLAN,
        [EXAMPLE] = "  as an example, loaded at a boundary of huge pages" PLAN};
    if (inspection->address == EXAMPLE && inspection->range.starts > 1 && inspection->range.pages_max > 0)
        hl_print_fields(
            answer, "  over its {range.starts} load addresses: {range.pages_min} to {range.pages_max} "
                    "pages, {range.text_share_min:%} to {range.text_share_max:%} of the text, all of it in "
                    "{range.starts_full_share:%} of starts; up to "
                    "{range.made_executable_bytes_max:KiB} of read-only data become executable");
    hl_print_fields(answer, lines[inspection->address]);
    if (inspection->pool_pages > 0)
        hl_print_fields(answer,
                        inspection->has_range
                            ? "  a private copy takes up to {pool_pages} page{pool_pages:s} of the pool"
                            : "  a private copy takes {pool_pages} page{pool_pages:s} of the pool");
}

/* Prints the moved parts, and the parts of each segment that stay, and why. */
static void print_parts(const json_t *plan) {
    size_t i, j;
    json_t *span, *segment, *small;
    json_array_foreach(json_object_get(plan, "spans"), i, span)
        hl_print_fields(span, "    {start:x}-{end:x} {flags} {kind:-6} {pages:6} page{pages:s}");
    json_array_foreach(json_object_get(plan, "segments"), i, segment) {
        char *segment_text = hl_format_fields(segment, "{flags} {start}-{end}");
        json_array_foreach(json_object_get(segment, "small"), j, small) {
            char *why = hl_format_fields(small, "{bytes:KiB}: {sentence}{remedy:()}");
            hl_print("    segment %zu %s stays: %s", i, segment_text, why);
            free(why);
        }
        free(segment_text);
    }
}

static void print_answer(const struct inspection *inspection, const json_t *answer) {
    const struct hl_file_plan *plan = &inspection->plan;
    const char *image_line = choose_image_line(inspection);
    hl_print_fields(answer, "{path}: {type}, {machine}, {text_bytes:KiB} of text");
    if (inspection->worker != NULL)
        hl_print_fields(answer, "  it only starts {worker}, which does its work: inspect that");
    if (inspection->library != NULL)
        hl_print_fields(answer, "  most of its text is in a library: inspect {library}");
    if (is_static(plan->file))
        hl_print("  static: the dynamic linker never runs, so there can be no private copy");
    if (!json_is_null(json_object_get(answer, "rewrites")))
        hl_print_fields(answer,
                        "  it rewrites its own text, {rewrites.what} (section {rewrites.section}): it gets "
                        "transparent huge pages, and none with backend=hugetlb or under a memory limit");
    if (plan->object.n_segments > 0 && hl_is_native(plan->file))
        print_verdict(&inspection->verdict);
    if (image_line != NULL)
        hl_print_fields(answer, image_line);
    /* A static program gets no private copy, so a plan applies to it only on an image. */
    bool is_planned = !is_static(plan->file) || inspection->options.backend == HL_BACKEND_IMAGE;
    if (is_planned && (inspection->verdict.best != HL_WAY_NOTHING || hl_count_pages(&plan->plan) > 0))
        print_plan(inspection, answer);
    if (is_planned)
        print_parts(json_object_get(answer, "plan"));
    if (plan->reason != 0 && plan->object.n_segments == 0)
        hl_print_fields(answer, "    stays: {plan.sentence}{plan.remedy:()}");
}

/* --- files --- */

/* Writable data takes no page of the pool. */
static uint64_t count_pool_pages(const struct hl_file_plan *plan, const struct hl_options *options) {
    struct hl_options only = *options;
    struct hl_starts starts;
    only.data = HL_DATA_OFF;
    only.bss = HL_BSS_OFF;
    if (is_static(plan->file) || options->backend == HL_BACKEND_THP || options->backend == HL_BACKEND_IMAGE ||
        plan->object.n_segments == 0)
        return 0;
    hl_measure_starts(&starts, plan, &only);
    return starts.pages_max;
}

/* The program that does the work of the one at PATH; NULL: that does it itself. */
static char *find_worker(const char *path) {
    struct hl_program program;
    char *worker = NULL, *const argv[] = {(char *)path, NULL};
    if (hl_open_program(&program, path))
        hl_find_worker(&worker, &program, argv);
    hl_close_program(&program);
    return worker;
}

static char *find_library(const char *path, const struct hl_elf_file *file,
                          const struct hl_options *options) {
    struct hl_verdict verdict = {0};
    if (strcmp(hl_elf_type(file), "dso") == 0 || !hl_judge_larger_library(&verdict, path, file, options))
        return NULL;
    char *library = hl_xasprintf("%s", verdict.path);
    hl_free_verdict(&verdict);
    return library;
}

/* Reports FILE at its own address (ET_EXEC), at the kernel's address for it, at an example of all addresses (the range over them is
   printed, too), or as LOADED in a process. */
static void report_file(struct request *request, const char *path, const struct hl_elf_file *file,
                        const struct hl_loaded *loaded) {
    struct inspection it = {.plan = {.path = path, .file = file}, .options = request->options};
    struct hl_file_plan *plan = &it.plan;
    const struct hl_options for_image = hl_options_for_image(&request->options);
    uint64_t bias = loaded != NULL ? loaded->object.load_bias : 0;
    it.address = loaded != NULL ? OF_PROCESS : hl_is_position_independent(file) ? EXAMPLE : OWN;
    hl_plan_file(plan, path, file, &it.options, bias);
    request->failed |= plan->object.n_segments == 0;
    if (it.address == EXAMPLE && hl_try_load_bias(&bias, file, &plan->object, &plan->geometry)) {
        it.address = OF_KERNEL;
        hl_plan_file(plan, path, file, &it.options, bias);
    }
    it.has_range = (it.address == EXAMPLE || it.address == OF_KERNEL) && plan->object.n_segments != 0;
    if (it.has_range)
        hl_measure_starts(&it.range, plan, &it.options);
    if (loaded != NULL)
        hl_judge_loaded(&it.verdict, &request->process, loaded, request->obstacle, &it.options);
    else
        hl_judge_file(&it.verdict, path, file, strcmp(hl_elf_type(file), "dso") != 0, &it.options);
    if (loaded != NULL && loaded->is_image) { /* the process maps the whole object from it */
        it.image = (struct hl_found_image){
            .use = HL_IMAGE_USED, .path = hl_xasprintf("%s", path), .bytes = (uint64_t)file->stat.st_size};
        hl_plan_object(&it.image.plan, &plan->object, &for_image, &plan->geometry);
    } else {
        hl_find_image(&it.image, plan, &it.options, it.address != EXAMPLE);
    }
    if (it.image.use == HL_IMAGE_USED) {
        it.options = for_image;
        it.options.backend = HL_BACKEND_IMAGE;
        hl_plan_file(plan, path, file, &it.options, plan->object.load_bias);
    }
    it.pool_pages = count_pool_pages(plan, &it.options);
    it.n_parts = hl_list_parts(&it.part, &plan->object, &plan->plan, &it.options, &plan->geometry);
    if (loaded == NULL)
        it.worker = find_worker(path);
    if (loaded == NULL && it.worker == NULL && it.verdict.best == HL_WAY_NOTHING)
        it.library = find_library(path, file, &it.options);
    json_t *answer = make_answer(&it);
    print_answer(&it, answer);
    json_array_append_new(request->files, answer);
    free(it.worker);
    free(it.library);
    free(it.part);
    hl_free_verdict(&it.verdict);
    free(it.image.path);
}

static void report_problem(struct request *request, const char *path, const char *sentence) {
    request->failed = true;
    json_array_append_new(request->files,
                          json_pack("{s:o, s:s}", "path", hl_json_text(path), "error", sentence));
    hl_warn("%s: %s", path, sentence);
}

/* The object of the process that was loaded from the file at PATH; NULL if none was. */
static const struct hl_loaded *find_in_process(const struct hl_process *process, const char *path) {
    struct stat stat_buffer;
    const struct hl_loaded *found = NULL;
    char *real = realpath(path, NULL);
    bool known = stat(path, &stat_buffer) == 0;
    for (size_t i = 0; i < process->n_loaded && found == NULL; i++) {
        const struct hl_loaded *loaded = &process->loaded[i];
        if ((known && loaded->file->stat.st_dev == stat_buffer.st_dev &&
             loaded->file->stat.st_ino == stat_buffer.st_ino) ||
            (real != NULL && strcmp(real, loaded->object.path) == 0))
            found = loaded;
    }
    free(real);
    return found;
}

static void inspect_file(struct request *request, const char *name) {
    struct hl_elf_file file;
    char *path = hl_find_named_file(name);
    enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, path);
    if (problem != HL_ELF_FINE) {
        report_problem(request, path, hl_elf_problem_sentence(problem));
        free(path);
        return;
    }
    const struct hl_loaded *loaded = request->pid != 0 ? find_in_process(&request->process, path) : NULL;
    if (loaded != NULL)
        report_file(request, path, loaded->file, loaded);
    else if (request->pid != 0)
        report_problem(request, path, "the process has not loaded it; 'hugeld status' lists its objects");
    else
        report_file(request, path, &file, NULL);
    hl_close_elf(&file);
    free(path);
}

static void inspect_executable(struct request *request) {
    const struct hl_process *process = &request->process;
    if (process->n_loaded > 0 && process->loaded[0].object.is_main)
        report_file(request, process->loaded[0].object.path, process->loaded[0].file, &process->loaded[0]);
    else
        report_problem(request, process->executable != NULL ? process->executable : process->name,
                       "the executable of this process is no ELF64 file that can be read; name a file");
}

/* False after one line. */
static bool read_process(struct request *request) {
    struct hl_geometry geometry = hl_read_geometry();
    int result = hl_open_process(&request->process, request->pid);
    if (result == 0)
        result = hl_read_process(&request->process);
    if (result == 0)
        result = hl_find_loaded(&request->process, &geometry);
    if (result != 0)
        hl_say_unreadable(request->pid, result);
    else
        request->obstacle = hl_find_obstacle(&request->process);
    return result == 0;
}

int hl_inspect_files(int argc, char **argv) {
    static const struct hl_command command = {
        "inspect",
        "Prints the best way for FILE, and the plan of a private copy: which ranges move, and why the rest "
        "stays.\v"
        "FILE is an ELF64 program or library, of any machine.  Nothing is moved and no privilege is needed.",
        command_flags, true};
    struct request request = {.process.folder = -1};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        goto out;
    if (request.paths.n == 0 && request.pid == 0) {
        hl_warn("inspect: no file given; try 'hugeld inspect /usr/bin/python3'");
        goto out;
    }
    /* As a run in this environment reads them. */
    char *joined = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request.options_text);
    free(request.options_text);
    request.options_text = joined;
    hl_default_options(&request.options);
    hl_parse_options(&request.options, joined, NULL);
    if (request.pid != 0 && !read_process(&request)) {
        code = HL_EXIT_NO;
        goto out;
    }
    request.files = json_array();
    for (size_t i = 0; i < request.paths.n; i++)
        inspect_file(&request, request.paths.word[i]);
    if (request.paths.n == 0)
        inspect_executable(&request);
    hl_print_answer(json_pack("{s:o}", "files", request.files), request.failed);
    code = request.failed ? HL_EXIT_NO : HL_EXIT_DONE;
out:
    hl_close_process(&request.process);
    free(request.options_text);
    free(request.paths.word);
    return code;
}
