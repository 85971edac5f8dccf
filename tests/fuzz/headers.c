/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Program headers as they stand in a file, at any load address, under any options: headers that pass the
   reader are planned as the slow planner does it. */
#include "fuzz.h"

#include "elf/plan.h"
#include "elf/segments.h"
#include "../unit/plan-model.h"

#define HEADERS_MAX 64
/* The model goes from page to page. */
#define MODEL_BYTES ((uint64_t)128 << 20)

static bool bit(unsigned from, unsigned number) { return from >> number & 1; }

static void choose_options(struct hl_options *options, struct hl_object *object, struct t_input *input) {
    unsigned what = t_take_byte(input), flags = t_take_byte(input);
    hl_default_options(options);
    options->edges = bit(what, 0);
    options->segments = bit(what, 1);
    options->data = bit(what, 2) ? HL_DATA_OFF : HL_DATA_AUTO;
    options->bss = bit(what, 3);
    options->sparse_text = bit(what, 4);
    options->backend = flags % 4;
    object->is_main = bit(flags, 2);
    object->is_new = bit(flags, 3);
    object->text_relocations = bit(flags, 5);
}

/* The reader's promises to the later steps. */
static void check_object(const struct hl_object *object) {
    assert_true(object->n_segments > 0 && object->n_segments <= HL_SEGMENTS_MAX);
    assert_true(object->relro_start <= object->relro_end);
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        assert_true(segment->first_page <= segment->start && segment->start < segment->end);
        assert_true(segment->start <= segment->file_end && segment->file_end <= segment->end);
        assert_true(segment->end <= segment->end_page && segment->end_page < UINT64_C(1) << 63);
        assert_true(i == 0 || segment[-1].end_page <= segment->first_page);
    }
}

static bool is_modelled(const struct hl_object *object) {
    return !object->text_relocations &&
           object->segment[object->n_segments - 1].end - object->segment[0].start <= MODEL_BYTES;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Elf64_Phdr phdr[HEADERS_MAX];
    struct t_input input = {data, bytes};
    struct hl_object object = {.path = "hostile"}, chosen = object;
    struct hl_options options;
    struct hl_plan plan, again;
    uint64_t bias;
    choose_options(&options, &chosen, &input);
    t_take(&input, &bias, sizeof bias);

    size_t n = input.bytes / sizeof phdr[0];
    n = n < HEADERS_MAX ? n : HEADERS_MAX;
    t_take(&input, phdr, n * sizeof phdr[0]);

    int result = hl_read_segments(&object, phdr, n, bias, &t_geometry);
    assert_true(result == 0 || result == HL_REASON_MALFORMED || result == HL_REASON_MANY_SEGMENTS);
    if (result != 0)
        return 0;
    check_object(&object);
    object.is_main = chosen.is_main;
    object.is_new = chosen.is_new;
    object.text_relocations = chosen.text_relocations;
    result = hl_plan_object(&plan, &object, &options, &t_geometry);
    assert_true(result >= 0 && result < HL_REASON_COUNT);
    assert_int_equal(result == 0, plan.n_spans > 0);
    check_spans(&plan, &object);
    check_numbers(&plan, &object);
    hl_plan_object(&again, &object, &options, &t_geometry);
    assert_int_equal(again.n_spans, plan.n_spans);
    if (is_modelled(&object))
        check_against_model(&plan, &object, &options);
    return 0;
}
