/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The variables: option.def makes the parser, and patterns are matched in place. */
#include "options.h"
#include "line.h"

/* Each CHOICE's values, and the rows from which help and manual are printed. */
#define CHOICE(field, name, help, ...) static const char *const field##_values[] = {__VA_ARGS__, NULL};
#define NUMBER(field, name, help)
#define GLOB(field, name, help)
#define FOLDER(field, name, help)
#include "option.def"

#define CHOICE(field, name, help, ...) {name, help, HL_CHOICE, field##_values},
#define NUMBER(field, name, help) {name, help, HL_NUMBER, NULL},
#define GLOB(field, name, help) {name, help, HL_GLOB, NULL},
#define FOLDER(field, name, help) {name, help, HL_FOLDER, NULL},
const struct hl_option_row hl_option_rows[] = {
#include "option.def"
};
const size_t hl_option_row_count = sizeof hl_option_rows / sizeof hl_option_rows[0];

void hl_default_options(struct hl_options *options) {
    options->objects = (struct hl_string){NULL, 0};
    options->sparse_text = 0;
#define CHOICE(field, name, help, ...) options->field = 0;
#define NUMBER(field, name, help) options->field = 0;
#define GLOB(field, name, help) options->field = (struct hl_string){"*", 1};
#define FOLDER(field, name, help) options->field = (struct hl_string){"", 0};
#include "option.def"
}

static bool string_is(struct hl_string string, const char *text) {
    size_t i = 0;
    while (i < string.bytes && text[i] != '\0' && string.at[i] == text[i])
        i++;
    return i == string.bytes && text[i] == '\0';
}

static const char *parse_choice(unsigned *field, struct hl_string value, const char *const *values) {
    for (unsigned i = 0; values[i] != NULL; i++) {
        if (string_is(value, values[i])) {
            *field = i;
            return NULL;
        }
    }
    return "no such value";
}

static const char *parse_number(uint64_t *field, struct hl_string value) {
    uint64_t number = 0;
    if (value.bytes == 0)
        return "not a number";
    for (size_t i = 0; i < value.bytes; i++) {
        if (value.at[i] < '0' || value.at[i] > '9')
            return "not a number";
        /* Nothing counted here comes near 2^32; the bound keeps sums of it from overflowing. */
        number = number * 10 + (uint64_t)(value.at[i] - '0');
        if (number > UINT32_MAX)
            return "too large";
    }
    *field = number;
    return NULL;
}

static const char *parse_glob(struct hl_string *field, struct hl_string value) {
    if (value.bytes == 0)
        return "empty";
    *field = value;
    return NULL;
}

static const char *parse_folder(struct hl_string *field, struct hl_string value) {
    if (value.bytes == 0 || value.at[0] != '/')
        return "not an absolute path";
    if (value.bytes >= HL_FOLDER_BYTES)
        return "too long";
    *field = value;
    return NULL;
}

/* Sets the option NAME to VALUE.  NULL, or an error. */
static const char *set_option(struct hl_options *options, struct hl_string name, struct hl_string value) {
#define CHOICE(field, text, help, ...)                                                                       \
    if (string_is(name, text))                                                                               \
        return parse_choice(&options->field, value, field##_values);
#define NUMBER(field, text, help)                                                                            \
    if (string_is(name, text))                                                                               \
        return parse_number(&options->field, value);
#define GLOB(field, text, help)                                                                              \
    if (string_is(name, text))                                                                               \
        return parse_glob(&options->field, value);
#define FOLDER(field, text, help)                                                                            \
    if (string_is(name, text))                                                                               \
        return parse_folder(&options->field, value);
#include "option.def"
    return "no such option";
}

/* The part of [text, end) before the first STOP, or all of it. */
static struct hl_string cut_string(const char *text, const char *end, char stop) {
    struct hl_string string = {text, 0};
    while (text + string.bytes < end && text[string.bytes] != stop)
        string.bytes++;
    return string;
}

unsigned hl_parse_options(struct hl_options *options, const char *text,
                          const struct hl_complaints *complaints) {
    unsigned mistakes = 0;
    const char *end = text + hl_strlen(text);
    for (const char *at = text; at < end;) {
        struct hl_string option = cut_string(at, end, ',');
        at += option.bytes + 1;
        if (option.bytes == 0)
            continue;
        const char *option_end = option.at + option.bytes;
        struct hl_string name = cut_string(option.at, option_end, '=');
        const char *what = "needs a value";
        if (name.bytes < option.bytes) {
            const char *value = name.at + name.bytes + 1;
            what = set_option(options, name, (struct hl_string){value, (size_t)(option_end - value)});
        }
        if (what == NULL)
            continue;
        mistakes++;
        if (complaints != NULL)
            complaints->tell(complaints->data, option, what);
    }
    return mistakes;
}

/* Matches one character C against the bracket expression that begins after PATTERN's '['.  Sets *AFTER past
   its ']'; a '[' that is never closed stands for itself, and *AFTER is NULL. */
static bool match_bracket(const char *pattern, const char *end, unsigned char c, const char **after) {
    const char *p = pattern;
    bool negated = p < end && (*p == '!' || *p == '^'), found = false;
    if (negated)
        p++;
    for (const char *first = p; p < end && (*p != ']' || p == first); p++) {
        unsigned char low = (unsigned char)*p, high = low;
        if (p + 2 < end && p[1] == '-' && p[2] != ']') {
            high = (unsigned char)p[2];
            p += 2;
        }
        found = found || (low <= c && c <= high);
    }
    *after = p < end ? p + 1 : NULL;
    return found != negated;
}

/* Matches one character of a pattern (not a star) against C and returns the pattern's rest, or NULL. */
static const char *match_one(const char *p, const char *end, char c) {
    const char *after;
    if (*p == '?')
        return p + 1;
    if (*p == '[') {
        bool matched = match_bracket(p + 1, end, (unsigned char)c, &after);
        if (after != NULL)
            return matched ? after : NULL;
    }
    if (*p == '\\' && p + 1 < end)
        p++;
    return *p == c ? p + 1 : NULL;
}

bool hl_match_glob(struct hl_string pattern, const char *text) {
    /* The classical two pointers: on a mismatch the last star takes one character more.  Going back
       further than the last star can never help. */
    const char *p = pattern.at, *end = pattern.at + pattern.bytes;
    const char *star = NULL, *star_text = NULL;
    for (;;) {
        if (p < end && *p == '*') {
            star = ++p;
            star_text = text;
            continue;
        }
        if (*text == '\0')
            return p == end;
        const char *rest = p < end ? match_one(p, end, *text) : NULL;
        if (rest != NULL) {
            p = rest;
            text++;
        } else if (star != NULL) {
            p = star;
            text = ++star_text;
        } else {
            return false;
        }
    }
}

const char *hl_base_name(const char *path) {
    const char *base = path;
    for (const char *p = path; *p != '\0'; p++)
        if (*p == '/')
            base = p + 1;
    return base;
}

static bool contains_any(struct hl_string string, const char *characters) {
    for (size_t i = 0; i < string.bytes; i++)
        for (const char *c = characters; *c != '\0'; c++)
            if (string.at[i] == *c)
                return true;
    return false;
}

static bool match_file(struct hl_string pattern, const char *path, const char *soname) {
    if (contains_any(pattern, "/"))
        return hl_match_glob(pattern, path);
    return hl_match_glob(pattern, hl_base_name(path)) || (soname != NULL && hl_match_glob(pattern, soname));
}

bool hl_next_pattern(struct hl_string *patterns, struct hl_pattern *pattern) {
    const char *end = patterns->at + patterns->bytes;
    while (patterns->at < end) {
        struct hl_string text = cut_string(patterns->at, end, ':');
        patterns->at += text.bytes + (text.at + text.bytes < end);
        patterns->bytes = (size_t)(end - patterns->at);
        pattern->excludes = text.bytes > 0 && text.at[0] == '!';
        if (pattern->excludes)
            text = (struct hl_string){text.at + 1, text.bytes - 1};
        pattern->text = text;
        if (text.bytes > 0)
            return true;
    }
    return false;
}

bool hl_is_name(const struct hl_pattern *pattern) { return !contains_any(pattern->text, "*?["); }

bool hl_has_comma(const struct hl_pattern *pattern) { return contains_any(pattern->text, ","); }

/* Whether PATTERN may be meant for a DT_SONAME: it has no slash, and .so in it. */
static bool is_like_soname(const struct hl_pattern *pattern) {
    const char *text = pattern->text.at;
    bool found = false;
    for (size_t i = 0; i + 3 <= pattern->text.bytes; i++)
        found = found || (text[i] == '.' && text[i + 1] == 's' && text[i + 2] == 'o');
    return found && !contains_any(pattern->text, "/");
}

bool hl_match_pattern(const struct hl_pattern *pattern, const struct hl_names *names) {
    return (names->is_main && string_is(pattern->text, "main")) ||
           match_file(pattern->text, names->path, names->soname);
}

enum hl_selection hl_select_object(struct hl_string patterns, const struct hl_object *object) {
    const struct hl_names names = {object->path, object->soname, object->is_main};
    return hl_select_names(patterns, &names);
}

enum hl_selection hl_select_names(struct hl_string patterns, const struct hl_names *names) {
    enum hl_selection selection = HL_NOT_SELECTED;
    struct hl_pattern pattern;
    while (hl_next_pattern(&patterns, &pattern)) {
        if (!hl_match_pattern(&pattern, names))
            continue;
        if (pattern.excludes)
            return HL_NOT_SELECTED;
        if (hl_is_name(&pattern))
            selection = HL_SELECTED_BY_NAME;
        else if (selection == HL_NOT_SELECTED)
            selection = HL_SELECTED_BY_WILDCARD;
    }
    return selection;
}

bool hl_may_name_executable(struct hl_string patterns) {
    struct hl_pattern pattern;
    while (hl_next_pattern(&patterns, &pattern))
        if (!string_is(pattern.text, "main") && !string_is(pattern.text, "*") && !is_like_soname(&pattern))
            return true;
    return false;
}

bool hl_selects_other_objects(struct hl_string patterns) {
    struct hl_pattern pattern;
    while (hl_next_pattern(&patterns, &pattern))
        if (!pattern.excludes && !string_is(pattern.text, "main"))
            return true;
    return false;
}

bool hl_acts_in(const struct hl_options *options, const char *path) {
    return match_file(options->exe, path, NULL);
}
