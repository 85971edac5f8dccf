/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the instructions by which a thread makes calls for us. */
#include "command/inject/machine.h"

#include <stdint.h>
#include <string.h>

#if defined __x86_64__

/* 16 bytes, wherever they lie, compared at once on every machine. */
typedef uint8_t lanes __attribute__((vector_size(16)));
typedef uint64_t halves __attribute__((vector_size(16)));
#define LANES (sizeof(lanes))

/* Where in the 16 bytes at AT a SYSCALL instruction begins; another byte follows them. */
static inline lanes compare_with_syscall(const char *at) {
    lanes first, second;
    memcpy(&first, at, sizeof first);
    memcpy(&second, at + 1, sizeof second);
    return (lanes)((first == 0x0f) & (second == 0x05));
}

/* The first SYSCALL instruction, or bytes that look like one, in [at, end); END: there are none. */
static const char *find_syscall(const char *at, const char *end) {
    for (; end - at > (ptrdiff_t)(4 * LANES); at += 4 * LANES) {
        halves found = (halves)(compare_with_syscall(at) | compare_with_syscall(at + LANES) |
                                compare_with_syscall(at + 2 * LANES) | compare_with_syscall(at + 3 * LANES));
        if ((found[0] | found[1]) != 0)
            break;
    }
    while (end - at >= 2 && memcmp(at, "\x0f\x05", 2) != 0)
        at++;
    return end - at >= 2 ? at : end;
}

/* This takes a tenth of memmem(3)'s time: text has few of these. */
const char *hl_find_code(const char *text, size_t bytes, const struct hl_code *code, size_t n,
                         const struct hl_code **found) {
    const char *end = text + bytes;
    for (const char *at = find_syscall(text, end); at != end; at = find_syscall(at + 1, end))
        for (size_t i = 0; i < n; i++) {
            size_t before = (size_t)(find_syscall(code[i].at, code[i].at + code[i].n) - code[i].at);
            *found = &code[i];
            if ((size_t)(at - text) >= before && (size_t)(end - at) >= code[i].n - before &&
                memcmp(at - before, code[i].at, code[i].n) == 0)
                return at - before;
        }
    return NULL;
}

/* So many bytes are searched at once, from both ends in turn: a libc comes last in a static program and in a dynamic linker,
   Go's runtime first. */
#define WINDOW_BYTES ((size_t)32 << 10)

/* Finds the instructions that call sigreturn in [from, from + WINDOW_BYTES) of TEXT; *CODE is their bytes. */
static const char *find_back(const char *text, size_t bytes, size_t from, const struct hl_code **code) {
    size_t n = bytes - from < WINDOW_BYTES + HL_CODE_BYTES ? bytes - from : WINDOW_BYTES + HL_CODE_BYTES;
    return hl_find_code(text + from, n, hl_back_codes, HL_BACK_CODES, code);
}

bool hl_find_codes(const char *text, size_t bytes, const char **call, const char **back,
                   const struct hl_code **back_code) {
    const struct hl_code *same;
    *call = *back = NULL;
    for (size_t front = 0, end = bytes; front < end && *back == NULL; front += WINDOW_BYTES) {
        end = end > WINDOW_BYTES ? end - WINDOW_BYTES : 0;
        *back = find_back(text, bytes, end, back_code);
        if (*back == NULL)
            *back = find_back(text, bytes, front, back_code);
    }
    size_t from = *back != NULL ? (size_t)(*back - text) + 1 : 0;
    for (size_t end = bytes; *call == NULL && from > 0; end = from + HL_CODE_BYTES) {
        from = from > WINDOW_BYTES ? from - WINDOW_BYTES : 0;
        *call = hl_find_code(text + from, end - from, &hl_call_code, 1, &same);
    }
    return *call != NULL;
}

#elif defined __aarch64__

const char *hl_find_code(const char *text, size_t bytes, const struct hl_code *code, size_t n,
                         const struct hl_code **found) {
    for (size_t at = 0; at < bytes; at += 4)
        for (size_t i = 0; i < n; i++) {
            *found = &code[i];
            if (bytes - at >= code[i].n && memcmp(text + at, code[i].at, code[i].n) == 0)
                return text + at;
        }
    return NULL;
}

#endif

bool hl_has_code(const struct hl_process *process, uint64_t at, const struct hl_code *code) {
    char found[HL_CODE_BYTES];
    const struct hl_region *region = hl_find_region(process, at);
    return region != NULL && region->flags == (PF_R | PF_X) && !region->shared &&
           hl_read_thread(process->pid, at, found, code->n) == 0 && memcmp(found, code->at, code->n) == 0;
}
