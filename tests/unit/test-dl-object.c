/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What struct link_map tells of an object. */
#include "unit.h"

#include "loader/dl-object.h"

#define FAR ((uint64_t)1 << 40)

/* An object as it lies in memory. */
static struct {
    char strings[1 << 16];
    ElfW(Dyn) dynamic[4];
} object = {"\0libsome.so", {{DT_STRTAB, {0}}, {DT_STRSZ, {32}}, {DT_SONAME, {1}}, {DT_NULL, {0}}}};

/* The dynamic linker may have added the load bias to DT_STRTAB, or not. */
static void test_soname(void **state) {
    (void)state;
    const uint64_t at = (uint64_t)object.strings;
    const struct {
        const char *name;
        uint64_t bias, table;
    } cases[] = {{"relocated", at, at},
                 {"not relocated, as in the vDSO", at - 0x10, 0x10},
                 {"linked for an address, and loaded near it", 0x8000, at},
                 {"linked for an address above", (uint64_t)-0x8000, at},
                 {"linked for an address far above, and not relocated", -FAR, at + FAR},
                 {"loaded where it was linked", 0, at}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const struct hl_config config;
        const struct hl_context context = {.config = &config};
        struct link_map map = {.l_addr = cases[i].bias, .l_name = "some", .l_ld = object.dynamic};
        struct hl_names names;
        object.dynamic[0].d_un.d_ptr = cases[i].table;
        hl_is_linked_selected(&context, &names, &map, NULL);
        if (names.soname != object.strings + 1)
            fail_msg("%s: %p instead of %p", cases[i].name, (const void *)names.soname,
                     (const void *)(object.strings + 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soname)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
