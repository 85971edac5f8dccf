/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the unit tests: cmocka, this machine's usual page sizes, and made-up trees of files. */
#ifndef T_UNIT_H
#define T_UNIT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "elf/hugeld.h"
#include "elf/options.h"

#define T_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define T_PAGE ((uint64_t)4096)
#define T_HUGE ((uint64_t)2 << 20)

static const struct hl_geometry t_geometry = {T_PAGE, T_HUGE};

/* Marsaglia's xorshift64*: the same numbers in every run, so a failure can be found again. */
static inline uint64_t t_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
