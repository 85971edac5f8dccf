/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The list of what an administrator wants to be shared: /etc/hugeld/shared, a path or a glob a line; '#' begins a line that is
   a comment. */
#ifndef HL_SHARED_LIST_H
#define HL_SHARED_LIST_H

#include <stdbool.h>
#include <stddef.h>

#define HL_SHARED_LIST "/etc/hugeld/shared"

/* Its entries, which hl_free_list frees; none where there is no list.  0 or a negated errno. */
int hl_read_list(char ***entry, size_t *n);
void hl_free_list(char **entry, size_t n);

/* Adds the line PATH, and makes the list if there is none; or takes away each line that is PATH.  Everything else in the list
   stays as it is, and whoever reads it meanwhile sees it whole.  *CHANGED: whether there was anything to do.  0 or a negated
   errno. */
int hl_add_to_list(const char *path, bool *changed);
int hl_take_from_list(const char *path, bool *changed);

#endif
