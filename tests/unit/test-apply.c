/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld apply: what it tries again and when, what it removes, and how long it waits for another one; the time is made up. */
#include "tree.h"

#include "command/keep/record.h"
#include "command/lib/basics.h"
#include "command/lib/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define T_DAY 86400.0

static const struct hl_present t_first = {.is_named = true}, t_same = {.is_named = true, .is_same = true};

static struct hl_present t_at(double uptime, const struct hl_present *present) {
    struct hl_present at = *present;
    at.uptime = uptime;
    return at;
}

/* Another apply each minute for a week: after five minutes, ten, ..., 21 hours, and then once a day. */
static void t_fail_for_a_week(enum hl_result result, bool is_partial) {
    struct hl_record record = {0};
    struct hl_present present = t_first;
    double last = 0, delay = 0;
    size_t attempts = 0;
    for (unsigned minute = 1; minute <= 7 * 24 * 60; minute++) {
        present.uptime = 60.0 * minute;
        if (!hl_is_attempt_due(&record, &present))
            continue;
        assert_float_equal(present.uptime - last, attempts == 0 ? 60 : delay, 1e-9);
        delay = attempts == 0 ? 300 : delay * 2 < T_DAY ? delay * 2 : T_DAY;
        last = present.uptime;
        attempts++;
        hl_note_attempt(&record, &present, result, is_partial);
        present.is_same = present.is_whole = true;
    }
    assert_int_equal(attempts, 1 + 9 + 5);
}

static void test_delay_doubles(void **state) {
    (void)state;
    t_fail_for_a_week(HL_RESULT_PENDING, false);
    t_fail_for_a_week(HL_RESULT_REFUSED, false);
    t_fail_for_a_week(HL_RESULT_MADE, true);
}

/* Another version of the file, or another way, is tried at once, and its delay begins anew; success ends it. */
static void test_other_version(void **state) {
    (void)state;
    struct hl_record record = {0};
    struct hl_present same = t_at(1000, &t_same), other = t_at(1000, &t_first);
    for (unsigned i = 0; i < 5; i++)
        hl_note_attempt(&record, i == 0 ? &other : &same, HL_RESULT_PENDING, false);
    assert_float_equal(record.delay, 300 * 16, 1e-9);
    assert_false(hl_is_attempt_due(&record, &same));
    assert_true(hl_is_attempt_due(&record, &other));
    hl_note_attempt(&record, &other, HL_RESULT_REFUSED, false);
    assert_float_equal(record.delay, 300, 1e-9);
    hl_note_attempt(&record, &same, HL_RESULT_MADE, false);
    assert_float_equal(record.delay, 0, 1e-9);
}

/* What was made is left alone as long as it is whole, and made again at once if it is not; a user's word ends a delay. */
static void test_made(void **state) {
    (void)state;
    for (unsigned is_partial = 0; is_partial < 2; is_partial++) {
        struct hl_record record = {0};
        struct hl_present present = t_at(1000, &t_first);
        hl_note_attempt(&record, &present, HL_RESULT_MADE, is_partial);
        present = t_at(1010, &t_same);
        assert_true(hl_is_attempt_due(&record, &present));
        present.is_whole = true;
        assert_false(hl_is_attempt_due(&record, &present));
        present.is_wanted = true;
        assert_int_equal(hl_is_attempt_due(&record, &present), is_partial);
        present = t_at(1000 + 30 * T_DAY, &present);
        present.is_wanted = false;
        assert_int_equal(hl_is_attempt_due(&record, &present), is_partial);
    }
}

/* A file that gains nothing is looked at again only if it has changed, or if a user names it. */
static void test_nothing_to_gain(void **state) {
    (void)state;
    struct hl_record record = {0};
    struct hl_present present = t_at(1000, &t_first);
    hl_note_attempt(&record, &present, HL_RESULT_NOTHING, false);
    assert_true(hl_is_attempt_due(&record, &present));
    present = t_at(1000 + 30 * T_DAY, &t_same);
    assert_false(hl_is_attempt_due(&record, &present));
    present.is_wanted = true;
    assert_true(hl_is_attempt_due(&record, &present));
    present.is_named = false; /* it is in a folder that the user names */
    assert_false(hl_is_attempt_due(&record, &present));
}

static void test_unnamed(void **state) {
    (void)state;
    struct hl_record record = {0};
    assert_false(hl_note_unnamed(&record));
    assert_true(hl_note_unnamed(&record));
}

/* --- the file of the records --- */

static struct hl_store t_open_store(const struct t_tree *tree) {
    return (struct hl_store){
        .folder = open(tree->root, O_RDONLY | O_DIRECTORY), .owner = geteuid(), .geometry = t_geometry};
}

static void test_records(void **state) {
    struct t_tree *tree = *state;
    struct hl_store store = t_open_store(tree);
    struct hl_records records = {0}, found;
    static const char *const paths[] = {"/b", "/a\nb", "/c", "/gone"};
    for (unsigned i = 0; i < T_COUNT(paths); i++) {
        struct hl_record *record = hl_add_record(&records, paths[i]);
        struct hl_present present = t_at(1000 + i, &t_first);
        hl_note_attempt(record, &present, (enum hl_result)i, false);
        hl_replace_text(&record->sentence, "why\nand what to do");
        record->is_gone = strcmp(paths[i], "/gone") == 0;
    }
    assert_int_equal(hl_write_records(&records, &store), 0);
    hl_read_records(&found, &store);
    assert_int_equal(found.n, 3);
    assert_true(found.applied > 0);
    for (unsigned i = 0; i < 3; i++) {
        const struct hl_record *record = hl_find_record(&found, paths[i]);
        assert_non_null(record);
        assert_int_equal(record->result, i);
        assert_float_equal(record->tried, 1000 + i, 1e-9);
        assert_float_equal(record->delay, i == HL_RESULT_REFUSED ? 300 : 0, 1e-9);
        assert_string_equal(record->sentence, "why\nand what to do");
    }
    assert_null(hl_find_record(&found, "/gone"));
    hl_free_records(&found);
    hl_free_records(&records);
    close(store.folder);
}

/* A file that is damaged or cut is read up to its last whole record. */
static void test_damaged_records(void **state) {
    struct t_tree *tree = *state;
    struct hl_store store = t_open_store(tree);
#define T_GOOD "0 0 0 0 7 0\0/a\0key\0\0\0"
    static const struct {
        const char *text;
        size_t bytes, n;
    } rows[] = {
#define T_ROW(text, n) {text, sizeof text - 1, n}
        T_ROW("", 0),
        T_ROW("nonsense\n", 0),
        T_ROW("0 0 0 0 0 0", 0),
        T_ROW("0 0 0 0 0 0\0relative\0key\0\0\0", 0),
        T_ROW("9 0 0 0 0 0\0/a\0key\0\0\0", 0),
        T_ROW("0 0 0 0 0\0/a\0key\0\0\0", 0),
        T_ROW("\0\0\0\0\0\0\0\0\0", 0),
        T_ROW(T_GOOD, 1),
        T_ROW(T_GOOD "0 0 0 0 0 0\0/b\0key\0", 1),
        T_ROW(T_GOOD "x\0/b\0key\0\0\0" T_GOOD, 1),
    };
    for (size_t i = 0; i < T_COUNT(rows); i++) {
        struct hl_records records;
        t_write_bytes(tree, ".records", rows[i].text, rows[i].bytes);
        hl_read_records(&records, &store);
        assert_int_equal(records.n, rows[i].n);
        hl_free_records(&records);
    }
    close(store.folder);
}

/* --- the lock --- */

/* The holder of the lock gives it up at T_END. */
static double t_ms, t_end, t_said_at;
static int t_holder, t_errors;
static const struct t_tree *t_folder;
static bool t_removes;

static double t_now(void) { return t_ms; }

/* What it has printed on standard error, which is a memfd while it waits. */
static const char *t_said(void) {
    static char said[256];
    ssize_t bytes = pread(t_errors, said, sizeof said - 1, 0);
    said[bytes > 0 ? bytes : 0] = '\0';
    return said;
}

static void t_sleep(long ms) {
    t_ms += (double)ms;
    if (t_said_at == 0 && t_said()[0] != '\0')
        t_said_at = t_ms;
    if (t_ms < t_end || t_holder < 0)
        return;
    if (t_removes)
        assert_int_equal(unlinkat(AT_FDCWD, t_folder->proc, 0), 0);
    close(t_holder);
    t_holder = -1;
}

static const struct hl_lock_clock t_clock = {t_now, t_sleep};

/* What becomes of one that waits for a lock that is held until END; -1: for ever. */
static int t_wait(const struct t_tree *tree, double end, bool removes) {
    int own = dup(STDERR_FILENO);
    t_ms = t_said_at = 0;
    t_end = end < 0 ? 1e9 : end;
    t_folder = tree;
    t_removes = removes;
    t_holder = hl_lock_path(AT_FDCWD, tree->proc, &t_clock);
    assert_true(t_holder >= 0);
    assert_return_code(ftruncate(t_errors, 0), errno);
    assert_return_code(dup2(t_errors, STDERR_FILENO), errno);
    int lock = hl_lock_path(AT_FDCWD, tree->proc, &t_clock);
    assert_return_code(dup2(own, STDERR_FILENO), errno);
    close(own);
    if (t_holder >= 0)
        close(t_holder);
    return lock;
}

static void test_waiting(void **state) {
    struct t_tree *tree = *state;
    t_errors = memfd_create("errors", MFD_CLOEXEC);
    int lock = t_wait(tree, 400, false);
    assert_true(lock >= 0 && t_ms >= 400 && t_ms < 450);
    assert_string_equal(t_said(), "");
    close(lock);

    char expected[64];
    snprintf(expected, sizeof expected, "hugeld: waiting for process %d, which has the lock\n", getpid());
    lock = t_wait(tree, 9000, false);
    assert_true(lock >= 0 && t_ms >= 9000 && t_ms < 9050);
    assert_true(t_said_at > 500 && t_said_at < 600);
    assert_string_equal(t_said(), expected);
    close(lock);

    assert_int_equal(t_wait(tree, -1, false), -EWOULDBLOCK);
    assert_true(t_ms >= 10000 && t_ms < 10050);
}

/* The holder removes the file before it lets go: a lock of that file would keep no process out. */
static void test_removed_meanwhile(void **state) {
    struct t_tree *tree = *state;
    int lock = t_wait(tree, 100, true);
    assert_true(lock >= 0);
    assert_true(hl_is_at(lock, AT_FDCWD, tree->proc));
    close(lock);
}

static int t_make(void **state) {
    *state = calloc(1, sizeof(struct t_tree));
    assert_non_null(*state);
    t_make_tree(*state);
    return 0;
}

static int t_remove(void **state) {
    t_remove_tree(*state);
    free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delay_doubles),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_nothing_to_gain),
        cmocka_unit_test(test_unnamed),
        cmocka_unit_test_setup_teardown(test_records, t_make, t_remove),
        cmocka_unit_test_setup_teardown(test_damaged_records, t_make, t_remove),
        cmocka_unit_test_setup_teardown(test_waiting, t_make, t_remove),
        cmocka_unit_test_setup_teardown(test_removed_meanwhile, t_make, t_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
