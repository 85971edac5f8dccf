/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Recognises a function that does nothing, and the padding that compilers and assemblers put behind one.
   Code that is not known for certain is taken for the program's. */
#include "jump.h"
#include "elf/line.h"

#if defined __x86_64__
/* Bytes of the instruction at CODE that does nothing; 0 if there is none. COUNT bytes can be read. */
static size_t measure_nop(const unsigned char *code, size_t count) {
    size_t i = 0;
    while (i < count && (code[i] == 0x66 || code[i] == 0x2e)) /* prefixes */
        i++;
    if (i < count && (code[i] == 0x90 || (code[i] == 0xcc && i == 0)))
        return i + 1;
    if (i + 2 >= count || code[i] != 0x0f || code[i + 1] != 0x1f) /* nop with an operand that is not used */
        return 0;
    unsigned mode = code[i + 2] >> 6;
    bool has_sib = (code[i + 2] & 7) == 4;
    i += 3 + has_sib + (mode == 1 ? 1 : mode == 2 ? 4 : 0);
    return mode == 3 || i > count ? 0 : i;
}

bool hl_is_empty_function(const unsigned char *code, size_t count) {
    static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    size_t i = 0;
    if (count >= sizeof endbr64 && hl_same_bytes((const char *)code, (const char *)endbr64, sizeof endbr64))
        i = sizeof endbr64;
    if (i >= count || code[i++] != 0xc3)
        return false;
    for (size_t bytes = 1; i < HL_JUMP_BYTES && bytes > 0; i += bytes)
        bytes = measure_nop(code + i, count - i);
    return i >= HL_JUMP_BYTES;
}

bool hl_make_jump(unsigned char jump[HL_JUMP_BYTES], uint64_t from, uint64_t to) {
    int64_t distance = (int64_t)(to - (from + HL_JUMP_BYTES));
    if (distance != (int32_t)distance)
        return false;
    jump[0] = 0xe9;
    for (unsigned i = 0; i < 4; i++)
        jump[1 + i] = (unsigned char)((uint64_t)distance >> 8 * i);
    return true;
}

#elif defined __aarch64__

static uint32_t read_instruction(const unsigned char *code) {
    return code[0] | (uint32_t)code[1] << 8 | (uint32_t)code[2] << 16 | (uint32_t)code[3] << 24;
}

bool hl_is_empty_function(const unsigned char *code, size_t count) {
    const uint32_t bti_c = 0xd503245f, ret = 0xd65f03c0;
    size_t i = count >= 4 && read_instruction(code) == bti_c ? 4 : 0;
    return count >= i + 4 && read_instruction(code + i) == ret;
}

bool hl_make_jump(unsigned char jump[HL_JUMP_BYTES], uint64_t from, uint64_t to) {
    const int64_t reach = 128 << 20;
    int64_t distance = (int64_t)(to - from);
    if (distance % 4 != 0 || distance < -reach || distance >= reach)
        return false;
    uint32_t b = 0x14000000 | ((uint32_t)((uint64_t)distance >> 2) & 0x3ffffff);
    for (unsigned i = 0; i < 4; i++)
        jump[i] = (unsigned char)(b >> 8 * i);
    return true;
}

#endif
