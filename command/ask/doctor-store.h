/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The state of a store of images, for doctor. */
#ifndef HL_DOCTOR_STORE_H
#define HL_DOCTOR_STORE_H

#include "command/lib/common.h"

struct hl_store_state {
    char *path;
    int result;        /* 0; -ENOENT: there is none; -EACCES: no process uses it; or another negated errno */
    char *type, *huge; /* "tmpfs", and its huge=; NULL: not known */
    bool is_system, noexec, noswap;
    dev_t device;
    uint64_t bytes, free_bytes; /* UINT64_MAX: nothing limits it */
    uint64_t images, stale; /* how many; how many of them are broken, or their file has changed or is gone */
};

/* Frees STATE's texts. */
void hl_free_store_state(struct hl_store_state *state);

/* Examines the stores that a process of this user looks into with these OPTIONS: one or two of STATE.  Returns their number. */
unsigned hl_examine_stores(struct hl_store_state *state, const struct hl_options *options,
                           const struct hl_geometry *geometry);
#define HL_STORES_MAX 2

/* A sentence about it, and *REMEDY, which may be NULL; the caller frees both. */
char *hl_describe_store(const struct hl_store_state *state, const struct hl_geometry *geometry,
                        char **remedy);

json_t *hl_json_store(const struct hl_store_state *state);

#endif
