/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The words of reason.def, and of the kinds of span. */
#include "reason.h"
#include "line.h"

#include <stddef.h>

struct row {
    const char *name, *sentence, *remedy;
};

static const struct row rows[HL_REASON_COUNT] = {
    [HL_MOVED] = {"moved", "it moved", "none"},
#define REASON(id, name, sentence, remedy) [HL_REASON_##id] = {name, sentence, remedy},
#include "reason.def"
#undef REASON
};

const char *hl_reason_name(enum hl_reason reason) { return rows[reason].name; }
const char *hl_reason_sentence(enum hl_reason reason) { return rows[reason].sentence; }

const char *hl_reason_remedy(enum hl_reason reason) {
    const char *remedy = rows[reason].remedy;
    return hl_same_bytes(remedy, "none", sizeof "none") ? NULL : remedy;
}

const char *hl_kind_name(enum hl_kind kind) {
    static const char *const names[HL_KINDS] = {"text", "rodata", "data", "bss"};
    return names[kind];
}
