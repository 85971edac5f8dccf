/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld inspect: prints the plan of a file, made by the same code that plans at run time.

   A position-independent object gets another address at every start.  A library for which this kernel has a rule (hl_try_load_bias)
   is planned at the address by that rule; for all others the range over all addresses is printed, and one of them as an example.
   --pid uses the address in a process.

   If an image would be mapped (image/find.c), the plan is that for an image. */
#include "command/command.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/show/draw.h"
#include "command/image/find.h"
#include "command/file/file-plan.h"
#include "elf/kernel.h"
#include "elf/plan.h"
#include "command/proc/process.h"
#include "command/file/program.h"
#include "command/file/remedy.h"
#include "elf/rewrites.h"
#include "elf/reason.h"
#include "command/verdict/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "x86-64", or NULL for a machine without a known name. */
static const char *machine_name(unsigned machine) {
    static const struct {
        unsigned machine;
        const char *name;
    } names[] = {
        {EM_X86_64, "x86-64"},       {EM_AARCH64, "aarch64"}, {EM_PPC64, "ppc64"}, {EM_RISCV, "riscv64"},
        {EM_LOONGARCH, "loongarch"}, {EM_MIPS, "mips64"},     {EM_ALPHA, "alpha"}, {EM_IA_64, "ia64"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].machine == machine)
            return names[i].name;
    return NULL;
}

struct request {
    char *options_text;
    struct hl_options options;
    pid_t pid; /* 0: none */
    struct hl_process process;
    enum hl_reason obstacle; /* of PROCESS */
    json_t *files;           /* NULL: print text */
    bool json, failed;
    struct hl_list paths; /* the named files */
};

static const struct hl_flag command_flags[] = {
    {"json", 'j', NULL, "Print JSON", HL_SWITCH(struct request, json)},
    {"pid", 'P', "PID", "At the addresses that this process has; FILE may be left out: its executable",
     HL_PID(struct request, pid)},
    {"options", 'o', "NAME=VALUE,...", "Plan with these options, as for 'hugeld run'",
     HL_OPTIONS(struct request, options_text)},
    {NULL, 0, "FILE...", NULL, HL_LIST(struct request, paths)},
};

/* All of a file's segments, by hl_list_parts. */
struct parts {
    size_t n;
    struct hl_part *part;
};

/* The origin of the planned load address. */
enum address { OWN, OF_PROCESS, OF_KERNEL, EXAMPLE };

static bool is_static(const struct hl_elf_file *file) {
    return !file->has_interpreter && strcmp(hl_elf_type(file), "dso") != 0;
}

static uint64_t to_kib(uint64_t bytes) { return bytes / 1024 + (bytes % 1024 != 0); }

/* " (remedy)", or "" if there is none.  The caller frees it. */
static char *format_remedy(const char *remedy) {
    return remedy == NULL ? hl_xasprintf("%s", "") : hl_xasprintf(" (%s)", remedy);
}

static void print_span(const struct hl_file_plan *report, const struct hl_span *span) {
    const struct hl_object *object = &report->object;
    char *segments = hl_xasprintf("%s", "");
    for (unsigned i = 0; i < object->n_segments; i++) {
        if (hl_segment_overlap(&object->segment[i], span->start, span->end) == 0)
            continue;
        char *longer = hl_xasprintf("%s%s%u", segments, segments[0] != '\0' ? "," : "", i);
        free(segments);
        segments = longer;
    }
    uint64_t pages = (span->end - span->start) / report->geometry.huge_page_bytes;
    hl_print("    0x%012" PRIx64 "-0x%012" PRIx64 " %s %-6s %6" PRIu64 " page%-1s of segment %s", span->start,
             span->end, hl_flags_text(span->flags), hl_kind_name(span->kind), pages, hl_plural(pages),
             segments);
    free(segments);
}

/* How many bytes of PART's segment stay for PART's reason. */
static uint64_t count_alike(const struct parts *parts, const struct hl_part *part) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < parts->n; i++)
        if (parts->part[i].segment == part->segment && parts->part[i].sentence == part->sentence &&
            parts->part[i].option == part->option)
            bytes += parts->part[i].end - parts->part[i].start;
    return bytes;
}

static bool is_first_alike(const struct parts *parts, size_t index) {
    const struct hl_part *part = &parts->part[index];
    for (size_t i = 0; i < index; i++)
        if (parts->part[i].segment == part->segment && parts->part[i].sentence == part->sentence &&
            parts->part[i].option == part->option)
            return false;
    return part->sentence != NULL;
}

/* The remedy for PART, or NULL; the caller frees it.  If an option helps another part of its segment, nothing else is proposed. */
static char *find_part_remedy(const struct hl_file_plan *report, const struct parts *parts,
                              const struct hl_part *part, const struct hl_options *options) {
    if (part->option != NULL)
        return hl_xasprintf("set %s", part->option);
    for (size_t i = 0; i < parts->n; i++)
        if (parts->part[i].segment == part->segment && parts->part[i].option != NULL)
            return NULL;
    return hl_find_remedy(report, part->segment, options);
}

/* Prints the parts of each segment that stay, and why. */
static void print_segments(const struct hl_file_plan *report, const struct parts *parts,
                           const struct hl_options *options) {
    for (size_t i = 0; i < parts->n; i++) {
        const struct hl_part *part = &parts->part[i];
        const struct hl_segment *segment = &report->object.segment[part->segment];
        uint64_t bytes = segment->end - segment->start, small = count_alike(parts, part);
        if (!is_first_alike(parts, i))
            continue;
        char *found = find_part_remedy(report, parts, part, options), *remedy = format_remedy(found),
             *amount = small == bytes
                           ? hl_xasprintf("%s", "")
                           : hl_xasprintf("%" PRIu64 " of %" PRIu64 " KiB: ", to_kib(small), to_kib(bytes));
        hl_print("    segment %u %s 0x%" PRIx64 "-0x%" PRIx64 " stays: %s%s%s", part->segment,
                 hl_flags_text(segment->flags), segment->start, segment->end, amount, part->sentence, remedy);
        free(amount);
        free(remedy);
        free(found);
    }
}

static void print_range(const struct hl_file_plan *report, const struct hl_starts *range, const char *where) {
    if (range->pages_max == 0)
        return; /* no address gives any page */
    unsigned least = hl_permille(range->covered_min, report->plan.text_bytes);
    unsigned most = hl_permille(range->covered_max, report->plan.text_bytes);
    unsigned full = hl_permille(range->full_starts, range->starts);
    hl_print("  %s %" PRIu64 " load addresses: %" PRIu64 " to %" PRIu64
             " pages, %u.%u to %u.%u %% of the text, "
             "all of it in %u.%u %% of starts; up to %" PRIu64 " KiB of read-only data become executable",
             where, range->starts, range->pages_min, range->pages_max, least / 10, least % 10, most / 10,
             most % 10, full / 10, full % 10, to_kib(range->made_executable_max));
}

/* The backend that the options want for a span of this KIND: its mark, and *BACKEND in words.  Whether data was written is only
   known in a process. */
static char plan_mark(const struct hl_options *options, enum hl_kind kind, const char **backend) {
    static const char *const names[] = {"hugetlb, or thp", "hugetlb", "thp", "file", "image"};
    static const char marks[] = {HL_MARK_HUGETLB, HL_MARK_HUGETLB, HL_MARK_THP, HL_MARK_FILE, HL_MARK_IMAGE};
    unsigned choice = kind == HL_TEXT || kind == HL_RODATA ? options->backend : HL_BACKEND_THP;
    *backend = kind == HL_DATA && options->data == HL_DATA_AUTO ? "thp, if most of it is written by then"
                                                                : names[choice];
    return marks[choice];
}

/* The name of backend='s value. */
static const char *backend_value(const struct hl_options *options) {
    for (size_t i = 0; i < hl_option_row_count; i++)
        if (strcmp(hl_option_rows[i].name, "backend") == 0)
            return hl_option_rows[i].values[options->backend];
    return "";
}

static void draw_plan(const struct hl_file_plan *report, const struct parts *parts,
                      const struct hl_options *options) {
    struct hl_drawing drawing = {.huge_page_bytes = report->geometry.huge_page_bytes};
    for (unsigned i = 0; i < report->plan.n_spans; i++) {
        const struct hl_span *span = &report->plan.span[i];
        const char *backend;
        char mark = plan_mark(options, span->kind, &backend);
        char *words = hl_xasprintf("%s, %s", hl_kind_name(span->kind), backend);
        hl_add_stretch(&drawing, span->start, span->end, mark, hl_span_bytes(span), words);
        free(words);
    }
    hl_add_small_stretches(&drawing, parts->part, parts->n);
    hl_finish_drawing(&drawing);
}

/* Whether to print why there is no image and none can be made: if the verdict does not say it, and the file is not just too small,
   as most are. */
static bool is_lack_worth_a_line(const struct hl_found_image *image, const struct hl_verdict *verdict) {
    return image->path == NULL && verdict->image_reason != HL_MOVED && image->reason != HL_MOVED &&
           image->reason != HL_REASON_TOO_SMALL && image->reason != HL_REASON_SPARSE_TEXT;
}

static void print_image(const struct hl_file_plan *report, const struct hl_found_image *image,
                        const struct hl_starts *range, const struct hl_options *options,
                        const struct hl_verdict *verdict) {
    char *remedy = hl_format_image_remedy(image, report->path), *help = format_remedy(remedy);
    uint64_t kib = report->geometry.huge_page_bytes / 1024;
    if (is_lack_worth_a_line(image, verdict))
        hl_print("  image: %s%s", hl_reason_sentence(image->reason), help);
    else if (image->use == HL_IMAGE_USED)
        hl_print("  image: text and read-only data are mapped from %s, of which all processes share one copy",
                 image->path);
    else if (image->use == HL_IMAGE_DEPENDS && range != NULL)
        hl_print("  image: mapped from %s if it is loaded at a multiple of %" PRIu64
                 " KiB: always by the patched linker, else at one of %" PRIu64 " load addresses",
                 image->path, kib, range->starts);
    else if (image->is_unwanted)
        hl_print("  image: %s is not used with backend=%s%s", image->path, backend_value(options), help);
    else if (image->is_placed_anywhere && image->reason == HL_REASON_IMAGE_PLACE)
        hl_print("  image: %s, on which it begins where hugeld run starts it", image->path);
    else if (image->path != NULL)
        hl_print("  image: %s is not used: %s%s", image->path, hl_reason_sentence(image->reason), help);
    free(help);
    free(remedy);
}

static void print_verdict(const struct hl_verdict *verdict) {
    char *words = hl_format_verdict(verdict), *now = hl_describe_now(verdict);
    if (verdict->now != HL_NOW_UNKNOWN)
        hl_print("  now: %s", now);
    if (verdict->now == HL_NOW_UNKNOWN && verdict->best != HL_WAY_NOTHING) {
        char *why = hl_explain_reason(verdict->reason, verdict->path);
        hl_print("  started as it is: %s", why);
        free(why);
    }
    hl_print("  best: %s", words);
    free(now);
    free(words);
}

/* The pages of the pool that a private copy takes at the load address that takes most.  Writable data takes none. */
static uint64_t count_pool_pages(const struct hl_file_plan *report, const struct hl_options *options) {
    struct hl_options only = *options;
    struct hl_starts starts;
    only.data = HL_DATA_OFF;
    only.bss = HL_BSS_OFF;
    bool takes_none = is_static(report->file) || options->backend == HL_BACKEND_THP ||
                      options->backend == HL_BACKEND_FILE || options->backend == HL_BACKEND_IMAGE;
    if (takes_none || report->object.n_segments == 0)
        return 0;
    hl_measure_starts(&starts, report, &only);
    return starts.pages_max;
}

/* Prints how much a private copy, or the existing image, brings onto huge pages. */
static void print_plan(const struct hl_file_plan *report, const struct hl_starts *range, enum address address,
                       uint64_t pool_pages) {
    const struct hl_plan *plan = &report->plan;
    unsigned share = hl_permille(plan->text_covered_bytes, plan->text_bytes);
    uint64_t pages = hl_count_pages(plan);
    const char *start = address == EXAMPLE     ? "as an example, loaded at a boundary of huge pages"
                        : address == OF_KERNEL ? "where this kernel puts it in each start, tried out"
                                               : "plan";
    if (address == EXAMPLE && range != NULL)
        print_range(report, range, "over its");
    hl_print("  %s: %" PRIu64 " huge page%s of %" PRIu64 " KiB; %u.%u %% of the text; %" PRIu64
             " KiB of read-only data become executable",
             start, pages, hl_plural(pages), report->geometry.huge_page_bytes / 1024, share / 10, share % 10,
             to_kib(plan->made_executable_bytes));
    if (address == OF_KERNEL && range != NULL)
        print_range(report, range, "on other kernels and file systems, over its");
    if (pool_pages > 0)
        hl_print("  a private copy takes %s%" PRIu64 " page%s of the pool", range != NULL ? "up to " : "",
                 pool_pages, hl_plural(pool_pages));
}

/* Prints the map, the moved parts, and the parts that stay. */
static void print_parts(const struct hl_file_plan *report, const struct parts *parts,
                        const struct hl_options *options) {
    draw_plan(report, parts, options);
    for (unsigned i = 0; i < report->plan.n_spans; i++)
        print_span(report, &report->plan.span[i]);
    print_segments(report, parts, options);
}

static void print_report(const struct hl_file_plan *report, const struct hl_found_image *image,
                         const struct hl_starts *range, enum address address, const struct parts *parts,
                         const struct hl_options *options, const struct hl_verdict *verdict) {
    const struct hl_plan *plan = &report->plan;
    const char *machine = machine_name(report->file->header.e_machine);
    hl_print("%s: %s, %s, %" PRIu64 " KiB of text", report->path, hl_elf_type(report->file),
             machine != NULL ? machine : "unknown machine", to_kib(plan->text_bytes));
    if (is_static(report->file))
        hl_print("  static: the dynamic linker never runs, so there can be no private copy");
    const struct hl_mark *mark = hl_find_mark(report->file->fd);
    if (mark != NULL)
        hl_print(
            "  it rewrites its own text, %s (section %s): text takes thp, and stays with backend=hugetlb "
            "and under a memory limit",
            mark->what, mark->section);
    if (report->object.n_segments > 0 && hl_is_native(report->file))
        print_verdict(verdict);
    print_image(report, image, range, options, verdict);
    /* A static program gets no private copy, so a plan applies to it only on an image. */
    bool is_planned = !is_static(report->file) || options->backend == HL_BACKEND_IMAGE;
    if (is_planned && (verdict->best != HL_WAY_NOTHING || hl_count_pages(plan) > 0))
        print_plan(report, range, address, count_pool_pages(report, options));
    if (is_planned)
        print_parts(report, parts, options);
    if (report->reason != 0 && report->object.n_segments == 0) {
        char *remedy = format_remedy(hl_reason_remedy((enum hl_reason)report->reason));
        hl_print("    stays: %s%s", hl_reason_sentence((enum hl_reason)report->reason), remedy);
        free(remedy);
    }
}

/* Adds REASON and its sentence, null if there is no obstacle, and REMEDY, which may be NULL. */
static void add_json_reason(json_t *to, enum hl_reason reason, const char *remedy) {
    json_object_set_new(to, "reason", reason == HL_MOVED ? json_null() : json_string(hl_reason_name(reason)));
    json_object_set_new(to, "sentence",
                        reason == HL_MOVED ? json_null() : json_string(hl_reason_sentence(reason)));
    json_object_set_new(to, "remedy", hl_json_text(remedy));
}

static json_t *make_json_spans(const struct hl_file_plan *report) {
    json_t *spans = json_array();
    for (unsigned i = 0; i < report->plan.n_spans; i++) {
        const struct hl_span *span = &report->plan.span[i];
        json_array_append_new(
            spans, json_pack("{s:o, s:o, s:s, s:s, s:I}", "start", hl_json_hex(span->start), "end",
                             hl_json_hex(span->end), "kind", hl_kind_name(span->kind), "flags",
                             hl_flags_text(span->flags), "pages",
                             (json_int_t)((span->end - span->start) / report->geometry.huge_page_bytes)));
    }
    return spans;
}

/* Why segment I stays: the reason of most of its bytes; HL_MOVED: some of it is moved. */
static enum hl_reason find_reason(const struct hl_file_plan *report, const struct parts *parts, unsigned i) {
    enum hl_reason reason = report->plan.reason[i];
    uint64_t most = 0;
    for (size_t j = 0; j < parts->n && report->plan.reason[i] != HL_MOVED; j++) {
        uint64_t bytes = count_alike(parts, &parts->part[j]);
        if (parts->part[j].segment != i || parts->part[j].reason == HL_MOVED || bytes <= most)
            continue;
        most = bytes;
        reason = parts->part[j].reason;
    }
    return reason;
}

static json_t *make_json_segments(const struct hl_file_plan *report, const struct parts *parts,
                                  const struct hl_options *options) {
    json_t *segments = json_array();
    for (unsigned i = 0; i < report->object.n_segments; i++) {
        const struct hl_segment *segment = &report->object.segment[i];
        json_t *row = json_pack("{s:o, s:o, s:s, s:I}", "start", hl_json_hex(segment->start), "end",
                                hl_json_hex(segment->end), "flags", hl_flags_text(segment->flags),
                                "covered_bytes", (json_int_t)report->plan.covered_bytes[i]);
        char *remedy = hl_find_remedy(report, i, options);
        add_json_reason(row, find_reason(report, parts, i), remedy);
        free(remedy);
        json_array_append_new(segments, row);
    }
    return segments;
}

static json_t *make_json_range(const struct hl_file_plan *report, const struct hl_starts *range) {
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:I, s:o}", "starts", (json_int_t)range->starts, "pages_min",
                     (json_int_t)range->pages_min, "pages_max", (json_int_t)range->pages_max,
                     "text_share_min", hl_json_share(range->covered_min, report->plan.text_bytes),
                     "text_share_max", hl_json_share(range->covered_max, report->plan.text_bytes),
                     "made_executable_bytes_max", (json_int_t)range->made_executable_max, "starts_full_share",
                     hl_json_share(range->full_starts, range->starts));
}

static json_t *make_json_image(const struct hl_file_plan *report, const struct hl_found_image *image) {
    char *remedy = hl_format_image_remedy(image, report->path);
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:o}", "path", hl_json_text(image->path), "bytes",
        image->path != NULL ? json_integer((json_int_t)image->bytes) : json_null(), "used",
        image->use == HL_IMAGE_DEPENDS ? json_null() : json_boolean(image->use == HL_IMAGE_USED),
        "needed_pages", (json_int_t)image->needed_pages, "pages", (json_int_t)hl_count_pages(&image->plan),
        "text_share", hl_json_share(image->plan.text_covered_bytes, image->plan.text_bytes));
    add_json_reason(json, image->reason, remedy);
    free(remedy);
    return json;
}

static json_t *make_json(const struct hl_file_plan *report, const struct hl_found_image *image,
                         const struct hl_starts *range, enum address address, const struct parts *parts,
                         const struct hl_options *options, const struct hl_verdict *verdict) {
    static const char *const names[] = {"own", "process", "kernel", "example"};
    const char *machine = machine_name(report->file->header.e_machine);
    const struct hl_plan *plan = &report->plan;
    json_t *json_plan =
        json_pack("{s:o, s:s, s:I, s:o, s:I}", "load_bias", hl_json_hex(report->object.load_bias),
                  "load_bias_of", names[address], "pages", (json_int_t)hl_count_pages(plan), "text_share",
                  hl_json_share(plan->text_covered_bytes, plan->text_bytes), "made_executable_bytes",
                  (json_int_t)plan->made_executable_bytes);
    char *remedy = hl_find_object_remedy(report, options);
    add_json_reason(json_plan, (enum hl_reason)report->reason, remedy);
    free(remedy);
    json_object_set_new(json_plan, "spans", make_json_spans(report));
    json_object_set_new(json_plan, "segments", make_json_segments(report, parts, options));

    json_t *json =
        json_pack("{s:o, s:s, s:s, s:b, s:I, s:I, s:I, s:o}", "path", hl_json_text(report->path), "type",
                  hl_elf_type(report->file), "machine", machine != NULL ? machine : "unknown", "static",
                  is_static(report->file), "page_bytes", (json_int_t)report->geometry.page_bytes,
                  "huge_page_bytes", (json_int_t)report->geometry.huge_page_bytes, "text_bytes",
                  (json_int_t)plan->text_bytes, "plan", json_plan);
    const struct hl_mark *mark = hl_find_mark(report->file->fd);
    json_object_set_new(json, "rewrites",
                        mark == NULL ? json_null()
                                     : json_pack("{s:s, s:s}", "section", mark->section, "what", mark->what));
    json_object_set_new(json, "pool_pages", json_integer((json_int_t)count_pool_pages(report, options)));
    json_object_set_new(json, "verdict", hl_json_verdict(verdict));
    json_object_set_new(json, "image", make_json_image(report, image));
    if (range != NULL)
        json_object_set_new(json, "range", make_json_range(report, range));
    return json;
}

/* For a process that maps the whole object from an image, which is the report's file. */
static void describe_mapped_image(struct hl_found_image *image, const struct hl_file_plan *report,
                                  const struct hl_options *options) {
    struct hl_options all = hl_options_for_image(options);
    *image = (struct hl_found_image){.use = HL_IMAGE_USED,
                                     .path = hl_xasprintf("%s", report->path),
                                     .bytes = (uint64_t)report->file->stat.st_size};
    hl_plan_object(&image->plan, &report->object, &all, &report->geometry);
}

/* Reports FILE at its own address (ET_EXEC), at the kernel's address for it, at an example of all addresses (the range over them is
   printed, too), or as LOADED in a process. */
static void report_file(struct request *request, const char *path, const struct hl_elf_file *file,
                        const struct hl_loaded *loaded) {
    struct hl_file_plan report;
    struct hl_found_image image;
    struct hl_starts range;
    struct hl_verdict verdict;
    struct hl_options options = request->options;
    const uint64_t *load_bias = loaded != NULL ? &loaded->object.load_bias : NULL;
    uint64_t tried;
    enum address address = load_bias != NULL ? OF_PROCESS : hl_is_position_independent(file) ? EXAMPLE : OWN;
    hl_plan_file(&report, path, file, &request->options, load_bias != NULL ? *load_bias : 0);
    if (report.object.n_segments == 0)
        request->failed = true;
    if (address == EXAMPLE && hl_try_load_bias(&tried, file, &report.object, &report.geometry)) {
        address = OF_KERNEL;
        hl_plan_file(&report, path, file, &request->options, tried);
    }
    if (loaded != NULL && loaded->is_image)
        describe_mapped_image(&image, &report, &options);
    else
        hl_find_image(&image, &report, &options, address != EXAMPLE);
    if (loaded != NULL)
        hl_judge_loaded(&verdict, &request->process, loaded, request->obstacle, &options);
    else
        hl_judge_file(&verdict, path, file, strcmp(hl_elf_type(file), "dso") != 0, &options);
    bool ranges = (address == EXAMPLE || address == OF_KERNEL) && report.object.n_segments != 0;
    if (ranges)
        hl_measure_starts(&range, &report, &options);
    if (image.use == HL_IMAGE_USED) {
        options = hl_options_for_image(&options);
        options.backend = HL_BACKEND_IMAGE;
        hl_plan_file(&report, path, file, &options, report.object.load_bias);
    }
    struct parts parts;
    parts.n = hl_list_parts(&parts.part, &report.object, &report.plan, &options, &report.geometry);
    if (request->json)
        json_array_append_new(request->files, make_json(&report, &image, ranges ? &range : NULL, address,
                                                        &parts, &options, &verdict));
    else
        print_report(&report, &image, ranges ? &range : NULL, address, &parts, &options, &verdict);
    free(parts.part);
    hl_free_verdict(&verdict);
    hl_free_found_image(&image);
}

static void report_problem(struct request *request, const char *path, const char *sentence) {
    request->failed = true;
    if (request->json)
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

/* NAME itself, or if it has no slash and is no file here, the program in PATH of that name.  The caller frees it. */
static char *find_named_file(const char *name) {
    bool is_name = strchr(name, '/') == NULL && access(name, F_OK) != 0;
    char *program = is_name ? hl_find_program(name) : NULL;
    return program != NULL ? program : hl_xasprintf("%s", name);
}

static void inspect_file(struct request *request, const char *name) {
    struct hl_elf_file file;
    char *path = find_named_file(name);
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

/* 0, or the exit code. */
static int read_process(struct request *request) {
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    int result = hl_open_process(&request->process, request->pid);
    if (result == 0)
        result = hl_read_process(&request->process);
    if (result == 0)
        result = hl_find_loaded(&request->process, &geometry);
    if (result != 0) {
        hl_say_unreadable(request->pid, result);
        return HL_EXIT_NO;
    }
    request->obstacle = hl_find_obstacle(&request->process);
    return 0;
}

/* Reads the options like a run in this environment. */
static void read_options(struct request *request) {
    char *joined = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->options_text);
    free(request->options_text);
    request->options_text = joined;
    hl_default_options(&request->options);
    hl_parse_options(&request->options, joined, NULL);
}

int hl_inspect_files(int argc, char **argv) {
    static const struct hl_command command = {
        "inspect",
        "Prints the plan: which ranges of FILE go to huge pages, and why the rest stays.\v"
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
    read_options(&request);
    code = request.pid != 0 ? read_process(&request) : 0;
    if (code != 0)
        goto out;
    request.files = json_array();
    for (size_t i = 0; i < request.paths.n; i++)
        inspect_file(&request, request.paths.word[i]);
    if (request.paths.n == 0)
        inspect_executable(&request);
    if (request.json)
        hl_print_json(json_pack("{s:O}", "files", request.files));
    json_decref(request.files);
    code = request.failed ? HL_EXIT_NO : HL_EXIT_DONE;
out:
    hl_close_process(&request.process);
    free(request.options_text);
    free(request.paths.word);
    return code;
}
