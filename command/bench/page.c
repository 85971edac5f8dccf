/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: --report, one page that needs nothing else: the sentence, every run as a dot, the ratios with
   their intervals, and what of the program was on huge pages.

   It is written as XML too, so that a parser can check it. */
#include "command/bench/bench.h"
#include "command/base/html.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of every drawing, in its own units. */
#define WIDTH 760.0
#define LEFT 90.0
#define RIGHT 20.0
#define PLOT_HEIGHT 260.0
#define TICKS 5

/* --- every run --- */

struct scale {
    double low, high; /* at the bottom and the top */
};

static double y_of(const struct scale *scale, double value) {
    return 10 + (PLOT_HEIGHT - 20) * (scale->high - value) / (scale->high - scale->low);
}

static double x_of(size_t i, size_t n) {
    return LEFT + (WIDTH - LEFT - RIGHT) * ((double)i + 0.5) / (double)n;
}

static void stretch(struct scale *scale, const json_t *runs) {
    size_t i;
    const json_t *value;
    json_array_foreach((json_t *)runs, i, value) {
        scale->low = fmin(scale->low, json_number_value(value));
        scale->high = fmax(scale->high, json_number_value(value));
    }
}

static void draw_dots(FILE *page, const struct scale *scale, const json_t *runs, const char *side) {
    size_t i, n = json_array_size(runs);
    const json_t *value;
    double radius = n > 300 ? 1.5 : n > 80 ? 2.5 : 4;
    json_array_foreach((json_t *)runs, i, value)
        fprintf(page,
                "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>%s, pair %zu: %.3f "
                "ms</title></circle>\n",
                side, x_of(i, n), y_of(scale, json_number_value(value)), radius,
                side[0] == 'p' ? "plain" : "huge pages", i + 1, json_number_value(value));
}

static void draw_median(FILE *page, const struct scale *scale, double value, const char *side) {
    fprintf(page, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"1.5\"/>\n", side, LEFT,
            y_of(scale, value) - 0.75, WIDTH - LEFT - RIGHT);
}

static void draw_runs(FILE *page, const json_t *answer) {
    const json_t *sides = json_object_get(answer, "runs"), *medians = json_object_get(answer, "median");
    const json_t *plain = json_object_get(json_object_get(sides, "plain"), "wall_ms");
    const json_t *huge = json_object_get(json_object_get(sides, "huge"), "wall_ms");
    struct scale scale = {INFINITY, 0};
    size_t n = json_array_size(plain);
    stretch(&scale, plain);
    stretch(&scale, huge);
    double margin = fmax((scale.high - scale.low) * 0.05, scale.high * 1e-6 + 1e-6);
    scale = (struct scale){scale.low - margin, scale.high + margin};

    fprintf(page, "<figure><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", WIDTH, PLOT_HEIGHT + 20);
    for (int i = 0; i < TICKS; i++) {
        double value = scale.low + (scale.high - scale.low) * i / (TICKS - 1), y = y_of(&scale, value);
        fprintf(page, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                WIDTH - RIGHT, y, y);
        fprintf(page, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g ms</text>\n", LEFT - 8, y + 4,
                value);
    }
    for (size_t i = 0; i < n; i++)
        fprintf(page, "<line class=\"pair\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x_of(i, n),
                x_of(i, n), y_of(&scale, json_number_value(json_array_get(plain, i))),
                y_of(&scale, json_number_value(json_array_get(huge, i))));
    draw_median(page, &scale, hl_number_of(json_object_get(medians, "plain"), "wall_ms"), "plain");
    draw_median(page, &scale, hl_number_of(json_object_get(medians, "huge"), "wall_ms"), "huge");
    draw_dots(page, &scale, plain, "plain");
    draw_dots(page, &scale, huge, "huge");
    fprintf(page,
            "<text x=\"%.1f\" y=\"%.1f\">pair 1</text><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">pair "
            "%zu</text>\n",
            LEFT, PLOT_HEIGHT + 14, WIDTH - RIGHT, PLOT_HEIGHT + 14, n);
    fputs("</svg><figcaption><span class=\"key\" style=\"background: var(--plain)\"></span>plain"
          "<span class=\"key\" style=\"background: var(--huge)\"></span>on huge pages; the lines are the "
          "medians; the axis "
          "does not begin at 0</figcaption></figure>\n",
          page);
}

/* --- ratios --- */

static void draw_ratios(FILE *page, const json_t *answer) {
    const json_t *ratios = json_object_get(answer, "ratio"), *ratio;
    const char *name;
    struct scale scale = {0.98, 1.02};
    double y = 20;
    json_object_foreach((json_t *)ratios, name, ratio) {
        if (json_is_null(ratio))
            continue;
        scale.low = fmin(scale.low, hl_number_of(ratio, "low") - 0.005);
        scale.high = fmax(scale.high, hl_number_of(ratio, "high") + 0.005);
    }
    double unit = (WIDTH - LEFT - RIGHT) / (scale.high - scale.low), one = LEFT + (1 - scale.low) * unit;
    fprintf(page, "<figure><svg viewBox=\"0 0 %.0f 130\" role=\"img\">\n", WIDTH);
    fprintf(page, "<line class=\"one\" x1=\"%.1f\" x2=\"%.1f\" y1=\"5\" y2=\"105\"/>", one, one);
    fprintf(page, "<text x=\"%.1f\" y=\"122\" text-anchor=\"middle\">1</text>\n", one);
    fprintf(page, "<text x=\"%.1f\" y=\"122\">%.3f, faster</text>", LEFT, scale.low);
    fprintf(page, "<text x=\"%.1f\" y=\"122\" text-anchor=\"end\">slower, %.3f</text>\n", WIDTH - RIGHT,
            scale.high);
    json_object_foreach((json_t *)ratios, name, ratio) {
        fprintf(page, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>", LEFT - 8, y + 4, name);
        if (json_is_null(ratio))
            fprintf(page, "<text x=\"%.1f\" y=\"%.1f\">too short to tell</text>\n", LEFT + 8, y + 4);
        else
            fprintf(page,
                    "<line class=\"interval\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                    "<circle class=\"huge\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"><title>%.3f</title></circle>\n",
                    LEFT + (hl_number_of(ratio, "low") - scale.low) * unit,
                    LEFT + (hl_number_of(ratio, "high") - scale.low) * unit, y, y,
                    LEFT + (hl_number_of(ratio, "ratio") - scale.low) * unit, y,
                    hl_number_of(ratio, "ratio"));
        y += 34;
    }
    fprintf(page,
            "</svg><figcaption>time on huge pages over plain time: the mean of the middle half of the pairs' "
            "ratios, and its 95 %% "
            "interval (bootstrap); the sides of a pair ran %s</figcaption></figure>\n",
            hl_text_of(answer, "method"));
}

/* --- the table --- */

static void put_values(FILE *page, const json_t *answer) {
    const json_t *medians = json_object_get(answer, "median"), *ratios = json_object_get(answer, "ratio");
    fputs("<table><tr><th></th><th>plain</th><th>huge pages</th><th>ratio</th><th>95 % interval</th></tr>\n",
          page);
    for (unsigned metric = 0; metric < HL_METRICS; metric++) {
        const char *key = hl_metric_key((enum hl_metric)metric),
                   *name = hl_metric_name((enum hl_metric)metric);
        const json_t *ratio = json_object_get(ratios, name);
        int decimals = metric < HL_TIMES ? 3 : 0;
        fprintf(page, "<tr><th>%s%s%s</th><td>%.*f</td><td>%.*f</td>", name, metric < HL_TIMES ? ", " : "",
                metric < HL_TIMES       ? "ms"
                : metric == HL_PEAK_RSS ? " (without hugetlb), KiB"
                                        : "",
                decimals, hl_number_of(json_object_get(medians, "plain"), key), decimals,
                hl_number_of(json_object_get(medians, "huge"), key));
        if (ratio != NULL && !json_is_null(ratio))
            fprintf(page, "<td>%.3f</td><td>%.3f to %.3f</td></tr>\n", hl_number_of(ratio, "ratio"),
                    hl_number_of(ratio, "low"), hl_number_of(ratio, "high"));
        else
            fputs("<td></td><td></td></tr>\n", page);
    }
    const json_t *counters = json_object_get(answer, "counters"), *plain = json_object_get(counters, "plain");
    const char *event;
    json_t *value;
    json_object_foreach((json_t *)plain, event, value) {
        double a = json_number_value(value), b = hl_number_of(json_object_get(counters, "huge"), event);
        fputs("<tr><th>", page);
        hl_put_text(page, event);
        fprintf(page, "</th><td>%.0f</td><td>%.0f</td><td>%.3f</td><td></td></tr>\n", a, b,
                a > 0 ? b / a : 0);
    }
    fputs("</table>\n", page);
    if (json_is_null(counters)) {
        fputs("<p class=\"note\">TLB misses and walks were not counted: ", page);
        hl_put_text(page, hl_text_of(answer, "no_counters"));
        fputs(".</p>\n", page);
    }
}

/* --- what is on huge pages --- */

static uint64_t address_of(const json_t *range, const char *key) {
    return strtoull(hl_text_of(range, key), NULL, 16);
}

/* One object as a bar; what lies between its mappings takes no room. */
static void draw_object(FILE *page, const json_t *object) {
    const json_t *ranges = json_object_get(object, "ranges"), *range;
    uint64_t total = 0;
    size_t i;
    double x = 0, text = hl_number_of(object, "text_bytes"), huge = hl_number_of(object, "text_huge_bytes");
    json_array_foreach((json_t *)ranges, i, range) total +=
        address_of(range, "end") - address_of(range, "start");
    fputs("<p>", page);
    hl_put_text(page, hl_text_of(object, "path"));
    fprintf(page, ": %.1f %% of %.0f KiB of text on huge pages</p>\n", text > 0 ? 100 * huge / text : 0,
            text / 1024);
    fprintf(page, "<svg viewBox=\"0 0 %.0f 44\" role=\"img\">\n", WIDTH);
    json_array_foreach((json_t *)ranges, i, range) {
        const char *backend = hl_text_of(range, "backend"), *flags = hl_text_of(range, "flags");
        uint64_t start = address_of(range, "start"), end = address_of(range, "end");
        double width = WIDTH * (double)(end - start) / (double)total;
        fprintf(page,
                "<rect class=\"%s\" x=\"%.2f\" y=\"2\" width=\"%.2f\" height=\"22\"><title>0x%" PRIx64
                "-0x%" PRIx64 " %s, %" PRIu64 " KiB, %s</title></rect>",
                backend[0] != '\0' ? backend : "small", x + 0.5, fmax(width - 1, 0.3), start, end, flags,
                (end - start) / 1024, backend[0] != '\0' ? backend : "small pages");
        if (width > 30)
            fprintf(page, "<text x=\"%.1f\" y=\"40\" text-anchor=\"middle\">%s</text>", x + width / 2, flags);
        x += width;
    }
    fputs("\n</svg>\n", page);
}

static void draw_maps(FILE *page, const json_t *maps) {
    size_t i, j, n = 0;
    const json_t *map, *object;
    json_array_foreach((json_t *)maps, i, map) {
        json_array_foreach(json_object_get(map, "objects"), j, object) {
            if (hl_number_of(object, "text_huge_bytes") == 0 && json_array_size(maps) > 1)
                continue;
            draw_object(page, object);
            n++;
        }
    }
    if (n == 0)
        fputs("<p class=\"note\">The kernel could not be asked: tracing is not allowed here.</p>\n", page);
    else
        fputs("<p class=\"note\"><span class=\"key\" style=\"background: var(--huge)\"></span>hugetlb"
              "<span class=\"key\" style=\"background: var(--thp)\"></span>transparent"
              "<span class=\"key\" style=\"background: var(--shared)\"></span>shared"
              "<span class=\"key\" style=\"background: var(--file)\"></span>page cache"
              "<span class=\"key\" style=\"background: var(--small)\"></span>small pages; from smaps, as the "
              "process "
              "exited in a run that was not measured</p>\n",
              page);
}

static void put_program(FILE *page, const json_t *program) {
    size_t i;
    const json_t *word;
    json_array_foreach((json_t *)program, i, word) {
        fputs(i > 0 ? " " : "", page);
        hl_put_text(page, json_string_value(word));
    }
}

static void put_circumstances(FILE *page, const json_t *answer) {
    const json_t *machine = json_object_get(answer, "machine");
    fputs("<p class=\"note\">Loader ", page);
    hl_put_text(page, hl_text_of(answer, "loader"));
    fputs(", objects '", page);
    hl_put_text(page, hl_text_of(answer, "patterns"));
    fputs("', options '", page);
    hl_put_text(page, hl_text_of(answer, "options"));
    fputs("'", page);
    if (!json_is_null(json_object_get(answer, "against"))) {
        fputs(", compared with (called plain) options '", page);
        hl_put_text(page, hl_text_of(answer, "against"));
        fputs("'", page);
    }
    fputs(". Linux ", page);
    hl_put_text(page, hl_text_of(machine, "kernel"));
    fprintf(page, ", %.0f cpus, ", hl_number_of(machine, "cpus"));
    hl_put_text(page, hl_text_of(machine, "cpu"));
    fputs(". Output: ", page);
    hl_put_text(page, hl_text_of(answer, "output"));
    fputs(".</p>\n", page);
    double plain = hl_number_of(answer, "plain_huge_bytes");
    if (plain > 0 && json_is_null(json_object_get(answer, "against")))
        fprintf(page,
                "<p class=\"note\">The plain run has %.0f KiB of text on huge pages of the page cache "
                "already.</p>\n",
                plain / 1024);
}

/* The program's words; the caller frees it. */
static char *join_words(const json_t *program) {
    char *text = hl_format("hugeld bench:");
    size_t i;
    const json_t *word;
    json_array_foreach((json_t *)program, i, word) {
        char *longer = hl_format("%s %s", text, json_string_value(word));
        free(text);
        text = longer;
    }
    return text;
}

int hl_write_page(const char *path, const json_t *answer) {
    const json_t *program = json_object_get(answer, "program"), *maps = json_object_get(answer, "maps");
    char *title = join_words(program);
    FILE *page = hl_begin_page(path, title);
    free(title);
    if (page == NULL)
        return -errno;
    fputs("<h1>", page);
    put_program(page, program);
    fputs("</h1>\n<p class=\"verdict\">", page);
    hl_put_text(page, hl_text_of(answer, "sentence"));
    fputs("</p>\n", page);
    if (!json_is_null(json_object_get(answer, "restless"))) {
        fputs("<p class=\"note\">But ", page);
        hl_put_text(page, hl_text_of(answer, "restless"));
        fputs(".</p>\n", page);
    }
    fputs("<p class=\"note\">", page);
    hl_put_text(page, hl_text_of(json_object_get(json_object_get(answer, "machine"), "tlb"), "sentence"));
    fputs(".</p>\n<h2>Ratio</h2>\n", page);
    draw_ratios(page, answer);
    fputs("<h2>Every run</h2>\n", page);
    draw_runs(page, answer);
    fputs("<h2>Medians</h2>\n", page);
    put_values(page, answer);
    fputs("<h2>What is on huge pages</h2>\n", page);
    draw_maps(page, json_object_get(maps, "huge"));
    put_circumstances(page, answer);
    return hl_end_page(page);
}
