/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file's symbols as a perf map: with any contents of the file, the lines ascend, don't overlap, stay inside
   the moved text, and each is one line; the mark stands on both sides of them.  A reader that gets the file in
   small pieces writes the same; one from which it is cut off meanwhile still writes lines, and so does one that
   finds some of the file in memory. */
#include "elf/rewrites.h"

#include "fuzz.h"

#include "perf-maps/write.h"

#include <errno.h>

#define RANGES 3
#define MARK_BYTES (sizeof HL_MAP_MARK - 1)

/* Checks one line at AT and moves it behind. */
static void check_line(const char **at, const char *end, uint64_t *last, const struct hl_text_range *range) {
    char *after;
    uint64_t start = strtoull(*at, &after, 16);
    assert_true(after > *at && *after == ' ');
    const char *size = after + 1;
    uint64_t bytes = strtoull(size, &after, 16);
    assert_true(after > size && *after == ' ' && bytes > 0);
    const char *name = after + 1, *newline = memchr(name, '\n', (size_t)(end - name));
    assert_true(newline != NULL && newline - name >= 3);
    for (const char *c = name; c < newline; c++)
        assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
    assert_true(start >= *last && start + bytes > start);
    *last = start + bytes;
    bool inside = false;
    for (unsigned i = 0; i < RANGES; i++)
        inside = inside || (start >= range[i].start && *last <= range[i].end);
    assert_true(inside);
    *at = newline + 1;
}

/* The map's text, terminated, which the caller frees. */
static char *write_map(int fd, uint64_t bias, const struct hl_text_range *range,
                       const struct hl_text_range *moved) {
    struct hl_symbols symbols;
    struct hl_map_text text;
    hl_begin_symbols(&symbols, bias);
    symbols.moved = moved;
    symbols.n_moved = moved != NULL;
    int result = hl_read_symbols(&symbols, fd);
    assert_true(result == 0 || result == -ENOEXEC || result == -ENOMEM);
    result = hl_choose_symbols(&symbols);
    assert_true(result == 0 || result == -ENOEXEC || result == -ENOMEM);
    for (size_t i = 1; i < symbols.n_chosen; i++)
        assert_true(symbols.symbol[symbols.chosen[i - 1]].start < symbols.symbol[symbols.chosen[i]].start);
    hl_begin_map(&text, -1);
    result = hl_write_symbols(&text, &symbols, range, RANGES);
    assert_true(result == 0 || result == -ENOEXEC);
    hl_finish_map(&text);
    assert_true(text.filled < HL_TEXT_PER_FILE * symbols.file_bytes + (2 << 20));
    assert_int_equal(text.result, 0);
    const char *at = text.at + MARK_BYTES, *end = text.at + text.filled - MARK_BYTES;
    assert_true(at <= end && memcmp(text.at, HL_MAP_MARK, MARK_BYTES) == 0 &&
                memcmp(end, HL_MAP_MARK, MARK_BYTES) == 0);
    uint64_t last = 0, lines = 0;
    while (at < end) {
        check_line(&at, end, &last, range);
        lines++;
    }
    assert_int_equal(lines, text.lines);
    char *copy = malloc(text.filled + 1);
    memcpy(copy, text.at, text.filled);
    copy[text.filled] = '\0';
    hl_free_map(&text);
    hl_free_symbols(&symbols);
    return copy;
}

/* Pretends that the last BYTES of the file are in memory, where nothing else is. */
static void write_with_moved(int fd, const struct t_input *file, size_t bytes,
                             const struct hl_text_range *range, uint64_t bias) {
    struct hl_text_range shifted[RANGES], moved;
    char *memory = malloc(bytes);
    moved.start = (uint64_t)memory;
    moved.end = moved.start + bytes;
    memcpy(memory, file->at + file->bytes - bytes, bytes);
    uint64_t loaded = moved.end - file->bytes;
    for (unsigned i = 0; i < RANGES; i++) {
        shifted[i].start = range[i].start - bias + loaded;
        shifted[i].end = range[i].end - bias + loaded;
    }
    free(write_map(fd, loaded, shifted, &moved));
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct t_input input = {data, bytes};
    struct hl_text_range range[RANGES];
    uint64_t at = 0, bias = t_take_byte(&input) % 4 * UINT64_C(0x2aaaaaaaa000);
    unsigned piece = t_take_byte(&input), ends = t_take_byte(&input);
    for (unsigned i = 0; i < RANGES; i++) {
        range[i].start = at += (uint64_t)t_take_byte(&input) << 8;
        range[i].end = at += (uint64_t)t_take_byte(&input) << (i + 1 < RANGES ? 8 : 40);
        range[i].start += bias;
        range[i].end += bias;
    }
    int number = t_add_file("hostile", input.at, input.bytes);
    char *map = write_map(T_FIRST_FILE + number, bias, range, NULL);
    const struct hl_mark *mark = hl_find_mark(T_FIRST_FILE + number);
    if (piece > 127) {
        t_read_most = piece - 126;
        char *in_pieces = write_map(T_FIRST_FILE + number, bias, range, NULL);
        assert_true(strcmp(map, in_pieces) == 0);
        free(in_pieces);
        hl_find_mark(T_FIRST_FILE + number);
        t_read_most = 0;
    }
    write_with_moved(T_FIRST_FILE + number, &input, input.bytes * (ends + 1) / 256, range, bias);
    if (ends > 0) {
        t_file_ends = input.bytes * ends / 256;
        free(write_map(T_FIRST_FILE + number, bias, range, NULL));
        hl_find_mark(T_FIRST_FILE + number);
        t_file_ends = SIZE_MAX;
    }
    assert_true(mark == hl_find_mark(T_FIRST_FILE + number));
    free(map);
    t_end_world();
    return 0;
}
