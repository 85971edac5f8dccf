/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: --report, in the manner of bench's. */
#include "command/survey/survey.h"
#include "command/base/html.h"

#include <errno.h>
#include <math.h>

#define WIDTH 760.0
#define NAME 220.0
#define ROW 26.0
#define MIB 1048576.0
#define CHUNK (2 * MIB)
#define COLUMN 32.0 /* the height of the highest */
#define PART_MIN 0.02

static const char *name_of(const json_t *program) { return hl_base_name(hl_text_of(program, "path")); }

static bool is_shown(const json_t *answer, const json_t *program) {
    double limit = hl_number_of(answer, "limit_bytes");
    return hl_number_of(program, "likely_hot_bytes") > limit || hl_number_of(program, "huge_bytes") > limit;
}

/* A bar for each program: its hot text, and what of it the plan covers; a line where the TLB ends. */
static void draw_programs(FILE *page, const json_t *answer) {
    size_t i, n = 0;
    const json_t *programs = json_object_get(answer, "programs"), *program;
    double most = 1, limit = hl_number_of(answer, "limit_bytes"), y = 6;
    json_array_foreach((json_t *)programs, i, program) {
        n += is_shown(answer, program);
        most = fmax(most, hl_number_of(program, "likely_hot_bytes"));
    }
    double unit = (WIDTH - NAME - 80) / fmax(most, limit);
    fprintf(page, "<figure><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", WIDTH, 26 + ROW * (double)n);
    json_array_foreach((json_t *)programs, i, program) {
        double hot = hl_number_of(program, "likely_hot_bytes"),
               planned = hot * hl_number_of(json_object_get(program, "advice"), "hot_share");
        if (!is_shown(answer, program))
            continue;
        fprintf(page, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", NAME - 8, y + 15);
        hl_put_text(page, name_of(program));
        fprintf(page,
                "</text><rect class=\"small\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\"/>"
                "<rect class=\"huge\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\"/>"
                "<text x=\"%.1f\" y=\"%.1f\">%.1f MiB</text>\n",
                NAME, y, hot * unit, NAME, y, planned * unit, NAME + hot * unit + 6, y + 15, hot / MIB);
        y += ROW;
    }
    fprintf(page, "<line class=\"one\" x1=\"%.1f\" x2=\"%.1f\" y1=\"2\" y2=\"%.1f\"/>", NAME + limit * unit,
            NAME + limit * unit, y);
    fprintf(page, "<text x=\"%.1f\" y=\"%.1f\">%.1f MiB: what the TLB reaches</text>\n",
            NAME + limit * unit + 4, y + 14, limit / MIB);
    fputs("</svg><figcaption>text that is executed on small pages"
          "<span class=\"key\" style=\"background: var(--huge)\"></span>would be on huge pages"
          "<span class=\"key\" style=\"background: var(--small)\"></span>would stay</figcaption></figure>\n",
          page);
}

static void put_rows(FILE *page, const json_t *answer) {
    size_t i;
    const json_t *program;
    fputs(
        "<table><tr><th></th><th>gain, estimated</th><th>processor</th><th>hot, MiB</th><th>samples on huge "
        "pages</th><th>processes</th>"
        "<th>huge pages for all</th><th>way</th></tr>\n",
        page);
    json_array_foreach(json_object_get(answer, "programs"), i, program) {
        const json_t *advice = json_object_get(program, "advice");
        bool huge = json_is_true(json_object_get(advice, "already_huge"));
        double samples = hl_number_of(program, "samples");
        char huge_share[16] = "";
        if (!is_shown(answer, program))
            continue;
        if (samples > 0)
            snprintf(huge_share, sizeof huge_share, "%.0f %%",
                     100 * hl_number_of(program, "huge_samples") / samples);
        fputs("<tr><th>", page);
        hl_put_text(page, hl_text_of(program, "path"));
        fprintf(page,
                "</th><td>%.1f %%</td><td>%.0f "
                "%%</td><td>%.1f</td><td>%s</td><td>%.0f</td><td>%.0f</td><td>%s</td></tr>\n",
                100 * hl_number_of(program, "gain"), 100 * hl_number_of(program, "cpu_share"),
                hl_number_of(program, "likely_hot_bytes") / MIB, huge_share,
                hl_number_of(program, "processes"), hl_number_of(advice, "all_pages"),
                huge ? "already huge" : hl_text_of(advice, "way"));
    }
    fputs("</table>\n", page);
}

/* A column for each 2 MiB of OBJECT, up to the last one with samples; the highest has most of them. */
static void draw_chunks(FILE *page, const json_t *object) {
    const json_t *chunks = json_object_get(object, "chunks"), *chunk;
    double first = INFINITY, last = 0, most = 0;
    size_t i;
    json_array_foreach((json_t *)chunks, i, chunk) {
        first = fmin(first, hl_number_of(chunk, "offset") / CHUNK);
        last = fmax(last, hl_number_of(chunk, "offset") / CHUNK + 1);
        most = fmax(most, hl_number_of(chunk, "samples"));
    }
    if (json_array_size(chunks) < 2)
        return;
    double unit = fmin(12, WIDTH / (last - first));
    fprintf(page, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">", WIDTH, COLUMN + 2);
    json_array_foreach((json_t *)chunks, i, chunk) {
        double samples = hl_number_of(chunk, "samples"), height = fmax(1, COLUMN * samples / most),
               huge = height * hl_number_of(chunk, "huge_samples") / fmax(samples, 1),
               x = (hl_number_of(chunk, "offset") / CHUNK - first) * unit;
        fprintf(page,
                "<rect class=\"plain\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>"
                "<rect class=\"huge\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>",
                x, COLUMN - height, unit * 0.9, height, x, COLUMN - huge, unit * 0.9, huge);
    }
    fprintf(page, "<line class=\"grid\" x1=\"0\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/></svg>",
            (last - first) * unit, COLUMN, COLUMN);
}

static void put_object(FILE *page, const json_t *program, const json_t *object) {
    double share = hl_number_of(object, "hot_share"), samples = hl_number_of(program, "samples");
    if (samples > 0)
        share = hl_number_of(object, "samples") / samples;
    if (share < PART_MIN)
        return;
    if (samples > 0)
        fprintf(page, "<li>%.0f %% of its samples: ", 100 * share);
    else
        fprintf(page, "<li>%.1f of %.1f MiB hot: ", hl_number_of(object, "hot_bytes") / MIB,
                hl_number_of(object, "text_bytes") / MIB);
    hl_put_text(page, hl_text_of(object, "path"));
    draw_chunks(page, object);
    fputs("</li>\n", page);
}

static void put_advice(FILE *page, const json_t *answer) {
    size_t i, j;
    const json_t *program, *command, *object;
    json_array_foreach(json_object_get(answer, "programs"), i, program) {
        const json_t *advice = json_object_get(program, "advice");
        if (!is_shown(answer, program))
            continue;
        fputs("<h2>", page);
        hl_put_text(page, hl_text_of(program, "path"));
        fputs("</h2>\n<p>", page);
        hl_put_text(page, hl_text_of(advice, "reason"));
        fprintf(page, "</p>\n<p>%.0f minor and %.0f major faults.</p>\n<ul>",
                hl_number_of(program, "minor_faults"), hl_number_of(program, "major_faults"));
        json_array_foreach(json_object_get(program, "objects"), j, object) put_object(page, program, object);
        fputs("</ul>\n<pre>", page);
        json_array_foreach(json_object_get(advice, "commands"), j, command) {
            hl_put_text(page, json_string_value(command));
            fputc('\n', page);
        }
        fputs("</pre>\n", page);
    }
}

int hl_write_survey_page(const char *path, const json_t *answer) {
    FILE *page = hl_begin_page(path, "hugeld survey");
    if (page == NULL)
        return -errno;
    fprintf(page,
            "<h1>Which programs would gain</h1>\n<p class=\"verdict\">%.0f processes in %.0f s</p>\n<p>",
            hl_number_of(json_object_get(answer, "processes"), "watched"), hl_number_of(answer, "seconds"));
    hl_put_text(page, hl_text_of(json_object_get(answer, "tlb"), "sentence"));
    fputs(".</p>\n", page);
    draw_programs(page, answer);
    put_rows(page, answer);
    put_advice(page, answer);
    const json_t *sampling = json_object_get(answer, "sampling");
    if (!json_is_null(sampling))
        fprintf(page,
                "<p class=\"note\">%.0f samples, %.0f lost%s. Bars are the text that is likely to be "
                "executed, which is more "
                "than samples were seen in. Columns are the samples in each 2 MiB of a file: "
                "<span class=\"key\" style=\"background: var(--plain)\"></span>on small pages"
                "<span class=\"key\" style=\"background: var(--huge)\"></span>on huge ones.</p>\n",
                hl_number_of(sampling, "samples"), hl_number_of(sampling, "lost"),
                json_is_true(json_object_get(sampling, "decided")) ? "" : ": too many to decide anything");
    fprintf(page, "<p class=\"note\">Gains are estimates, %scalibrated on this machine.",
            json_is_true(json_object_get(answer, "calibrated")) ? "" : "not ");
    if (!json_is_null(json_object_get(answer, "no_counters"))) {
        fputs(" No counters here: ", page);
        hl_put_text(page, hl_text_of(answer, "no_counters"));
        fputs(".", page);
    }
    fputs("</p>\n", page);
    return hl_end_page(page);
}
