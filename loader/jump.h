/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The few instructions that the loader has to know. */
#ifndef HL_JUMP_H
#define HL_JUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__
#define HL_JUMP_BYTES 5 /* "jmp rel32" */
#elif defined __aarch64__
#define HL_JUMP_BYTES 4 /* "b" */
#endif

/* Whether CODE, COUNT bytes of it (16 are enough), is that of a function that only returns, with room for
   a jump in it or in the padding behind it.  Pure; reads no byte beyond. */
bool hl_is_empty_function(const unsigned char *code, size_t count);

/* Writes the instruction that jumps to TO when it stands at FROM.  False if TO is too far: 2 GiB, on
   AArch64 128 MiB. */
bool hl_make_jump(unsigned char jump[HL_JUMP_BYTES], uint64_t from, uint64_t to);

#endif
