/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The planner against a second, slower one.

   The model (plan-model.h) decides huge page by huge page from the words of the design; the planner must
   agree with it for real binaries at all 512 load offsets and for thousands of invented ones, under every
   combination of options.  The design's shares are then checked on their own, so that a mistake made twice does not pass. */
#include "elf/plan.h"
#include "elf/segments.h"
#include "elf/reason.h"

#include "unit.h"

#include "plan-model.h"

struct load {
    uint64_t vaddr, file_bytes, memory_bytes;
    uint32_t flags;
};

struct binary {
    const char *name;
    struct load load[12];
    uint64_t relro, relro_bytes;
};

/* Program headers of Debian 12's own binaries, and of those that other linkers and options make. */
static const struct binary cc1plus = {"cc1plus",
                                      {{0x400000, 0x2578b0, 0x2578b0, R},
                                       {0x658000, 0x1532be5, 0x1532be5, RX},
                                       {0x1b8b000, 0xa36673, 0xa36673, R},
                                       {0x25c2b80, 0xfd78, 0x1b1200, RW}},
                                      0x25c2b80,
                                      0x3480};
static const struct binary mariadbd = {"mariadbd",
                                       {{0, 0x681bf0, 0x681bf0, R},
                                        {0x682000, 0x930269, 0x930269, RX},
                                        {0xfb3000, 0x6d798a, 0x6d798a, R},
                                        {0x168b9d0, 0x253630, 0xb2a9c0, RW}},
                                       0x168b9d0,
                                       0x161630};
static const struct binary node = {"node",
                                   {{0x400000, 0x76e5d8, 0x76e5d8, R},
                                    {0xb6f000, 0x1e90, 0x1e90, RX},
                                    {0xb72000, 0x1a8bca0, 0x1a8bca0, RX},
                                    {0x2600000, 0x1f1, 0x1f1, RX},
                                    {0x2601000, 0x3038cae, 0x3038cae, R},
                                    {0x563aec8, 0x215f8, 0x4dfc8, RW}},
                                   0x563aec8,
                                   0x3138};
static const struct binary python = {"python3",
                                     {{0x400000, 0x1e468, 0x1e468, R},
                                      {0x41f000, 0x2afe49, 0x2afe49, RX},
                                      {0x6cf000, 0x2700a0, 0x2700a0, R},
                                      {0x940dc8, 0x13df90, 0x182db0, RW}},
                                     0x940dc8,
                                     0x238};
static const struct binary postgres = {"postgres",
                                       {{0, 0xcca60, 0xcca60, R},
                                        {0xcd000, 0x5299a9, 0x5299a9, RX},
                                        {0x5f7000, 0x258e30, 0x258e30, R},
                                        {0x8508b0, 0x350da, 0x67050, RW}},
                                       0x8508b0,
                                       0x20750};
static const struct binary llvm = {
    "libLLVM", {{0, 0x6161880, 0x6161880, RX}, {0x61630a0, 0x77cde0, 0x7f6c49, RW}}, 0x61630a0, 0x773f60};
static const struct binary clang_cpp = {"libclang-cpp",
                                        {{0, 0x35867d0, 0x35867d0, RX}, {0x3587c70, 0x290920, 0x29f780, RW}},
                                        0x3587c70,
                                        0x286390};
static const struct binary perl = {"perl",
                                   {{0, 0x48d28, 0x48d28, R},
                                    {0x49000, 0x194225, 0x194225, RX},
                                    {0x1de000, 0x1b1788, 0x1b1788, R},
                                    {0x390f28, 0x1144c, 0x17800, RW}},
                                   0x390f28,
                                   0xf0d8};
static const struct binary bash = {"bash",
                                   {{0, 0x2ed48, 0x2ed48, R},
                                    {0x2f000, 0xc0b9d, 0xc0b9d, RX},
                                    {0xf0000, 0x37f44, 0x37f44, R},
                                    {0x128af0, 0xbc74, 0x16cf0, RW}},
                                   0x128af0,
                                   0x3510};
static const struct binary aligned = {/* -z max-page-size=0x200000 */
                                      "linked at 2 MiB",
                                      {{0x400000, 0x1000, 0x1000, R},
                                       {0x600000, 0x512345, 0x512345, RX},
                                       {0xc00000, 0x210000, 0x210000, R},
                                       {0x1010000, 0x2f0000, 0x900000, RW}},
                                      0x1010000,
                                      0x1000};
static const struct binary no_read = {"text without PF_R",
                                      {{0x400000, 0x400000, 0x400000, R},
                                       {0x900000, 0x400000, 0x400000, PF_X},
                                       {0xe00000, 0x400000, 0x400000, R},
                                       {0x1210000, 0x1000, 0x1000, RW}},
                                      0,
                                      0};
static const struct binary writable_text = {"an RWX segment",
                                            {{0x400000, 0x410000, 0x410000, R},
                                             {0x910000, 0x600000, 0x600000, RWX},
                                             {0x1010000, 0x600000, 0x600000, RX},
                                             {0x1710000, 0x1000, 0x1000, RW}},
                                            0,
                                            0};
static const struct binary big_data = {
    "data around RELRO",
    {{0, 0x200000, 0x200000, RX}, {0x310000, 0x1000000, 0x2000000, RW}, {0x2400000, 0x200000, 0x200000, R}},
    0x310000,
    0x480000};

static const struct binary *const binaries[] = {&cc1plus, &mariadbd,      &node,    &python, &postgres,
                                                &llvm,    &clang_cpp,     &perl,    &bash,   &aligned,
                                                &no_read, &writable_text, &big_data};

static void read_binary(struct hl_object *object, const struct binary *binary, uint64_t bias) {
    Elf64_Phdr phdr[T_COUNT(binary->load) + 1];
    size_t n = 0;
    for (; n < T_COUNT(binary->load) && binary->load[n].memory_bytes > 0; n++)
        phdr[n] = (Elf64_Phdr){.p_type = PT_LOAD,
                               .p_flags = binary->load[n].flags,
                               .p_vaddr = binary->load[n].vaddr,
                               .p_filesz = binary->load[n].file_bytes,
                               .p_memsz = binary->load[n].memory_bytes,
                               .p_align = T_PAGE};
    if (binary->relro_bytes > 0)
        phdr[n++] =
            (Elf64_Phdr){.p_type = PT_GNU_RELRO, .p_vaddr = binary->relro, .p_memsz = binary->relro_bytes};
    *object = (struct hl_object){.path = binary->name};
    assert_int_equal(hl_read_segments(object, phdr, n, bias, &t_geometry), 0);
}

/* TEXT, and otherwise the defaults; but all read-only segments, of which there is more to plan. */
static struct hl_options options_of(const char *text) {
    struct hl_options options;
    hl_default_options(&options);
    options.segments = HL_SEGMENTS_ALL;
    assert_int_equal(hl_parse_options(&options, text, NULL), 0);
    return options;
}

static void check_plan(struct hl_plan *plan, const struct hl_object *object,
                       const struct hl_options *options) {
    int result = hl_plan_object(plan, object, options, &t_geometry);
    assert_int_equal(result == 0, plan->n_spans > 0);
    assert_true(result >= 0 && result < HL_REASON_COUNT);
    check_spans(plan, object);
    check_numbers(plan, object);
    check_against_model(plan, object, options);
}

#define OPTIONS (2 * 2 * 2 * 2 * 2)

/* Every combination of the options that the planner looks at. */
static unsigned all_options(struct hl_options *options) {
    unsigned n = 0;
    for (unsigned edges = 0; edges < 2; edges++)
        for (unsigned segments = 0; segments < 2; segments++)
            for (unsigned data = 0; data < 2; data++)
                for (unsigned bss = 0; bss < 2; bss++)
                    for (unsigned sparse_text = 0; sparse_text < 2; sparse_text++) {
                        hl_default_options(&options[n]);
                        options[n].edges = edges;
                        options[n].segments = segments;
                        options[n].data = data == 0 ? HL_DATA_AUTO : HL_DATA_OFF;
                        options[n].bss = bss;
                        options[n++].sparse_text = sparse_text;
                    }
    return n;
}

/* --- tests --- */

static void test_all_load_offsets(void **state) {
    (void)state;
    struct hl_options options[OPTIONS];
    unsigned n_options = all_options(options);
    for (unsigned b = 0; b < T_COUNT(binaries); b++)
        for (unsigned o = 0; o < n_options; o++)
            for (uint64_t offset = 0; offset < T_HUGE / T_PAGE; offset++) {
                struct hl_object object;
                struct hl_plan plan;
                read_binary(&object, binaries[b], UINT64_C(0x7f1234400000) + offset * T_PAGE);
                check_plan(&plan, &object, &options[o]);
            }
}

static void test_invented_objects(void **state) {
    (void)state;
    static const uint32_t flags[] = {R, RX, RW, R, RX, RW, R, PF_X, RWX, 0};
    struct hl_options options[OPTIONS];
    unsigned n_options = all_options(options);
    uint64_t seed = 42;
    for (unsigned round = 0; round < 20000; round++) {
        struct binary binary = {.name = "invented"};
        uint64_t at = t_random(&seed) % (3 * T_HUGE), n = 1 + t_random(&seed) % T_COUNT(binary.load);
        for (unsigned i = 0; i < n; i++) {
            uint64_t largest = t_random(&seed) % 3 == 0 ? 4 * T_PAGE : 3 * T_HUGE;
            struct load *load = &binary.load[i];
            load->flags = flags[t_random(&seed) % T_COUNT(flags)];
            load->vaddr = at + t_random(&seed) % T_PAGE;
            load->memory_bytes = 1 + t_random(&seed) % largest;
            load->file_bytes =
                t_random(&seed) % 4 ? load->memory_bytes : t_random(&seed) % (load->memory_bytes + 1);
            at = hl_round_up(load->vaddr + load->memory_bytes, T_PAGE);
            if (t_random(&seed) % 2)
                at += hl_round_up(t_random(&seed) % (2 * T_HUGE), T_PAGE);
            if (t_random(&seed) % 8 == 0)
                at = hl_round_up(at, T_HUGE);
            if (load->flags == RW && t_random(&seed) % 2) {
                binary.relro = load->vaddr;
                binary.relro_bytes = 1 + t_random(&seed) % load->memory_bytes;
            }
        }
        if (t_random(&seed) % 8 == 0) { /* a file may put RELRO anywhere */
            binary.relro = t_random(&seed) % at;
            binary.relro_bytes = 1 + t_random(&seed) % (2 * T_HUGE);
        }
        struct hl_object object;
        struct hl_plan plan;
        read_binary(&object, &binary, t_random(&seed) % 512 * T_PAGE);
        check_plan(&plan, &object, &options[round % n_options]);
    }
}

static unsigned text_share(const struct hl_plan *plan) {
    return (unsigned)((plan->text_covered_bytes * 100 + plan->text_bytes / 2) / plan->text_bytes);
}

/* The design's table: the least and the greatest share of text over the load addresses, in per cent. */
static void test_shares_of_the_design(void **state) {
    (void)state;
    static const struct {
        const struct binary *binary;
        bool fixed;
        unsigned least, most;
    } row[] = {{&cc1plus, true, 100, 100},  {&node, true, 100, 100}, {&python, true, 100, 100},
               {&mariadbd, false, 99, 100}, {&llvm, false, 97, 99},  {&clang_cpp, false, 93, 97},
               {&postgres, false, 77, 100}, {&perl, false, 0, 100},  {&bash, false, 0, 0}};
    struct hl_options options = options_of("");
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        unsigned least = 100, most = 0;
        for (uint64_t offset = 0; offset < (row[i].fixed ? 1 : 512); offset++) {
            struct hl_object object;
            struct hl_plan plan;
            read_binary(&object, row[i].binary, offset * T_PAGE);
            hl_plan_object(&plan, &object, &options, &t_geometry);
            unsigned share = text_share(&plan);
            least = share < least ? share : least;
            most = share > most ? share : most;
        }
        if (least != row[i].least || most != row[i].most)
            fail_msg("%s: %u to %u %%, not %u to %u", row[i].binary->name, least, most, row[i].least,
                     row[i].most);
    }
}

static void test_reasons(void **state) {
    (void)state;
    static const struct {
        struct binary binary;
        const char *options;
        int whole;
        enum hl_reason reason[3];
    } row[] = {
        {{"tiny", {{0, 0x1000, 0x1000, R}, {0x1000, 0x1000, 0x1000, RX}, {0x2000, 9, 9, RW}}, 0, 0},
         "",
         HL_REASON_TOO_SMALL,
         {HL_REASON_TOO_SMALL, HL_REASON_TOO_SMALL, HL_REASON_TOO_SMALL}},
        {{"no PF_R", {{0, 0x1000, 0x1000, R}, {0x1000, 0x900000, 0x900000, PF_X}}, 0, 0},
         "",
         HL_REASON_NO_READ,
         {HL_REASON_TOO_SMALL, HL_REASON_NO_READ}},
        {{"RWX", {{0, 0x1000, 0x1000, R}, {0x1000, 0x900000, 0x900000, RWX}}, 0, 0},
         "",
         HL_REASON_WRITABLE_TEXT,
         {HL_REASON_TOO_SMALL, HL_REASON_WRITABLE_TEXT}},
        {{"rodata", {{0, 0x900000, 0x900000, R}, {0x900000, 0x1000, 0x1000, RX}, {0x901000, 9, 9, RW}}, 0, 0},
         "segments=text",
         HL_REASON_TOO_SMALL,
         {HL_REASON_OPTION_SEGMENTS, HL_REASON_TOO_SMALL, HL_REASON_TOO_SMALL}},
        {{"data", {{0, 0x1000, 0x1000, RX}, {0x1000, 0x900000, 0x900000, RW}}, 0, 0},
         "data=off",
         HL_REASON_TOO_SMALL,
         {HL_REASON_TOO_SMALL, HL_REASON_OPTION_DATA}},
        {{"bss", {{0, 0x1000, 0x1000, RX}, {0x1000, 0, 0x900000, RW}}, 0, 0},
         "",
         HL_REASON_TOO_SMALL,
         {HL_REASON_TOO_SMALL, HL_REASON_OPTION_BSS}},
        {{"relro", {{0, 0x1000, 0x1000, RX}, {0x1000, 0x900000, 0x900000, RW}}, 0x1000, 0x900000},
         "",
         HL_REASON_TOO_SMALL,
         {HL_REASON_TOO_SMALL, HL_REASON_RELRO}},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_object object;
        struct hl_plan plan;
        struct hl_options options = options_of(row[i].options);
        read_binary(&object, &row[i].binary, 0);
        if (hl_plan_object(&plan, &object, &options, &t_geometry) != row[i].whole && plan.n_spans == 0)
            fail_msg("%s: not the reason of the whole", row[i].binary.name);
        for (unsigned j = 0; j < object.n_segments; j++)
            if (plan.reason[j] != row[i].reason[j])
                fail_msg("%s: segment %u: %s", row[i].binary.name, j, hl_reason_name(plan.reason[j]));
    }
}

static void test_text_relocations(void **state) {
    (void)state;
    struct hl_object object;
    struct hl_plan plan;
    struct hl_options options = options_of("");
    read_binary(&object, &cc1plus, 0);
    object.text_relocations = true;
    assert_int_equal(hl_plan_object(&plan, &object, &options, &t_geometry), HL_REASON_TEXT_RELOCATIONS);
    assert_int_equal(plan.n_spans, 0);
    assert_int_equal(plan.reason[1], HL_REASON_TEXT_RELOCATIONS);
}

/* arm64 with pages of 16 KiB: a huge page is 32 MiB. */
static void test_other_page_sizes(void **state) {
    (void)state;
    static const struct hl_geometry arm = {16384, 32 << 20};
    Elf64_Phdr phdr[] = {{.p_type = PT_LOAD, .p_flags = R, .p_filesz = 0x8000, .p_memsz = 0x8000},
                         {.p_type = PT_LOAD,
                          .p_flags = RX,
                          .p_vaddr = 0x2000000,
                          .p_filesz = 0x4000001,
                          .p_memsz = 0x4000001}};
    struct hl_options options = options_of("");
    struct hl_object object = {.path = "arm"};
    struct hl_plan plan;
    assert_int_equal(hl_read_segments(&object, phdr, 2, 0x40000000, &arm), 0);
    assert_int_equal(hl_plan_object(&plan, &object, &options, &arm), 0);
    assert_int_equal(plan.span[plan.n_spans - 1].start, 0x42000000);
    assert_int_equal(plan.span[plan.n_spans - 1].end, 0x46000000);
    assert_int_equal(plan.pages[HL_TEXT], 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_load_offsets),
        cmocka_unit_test(test_invented_objects),

        cmocka_unit_test(test_shares_of_the_design),

        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_text_relocations),

        cmocka_unit_test(test_other_page_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
