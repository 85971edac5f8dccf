/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The data that writable.c has and early.c writes to before libhugeld.so looks at it. */
#include <stddef.h>
#include <stdint.h>

/* Each begins and ends inside a huge page, wherever it is linked to. */
#define DATA_WORDS (6 * 131072 + 1234)
#ifndef BSS_WORDS
#define BSS_WORDS (5 * 131072 + 4321)
#endif
extern uint64_t much_data[], much_bss[];

/* The value of the I-th word, told by WHO. */
static inline uint64_t pattern(uint64_t i, uint64_t who) {
    return (i + 1 + (who << 40)) * 0x9e3779b97f4a7c15;
}

static inline void fill(uint64_t *at, size_t words, uint64_t who) {
    for (size_t i = 0; i < words; i++)
        at[i] = pattern(i, who);
}

/* How many words differ from those that fill() wrote. */
static inline size_t count_wrong(const uint64_t *at, size_t words, uint64_t who) {
    size_t wrong = 0;
    for (size_t i = 0; i < words; i++)
        wrong += at[i] != pattern(i, who);
    return wrong;
}
