/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The words of skip.def, and of the kinds of span. */
#include "skip.h"
#include "line.h"

#include <stddef.h>

struct row {
    const char *name, *sentence, *remedy;
};

static const struct row rows[HL_SKIP_COUNT] = {
    [HL_MOVED] = {"moved", "it moved", "none"},
#define SKIP(id, name, sentence, remedy) [HL_SKIP_##id] = {name, sentence, remedy},
#include "skip.def"
#undef SKIP
};

const char *hl_skip_name(enum hl_skip skip) { return rows[skip].name; }
const char *hl_skip_sentence(enum hl_skip skip) { return rows[skip].sentence; }

const char *hl_skip_remedy(enum hl_skip skip) {
    const char *remedy = rows[skip].remedy;
    return hl_same_bytes(remedy, "none", sizeof "none") ? NULL : remedy;
}

const char *hl_kind_name(enum hl_kind kind) {
    static const char *const names[HL_KINDS] = {"text", "rodata", "data", "bss"};
    return names[kind];
}
