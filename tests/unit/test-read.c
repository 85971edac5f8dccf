/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Program headers from hostile files: refused with a reason, or so harmless that the planner may add and
   round them without looking. */
#include "elf/plan.h"
#include "elf/segments.h"
#include "elf/reason.h"
#include "elf/rewrites.h"

#include "unit.h"

#define LOAD(vaddr, filesz, memsz)                                                                           \
    {                                                                                                        \
        .p_type = PT_LOAD, .p_flags = PF_R, .p_vaddr = vaddr, .p_filesz = filesz, .p_memsz = memsz,          \
        .p_align = 0x1000                                                                                    \
    }

/* The file's byte for an address has that offset. */
#define LOAD_AT(vaddr, filesz, memsz)                                                                        \
    {                                                                                                        \
        .p_type = PT_LOAD, .p_flags = PF_R, .p_offset = vaddr, .p_vaddr = vaddr, .p_filesz = filesz,         \
        .p_memsz = memsz, .p_align = 0x1000                                                                  \
    }

static int read_headers(struct hl_object *object, const Elf64_Phdr *phdr, size_t n, uint64_t bias) {
    memset(object, 0xa5, sizeof *object);
    object->path = "hostile";
    object->soname = NULL;
    return hl_read_segments(object, phdr, n, bias, &t_geometry);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        Elf64_Phdr phdr[3];
    } row[] = {
        {"no PT_LOAD", {{.p_type = PT_NOTE, .p_memsz = 1}}},
        {"only an empty PT_LOAD", {LOAD(0, 0, 0)}},
        {"filesz > memsz", {LOAD(0, 0x2001, 0x2000)}},
        {"memsz overflows", {LOAD(0x1000, 0, UINT64_MAX)}},
        {"memsz overflows to a small end", {LOAD(0x3000, 0, UINT64_MAX - 0x1000)}},
        {"vaddr at the very top", {LOAD(UINT64_MAX - 0xfff, 0x1000, 0x1000)}},
        {"vaddr beyond user space", {LOAD(UINT64_C(1) << 63, 1, 1)}},
        {"end beyond user space", {LOAD(UINT64_C(1) << 61, 0, (UINT64_C(1) << 62) - 1)}},
        {"unsorted", {LOAD(0x10000, 0x1000, 0x1000), LOAD(0, 0x1000, 0x1000)}},
        {"overlapping", {LOAD(0, 0x3000, 0x3000), LOAD(0x2000, 0x1000, 0x1000)}},
        {"sharing a page, of which the file has two",
         {LOAD(0, 0x1800, 0x1800), LOAD(0x1900, 0x1000, 0x1000)}},
        {"sharing a page with zeros", {LOAD_AT(0, 0x1800, 0x1880), LOAD_AT(0x1900, 0x1000, 0x1000)}},
        {"sharing bytes", {LOAD_AT(0, 0x1a00, 0x1a00), LOAD_AT(0x1900, 0x1000, 0x1000)}},
        {"sharing two pages", {LOAD_AT(0, 0x2800, 0x2800), LOAD_AT(0x1900, 0x1000, 0x1000)}},
        {"sharing a page with no bytes", {LOAD_AT(0, 0x1800, 0x1800), LOAD_AT(0x1900, 0, 0x1000)}},
        {"the same twice", {LOAD(0, 0x1000, 0x1000), LOAD(0, 0x1000, 0x1000)}},
        {"third inside the first",
         {LOAD(0, 0x1000, 0x9000), LOAD(0x9000, 0x1000, 0x1000), LOAD(0x8000, 0x1000, 0x1000)}},
        {"alignment not a power of two",
         {{.p_type = PT_LOAD, .p_flags = PF_R, .p_filesz = 9, .p_memsz = 9, .p_align = 0x3000}}},
        {"RELRO beyond everything",
         {LOAD(0, 9, 9), {.p_type = PT_GNU_RELRO, .p_vaddr = 8, .p_memsz = UINT64_MAX}}},
        {"RELRO at the top",
         {LOAD(0, 9, 9), {.p_type = PT_GNU_RELRO, .p_vaddr = UINT64_MAX - 1, .p_memsz = 1}}},
    };
    for (unsigned i = 0; i < T_COUNT(row); i++) {
        struct hl_object object;
        if (read_headers(&object, row[i].phdr, 3, 0) != HL_REASON_MALFORMED)
            fail_msg("%s: not refused", row[i].name);
    }
}

static void test_fields(void **state) {
    (void)state;
    const Elf64_Phdr phdr[] = {
        {.p_type = PT_PHDR, .p_memsz = 9},
        {.p_type = PT_LOAD,
         .p_flags = PF_R | PF_X | 0xff00000,
         .p_vaddr = 0x123,
         .p_filesz = 0x1000,
         .p_memsz = 0x1000},
        LOAD(0x9000, 0, 0),
        {.p_type = PT_LOAD,
         .p_flags = PF_R | PF_W,
         .p_vaddr = 0x3ffe,
         .p_filesz = 1,
         .p_memsz = 3,
         .p_align = 0},
        {.p_type = PT_GNU_RELRO, .p_vaddr = 0x3ffe, .p_memsz = 2},
    };
    struct hl_object object;
    assert_int_equal(read_headers(&object, phdr, T_COUNT(phdr), 0x100000), 0);
    assert_int_equal(object.n_segments, 2);
    assert_int_equal(object.load_bias, 0x100000);
    assert_false(object.text_relocations);
    const struct hl_segment *text = &object.segment[0], *data = &object.segment[1];
    assert_int_equal(text->start, 0x100123);
    assert_int_equal(text->end, 0x101123);
    assert_int_equal(text->first_page, 0x100000);
    assert_int_equal(text->end_page, 0x102000);
    assert_int_equal(text->flags, PF_R | PF_X);
    assert_int_equal(data->file_end, 0x103fff);
    assert_int_equal(data->end, 0x104001);
    assert_int_equal(data->end_page, 0x105000);
    assert_int_equal(object.relro_start, 0x103000);
    assert_int_equal(object.relro_end, 0x104000);
}

/* As patchelf lays files out: the kernel maps the second over the first there, and it has the bytes of both. */
static void test_shared_page(void **state) {
    (void)state;
    Elf64_Phdr phdr[] = {LOAD_AT(0x1ff000, 0x1338, 0x1338), LOAD_AT(0x200338, 0x1000, 0x3000)};
    phdr[0].p_flags = PF_R | PF_W;
    struct hl_object object;
    assert_int_equal(read_headers(&object, phdr, T_COUNT(phdr), 0), 0);
    assert_int_equal(object.n_segments, 2);
    const struct hl_segment *first = &object.segment[0], *second = &object.segment[1];
    assert_int_equal(first->start, 0x1ff000);
    assert_int_equal(first->file_end, 0x200000);
    assert_int_equal(first->end, 0x200000);
    assert_int_equal(first->end_page, 0x200000);
    assert_int_equal(second->start, 0x200000);
    assert_int_equal(second->first_page, 0x200000);
    assert_int_equal(second->offset, 0x200000);
    assert_int_equal(second->file_end, 0x201338);
    assert_int_equal(second->end, 0x203338);
    assert_int_equal(second->flags, PF_R);
}

/* Several in one page, of which the second lies in no other. */
static void test_several_in_a_page(void **state) {
    (void)state;
    const Elf64_Phdr phdr[] = {LOAD_AT(0x1f4000, 0xb238, 0xb238), LOAD_AT(0x1ff238, 0xc8, 0xc8),
                               LOAD_AT(0x1ff300, 0x1148, 0x1148), LOAD_AT(0x200448, 0x24d1, 0x24d1)};
    struct hl_object object;
    assert_int_equal(read_headers(&object, phdr, T_COUNT(phdr), 0), 0);
    assert_int_equal(object.n_segments, 3);
    for (unsigned i = 0; i < 3; i++) {
        static const uint64_t border[] = {0x1f4000, 0x1ff000, 0x200000, 0x202919};
        assert_int_equal(object.segment[i].start, border[i]);
        assert_int_equal(object.segment[i].end, border[i + 1]);
        assert_int_equal(object.segment[i].offset, border[i]);
    }
}

static void test_many_segments(void **state) {
    (void)state;
    Elf64_Phdr phdr[HL_SEGMENTS_MAX + 1];
    for (unsigned i = 0; i < T_COUNT(phdr); i++)
        phdr[i] = (Elf64_Phdr)LOAD(i * T_PAGE, 1, 1);
    struct hl_object object;
    assert_int_equal(read_headers(&object, phdr, HL_SEGMENTS_MAX, 0), 0);
    assert_int_equal(object.n_segments, HL_SEGMENTS_MAX);
    assert_int_equal(read_headers(&object, phdr, HL_SEGMENTS_MAX + 1, 0), HL_REASON_MANY_SEGMENTS);
}

static void test_dynamic_section(void **state) {
    (void)state;
    const Elf64_Dyn dyn[] = {{.d_tag = DT_STRSZ, .d_un.d_val = 78},
                             {.d_tag = DT_STRTAB, .d_un.d_ptr = 0x400},
                             {.d_tag = DT_SONAME, .d_un.d_val = 77},
                             {.d_tag = DT_FLAGS, .d_un.d_val = DF_BIND_NOW},
                             {.d_tag = DT_FLAGS, .d_un.d_val = DF_TEXTREL | DF_ORIGIN},
                             {.d_tag = DT_NULL},
                             {.d_tag = DT_SONAME, .d_un.d_val = 99}};
    uint64_t strtab, soname;
    assert_false(hl_read_dynamic(dyn, 4, &strtab, &soname));
    assert_int_equal(strtab, 0x400);
    assert_int_equal(soname, 77);
    assert_true(hl_read_dynamic(dyn, T_COUNT(dyn), &strtab, &soname));
    assert_int_equal(soname, 77);

    const Elf64_Dyn beyond[] = {{.d_tag = DT_SONAME, .d_un.d_val = 78},
                                {.d_tag = DT_STRSZ, .d_un.d_val = 78}};
    hl_read_dynamic(beyond, T_COUNT(beyond), &strtab, &soname);
    assert_int_equal(soname, 0);
    hl_read_dynamic(beyond, 1, &strtab, &soname); /* of no table */
    assert_int_equal(soname, 0);

    const Elf64_Dyn old[] = {{.d_tag = DT_TEXTREL}};
    assert_true(hl_read_dynamic(old, 1, &strtab, &soname)); /* no DT_NULL: N ends it */
    assert_int_equal(strtab, 0);
    assert_int_equal(soname, 0);
}

/* A mapped object of one segment: its dynamic section, and its string table. */
struct imports {
    Elf64_Dyn dyn[3];
    char names[32];
};

/* Whether an object whose string table has NAMES, of SIZE bytes, may move its text; DT_STRTAB is TABLE's address less BIAS. */
static bool moves_text(const char *names, uint64_t size, uint64_t bias, uint64_t beyond) {
    struct imports imports = {{{.d_tag = DT_STRTAB}, {.d_tag = DT_STRSZ, .d_un.d_val = size}}, ""};
    uint64_t start = (uint64_t)(uintptr_t)&imports, end = (uint64_t)(uintptr_t)(&imports + 1);
    struct hl_object object = {.load_bias = bias, .n_segments = 1, .dynamic = start + beyond};
    memcpy(imports.names, names, strlen(names));
    imports.dyn[0].d_un.d_ptr = start + offsetof(struct imports, names) - bias;
    object.segment[0] = (struct hl_segment){.start = start, .file_end = end, .end = end, .flags = PF_R};
    return hl_moves_text(&object, t_geometry.page_bytes) > 0;
}

static void test_imports(void **state) {
    (void)state;
    assert_true(moves_text("\1mremap", 32, 0, 0));
    assert_true(moves_text("\1mremap", 32, 0x1000, 0)); /* which the dynamic linker did not relocate */
    assert_true(moves_text("\1a_mremap", 32, 0, 0));
    assert_false(moves_text("\1mremap64", 32, 0, 0));
    assert_false(moves_text("\1mrema", 6, 0, 0)); /* the table ends there */
    assert_true(moves_text("\1mremap", 8, 0, 0));
    assert_false(moves_text("\1mremap", 7, 0, 0));
    assert_false(moves_text("\1munmap", 32, 0, 0));
    /* Not to be read: it may. */
    assert_true(moves_text("\1munmap", 33, 0, 0));
    assert_true(moves_text("\1munmap", UINT64_MAX, 0, 0));
    assert_true(moves_text("\1munmap", 32, 0, 1 << 20));
}

/* The words that people and scripts read: there, different, and fit for a line. */
static void test_reasons_have_words(void **state) {
    (void)state;
    for (int i = 1; i < HL_REASONS_END; i++) {
        if (i == HL_REASON_COUNT)
            continue;
        assert_true(strlen(hl_reason_name(i)) > 2);
        assert_true(strlen(hl_reason_sentence(i)) > 5);
        assert_true(hl_reason_remedy(i) == NULL || strlen(hl_reason_remedy(i)) > 4);
        assert_null(strpbrk(hl_reason_name(i), " \n_ABCDEFGHIJKLMNOPQRSTUVWXYZ"));
        assert_null(strchr(hl_reason_sentence(i), '\n'));
        for (int j = 1; j < i; j += j + 1 == HL_REASON_COUNT ? 2 : 1)
            assert_string_not_equal(hl_reason_name(i), hl_reason_name(j));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),

        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_shared_page),
        cmocka_unit_test(test_several_in_a_page),

        cmocka_unit_test(test_many_segments),

        cmocka_unit_test(test_dynamic_section),
        cmocka_unit_test(test_imports),
        cmocka_unit_test(test_reasons_have_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
