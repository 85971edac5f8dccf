/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The little that has to be known of x86-64 machine code. */
#ifndef HL_CODE_H
#define HL_CODE_H

#include <stdbool.h>
#include <stddef.h>

/* "jmp rel32" */
#define HL_JUMP_BYTES 5

/* Whether CODE, COUNT bytes of it (16 are enough), is that of a function that only returns, with room for a
   jump in it or in the padding behind it.  Pure; reads nothing beyond. */
bool hl_is_empty_function(const unsigned char *code, size_t count);

#endif
