/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The words of the command's own reasons. */
#include "elf/reason.h"

const struct hl_reason_words *hl_find_more_words(enum hl_reason reason) {
    static const struct hl_reason_words rows[] = {
#define REASON(id, name, sentence, remedy) {name, sentence, remedy},
#include "command/lib/reason.def"
#undef REASON
    };
    return &rows[reason - HL_REASON_COUNT - 1];
}
