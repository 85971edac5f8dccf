/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether transparent huge pages are allowed: by the administrator for all, and by the process that started this
   process for this one. */
#include "thp.h"
#include "line.h"

/* Whether WORD is chosen in a sysfs choice like "always [madvise] never". */
static bool is_chosen(const char *choice, const char *word) {
    size_t bytes = hl_strlen(word);
    for (; *choice != '\0'; choice++)
        if (*choice == '[')
            return hl_strlen(choice) > bytes + 1 && hl_same_bytes(choice + 1, word, bytes) &&
                   choice[bytes + 1] == ']';
    return false;
}

int hl_check_thp_policy(const struct hl_roots *roots, const struct hl_geometry *geometry,
                        const struct hl_status *status) {
    struct hl_line path;
    char choice[256];
    hl_set_line(&path, roots->sys);
    hl_add_text(&path, "/kernel/mm/transparent_hugepage/");
    size_t directory_bytes = path.bytes;

    /* Since Linux 6.8 each size has a setting of its own, which may inherit the general one. */
    hl_add_text(&path, "hugepages-");
    hl_add_number(&path, geometry->huge_page_bytes / 1024);
    hl_add_text(&path, "kB/enabled");
    if (hl_read_line(path.at, choice, sizeof choice) <= 0 || is_chosen(choice, "inherit")) {
        path.bytes = directory_bytes;
        hl_add_text(&path, "enabled");
        if (hl_read_line(path.at, choice, sizeof choice) <= 0)
            return HL_REASON_THP_NEVER;
    }
    if (is_chosen(choice, "never"))
        return HL_REASON_THP_NEVER;
    return status->thp_disabled ? HL_REASON_THP_DISABLED : 0;
}
