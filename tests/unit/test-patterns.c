/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* LD_HUGEPAGES and only=: which objects a list of patterns selects, and that an endless one costs little. */
#include "unit.h"

#include <fnmatch.h>
#include <time.h>

static struct hl_string string(const char *text) { return (struct hl_string){text, strlen(text)}; }

static void test_globs(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool matches;
    } row[] = {
        {"", "", true},
        {"", "a", false},
        {"a", "", false},
        {"libfoo.so", "libfoo.so", true},
        {"libfoo.so", "libfoo.so.1", false},
        {"ibfoo.so", "libfoo.so", false},
        {"*", "", true},
        {"*", "anything/with:all", true},
        {"lib*", "libLLVM-14.so.1", true},
        {"*.so", "libfoo.so", true},
        {"*.so", "libfoo.so.1", false},
        {"lib*.so.?", "libfoo.so.6", true},
        {"lib*.so.?", "libfoo.so.66", false},
        {"?", "", false},
        {"?", "ab", false},
        {"a*b*c", "a-b-b-c", true},
        {"a*b*c", "a-c-b", false},
        {"*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
        {"**", "x", true},
        {"*?*?", "x", false},
        {"[abc]x", "bx", true},
        {"[abc]x", "dx", false},
        {"[a-c]x", "bx", true},
        {"[!a-c]x", "bx", false},
        {"[!a-c]x", "dx", true},
        {"[^a-c]x", "dx", true},
        {"[]x]", "]", true},
        {"[a-]", "-", true},
        {"[abc", "[abc", true},
        {"[abc", "a", false},
        {"[", "[", true},
        {"\\*", "*", true},
        {"\\*", "x", false},
        {"\\", "\\", true},
        {"a\\[b", "a[b", true},
        {"libstdc++*", "libstdc++.so.6", true},
        {"\xc3\xa9*", "\xc3\xa9t\xc3\xa9", true},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++)
        if (hl_match_glob(string(row[i].pattern), row[i].text) != row[i].matches)
            fail_msg("'%s' against '%s': not %d", row[i].pattern, row[i].text, row[i].matches);
}

/* Random patterns must match the same names as by fnmatch(3). */
static void test_same_as_fnmatch(void **state) {
    (void)state;
    static const char alphabet[] = "ab*?-[]!";
    uint64_t seed = 3;
    for (unsigned round = 0; round < (getenv("T_VM") != NULL ? 10000u : 300000u); round++) {
        char pattern[9] = {0}, text[9] = {0};
        unsigned pattern_bytes = (unsigned)(t_random(&seed) % 8),
                 text_bytes = (unsigned)(t_random(&seed) % 8);
        for (unsigned i = 0; i < pattern_bytes; i++)
            pattern[i] = alphabet[t_random(&seed) % (sizeof alphabet - 1)];
        for (unsigned i = 0; i < text_bytes; i++)
            text[i] = "ab-]"[t_random(&seed) % 4];
        /* Reversed ranges and unclosed brackets are unspecified in POSIX: leave those to the table above. */
        if (strchr(pattern, '[') != NULL &&
            (strchr(pattern, '-') != NULL || strchr(pattern, ']') == NULL || strstr(pattern, "[[") != NULL ||
             strrchr(pattern, '[') > strrchr(pattern, ']')))
            continue;
        bool wanted = fnmatch(pattern, text, 0) == 0;
        if (hl_match_glob(string(pattern), text) != wanted)
            fail_msg("'%s' against '%s': fnmatch says %d", pattern, text, wanted);
    }
}

static void test_selection(void **state) {
    (void)state;
    enum { NO = HL_NOT_SELECTED, WILD = HL_SELECTED_BY_WILDCARD, NAME = HL_SELECTED_BY_NAME };
    static const struct hl_object program = {.path = "/usr/bin/app", .is_main = true};
    static const struct hl_object library = {.path = "/opt/lib/libbig-1.2.so", .soname = "libbig.so.1"};
    static const struct hl_object file_main = {.path = "/lib/main"};
    static const struct {
        const char *patterns;
        const struct hl_object *object;
        int selection;
    } row[] = {
        {"", &program, NO},
        {":", &program, NO},
        {"!", &program, NO},
        {"main", &program, NAME},
        {"main", &library, NO},
        {"main", &file_main, NAME}, /* by its base name, like any other file */
        {"app", &program, NAME},
        {"app:", &program, NAME},
        {"::app", &program, NAME},
        {"ap", &program, NO},
        {"*", &program, WILD},
        {"*", &library, WILD},
        {"a*", &program, WILD},
        {"*:app", &program, NAME},
        {"app:*", &program, NAME},
        {"libbig.so.1", &library, NAME},
        {"libbig-1.2.so", &library, NAME},
        {"libbig*", &library, WILD},
        {"libbig.so.?", &library, WILD},
        {"libbig", &library, NO},
        {"/opt/lib/libbig-1.2.so", &library, NAME},
        {"/opt/*", &library, WILD},
        {"*/libbig*", &library, WILD},
        {"lib/libbig*", &library, NO}, /* a pattern with a slash means the whole path */
        {"/usr/bin/*", &library, NO},
        {"main:libbig*", &library, WILD},
        {"main:libbig*", &program, NAME},
        {"*:!libbig*", &library, NO},
        {"!libbig*:*", &library, NO}, /* wherever it stands */
        {"libbig.so.1:!libbig*", &library, NO},
        {"*:!libbig*", &program, WILD},
        {"*:!main", &program, NO},
        {"*:!main", &library, WILD},
        {"!main", &library, NO}, /* excluding selects nothing */
        {"*:!/opt/*", &library, NO},
        {"*:!", &library, WILD},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        int selection = hl_select_object(string(row[i].patterns), row[i].object);
        if (selection != row[i].selection)
            fail_msg("'%s' and %s: %d, not %d", row[i].patterns, row[i].object->path, selection,
                     row[i].selection);
    }
    assert_int_equal(hl_select_object((struct hl_string){NULL, 0}, &library), HL_NOT_SELECTED);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* 64 KiB of the worst patterns against a path of PATH_MAX: done at once (a sanitizer build has five seconds; a guest has
   a minute, since its processor is emulated and shared). */
static void test_endless_patterns(void **state) {
    (void)state;
    const size_t length = getenv("T_VM") != NULL ? 4096 : 65536;
    static const char *const piece[] = {"*", "*a", "?", "a",   "[",   "[a", "*[", "[a-z]*",
                                        ":", "*:", "!", "!*:", "a*:", "\\", "*?"};
    char *pattern = malloc(length + 1), *path = malloc(4096);
    assert_non_null(pattern);
    assert_non_null(path);
    memset(path, 'a', 4095);
    path[0] = '/';
    path[4095] = '\0';
    pattern[length] = '\0';
    struct hl_object object = {.path = path, .soname = path + 1};
    double begin = seconds();
    for (unsigned i = 0; i < T_COUNT(piece); i++) {
        for (unsigned j = 0; j < length; j++)
            pattern[j] = piece[i][j % strlen(piece[i])];
        pattern[length - 1] = 'b';
        hl_select_object(string(pattern), &object);
        hl_match_glob(string(pattern), path);
    }
    assert_true(seconds() - begin < (getenv("T_VM") != NULL ? 60 : 5));
    memset(pattern, '*', length);
    assert_int_equal(hl_select_object(string(pattern), &object), HL_SELECTED_BY_WILDCARD);
    free(pattern);
    free(path);
}

static void test_others(void **state) {
    (void)state;
    static const struct {
        const char *patterns;
        bool others;
    } row[] = {{"", false},      {":main::", false},    {"main:!libfoo.so", false},
               {"!main", false}, {"main:libfoo", true}, {"*", true},
               {"mai", true},    {"main*", true},       {"!x:m", true},
               {"/a/main", true}};
    for (unsigned i = 0; i < T_COUNT(row); i++)
        assert_int_equal(hl_selects_other_objects(string(row[i].patterns)), row[i].others);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others),           cmocka_unit_test(test_globs),
        cmocka_unit_test(test_same_as_fnmatch),  cmocka_unit_test(test_selection),
        cmocka_unit_test(test_endless_patterns),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
