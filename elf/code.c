/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Recognises a function that does nothing, and the padding that compilers and assemblers put behind one. What
   is not known for certain is taken for somebody's code. */
#include "code.h"
#include "text.h"

/* Bytes of the instruction that does nothing at CODE, of which COUNT can be read; 0 if it is none. */
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
