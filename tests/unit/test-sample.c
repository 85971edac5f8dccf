/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The kernel's records of samples, read by pure functions; the rings are made up. */
#include "unit.h"

#include "command/measure/sample-read.h"

#include <linux/perf_event.h>
#include <math.h>

#define T_RING 256ul

static char t_data[T_RING];
static const struct hl_ring_view t_ring = {t_data, T_RING};

/* Writes BYTES at HEAD, around the end of the ring if they go beyond it. */
static uint64_t t_write(uint64_t head, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        t_data[(head + i) % T_RING] = ((const char *)from)[i];
    return head + bytes;
}

static uint64_t t_write_record(uint64_t head, uint32_t type, const uint64_t *words, size_t n) {
    const struct perf_event_header header = {.type = type, .size = (uint16_t)(sizeof header + 8 * n)};
    return t_write(t_write(head, &header, sizeof header), words, 8 * n);
}

static uint64_t t_write_sample(uint64_t head, uint64_t address) {
    const uint64_t words[] = {address, (uint64_t)12 << 32 | 11, 1000, 2 << 20};
    return t_write_record(head, PERF_RECORD_SAMPLE, words, 4);
}

static void t_assert_sample(uint64_t *tail, uint64_t head, uint64_t address) {
    struct hl_sample sample;
    uint64_t lost;
    assert_int_equal(hl_read_record(&t_ring, tail, head, &sample, &lost), HL_RECORD_SAMPLE);
    assert_int_equal(sample.address, address);
    assert_int_equal(sample.process, 11);
    assert_int_equal(sample.boot_ns, 1000);
    assert_int_equal(sample.page_bytes, 2 << 20);
    assert_int_equal(lost, 0);
}

/* From each place in the ring, so also around its end. */
static void test_samples(void **state) {
    (void)state;
    for (uint64_t start = 0; start < 3 * T_RING; start += 8) {
        uint64_t tail = start, head = t_write_sample(t_write_sample(start, start + 1), start + 2);
        t_assert_sample(&tail, head, start + 1);
        t_assert_sample(&tail, head, start + 2);
        assert_int_equal(tail, head);
    }
}

static void test_losses(void **state) {
    (void)state;
    struct hl_sample sample;
    const uint64_t words[] = {7, 4321, 0};
    uint64_t lost, tail = 248, head = t_write_record(248, PERF_RECORD_LOST, words, 2);
    assert_int_equal(hl_read_record(&t_ring, &tail, head, &sample, &lost), HL_RECORD_LOST);
    assert_int_equal(lost, 4321);
    assert_int_equal(tail, head);
    head = t_write_record(head, PERF_RECORD_THROTTLE, words, 3);
    assert_int_equal(hl_read_record(&t_ring, &tail, head, &sample, &lost), HL_RECORD_OTHER);
    assert_int_equal(lost, 1);
    head = t_write_record(head, PERF_RECORD_MMAP, words, 3);
    assert_int_equal(hl_read_record(&t_ring, &tail, head, &sample, &lost), HL_RECORD_OTHER);
    assert_int_equal(lost, 0);
    assert_int_equal(tail, head);
}

/* The kernel writes none of these; a reader must come to the end all the same. */
static void test_malformed_records(void **state) {
    (void)state;
    for (uint16_t size = 0; size <= 48; size++) {
        struct perf_event_header header = {.type = PERF_RECORD_SAMPLE, .size = size};
        struct hl_sample sample;
        uint64_t lost, tail = 8, head = t_write(8, &header, sizeof header) + 24;
        enum hl_record kind = hl_read_record(&t_ring, &tail, head, &sample, &lost);
        assert_int_equal(kind, HL_RECORD_OTHER);
        assert_true(tail > 8 && tail <= head);
    }
    struct hl_sample sample;
    uint64_t lost, tail = 8;
    assert_int_equal(hl_read_record(&t_ring, &tail, 12, &sample, &lost), HL_RECORD_OTHER);
    assert_int_equal(tail, 12);
}

static void t_assert_processors(const char *text, const char *wanted) {
    bool set[16] = {false};
    char found[17] = "................";
    hl_parse_processors(text, set, 16, true);
    for (unsigned i = 0; i < 16; i++)
        if (set[i])
            found[i] = '#';
    assert_string_equal(found, wanted);
}

static void test_processors(void **state) {
    (void)state;
    t_assert_processors("0-3\n", "####............");
    t_assert_processors("0,2,5-6,15\n", "#.#..##........#");
    t_assert_processors("14-4095,99999999999999999999\n", "..............##");
    t_assert_processors("0-3", "####............");
    t_assert_processors("\n", "................");
    t_assert_processors("", "................");
    t_assert_processors("(null)\n", "................"); /* nohz_full where there are none */
    t_assert_processors("3-1\n", "................");
    t_assert_processors("1,x\n", ".#..............");
    bool set[4] = {true, true, true, true};
    hl_parse_processors("1-2", set, 4, false);
    assert_true(set[0] && !set[1] && !set[2] && set[3]);
}

/* N samples at random in PAGES pages that are executed equally often. */
static double t_estimate(unsigned pages, unsigned n, uint64_t seed) {
    unsigned *count = calloc(pages, sizeof *count);
    uint64_t seen = 0, once = 0, twice = 0;
    assert_non_null(count);
    for (unsigned i = 0; i < n; i++)
        count[t_random(&seed) % pages]++;
    for (unsigned i = 0; i < pages; i++) {
        seen += count[i] > 0;
        once += count[i] == 1;
        twice += count[i] == 2;
    }
    free(count);
    return hl_estimate_seen(seen, once, twice);
}

static void test_unseen_pages(void **state) {
    (void)state;
    assert_float_equal(hl_estimate_seen(0, 0, 0), 0, 1e-9);
    assert_float_equal(hl_estimate_seen(1, 1, 0), 1, 1e-9);
    assert_float_equal(hl_estimate_seen(40, 0, 0), 40, 1e-9); /* all of them often: there are no others */
    assert_float_equal(hl_estimate_seen(100, 40, 19), 100 + 40 * 39 / 40.0, 1e-9);
    for (uint64_t seed = 1; seed < 40; seed++) {
        double few = t_estimate(4096, 970, seed), many = t_estimate(4096, 4096, seed);
        assert_true(few > 2700 && few < 7000);
        assert_true(many > 3600 && many < 4700);
        assert_true(t_estimate(20, 970, seed) < 25);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),           cmocka_unit_test(test_losses),
        cmocka_unit_test(test_malformed_records), cmocka_unit_test(test_processors),
        cmocka_unit_test(test_unseen_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
