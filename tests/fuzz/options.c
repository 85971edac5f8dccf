/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The two variables: options mean the same when they are written out again, the order of patterns means
   nothing, and a glob matches the same names as a slow matcher. */
#include "fuzz.h"

/* Longer texts are too long for the slow ways. */
#define TEXT_MAX 60

static unsigned complaints;

static void count_complaint(void *data, struct hl_string option, const char *what) {
    (void)data;
    assert_true(what != NULL && option.bytes > 0);
    for (size_t i = 0; i < option.bytes; i++)
        assert_true(option.at[i] != ',' && option.at[i] != '\0');
    complaints++;
}

/* Writes OPTIONS as a user would, names and values in the order of the table. */
static void write_options(char *to, size_t bytes, const struct hl_options *options) {
    size_t row = 0;
    char *end = to + bytes;
#define CHOICE(field, name, help, ...)                                                                       \
    to += snprintf(to, (size_t)(end - to), "%s=%s,", name, hl_option_rows[row++].values[options->field]);
#define NUMBER(field, name, help)                                                                            \
    row++, to += snprintf(to, (size_t)(end - to), "%s=%ju,", name, (uintmax_t)options->field);
#define GLOB(field, name, help)                                                                              \
    row++, to +=                                                                                             \
           snprintf(to, (size_t)(end - to), "%s=%.*s,", name, (int)options->field.bytes, options->field.at);
#define FOLDER(field, name, help)                                                                            \
    if (options->field.bytes > 0) /* none cannot be said */                                                  \
        to += snprintf(to, (size_t)(end - to), "%s=%.*s,", name, (int)options->field.bytes,                  \
                       options->field.at);                                                                   \
    row++;
#include "elf/option.def"
#undef CHOICE
#undef NUMBER
#undef GLOB
#undef FOLDER
    assert_true(to < end);
}

static void check_same(const struct hl_options *a, const struct hl_options *b) {
#define CHOICE(field, name, help, ...) assert_int_equal(a->field, b->field);
#define NUMBER(field, name, help) assert_int_equal(a->field, b->field);
#define GLOB(field, name, help)                                                                              \
    assert_int_equal(a->field.bytes, b->field.bytes);                                                        \
    assert_memory_equal(a->field.at, b->field.at, a->field.bytes);
#define FOLDER GLOB
#include "elf/option.def"
#undef CHOICE
#undef NUMBER
#undef GLOB
#undef FOLDER
}

static void check_options(const char *text) {
    static char written[8192];
    struct hl_options options, again;
    struct hl_complaints tell = {count_complaint, NULL};
    hl_default_options(&options);
    complaints = 0;
    unsigned mistakes = hl_parse_options(&options, text, &tell);
    assert_int_equal(mistakes, complaints);
    if (options.exe.bytes > sizeof written / 2)
        return;
    write_options(written, sizeof written, &options);
    hl_default_options(&again);
    assert_int_equal(hl_parse_options(&again, written, NULL), 0);
    check_same(&options, &again);
}

/* The end of the bracket expression at P, which begins with '[': behind its ']', or NULL. */
static const char *bracket_end(const char *p, const char *end) {
    const char *q = p + 1;
    if (q < end && (*q == '!' || *q == '^'))
        q++;
    for (const char *first = q; q < end && (*q != ']' || q == first); q++)
        if (q + 2 < end && q[1] == '-' && q[2] != ']')
            q += 2;
    return q < end ? q + 1 : NULL;
}

static bool in_bracket(const char *p, const char *end, unsigned char c) {
    bool set[256] = {false}, negated = p[1] == '!' || p[1] == '^';
    const char *last = end - 1;
    for (const char *q = p + 1 + negated; q < last; q++) {
        unsigned low = (unsigned char)*q, high = low;
        if (q + 2 < last && q[1] == '-') {
            high = (unsigned char)q[2];
            q += 2;
        }
        for (unsigned i = low; i <= high; i++)
            set[i] = true;
    }
    return set[c] != negated;
}

/* can[i][j]: the pattern from I on matches the text from J on. */
static bool match_slowly(struct hl_string pattern, const char *text) {
    static bool can[TEXT_MAX + 2][TEXT_MAX + 2];
    const char *end = pattern.at + pattern.bytes;
    size_t m = strlen(text);
    for (size_t i = pattern.bytes + 1; i-- > 0;)
        for (size_t j = m + 1; j-- > 0;) {
            const char *p = pattern.at + i, *after;
            if (i == pattern.bytes) {
                can[i][j] = j == m;
            } else if (*p == '*') {
                can[i][j] = can[i + 1][j] || (j < m && can[i][j + 1]);
            } else if (j == m) {
                can[i][j] = false;
            } else if (*p == '?') {
                can[i][j] = can[i + 1][j + 1];
            } else if (*p == '[' && (after = bracket_end(p, end)) != NULL) {
                can[i][j] = in_bracket(p, after, (unsigned char)text[j]) && can[after - pattern.at][j + 1];
            } else {
                bool quoted = *p == '\\' && p + 1 < end;
                can[i][j] = p[quoted] == text[j] && can[i + 1 + quoted][j + 1];
            }
        }
    return can[0][0];
}

/* The colon-separated pieces of TEXT, the last one first, with empty ones between. */
static char *turn_round(const char *text) {
    size_t bytes = strlen(text);
    char *turned = malloc(2 * bytes + 3), *to = turned;
    for (size_t end = bytes;;) {
        size_t start = end;
        while (start > 0 && text[start - 1] != ':')
            start--;
        memcpy(to, text + start, end - start);
        to += end - start;
        *to++ = ':';
        if (start == 0)
            break;
        *to++ = ':';
        end = start - 1;
    }
    *to = '\0';
    return turned;
}

static void check_patterns(const char *text, const struct hl_object *object) {
    struct hl_string patterns = {text, strlen(text)};
    char *turned = turn_round(text);
    enum hl_selection selection = hl_select_object(patterns, object);
    assert_int_equal(selection, hl_select_object((struct hl_string){turned, strlen(turned)}, object));
    bool others = hl_selects_other_objects(patterns);
    assert_int_equal(others, hl_selects_other_objects((struct hl_string){turned, strlen(turned)}));
    bool called_main = strcmp(hl_base_name(object->path), "main") == 0 ||
                       (object->soname != NULL && strcmp(object->soname, "main") == 0);
    if (selection != HL_NOT_SELECTED && !object->is_main && !called_main)
        assert_true(others);
    free(turned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct t_input input = {data, bytes};
    struct hl_object object = {.is_main = t_take_byte(&input) & 1};
    char *options = t_take_text(&input), *patterns = t_take_text(&input), *path = t_take_text(&input),
         *soname = t_take_text(&input);
    object.path = path;
    object.soname = soname[0] != '\0' ? soname : NULL;
    check_options(options);
    check_patterns(patterns, &object);
    struct hl_string glob = {patterns, strlen(patterns)};
    if (glob.bytes <= TEXT_MAX && strlen(path) <= TEXT_MAX)
        assert_int_equal(hl_match_glob(glob, path), match_slowly(glob, path));
    free(options);
    free(patterns);
    free(path);
    free(soname);
    return 0;
}
