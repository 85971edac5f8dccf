/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS: parsed without copying, straight from the environment. */
#ifndef HL_OPTIONS_H
#define HL_OPTIONS_H

#include "hugeld.h"

/* Positions in the value lists of option.def. */
enum { HL_BACKEND_AUTO, HL_BACKEND_HUGETLB, HL_BACKEND_THP, HL_BACKEND_IMAGE };
enum { HL_SEGMENTS_TEXT, HL_SEGMENTS_ALL };
enum { HL_DATA_AUTO, HL_DATA_THP, HL_DATA_OFF };
enum { HL_BSS_OFF, HL_BSS_THP };
enum { HL_EDGES_MERGE, HL_EDGES_SMALL };
enum { HL_NUMA_ANY, HL_NUMA_LOCAL, HL_NUMA_INTERLEAVE };

/* Whether images are used with BACKEND. */
static inline bool hl_uses_images(unsigned backend) {
    return backend == HL_BACKEND_AUTO || backend == HL_BACKEND_IMAGE;
}

/* A piece of the environment, not terminated. */
struct hl_string {
    const char *at;
    size_t bytes;
};

struct hl_options {
    struct hl_string objects; /* LD_HUGEPAGES; at is NULL when it is unset */
    unsigned
        sparse_text; /* 1: huge pages of which less than 1/32 is text as well, for images; no option of the table */
#define CHOICE(field, name, help, ...) unsigned field;
#define NUMBER(field, name, help) uint64_t field;
#define GLOB(field, name, help) struct hl_string field;
#define FOLDER(field, name, help) struct hl_string field;
#include "option.def"
};

enum hl_option_type { HL_CHOICE, HL_NUMBER, HL_GLOB, HL_FOLDER };

/* A FOLDER's path is shorter. */
#define HL_FOLDER_BYTES 512

/* One row of option.def, for help and manual. */
struct hl_option_row {
    const char *name, *help;
    enum hl_option_type type;
    const char *const *values; /* HL_CHOICE: NULL-terminated, the default first; else NULL */
};
extern const struct hl_option_row hl_option_rows[];
extern const size_t hl_option_row_count;

/* Sets every option to its default and objects to unset. */
void hl_default_options(struct hl_options *options);

/* Called for each mistake in a text of options: OPTION as written, and the error. */
struct hl_complaints {
    void (*tell)(void *data, struct hl_string option, const char *what);
    void *data;
};

/* Sets OPTIONS from TEXT, "name=value,name=value".  A wrong one leaves that option as it was and is passed
   to COMPLAINTS (which may be NULL).  Returns the number of mistakes.  OPTIONS keeps pointers into TEXT. */
unsigned hl_parse_options(struct hl_options *options, const char *text,
                          const struct hl_complaints *complaints);

/* Whether PATTERN, a shell glob (* ? [set] and \), matches all of TEXT.  Linear space, no recursion; a
   pattern of 64 KiB costs at most its length times the text's. */
bool hl_match_glob(struct hl_string pattern, const char *text);

enum hl_selection {
    HL_NOT_SELECTED,
    HL_SELECTED_BY_WILDCARD,
    HL_SELECTED_BY_NAME /* by a pattern without a wildcard: strict=on means this object */
};

/* Whether the colon-separated PATTERNS select an object with NAMES, or OBJECT.  A pattern that begins with
   ! excludes, wherever it stands.  A pattern with a slash is matched against the path, else against base
   name and soname; main is the executable. */
enum hl_selection hl_select_names(struct hl_string patterns, const struct hl_names *names);
enum hl_selection hl_select_object(struct hl_string patterns, const struct hl_object *object);

/* One of several PATTERNS. */
struct hl_pattern {
    struct hl_string text; /* without the ! */
    bool excludes;
};

/* Takes the first pattern that is not empty off PATTERNS; false: there is none. */
bool hl_next_pattern(struct hl_string *patterns, struct hl_pattern *pattern);

/* Whether PATTERN has no wildcard; whether it has a comma; whether it matches NAMES. */
bool hl_is_name(const struct hl_pattern *pattern);
bool hl_has_comma(const struct hl_pattern *pattern);
bool hl_match_pattern(const struct hl_pattern *pattern, const struct hl_names *names);

/* Whether PATTERNS could mean an executable by the path or name of its file: not so main, *, and what is like a DT_SONAME. */
bool hl_may_name_executable(struct hl_string patterns);

/* Whether PATTERNS could select anything but the executable. */
bool hl_selects_other_objects(struct hl_string patterns);

/* Whether exe= lets hugeld act in the executable at PATH. */
bool hl_acts_in(const struct hl_options *options, const char *path);

/* The part of PATH after its last slash. */
const char *hl_base_name(const char *path);

#endif
