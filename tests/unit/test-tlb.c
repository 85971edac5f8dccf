/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The TLB check judges times of jumps, of which some were measured on machines of which the answer is known. */
#include "unit.h"

#include "command/measure/tlb.h"

static enum hl_tlb_answer t_judge(double packed, double small, double huge) {
    const struct hl_tlb tlb = {.ns = {packed, small, huge}};
    return hl_judge_tlb(&tlb);
}

/* The first figures are of a virtual machine whose host uses small pages. */
static void test_pieces(void **state) {
    (void)state;
    assert_int_equal(t_judge(8.3, 44.7, 30.5), HL_TLB_PIECES);
    assert_int_equal(t_judge(5.0, 33.5, 14.8), HL_TLB_PIECES);
    assert_int_equal(t_judge(5.0, 17.0, 14.8), HL_TLB_PIECES);
}

static void test_yes(void **state) {
    (void)state;
    assert_int_equal(t_judge(4.30, 17.58, 4.35), HL_TLB_YES);
    assert_int_equal(t_judge(5.0, 17.0, 5.3), HL_TLB_YES);
    assert_int_equal(t_judge(5.0, 17.0, 4.9), HL_TLB_YES);
    /* A processor that is ten times as slow is judged alike. */
    assert_int_equal(t_judge(50, 170, 53), HL_TLB_YES);
}

static void test_no(void **state) {
    (void)state;
    assert_int_equal(t_judge(5.0, 17.0, 17.0), HL_TLB_NO);
    assert_int_equal(t_judge(5.0, 17.0, 18.2), HL_TLB_NO);
}

static void test_unknown(void **state) {
    (void)state;
    assert_int_equal(t_judge(0, 0, 0), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(5.0, 17.0, 0), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(0, 17.0, 5.0), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(17.0, 5.0, 5.3), HL_TLB_UNKNOWN);  /* packed lines are slower */
    assert_int_equal(t_judge(5.0, 5.5, 5.0), HL_TLB_UNKNOWN);   /* next to no effect */
    assert_int_equal(t_judge(5.0, 17.0, 7.64), HL_TLB_UNKNOWN); /* between the two limits */
    /* Noise as large as half the effect. */
    const struct hl_tlb noisy = {.ns = {5.0, 17.0, 5.3}, .noise_ns = 6.0};
    assert_int_equal(hl_judge_tlb(&noisy), HL_TLB_UNKNOWN);
}

static void test_words(void **state) {
    (void)state;
    for (int answer = HL_TLB_UNKNOWN; answer <= HL_TLB_NO; answer++) {
        const struct hl_tlb tlb = {.ns = {5.0, 17.0, 9.0}, .answer = (enum hl_tlb_answer)answer};
        bool is_limited = answer == HL_TLB_PIECES || answer == HL_TLB_NO;
        assert_int_equal(hl_note_on_tlb(&tlb) != NULL, is_limited);
        json_t *json = hl_json_tlb(&tlb);
        assert_int_equal(json_is_null(json), answer == HL_TLB_UNKNOWN);
        json_decref(json);
    }
}

/* On this machine, whatever it is: all times or none, and the answer is theirs. */
static void test_check(void **state) {
    struct hl_tlb tlb;
    (void)state;
    hl_check_tlb(&tlb);
    for (unsigned i = 0; i < HL_TLB_MEMORIES; i++)
        assert_int_equal(tlb.ns[i] > 0, tlb.reason == NULL);
    assert_int_equal(tlb.answer, hl_judge_tlb(&tlb));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),  cmocka_unit_test(test_yes),   cmocka_unit_test(test_no),
        cmocka_unit_test(test_unknown), cmocka_unit_test(test_words), cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
