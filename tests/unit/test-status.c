/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The facts in /proc/thread-self/status about a process: other threads, a tracer, filters of system calls,
 * nodes. A missing fact must not be taken for "no". */
#include "elf/store.h"
#include "tree.h"

#include <grp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define STATUS "proc/thread-self/status"
#define NONE 0
#define ALL_NODES UINT64_MAX

/* The compared fields of a status: the first 64 nodes stand for all. */
struct wanted {
    bool has_threads, is_traced;
    uint64_t filters, nodes;
};

static struct hl_status read_text(const char *text, size_t bytes) {
    struct t_tree tree;
    struct hl_status status;
    memset(&status, 0xa5, sizeof status);
    t_make_tree(&tree);
    if (text != NULL)
        t_write_bytes(&tree, STATUS, text, bytes);
    hl_read_status(&status, &tree.roots);
    t_remove_tree(&tree);
    return status;
}

static void check(const char *text, struct wanted wanted) {
    struct hl_status status = read_text(text, text != NULL ? strlen(text) : 0);
    if (status.has_threads != wanted.has_threads || status.is_traced != wanted.is_traced ||
        status.filters != wanted.filters || status.nodes.bits[0] != wanted.nodes)
        fail_msg("%.200s\nthreads %d, traced %d, filters %ju, nodes %#jx", text != NULL ? text : "no file",
                 status.has_threads, status.is_traced, (uintmax_t)status.filters,
                 (uintmax_t)status.nodes.bits[0]);
}

static void test_every_line(void **state) {
    (void)state;
    static const struct {
        const char *text;
        struct wanted wanted;
    } row[] = {
        {"Threads:\t1\n", {false, false, NONE, ALL_NODES}},
        {"Threads:\t2\n", {true, false, NONE, ALL_NODES}},
        {"Threads:\t10\n", {true, false, NONE, ALL_NODES}},
        {"Threads:\t1", {false, false, NONE, ALL_NODES}}, /* no end of line */
        {"TracerPid:\t0\nThreads:\t1\n", {false, false, NONE, ALL_NODES}},
        {"TracerPid:\t417\nThreads:\t1\n", {false, true, NONE, ALL_NODES}},
        {"Threads:\t1\nSeccomp:\t0\n", {false, false, 0, ALL_NODES}},
        {"Threads:\t1\nSeccomp:\t2\n", {false, false, 2, ALL_NODES}}, /* before Linux 5.9 */
        {"Threads:\t1\nSeccomp:\t0\nSeccomp_filters:\t0\n", {false, false, 0, ALL_NODES}},
        {"Threads:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n", {false, false, 1, ALL_NODES}},
        {"Threads:\t1\nSeccomp:\t2\nSeccomp_filters:\t17\n", {false, false, 17, ALL_NODES}},
        {"Threads:\t1\nMems_allowed_list:\t0\n", {false, false, NONE, 1}},
        {"Threads:\t1\nMems_allowed_list:\t1,3-5\n", {false, false, NONE, 0x3a}},
        {"Threads:\t1\nMems_allowed_list:\t0-1023\n", {false, false, NONE, ALL_NODES}},
        {"Threads:\t1\nMems_allowed:\t1\n", {false, false, NONE, ALL_NODES}}, /* another line */
        /* A name cannot stand for a line: the kernel writes its newlines as \n. */
        {"Name:\tThreads:\t1\n", {true, false, NONE, ALL_NODES}},
        {"Name:\tx\\nThreads:\t1\nThreads:\t2\n", {true, false, NONE, ALL_NODES}},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++)
        check(row[i].text, row[i].wanted);
}

static uint64_t read_user(const char *text) { return read_text(text, strlen(text)).user; }

static void test_user(void **state) {
    (void)state;
    assert_int_equal(read_user("Uid:\t1000\t0\t1000\t1000\nThreads:\t1\n"), 0);
    assert_int_equal(read_user("Name:\tUid:\t1\t1\nUid:\t0\t1000\t0\t0\n"), 1000);
    assert_int_equal(read_user("Uid:\t1000\n"), HL_USER_UNKNOWN);
    assert_int_equal(read_user("Uid:\t1000\tx\n"), HL_USER_UNKNOWN);
    assert_int_equal(read_user("Threads:\t1\n"), HL_USER_UNKNOWN);
}

static bool has_locked(const char *text) { return read_text(text, strlen(text)).has_locked; }

static void test_locked(void **state) {
    (void)state;
    assert_false(has_locked("Threads:\t1\n"));
    assert_false(has_locked("VmLck:\t       0 kB\nThreads:\t1\n"));
    assert_true(has_locked("VmLck:\t      64 kB\nThreads:\t1\n"));
}

/* An unreadable status is unknown, which is not "one thread" and "no filter". */
static void test_nothing_known(void **state) {
    (void)state;
    static const struct wanted unknown = {true, false, HL_FILTERS_UNKNOWN, ALL_NODES};
    check(NULL, unknown);
    check("Threads:\tmany\nSeccomp:\ton\nTracerPid:\tnobody\n", unknown);
    check("Threads:\t\nSeccomp_filters:\t\n", (struct wanted){true, false, HL_FILTERS_UNKNOWN, ALL_NODES});
    check("Threads:\t99999999999999999999\nSeccomp_filters:\t99999999999999999999\n", unknown);
    check("", (struct wanted){true, false, NONE, ALL_NODES}); /* a file without these lines: an old kernel */

    /* A folder can be opened, and reading it fails. */
    struct t_tree tree;
    struct hl_status status;
    t_make_tree(&tree);
    t_write(&tree, STATUS "/file", "");
    hl_read_status(&status, &tree.roots);
    t_remove_tree(&tree);
    assert_true(status.has_threads);
    assert_int_equal(status.filters, HL_FILTERS_UNKNOWN);
}

/* A process may be in 65536 groups; they stand before everything else that is looked for here. */
static void test_many_groups(void **state) {
    (void)state;
    static const size_t groups[] = {0, 600, 1000, 1300, 65536};
    for (unsigned i = 0; i < T_COUNT(groups); i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        assert_non_null(file);
        fprintf(file, "Name:\tmember\nTracerPid:\t0\nGroups:\t");
        for (size_t j = 0; j < groups[i]; j++)
            fprintf(file, "%ju ", UINTMAX_C(4000000000) + j);
        fprintf(file, "\nThreads:\t7\nSeccomp:\t2\nSeccomp_filters:\t3\n"
                      "Mems_allowed_list:\t2\nnonvoluntary_ctxt_switches:\t1\n");
        assert_int_equal(fclose(file), 0);
        struct hl_status status = read_text(text, bytes);
        free(text);
        assert_true(status.has_threads);
        assert_int_equal(status.filters, 3);
        assert_int_equal(status.nodes.bits[0], 4);
        assert_true(groups[i] < 1000 || bytes > 8192);
    }
}

/* Wherever the pieces of a long file end, no line is lost and none is read twice. */
static void test_every_length(void **state) {
    (void)state;
    for (size_t before = 8192 - 80; before < 8192 + 8; before++) {
        char text[8192 + 200];
        memset(text, 'x', before);
        text[before - 1] = '\n';
        strcpy(text + before, "Threads:\t1\nSeccomp:\t2\nSeccomp_filters:\t12\nMems_allowed_list:\t0,5\n");
        check(text, (struct wanted){false, false, 12, 0x21});
    }
}

/* This process, by the kernel's own file. */
static void test_own(void **state) {
    (void)state;
    struct hl_status status;
    hl_read_status(&status, &hl_system_roots);
    assert_int_not_equal(status.filters, HL_FILTERS_UNKNOWN);
    assert_false(status.has_threads);
    assert_int_equal(status.user, geteuid());
}

#define USER 12345

static uint64_t ask(void) {
    struct hl_status status;
    hl_read_status(&status, &hl_system_roots);
    return hl_find_trusted_user(&status);
}

static void *ask_as_user(void *answer) {
    syscall(SYS_setresgid, USER, USER, USER);
    syscall(SYS_setresuid, USER, USER, USER);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    *(uint64_t *)answer = ask();
    return NULL;
}

/* 0 if a process that was root takes only the images that it should. */
static int try_users(bool by_thread) {
    uint64_t answer = 1;
    pthread_t thread;
    if (by_thread)
        return pthread_create(&thread, NULL, ask_as_user, &answer) != 0 || pthread_join(thread, NULL) != 0 ||
               answer != 0;
    if (setgroups(0, NULL) != 0 || setresgid(USER, USER, USER) != 0 || setresuid(USER, USER, USER) != 0)
        return 2;
    if (ask() != 0) /* not dumpable: other processes of the user may not look into it */
        return 3;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return ask() == USER ? 0 : 4;
}

/* A process is a user only as a whole: no other thread, and nothing that only root knew. */
static void test_trusted_user(void **state) {
    (void)state;
    if (geteuid() != 0)
        skip();
    for (int by_thread = 0; by_thread < 2; by_thread++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0)
            _exit(try_users(by_thread));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_line),   cmocka_unit_test(test_nothing_known),
        cmocka_unit_test(test_user),         cmocka_unit_test(test_many_groups),
        cmocka_unit_test(test_every_length), cmocka_unit_test(test_own),
        cmocka_unit_test(test_trusted_user), cmocka_unit_test(test_locked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
