/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The words of reason.def, and of the kinds of span. */
#include "reason.h"
#include "line.h"

#include <stddef.h>

static const struct hl_reason_words rows[HL_REASON_COUNT] = {
    [HL_MOVED] = {"moved", "it moved", "none"},
#define REASON(id, name, sentence, remedy) [HL_REASON_##id] = {name, sentence, remedy},
#include "reason.def"
#undef REASON
};

__attribute__((weak)) const struct hl_reason_words *hl_find_more_words(enum hl_reason reason) {
    (void)reason;
    return &rows[HL_MOVED];
}

static const struct hl_reason_words *find_words(enum hl_reason reason) {
    return reason < HL_REASON_COUNT ? &rows[reason] : hl_find_more_words(reason);
}

const char *hl_reason_name(enum hl_reason reason) { return find_words(reason)->name; }
const char *hl_reason_sentence(enum hl_reason reason) { return find_words(reason)->sentence; }

const char *hl_reason_remedy(enum hl_reason reason) {
    const char *remedy = find_words(reason)->remedy;
    return hl_same_bytes(remedy, "none", sizeof "none") ? NULL : remedy;
}

const char *hl_kind_name(enum hl_kind kind) {
    static const char *const names[HL_KINDS] = {"text", "rodata", "data", "bss"};
    return names[kind];
}
