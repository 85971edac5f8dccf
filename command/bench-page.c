/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: --report, one page that needs nothing else: the sentence, every run as a dot, the ratios with
   their intervals, and what of the program was on huge pages.

   It is written as XML too, so that a parser can check it. */
#include "bench.h"

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

static const char style[] =
    "  :root { color-scheme: light dark; --ink: #1b1f24; --faint: #8b949e; --paper: #fff; --line: #d0d7de;\n"
    "    --plain: #6e7781; --huge: #0969da; --thp: #8250df; --shared: #bf8700; --file: #1a7f37; --small: "
    "#d8dee4 }\n"
    "  @media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d;\n"
    "    --plain: #9198a1; --huge: #4493f8; --thp: #ab7df8; --shared: #d29922; --file: #3fb950; --small: "
    "#30363d } }\n"
    "  body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: var(--ink); background: "
    "var(--paper);\n"
    "    max-width: 800px; margin: 2em auto; padding: 0 1em }\n"
    "  h1 { font-size: 1.3em; overflow-wrap: anywhere } h2 { font-size: 1.05em; margin: 2em 0 0.3em }\n"
    "  .verdict { font-size: 1.15em; font-weight: 600 } .note, figcaption { color: var(--faint) }\n"
    "  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }\n"
    "  th, td { text-align: right; padding: 0.2em 0.6em; border-bottom: 1px solid var(--line) }\n"
    "  th:first-child { text-align: left; font-weight: 400 } figure { margin: 0.5em 0 }\n"
    "  svg { width: 100%; height: auto; display: block } text { fill: var(--ink); font-size: 12px }\n"
    "  .grid { stroke: var(--line) } .pair { stroke: var(--line) } .one { stroke: var(--ink) }\n"
    "  .plain { fill: var(--plain) } .huge, .hugetlb { fill: var(--huge) } .thp { fill: var(--thp) }\n"
    "  .shared { fill: var(--shared) } .file { fill: var(--file) } .small { fill: var(--small) } .interval { "
    "stroke: var(--huge); "
    "stroke-width: 6 }\n"
    "  .key { display: inline-block; width: 0.8em; height: 0.8em; border-radius: 2px; margin: 0 0.3em 0 1em "
    "}\n";

static void put_text(FILE *page, const char *text) {
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", page);
            break;
        case '<':
            fputs("&lt;", page);
            break;
        case '>':
            fputs("&gt;", page);
            break;
        case '"':
            fputs("&quot;", page);
            break;
        default: /* XML has no control characters */
            fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, page);
        }
    }
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static double number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

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
    draw_median(page, &scale, number_of(json_object_get(medians, "plain"), "wall_ms"), "plain");
    draw_median(page, &scale, number_of(json_object_get(medians, "huge"), "wall_ms"), "huge");
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
        scale.low = fmin(scale.low, number_of(ratio, "low") - 0.005);
        scale.high = fmax(scale.high, number_of(ratio, "high") + 0.005);
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
                    LEFT + (number_of(ratio, "low") - scale.low) * unit,
                    LEFT + (number_of(ratio, "high") - scale.low) * unit, y, y,
                    LEFT + (number_of(ratio, "ratio") - scale.low) * unit, y, number_of(ratio, "ratio"));
        y += 34;
    }
    fprintf(page,
            "</svg><figcaption>time on huge pages over plain time: the mean of the middle half of the pairs' "
            "ratios, and its 95 %% "
            "interval (bootstrap); the sides of a pair ran %s</figcaption></figure>\n",
            text_of(answer, "method"));
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
                decimals, number_of(json_object_get(medians, "plain"), key), decimals,
                number_of(json_object_get(medians, "huge"), key));
        if (ratio != NULL && !json_is_null(ratio))
            fprintf(page, "<td>%.3f</td><td>%.3f to %.3f</td></tr>\n", number_of(ratio, "ratio"),
                    number_of(ratio, "low"), number_of(ratio, "high"));
        else
            fputs("<td></td><td></td></tr>\n", page);
    }
    const json_t *counters = json_object_get(answer, "counters"), *plain = json_object_get(counters, "plain");
    const char *event;
    json_t *value;
    json_object_foreach((json_t *)plain, event, value) {
        double a = json_number_value(value), b = number_of(json_object_get(counters, "huge"), event);
        fputs("<tr><th>", page);
        put_text(page, event);
        fprintf(page, "</th><td>%.0f</td><td>%.0f</td><td>%.3f</td><td></td></tr>\n", a, b,
                a > 0 ? b / a : 0);
    }
    fputs("</table>\n", page);
    if (json_is_null(counters)) {
        fputs("<p class=\"note\">TLB misses and walks were not counted: ", page);
        put_text(page, text_of(answer, "no_counters"));
        fputs(".</p>\n", page);
    }
}

/* --- what is on huge pages --- */

static uint64_t address_of(const json_t *range, const char *key) {
    return strtoull(text_of(range, key), NULL, 16);
}

/* One object as a bar; what lies between its mappings takes no room. */
static void draw_object(FILE *page, const json_t *object) {
    const json_t *ranges = json_object_get(object, "ranges"), *range;
    uint64_t total = 0;
    size_t i;
    double x = 0, text = number_of(object, "text_bytes"), huge = number_of(object, "text_huge_bytes");
    json_array_foreach((json_t *)ranges, i, range) total +=
        address_of(range, "end") - address_of(range, "start");
    fputs("<p>", page);
    put_text(page, text_of(object, "path"));
    fprintf(page, ": %.1f %% of %.0f KiB of text on huge pages</p>\n", text > 0 ? 100 * huge / text : 0,
            text / 1024);
    fprintf(page, "<svg viewBox=\"0 0 %.0f 44\" role=\"img\">\n", WIDTH);
    json_array_foreach((json_t *)ranges, i, range) {
        const char *backend = text_of(range, "backend"), *flags = text_of(range, "flags");
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
            if (number_of(object, "text_huge_bytes") == 0 && json_array_size(maps) > 1)
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
        put_text(page, json_string_value(word));
    }
}

static void put_circumstances(FILE *page, const json_t *answer) {
    const json_t *machine = json_object_get(answer, "machine");
    fputs("<p class=\"note\">Loader ", page);
    put_text(page, text_of(answer, "loader"));
    fputs(", objects '", page);
    put_text(page, text_of(answer, "patterns"));
    fputs("', options '", page);
    put_text(page, text_of(answer, "options"));
    fputs("'", page);
    if (!json_is_null(json_object_get(answer, "against"))) {
        fputs(", compared with (called plain) options '", page);
        put_text(page, text_of(answer, "against"));
        fputs("'", page);
    }
    fputs(". Linux ", page);
    put_text(page, text_of(machine, "kernel"));
    fprintf(page, ", %.0f cpus, ", number_of(machine, "cpus"));
    put_text(page, text_of(machine, "cpu"));
    fputs(". Output: ", page);
    put_text(page, text_of(answer, "output"));
    fputs(".</p>\n", page);
    double plain = number_of(answer, "plain_huge_bytes");
    if (plain > 0 && json_is_null(json_object_get(answer, "against")))
        fprintf(page,
                "<p class=\"note\">The plain run has %.0f KiB of text on huge pages of the page cache "
                "already.</p>\n",
                plain / 1024);
}

int hl_write_page(const char *path, const json_t *answer) {
    const json_t *program = json_object_get(answer, "program"), *maps = json_object_get(answer, "maps");
    FILE *page = fopen(path, "we");
    if (page == NULL)
        return -errno;
    fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta "
          "charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>hugeld bench: ",
          page);
    put_program(page, program);
    fprintf(page, "</title>\n<style>\n%s</style></head>\n<body>\n<h1>", style);
    put_program(page, program);
    fputs("</h1>\n<p class=\"verdict\">", page);
    put_text(page, text_of(answer, "sentence"));
    fputs("</p>\n", page);
    if (!json_is_null(json_object_get(answer, "restless"))) {
        fputs("<p class=\"note\">But ", page);
        put_text(page, text_of(answer, "restless"));
        fputs(".</p>\n", page);
    }
    fputs("<h2>Ratio</h2>\n", page);
    draw_ratios(page, answer);
    fputs("<h2>Every run</h2>\n", page);
    draw_runs(page, answer);
    fputs("<h2>Medians</h2>\n", page);
    put_values(page, answer);
    fputs("<h2>What is on huge pages</h2>\n", page);
    draw_maps(page, json_object_get(maps, "huge"));
    put_circumstances(page, answer);
    fputs("</body></html>\n", page);
    int result = fflush(page) != 0 || ferror(page) ? -errno : 0;
    if (fclose(page) != 0 && result == 0)
        result = -errno;
    return result;
}
