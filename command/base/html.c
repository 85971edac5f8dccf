/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One HTML page that needs nothing else.  It is written as XML too, so that a parser can check it. */
#include "command/base/html.h"
#include "command/base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

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

void hl_put_text(FILE *page, const char *text) {
    while (*text != '\0') {
        size_t hidden = hl_hidden_bytes(text);
        char character = hidden > 0 ? '?' : *text; /* XML has no control characters */
        text += hidden > 0 ? hidden : 1;
        switch (character) {
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
        default:
            fputc(character, page);
        }
    }
}

const char *hl_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

double hl_number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

int hl_check_page(const char *path) {
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (path != NULL && fd < 0) {
        hl_say("%s: the page cannot be written: %s; name another file", path, strerror(errno));
        return HL_EXIT_USAGE;
    }
    if (fd >= 0)
        close(fd);
    return 0;
}

FILE *hl_begin_page(const char *path, const char *title) {
    FILE *page = fopen(path, "we");
    if (page == NULL)
        return NULL;
    fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta "
          "charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          page);
    hl_put_text(page, title);
    fprintf(page, "</title>\n<style>\n%s</style></head>\n<body>\n", style);
    return page;
}

int hl_end_page(FILE *page) {
    fputs("</body></html>\n", page);
    int result = fflush(page) != 0 || ferror(page) ? -errno : 0;
    if (fclose(page) != 0 && result == 0)
        result = -errno;
    return result;
}
