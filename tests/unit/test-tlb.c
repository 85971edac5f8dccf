/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The meaning of the TLB's figures: the verdict, the reach, and the estimate of hugeld survey.  Pure functions; the
   figures are a virtual machine's whose host uses small pages (AMD EPYC, family 25, model 17, 2026-11-23), or made up. */
#include "unit.h"

#include "command/base/estimate.h"
#include "command/tlb/tlb.h"
#include "command/tlb/reach.h"

#define T_MIB ((double)(1 << 20))

/* --- the verdict --- */

static struct hl_tlb_figures t_figures(double one, double two, double all) {
    struct hl_tlb_figures figures = {.size = {{one, 0.02}, {two, 0.02}, {all, 0.2}}};
    return figures;
}

/* The same figures, and those of each of its pages by itself. */
static struct hl_tlb_figures t_pages(double one, double two, double all) {
    struct hl_tlb_figures figures = t_figures(one, two, all);
    for (unsigned i = 0; i < HL_TLB_PAGES; i++)
        figures.page[i] = (struct hl_tlb_time){one, 0.02};
    return figures;
}

static enum hl_tlb_verdict t_judge(struct hl_tlb_figures packed, struct hl_tlb_figures small,
                                   struct hl_tlb_figures huge) {
    return hl_judge_memory(&packed, &small, &huge, NULL, NULL);
}

/* Figures without pages by themselves, as first seen. */
static void test_first_table(void **state) {
    (void)state;
    assert_int_equal(t_judge(t_figures(0, 3.97, 4.30), t_figures(0, 6.31, 17.58), t_figures(0, 6.23, 14.09)),
                     HL_TLB_PIECES);
    /* The same processor's figures, had it whole entries. */
    assert_int_equal(t_judge(t_figures(0, 3.97, 4.30), t_figures(0, 6.31, 17.58), t_figures(0, 4.01, 4.35)),
                     HL_TLB_WHOLE);
}

/* The long chain alone would not tell: much of its effect is gone, since walks are shorter. */
static void test_pieces(void **state) {
    unsigned whole = 9, pages = 9;
    (void)state;
    struct hl_tlb_figures packed = t_figures(1.4, 4.9, 5.0), small = t_figures(3.9, 7.7, 33.5),
                          huge = t_pages(3.8, 7.7, 14.8);
    assert_int_equal(hl_judge_memory(&packed, &small, &huge, &whole, &pages), HL_TLB_PIECES);
    assert_int_equal(whole, 0);
    assert_int_equal(pages, HL_TLB_PAGES);
    assert_int_equal(t_judge(t_figures(0.8, 2.6, 8.3), t_figures(4.5, 9.0, 44.7), t_pages(4.9, 7.9, 30.5)),
                     HL_TLB_PIECES); /* jumps */
    /* The long chain alone, as where the first two show no effect. */
    assert_int_equal(t_judge(t_figures(0, 0, 5.0), t_figures(0, 0, 33.5), t_figures(0, 0, 14.8)),
                     HL_TLB_PIECES);
}

static void test_whole(void **state) {
    (void)state;
    assert_int_equal(t_judge(t_figures(1.4, 4.9, 5.0), t_figures(3.9, 7.7, 17.0), t_pages(1.5, 5.0, 5.3)),
                     HL_TLB_WHOLE);
    /* A processor that is ten times as slow is judged alike. */
    assert_int_equal(t_judge(t_figures(14, 49, 50), t_figures(39, 77, 170), t_pages(15, 50, 53)),
                     HL_TLB_WHOLE);
}

/* N whole pages of eight; the figures of chains over several lie between. */
static void test_some(void **state) {
    (void)state;
    for (unsigned n = 0; n <= HL_TLB_PAGES; n++) {
        double left = (double)(HL_TLB_PAGES - n) / HL_TLB_PAGES;
        struct hl_tlb_figures packed = t_figures(1.4, 4.9, 5.0), small = t_figures(3.9, 7.7, 17.0),
                              huge = t_pages(1.4, 4.9 + 2.8 * left, 5 + 12 * left);
        unsigned whole, pages;
        for (unsigned i = n; i < HL_TLB_PAGES; i++)
            huge.page[i].ns = 3.85;
        enum hl_tlb_verdict verdict = hl_judge_memory(&packed, &small, &huge, &whole, &pages);
        assert_int_equal(whole, n);
        assert_int_equal(verdict, n == 0 ? HL_TLB_PIECES : n == HL_TLB_PAGES ? HL_TLB_WHOLE : HL_TLB_SOME);
    }
}

static void test_unknown(void **state) {
    (void)state;
    struct hl_tlb_figures none = {0}, packed = t_figures(1.4, 4.9, 5.0), small = t_figures(3.9, 7.7, 17.0),
                          huge = t_pages(1.5, 5.0, 5.3);
    assert_int_equal(t_judge(none, none, none), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(packed, small, none), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(none, small, huge), HL_TLB_UNKNOWN);
    assert_int_equal(t_judge(small, packed, huge), HL_TLB_UNKNOWN); /* packed lines are slower */
    assert_int_equal(t_judge(packed, packed, packed), HL_TLB_UNKNOWN);
    /* Noise as large as half the effect. */
    for (unsigned i = 0; i < HL_TLB_SIZES; i++)
        small.size[i].noise_ns = small.size[i].ns / 2;
    assert_int_equal(t_judge(packed, small, huge), HL_TLB_UNKNOWN);
    /* The pages say one thing, and all of them together the other. */
    small = t_figures(3.9, 7.7, 17.0);
    huge = t_pages(3.9, 5.0, 5.3);
    assert_int_equal(t_judge(packed, small, huge), HL_TLB_UNKNOWN);
    /* Between the two limits there is no verdict. */
    assert_int_equal(t_judge(packed, small, t_figures(0, 4.9 + 2.8 * 0.22, 5 + 12 * 0.22)), HL_TLB_UNKNOWN);
}

static void t_set(struct hl_tlb *tlb, enum hl_tlb_side side, enum hl_tlb_memory memory, bool is_whole) {
    tlb->figures[side][HL_TLB_PACKED] = t_figures(1.4, 4.9, 5.0);
    tlb->figures[side][HL_TLB_SMALL] = t_figures(3.9, 7.7, 17.0);
    tlb->figures[side][memory] = is_whole ? t_pages(1.5, 5.0, 5.3) : t_pages(3.8, 7.7, 14.8);
}

static void test_together(void **state) {
    (void)state;
    struct hl_tlb tlb = {0};
    assert_int_equal(hl_judge_tlb(&tlb), HL_TLB_UNKNOWN);
    t_set(&tlb, HL_TLB_DATA, HL_TLB_THP, true);
    assert_int_equal(hl_judge_tlb(&tlb), HL_TLB_WHOLE);
    assert_int_equal(hl_judge_side(&tlb, HL_TLB_TEXT), HL_TLB_UNKNOWN);
    t_set(&tlb, HL_TLB_DATA, HL_TLB_HUGETLB, false); /* the pool was made when memory was scattered */
    assert_int_equal(hl_judge_tlb(&tlb), HL_TLB_SOME);
    t_set(&tlb, HL_TLB_DATA, HL_TLB_THP, false);
    assert_int_equal(hl_judge_tlb(&tlb), HL_TLB_PIECES);
    t_set(&tlb, HL_TLB_TEXT, HL_TLB_HUGETLB, false);
    assert_int_equal(hl_judge_side(&tlb, HL_TLB_TEXT), HL_TLB_PIECES);
    assert_int_equal(hl_judge_tlb(&tlb), HL_TLB_PIECES);
}

/* --- the reach --- */

/* Zen 2: 64 entries, 1024 behind them for small pages, 1024 for huge ones. */
static void test_amd(void **state) {
    (void)state;
    struct hl_cpuid leaf5 = {.eax = 0xff40ff40, .ebx = 0xff40ff40},
                    leaf6 = {.eax = 0x48006400, .ebx = 0x68006400};
    struct hl_tlb_reach reach = hl_decode_amd_tlb(&leaf5, &leaf6);
    assert_true(reach.known);
    assert_int_equal(reach.small_entries[0], 64);
    assert_int_equal(reach.small_entries[1], 1024);
    assert_int_equal(reach.huge_entries[1], 1024);
    assert_int_equal(hl_small_reach_bytes(&reach), 4 << 20);
    assert_int_equal(hl_huge_reach_bytes(&reach), (uint64_t)2 << 30);
    /* An associativity of 0 says that there is no second level. */
    leaf6 = (struct hl_cpuid){.eax = 0x400, .ebx = 0x400};
    reach = hl_decode_amd_tlb(&leaf5, &leaf6);
    assert_true(reach.known);
    assert_int_equal(hl_small_reach_bytes(&reach), 64 * 4096);
    /* A hypervisor hides it. */
    leaf5 = leaf6 = (struct hl_cpuid){0};
    reach = hl_decode_amd_tlb(&leaf5, &leaf6);
    assert_false(reach.known);
    assert_int_equal(hl_small_reach_bytes(&reach), 0);
    assert_int_equal(hl_huge_reach_bytes(&reach), 0);
}

/* Golden Cove: 256 entries for 4 KiB (8 ways, 32 sets), 32 for 2 MiB, 2048 for both behind them; and TLBs for data. */
static void test_intel(void **state) {
    (void)state;
    const struct hl_cpuid leaf[] = {
        {.eax = 5},
        {.ebx = 0x00080001, .ecx = 0x20, .edx = 0x22},
        {.ebx = 0x00080006, .ecx = 0x04, .edx = 0x22},
        {.ebx = 0x00060001, .ecx = 0x10, .edx = 0x24},
        {.ebx = 0x00080007, .ecx = 0x80, .edx = 0x43},
        {.ebx = 0x00080009, .ecx = 0x80, .edx = 0x41},
    };
    struct hl_tlb_reach reach = hl_decode_intel_tlb(leaf, T_COUNT(leaf));
    assert_true(reach.known);
    assert_int_equal(reach.small_entries[0], 256);
    assert_int_equal(reach.huge_entries[0], 32);
    assert_int_equal(reach.small_entries[1], 1024);
    assert_int_equal(hl_small_reach_bytes(&reach), 4 << 20);
    assert_false(hl_decode_intel_tlb(leaf, 1).known);
    assert_false(hl_decode_intel_tlb(leaf, 0).known);
}

/* With any values of a hypervisor's: nothing overflows, and the known figures are sane. */
static void test_any_cpuid(void **state) {
    (void)state;
    uint64_t random = 1;
    for (unsigned i = 0; i < 100000; i++) {
        struct hl_cpuid leaf[4];
        for (unsigned j = 0; j < T_COUNT(leaf); j++)
            leaf[j] = (struct hl_cpuid){(uint32_t)t_random(&random), (uint32_t)t_random(&random),
                                        (uint32_t)t_random(&random), (uint32_t)(t_random(&random) & 0x7f)};
        struct hl_tlb_reach reach[] = {hl_decode_intel_tlb(leaf, T_COUNT(leaf)),
                                       hl_decode_amd_tlb(leaf, leaf + 1)};
        for (unsigned j = 0; j < T_COUNT(reach); j++)
            assert_true(!reach[j].known || hl_small_reach_bytes(&reach[j]) <= (uint64_t)65536 * 4096);
    }
    struct hl_tlb_reach reach;
    hl_read_tlb_reach(&reach);
    assert_true(!reach.known || hl_small_reach_bytes(&reach) > 0);
}

/* --- the estimate --- */

static const struct hl_jump_costs t_costs = {3, {{2, 4, 4}, {16, 44, 30}, {64, 60, 40}}, true};

static void test_jump_costs(void **state) {
    (void)state;
    assert_true(hl_are_jump_costs_sane(&t_costs));
    assert_float_equal(hl_saved_ns(&t_costs, 0), 0, 1e-9);
    assert_float_equal(hl_saved_ns(&t_costs, 2 * T_MIB), 0, 1e-9);
    assert_float_equal(hl_saved_ns(&t_costs, 9 * T_MIB), 7, 1e-9); /* half-way between 0 and 14 */
    assert_float_equal(hl_saved_ns(&t_costs, 16 * T_MIB), 14, 1e-9);
    assert_float_equal(hl_saved_ns(&t_costs, 1000 * T_MIB), 20, 1e-9);
    double last = 0;
    for (int half_mib = 0; half_mib < 200; half_mib++) { /* this one ascends, and so do estimates from it */
        double saved = hl_saved_ns(&t_costs, half_mib * T_MIB / 2);
        assert_true(saved >= last);
        last = saved;
    }
    const struct hl_jump_costs worse = {1, {{2, 4, 9}}, true}, none = {0};
    assert_float_equal(hl_saved_ns(&worse, 8 * T_MIB), 0, 1e-9); /* huge pages never cost anything */
    assert_float_equal(hl_saved_ns(&none, 8 * T_MIB), 0, 1e-9);
}

static void test_insane_costs(void **state) {
    (void)state;
    const double nothing = 0, nan = __builtin_nan(""), infinite = __builtin_inf();
    const struct hl_jump_costs insane[] = {
        {0},
        {HL_COST_POINTS + 1, {{2, 4, 4}}, true},
        {2, {{4, 4, 4}, {2, 4, 4}}, true},
        {2, {{2, 4, 4}, {2, 4, 4}}, true},
        {1, {{nothing, 4, 4}}, true},
        {1, {{-2, 4, 4}}, true},
        {1, {{nan, 4, 4}}, true},
        {1, {{2, nan, 4}}, true},
        {1, {{2, 4, nan}}, true},
        {1, {{infinite, 4, 4}}, true},
        {1, {{2, infinite, 4}}, true},
        {1, {{2, 4, -1}}, true},
        {1, {{2, 4, 0}}, true},
        {1, {{2, 1e300, 4}}, true},
    };
    for (unsigned i = 0; i < T_COUNT(insane); i++)
        assert_false(hl_are_jump_costs_sane(&insane[i]));
}

static void test_gain(void **state) {
    (void)state;
    /* One jump in 200 ns that costs 14 less. */
    assert_float_equal(hl_estimate_gain(&t_costs, 16 * T_MIB, 1), 0.07, 1e-9);
    assert_float_equal(hl_estimate_gain(&t_costs, 16 * T_MIB, 0.5), 0.035, 1e-9);
    assert_float_equal(hl_estimate_gain(&t_costs, 16 * T_MIB, 0), 0, 1e-9);
    const struct hl_jump_costs steep = {1, {{2, 1000, 1}}, true};
    assert_true(hl_estimate_gain(&steep, 16 * T_MIB, 1) <= 0.5);
    /* A fifth of the time in walks, of which 30 / 44 stay: the pages are in pieces. */
    assert_float_equal(hl_estimate_from_walks(&t_costs, 16 * T_MIB, 0.2, 1), 0.2 * 14 / 44, 1e-9);
    assert_float_equal(hl_estimate_from_walks(&t_costs, 16 * T_MIB, 0, 1), 0, 1e-9);
    /* Nothing is known of the machine: all walks could go. */
    const struct hl_jump_costs none = {0};
    assert_float_equal(hl_estimate_from_walks(&none, 16 * T_MIB, 0.2, 0.5), 0.1, 1e-9);
}

static void test_counters_take_turns(void **state) {
    (void)state;
    double count = -1;
    assert_true(hl_scale_count(1000, 10, 10, &count));
    assert_float_equal(count, 1000, 1e-9);
    assert_true(hl_scale_count(1000, 40, 10, &count));
    assert_float_equal(count, 4000, 1e-9);
    assert_true(hl_scale_count(1000, 10, 40, &count)); /* which the kernel never says */
    assert_float_equal(count, 1000, 1e-9);
    count = -1;
    assert_false(hl_scale_count(0, 40, 0, &count));
    assert_float_equal(count, -1, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_table),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_some),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_amd),
        cmocka_unit_test(test_intel),
        cmocka_unit_test(test_any_cpuid),
        cmocka_unit_test(test_jump_costs),
        cmocka_unit_test(test_insane_costs),
        cmocka_unit_test(test_gain),
        cmocka_unit_test(test_counters_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
