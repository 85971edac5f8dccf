/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The perf map's writer: hostile ELF images, which alias is kept, sizes, overlaps, and the lines. */
#include "unit.h"

#include "perf-maps/write.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK_BYTES (sizeof HL_MAP_MARK - 1)

#if defined __x86_64__
#define T_MACHINE EM_X86_64
#else
#define T_MACHINE EM_AARCH64
#endif

enum { NONE, TEXT, SYMTAB, STRTAB, NAMES, SECTIONS };

#define TEXT_START 0x1000u
#define TEXT_BYTES 0x1000u
#define BIAS UINT64_C(0x7f0000000000)

/* An ELF file with one executable section and a symbol table. */
struct image {
    Elf64_Ehdr header;
    Elf64_Shdr section[SECTIONS];
    Elf64_Sym symbol[64];
    char strings[4096];
    char names[32];
};

static struct image *new_image(void) {
    struct image *image = calloc(1, sizeof *image);
    assert_non_null(image);
    image->header = (Elf64_Ehdr){.e_ident = ELFMAG};
    image->header.e_ident[EI_CLASS] = ELFCLASS64;
    image->header.e_ident[EI_DATA] = ELFDATA2LSB;
    image->header.e_type = ET_DYN;
    image->header.e_machine = T_MACHINE;
    image->header.e_shoff = offsetof(struct image, section);
    image->header.e_shentsize = sizeof(Elf64_Shdr);
    image->header.e_shnum = SECTIONS;
    image->header.e_shstrndx = NAMES;
    image->section[TEXT] = (Elf64_Shdr){.sh_type = SHT_PROGBITS,
                                        .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                                        .sh_addr = TEXT_START,
                                        .sh_size = TEXT_BYTES};
    image->section[SYMTAB] = (Elf64_Shdr){.sh_type = SHT_SYMTAB,
                                          .sh_offset = offsetof(struct image, symbol),
                                          .sh_size = sizeof(Elf64_Sym),
                                          .sh_entsize = sizeof(Elf64_Sym),
                                          .sh_link = STRTAB};
    image->section[STRTAB] =
        (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = offsetof(struct image, strings), .sh_size = 1};
    image->section[NAMES] = (Elf64_Shdr){
        .sh_type = SHT_STRTAB, .sh_offset = offsetof(struct image, names), .sh_size = sizeof image->names};
    return image;
}

/* Adds a symbol; START counts from the start of the text. */
static Elf64_Sym *add_as(struct image *image, const char *name, uint64_t start, uint64_t bytes,
                         unsigned binding, unsigned type) {
    Elf64_Sym *symbol = &image->symbol[image->section[SYMTAB].sh_size / sizeof *symbol];
    uint64_t at = image->section[STRTAB].sh_size;
    assert_true(symbol < image->symbol + T_COUNT(image->symbol) && at + strlen(name) < sizeof image->strings);
    strcpy(image->strings + at, name);
    image->section[STRTAB].sh_size += strlen(name) + 1;
    image->section[SYMTAB].sh_size += sizeof *symbol;
    *symbol = (Elf64_Sym){.st_name = (Elf64_Word)at,
                          .st_info = ELF64_ST_INFO(binding, type),
                          .st_shndx = TEXT,
                          .st_value = TEXT_START + start,
                          .st_size = bytes};
    return symbol;
}

static Elf64_Sym *add(struct image *image, const char *name, uint64_t start, uint64_t bytes) {
    return add_as(image, name, start, bytes, STB_GLOBAL, STT_FUNC);
}

/* The range that make_map reports as moved; none if it is empty. */
static struct hl_text_range in_memory;

/* The map of the first FILE_BYTES of IMAGE, which is freed, for N ranges that count from the text; the result
   of reading through RESULT. */
static char *make_map(struct image *image, size_t file_bytes, const struct hl_text_range *range, size_t n,
                      int *result) {
    static char lines[65536];
    struct hl_text_range moved[8];
    struct hl_symbols symbols;
    struct hl_map_text text;
    int fd = memfd_create("image", MFD_CLOEXEC);
    assert_int_equal(write(fd, image, file_bytes), file_bytes);
    for (size_t i = 0; i < n; i++)
        moved[i] =
            (struct hl_text_range){BIAS + TEXT_START + range[i].start, BIAS + TEXT_START + range[i].end};
    hl_begin_symbols(&symbols, BIAS);
    symbols.moved = &in_memory;
    symbols.n_moved = in_memory.end > in_memory.start;
    *result = hl_read_symbols(&symbols, fd);
    assert_int_equal(hl_choose_symbols(&symbols), 0);
    hl_begin_map(&text, -1);
    hl_write_symbols(&text, &symbols, moved, n);
    assert_int_equal(hl_finish_map(&text), 0);
    assert_true(text.filled < sizeof lines && text.filled >= 2 * MARK_BYTES);
    assert_memory_equal(text.at, HL_MAP_MARK, MARK_BYTES);
    assert_memory_equal(text.at + text.filled - MARK_BYTES, HL_MAP_MARK, MARK_BYTES);
    memcpy(lines, text.at + MARK_BYTES, text.filled - 2 * MARK_BYTES);
    lines[text.filled - 2 * MARK_BYTES] = '\0';
    hl_free_map(&text);
    hl_free_symbols(&symbols);
    close(fd);
    free(image);
    return lines;
}

static void assert_map(struct image *image, const char *expected) {
    const struct hl_text_range all = {0, TEXT_BYTES};
    int result;
    assert_string_equal(make_map(image, sizeof *image, &all, 1, &result), expected);
    assert_int_equal(result, 0);
}

#define THREE_LINES                                                                                          \
    "7f0000001000 4 first function\n"                                                                        \
    "7f0000001010 4 second\n"                                                                                \
    "7f0000001020 4 third one\n"

/* An image whose .dynsym and .dynstr are loaded, and a copy of it in memory where they are; the caller frees
   both. */
static struct image *new_loaded(struct image **memory) {
    struct image *image = new_image();
    add(image, "third one", 0x20, 4);
    add(image, "first function", 0, 4);
    add(image, "second", 0x10, 4);
    *memory = malloc(sizeof **memory);
    assert_non_null(*memory);
    image->section[SYMTAB].sh_type = SHT_DYNSYM;
    for (unsigned i = SYMTAB; i <= STRTAB; i++) {
        image->section[i].sh_flags = SHF_ALLOC;
        image->section[i].sh_addr = (uint64_t)*memory + image->section[i].sh_offset - BIAS;
    }
    memcpy(*memory, image, sizeof *image);
    return image;
}

/* Without a table of symbols, and without sections. */
static void test_no_symbols(void **state) {
    (void)state;
    struct image *image = new_image();
    image->section[SYMTAB].sh_type = SHT_NULL;
    assert_map(image, "");
    image = new_image();
    image->header.e_shoff = 0;
    image->header.e_shnum = 0;
    assert_map(image, "");
}

/* Tables in moved memory are not read from the file, wherever they begin. */
static void test_moved_tables(void **state) {
    (void)state;
    for (size_t from = offsetof(struct image, symbol); from < offsetof(struct image, strings) + 33; from++) {
        struct image *memory, *image = new_loaded(&memory);
        size_t read = from - offsetof(struct image, strings);
        if (from <= offsetof(struct image, strings))
            read = 0;
        else
            read += strlen(image->strings + read) + 1;
        memset(image->strings + read, 'X', sizeof image->strings - read);
        if (from == offsetof(struct image, symbol))
            memset(image->symbol, 0, sizeof image->symbol);
        memset(memory, 'Y', from);
        in_memory = (struct hl_text_range){(uint64_t)memory + from, (uint64_t)memory + sizeof *memory};
        assert_map(image, THREE_LINES);
        free(memory);
    }
    in_memory.end = 0;
}

/* Names whose table does not end in moved memory, or not with a zero byte, and tables that are not loaded,
   are read from the file; so are symbols that are not all there. */
static void test_half_moved_tables(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct image *memory, *image = new_loaded(&memory);
        Elf64_Shdr *strings = &image->section[STRTAB];
        uint64_t end = (uint64_t)(memory + 1);
        memset(memory->strings, 'Y', sizeof memory->strings);
        memory->strings[strings->sh_size - 1] = i == 3 ? 'Y' : '\0';
        if (i == 0)
            end = (uint64_t)memory->strings + strings->sh_size - 1;
        else if (i == 1)
            strings->sh_flags = 0;
        else if (i == 2)
            end = (uint64_t)&memory->symbol[2];
        if (i == 2)
            memset(&memory->symbol[2], 0, sizeof memory->symbol[2]);
        in_memory = (struct hl_text_range){(uint64_t)memory, end};
        assert_map(image, THREE_LINES);
        free(memory);
    }
    in_memory.end = 0;
}

/* So large that it ends in moved memory, but before it begins. */
static void test_moved_table_that_overflows(void **state) {
    (void)state;
    const struct hl_text_range all = {0, TEXT_BYTES};
    struct image *memory, *image = new_loaded(&memory);
    Elf64_Shdr *strings = &image->section[STRTAB];
    int result;
    strings->sh_addr += sizeof memory->strings;
    strings->sh_size = -(uint64_t)64;
    in_memory = (struct hl_text_range){(uint64_t)memory, (uint64_t)(memory + 1)};
    assert_string_equal(make_map(image, sizeof *image, &all, 1, &result), "");
    assert_int_equal(result, -ENOEXEC);
    free(memory);
    in_memory.end = 0;
}

/* A name must not begin a line of its own. */
static void test_wild_names(void **state) {
    (void)state;
    struct image *image = new_image();
    add(image, "a\n1000 20 forged\x7f\x1b[2J", 0, 0x10);
    add(image, "caf\xc3\xa9, two words and more of them", 0x10, 0x10);
    add(image, "", 0x20, 0x10);
    assert_map(image, "7f0000001000 10 a?1000 20 forged??[2J\n"
                      "7f0000001010 10 caf\xc3\xa9, two words and more of them\n");
}

/* Each is refused, and nothing outside the file is read. */
static void break_magic(struct image *i) { i->header.e_ident[0] = 0; }
static void break_class(struct image *i) { i->header.e_ident[EI_CLASS] = ELFCLASS32; }
static void break_order(struct image *i) { i->header.e_ident[EI_DATA] = ELFDATA2MSB; }
static void break_machine(struct image *i) { i->header.e_machine = EM_PPC64; }
static void break_type(struct image *i) { i->header.e_type = ET_REL; }
static void break_shoff(struct image *i) { i->header.e_shoff = UINT64_MAX - 8; }
static void break_shoff_end(struct image *i) { i->header.e_shoff = sizeof *i - 64; }
static void break_shentsize(struct image *i) { i->header.e_shentsize = 1; }
static void break_shnum(struct image *i) {
    i->header.e_shnum = 0;
    i->section[NONE].sh_size = UINT64_MAX / sizeof(Elf64_Shdr);
}
static void break_entsize(struct image *i) { i->section[SYMTAB].sh_entsize = 0; }
static void break_link(struct image *i) { i->section[SYMTAB].sh_link = 0xffffff; }
static void break_loop(struct image *i) { i->section[SYMTAB].sh_link = SYMTAB; }
static void break_symbols(struct image *i) { i->section[SYMTAB].sh_size = sizeof(Elf64_Sym) << 32; }
static void break_symbols_end(struct image *i) { i->section[SYMTAB].sh_size = sizeof *i; }
static void break_symbols_at(struct image *i) { i->section[SYMTAB].sh_offset = UINT64_MAX - 24; }
static void break_strings(struct image *i) { i->section[STRTAB].sh_size = UINT64_MAX; }
static void break_strings_at(struct image *i) { i->section[STRTAB].sh_offset = UINT64_MAX; }

static void test_refused(void **state) {
    (void)state;
    static void (*const breaks[])(struct image *) = {
        break_magic,     break_class,       break_order,      break_machine, break_type,       break_shoff,
        break_shoff_end, break_shentsize,   break_shnum,      break_entsize, break_link,       break_loop,
        break_symbols,   break_symbols_end, break_symbols_at, break_strings, break_strings_at,
    };
    const struct hl_text_range all = {0, TEXT_BYTES};
    for (size_t i = 0; i < T_COUNT(breaks); i++) {
        int result;
        struct image *image = new_image();
        add(image, "function", 0, 0x10);
        breaks[i](image);
        make_map(image, sizeof *image, &all, 1, &result);
        if (result != -ENOEXEC)
            fail_msg("break %zu: %d", i, result);
    }
}

/* Cut at every byte: an error, or fewer lines, never a fault. */
static void test_truncated(void **state) {
    (void)state;
    const struct hl_text_range all = {0, TEXT_BYTES};
    for (size_t bytes = 0; bytes <= offsetof(struct image, strings) + 64; bytes++) {
        struct image *image = new_image();
        int result;
        add(image, "function", 0, 0x10);
        image->section[NAMES].sh_size = 1;
        image->section[NAMES].sh_offset = 0;
        const char *lines = make_map(image, bytes, &all, 1, &result);
        bool whole = bytes >= offsetof(struct image, strings) + sizeof "\0function";
        assert_int_equal(result, whole ? 0 : -ENOEXEC);
        assert_string_equal(lines, whole ? "7f0000001000 10 function\n" : "");
    }
}

/* In a program that has none of the standard descriptors. */
static void test_not_standard_error(void **state) {
    (void)state;
    char path[] = "/tmp/hugeld-XXXXXX";
    assert_non_null(mkdtemp(path));
    int folder = open(path, O_PATH | O_DIRECTORY), kept = fcntl(0, F_DUPFD, 10);
    struct hl_new_map map;
    close(0);
    int result = hl_create_map(&map, folder, 1), fd = map.fd, free_again = open("/dev/null", O_RDONLY);
    dup2(kept, 0);
    close(kept);
    assert_int_equal(result, 0);
    assert_true(fd > 2);
    assert_int_equal(free_again, 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    hl_drop_map(&map);
    close(folder);
    assert_int_equal(rmdir(path), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_symbols),         cmocka_unit_test(test_moved_tables),
        cmocka_unit_test(test_half_moved_tables),  cmocka_unit_test(test_moved_table_that_overflows),
        cmocka_unit_test(test_wild_names),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_truncated),

        cmocka_unit_test(test_not_standard_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
