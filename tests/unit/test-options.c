/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* LD_HUGEPAGES_OPTIONS, from the same table as the parser: every option takes every value, and nothing else.
 */
#include "unit.h"

/* The numeric value of option NAME, by the table. */
static uint64_t value_of(const struct hl_options *options, const char *name) {
#define CHOICE(field, text, help, ...)                                                                       \
    if (strcmp(name, text) == 0)                                                                             \
        return options->field;
#define NUMBER(field, text, help)                                                                            \
    if (strcmp(name, text) == 0)                                                                             \
        return options->field;
#define GLOB(field, text, help)                                                                              \
    if (strcmp(name, text) == 0)                                                                             \
        return options->field.bytes;
#define FOLDER GLOB
#include "elf/option.def"
#undef CHOICE
#undef NUMBER
#undef GLOB
#undef FOLDER
    fail_msg("no such option: %s", name);
    return 0;
}

struct told {
    unsigned n;
    char option[100], what[100];
};

static void note(void *data, struct hl_string option, const char *what) {
    struct told *told = data;
    told->n++;
    snprintf(told->option, sizeof told->option, "%.*s", (int)(option.bytes < 90 ? option.bytes : 90),
             option.at);
    snprintf(told->what, sizeof told->what, "%s", what);
}

static unsigned parse(struct hl_options *options, const char *text, struct told *told) {
    memset(told, 0, sizeof *told);
    hl_default_options(options);
    unsigned mistakes = hl_parse_options(options, text, &(struct hl_complaints){note, told});
    assert_int_equal(mistakes, told->n);
    assert_int_equal(hl_parse_options(&(struct hl_options){0}, text, NULL), mistakes);
    return mistakes;
}

static void assert_defaults(const struct hl_options *options) {
    struct hl_options defaults;
    hl_default_options(&defaults);
    for (size_t i = 0; i < hl_option_row_count; i++)
        assert_int_equal(value_of(options, hl_option_rows[i].name),
                         value_of(&defaults, hl_option_rows[i].name));
}

/* The design's table, word for word: a value that is renamed or reordered must be renamed here too. */
static void test_table_of_the_design(void **state) {
    (void)state;
    static const char *const table[] = {"backend=auto,hugetlb,thp,image",
                                        "store",
                                        "segments=text,text+rodata",
                                        "data=auto,thp,off",
                                        "bss=off,thp",
                                        "edges=merge,small",
                                        "numa=any,local,interleave",
                                        "reserve_pages",
                                        "exe",
                                        "perf_map=off,on",
                                        "strict=off,on",
                                        "verbose=0,1,2,3"};
    assert_int_equal(hl_option_row_count, T_COUNT(table));
    for (size_t i = 0; i < hl_option_row_count; i++) {
        char row[200];
        int at = snprintf(row, sizeof row, "%s", hl_option_rows[i].name);
        for (unsigned j = 0; hl_option_rows[i].values != NULL && hl_option_rows[i].values[j] != NULL; j++)
            at += snprintf(row + at, sizeof row - (size_t)at, "%c%s", j == 0 ? '=' : ',',
                           hl_option_rows[i].values[j]);
        assert_string_equal(row, table[i]);
        assert_true(strlen(hl_option_rows[i].help) > 10);
    }
}

static void test_every_value(void **state) {
    (void)state;
    for (size_t i = 0; i < hl_option_row_count; i++) {
        const struct hl_option_row *row = &hl_option_rows[i];
        for (unsigned j = 0; row->type == HL_CHOICE && row->values[j] != NULL; j++) {
            struct hl_options options;
            struct told told;
            char text[100];
            snprintf(text, sizeof text, "%s=%s", row->name, row->values[j]);
            assert_int_equal(parse(&options, text, &told), 0);
            assert_int_equal(value_of(&options, row->name), j);
        }
    }
}

static void test_wrong_values(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",   " ", "no-such-value", "Auto", "-1", "4294967296", "99999999999999999999", "0x10",
        "1k", "=", "on ",           " on"};
    for (size_t i = 0; i < hl_option_row_count; i++)
        for (unsigned j = 0; j < T_COUNT(wrong); j++) {
            const struct hl_option_row *row = &hl_option_rows[i];
            struct hl_options options;
            struct told told;
            char text[100];
            if (row->type == HL_GLOB && *wrong[j] != '\0')
                continue; /* a glob may be anything but empty */
            snprintf(text, sizeof text, "%s=%s", row->name, wrong[j]);
            assert_int_equal(parse(&options, text, &told), 1);
            assert_string_equal(told.option, text); /* names the option and the value */
            assert_true(strlen(told.what) > 3);
            assert_defaults(&options);
        }
}

static void test_wrong_names(void **state) {
    (void)state;
    static const char *const wrong[] = {"backends=auto", "Backend=auto", "b=1",        "=1",         "=",
                                        "backend",       "verbose",      " verbose=1", "verbose =1", "-",
                                        "backend:auto"};
    for (unsigned i = 0; i < T_COUNT(wrong); i++) {
        struct hl_options options;
        struct told told;
        assert_int_equal(parse(&options, wrong[i], &told), 1);
        assert_string_equal(told.option, wrong[i]);
        assert_defaults(&options);
    }
}

static void test_folders(void **state) {
    (void)state;
    struct hl_options options;
    struct told told;
    char text[HL_FOLDER_BYTES + 10] = "store=/";
    assert_int_equal(parse(&options, "store=/run/a b,backend=image", &told), 0);
    assert_int_equal(options.store.bytes, strlen("/run/a b"));
    assert_memory_equal(options.store.at, "/run/a b", strlen("/run/a b"));
    assert_int_equal(parse(&options, "store=run", &told), 1); /* a process may be anywhere */
    assert_defaults(&options);
    memset(text + 7, 'x', HL_FOLDER_BYTES - 2);
    assert_int_equal(parse(&options, text, &told), 0);
    assert_int_equal(options.store.bytes, HL_FOLDER_BYTES - 1);
    text[7 + HL_FOLDER_BYTES - 2] = 'x';
    assert_int_equal(parse(&options, text, &told), 1);
    assert_defaults(&options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_of_the_design),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_wrong_names),
        cmocka_unit_test(test_folders),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
