/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the instructions by which a thread makes calls for us. */
#include "command/inject/machine.h"

#include <stdint.h>
#include <string.h>

#if defined __x86_64__

/* 16 bytes, wherever they lie, compared at once on every machine. */
typedef uint8_t lanes __attribute__((vector_size(16)));
typedef uint64_t halves __attribute__((vector_size(16)));

/* The first SYSCALL instruction, or bytes that look like one, in [at, end); END: there are none. */
static const char *find_syscall(const char *at, const char *end) {
    lanes first, second;
    for (; end - at > (ptrdiff_t)sizeof first; at += sizeof first) {
        memcpy(&first, at, sizeof first);
        memcpy(&second, at + 1, sizeof second);
        halves found = (halves)((first == 0x0f) & (second == 0x05));
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
