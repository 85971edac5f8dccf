/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a store of images is like, for doctor. */
#ifndef HL_DOCTOR_STORE_H
#define HL_DOCTOR_STORE_H

#include "command/base/common.h"

struct hl_store_state {
    char *path;
    int result;        /* 0; -ENOENT: there is none; -EACCES: no process uses it; or another negated errno */
    char *type, *huge; /* "tmpfs" or another; a tmpfs's huge=, or NULL */
    bool is_system, noexec, noswap;
    dev_t device;
    uint64_t bytes, free_bytes; /* UINT64_MAX: nothing limits it */
    uint64_t images, stale; /* how many; of which the file is another one now, or gone, or which are broken */
};

/* Looks at the store at PATH, as a process of this user would; hl_free_store_state frees what STATE has. */
void hl_examine_store(struct hl_store_state *state, const char *path, const struct hl_geometry *geometry);
void hl_free_store_state(struct hl_store_state *state);

/* The stores that a process of this user looks into, with these OPTIONS: one or two of STATE.  How many. */
unsigned hl_examine_stores(struct hl_store_state *state, const struct hl_options *options,
                           const struct hl_geometry *geometry);
#define HL_STORES_MAX 2

/* What is said of it, which the caller frees; *REMEDY: what has to be done, which the caller frees, or NULL. */
char *hl_describe_store(const struct hl_store_state *state, const struct hl_geometry *geometry,
                        char **remedy);

json_t *hl_json_store(const struct hl_store_state *state);

#endif
