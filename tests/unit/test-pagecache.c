/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which bytes of a span the page cache could have on huge pages: those in segments whose address and offset
   agree modulo the size of one. */
#include "elf/pagecache.h"

#include "elf/move.h"
#include "unit.h"

#define MIB ((uint64_t)1 << 20)

static void test_congruent_bytes(void **state) {
    static const struct {
        const char *name;
        uint64_t first_page, end_page, offset, start, end, bytes;
    } row[] = {
        {"linked at 2 MiB", 6 * MIB, 9 * MIB, 2 * MIB, 6 * MIB, 10 * MIB, 3 * MIB},
        {"a PIE in place", 6 * MIB + 4096, 9 * MIB, 2 * MIB + 4096, 8 * MIB, 10 * MIB, MIB},
        {"4 KiB off", 6 * MIB + 4096, 9 * MIB, 2 * MIB, 8 * MIB, 10 * MIB, 0},
        {"1 MiB off", 6 * MIB, 9 * MIB, MIB, 6 * MIB, 10 * MIB, 0},
        {"offset above address", 2 * MIB, 9 * MIB, 4 * MIB, 4 * MIB, 8 * MIB, 4 * MIB},
        {"elsewhere", 2 * MIB, 4 * MIB, 0, 4 * MIB, 8 * MIB, 0},
    };
    (void)state;
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_object object = {.n_segments = 1};
        object.segment[0] = (struct hl_segment){
            .first_page = row[i].first_page, .end_page = row[i].end_page, .offset = row[i].offset};
        struct hl_span span = {.start = row[i].start, .end = row[i].end};
        uint64_t bytes = hl_congruent_bytes(&object, &span, T_HUGE);
        if (bytes != row[i].bytes)
            fail_msg("%s: %ju, not %ju", row[i].name, (uintmax_t)bytes, (uintmax_t)row[i].bytes);
    }
}

/* Two segments in one span, of which one agrees. */
static void test_congruent_segments(void **state) {
    struct hl_object object = {.n_segments = 2};
    struct hl_span span = {.start = 2 * MIB, .end = 8 * MIB};
    (void)state;
    object.segment[0] = (struct hl_segment){.first_page = 0, .end_page = 3 * MIB, .offset = 0};
    object.segment[1] = (struct hl_segment){.first_page = 3 * MIB, .end_page = 9 * MIB, .offset = 2 * MIB};
    assert_int_equal(hl_congruent_bytes(&object, &span, T_HUGE), MIB);
    object.segment[1].offset = 5 * MIB;
    assert_int_equal(hl_congruent_bytes(&object, &span, T_HUGE), 6 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_congruent_bytes),
        cmocka_unit_test(test_congruent_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
