/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/lib/remedy.h"
#include "command/lib/basics.h"

#include <stdlib.h>
#include <string.h>

char *hl_name_file(const char *remedy, const char *path) {
    const char *word = strstr(remedy, "FILE");
    if (word == NULL)
        return hl_xasprintf("%s", remedy);
    char *quoted = hl_xasprintf("%s", "");
    hl_add_word(&quoted, path);
    char *named = hl_xasprintf("%.*s%s%s", (int)(word - remedy), remedy, quoted, word + strlen("FILE"));
    free(quoted);
    return named;
}

char *hl_explain_reason(enum hl_reason reason, const char *path) {
    const char *remedy = hl_reason_remedy(reason);
    if (remedy == NULL)
        return hl_xasprintf("%s", hl_reason_sentence(reason));
    char *named = hl_name_file(remedy, path);
    char *text = hl_xasprintf("%s; %s", hl_reason_sentence(reason), named);
    free(named);
    return text;
}
