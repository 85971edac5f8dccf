/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the fuzzing targets: the checks, the input, and the files that the core finds. */
#ifndef T_FUZZ_H
#define T_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf/hugeld.h"
#include "elf/kernel.h"
#include "elf/options.h"

#define T_PAGE ((uint64_t)4096)
#define T_HUGE ((uint64_t)2 << 20)
#define T_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct hl_geometry t_geometry = {T_PAGE, T_HUGE};

/* A check that fails is a crash, which the fuzzer reports. */
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#define assert_true(x)                                                                                       \
    do {                                                                                                     \
        if (!(x))                                                                                            \
            fail_msg("%s:%d: not so: %s", __FILE__, __LINE__, #x);                                           \
    } while (0)
#define assert_false(x) assert_true(!(x))
#define assert_int_equal(a, b) assert_true((uint64_t)(a) == (uint64_t)(b))
#define assert_memory_equal(a, b, bytes) assert_true(memcmp(a, b, bytes) == 0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* An input, eaten from the front. */
struct t_input {
    const uint8_t *at;
    size_t bytes;
};

/* Copies BYTES to TO, zeros where the input has ended. */
static inline void t_take(struct t_input *input, void *to, size_t bytes) {
    size_t some = bytes < input->bytes ? bytes : input->bytes;
    memset(to, 0, bytes);
    if (some > 0)
        memcpy(to, input->at, some);
    input->at += some;
    input->bytes -= some;
}

static inline unsigned t_take_byte(struct t_input *input) {
    uint8_t byte;
    t_take(input, &byte, 1);
    return byte;
}

/* A new terminated copy of the bytes before the next zero byte, which is eaten too. */
static inline char *t_take_text(struct t_input *input) {
    size_t bytes = strnlen((const char *)input->at, input->bytes);
    char *text = malloc(bytes + 1);
    t_take(input, text, bytes);
    text[bytes] = '\0';
    if (input->bytes > 0)
        t_take_byte(input);
    return text;
}

/* From now on a file that the core opens whose path ends with PATH has these BYTES, at most T_FILES of
   them. The first that fits is taken; a path that fits none does not exist.  A descriptor of it is
   T_FIRST_FILE + the number given back. */
#define T_FILES 32
#define T_FIRST_FILE 1000
int t_add_file(const char *path, const void *data, size_t bytes);
/* Forgets all files, and checks that the core has closed its files and unmapped its mappings. */
void t_end_world(void);
/* No read gives more than BYTES at once; 0: as many as asked for. */
extern size_t t_read_most;
/* pread finds the end of the file here, despite the size from statx: the file has shrunk. */
extern size_t t_file_ends;

#endif
