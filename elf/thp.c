/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether transparent huge pages are allowed: by the administrator for all, and by the process that started this
   process for this one. */
#include "thp.h"
#include "line.h"

#define CHOICE_BYTES 256

/* Whether WORD is chosen in a sysfs choice like "always [madvise] never". */
static bool is_chosen(const char *choice, const char *word) {
    size_t bytes = hl_strlen(word);
    for (; *choice != '\0'; choice++)
        if (*choice == '[')
            return hl_strlen(choice) > bytes + 1 && hl_same_bytes(choice + 1, word, bytes) &&
                   choice[bytes + 1] == ']';
    return false;
}

/* What is chosen in the setting of SIZE ("hugepages-2048kB/"), or with "" in the general one; false: there is none. */
static bool read_setting(const struct hl_roots *roots, const char *size, char choice[CHOICE_BYTES]) {
    struct hl_line path;
    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/kernel/mm/transparent_hugepage/");
    hl_add_text(&path, size);
    hl_add_text(&path, "enabled");
    return hl_read_line(path.at, choice, CHOICE_BYTES) > 0;
}

int hl_check_thp_policy(const struct hl_roots *roots, const struct hl_geometry *geometry,
                        const struct hl_status *status) {
    struct hl_line size;
    char choice[CHOICE_BYTES];
    hl_set_line(&size, "hugepages-");
    hl_add_number(&size, geometry->huge_page_bytes / 1024);
    hl_add_text(&size, "kB/");
    /* Since Linux 6.8 each size has a setting of its own, which may inherit the general one. */
    bool is_set = read_setting(roots, size.at, choice) && !is_chosen(choice, "inherit");
    if (!is_set)
        is_set = read_setting(roots, "", choice);
    if (!is_set || is_chosen(choice, "never"))
        return HL_REASON_THP_NEVER;
    return status->thp_disabled ? HL_REASON_THP_DISABLED : 0;
}
