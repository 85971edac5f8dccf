/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pages that one program needs in the pool: hugeld's and the program's own. */
#ifndef HL_DOCTOR_PROGRAM_H
#define HL_DOCTOR_PROGRAM_H

#include "command/base/common.h"
#include "command/doctor/store.h"
#include "command/image/find.h"
#include "command/doctor/own-pages.h"
#include "command/file/launcher.h"
#include "elf/pool.h"
#include "command/verdict/verdict.h"

#define HL_OWN_PAGES_UNKNOWN SIZE_MAX

/* The user's request. */
struct hl_needs_request {
    const char *patterns; /* -p, or NULL */
    const char *options;  /* every -o, joined, without a mistake; or NULL */
    size_t own_pages;     /* --own-pages, or HL_OWN_PAGES_UNKNOWN */
    bool makes_copy;      /* --copy */
    char **program;       /* its argv, NULL-terminated */
};

/* A selected object. */
struct hl_need {
    char *path;
    uint64_t pages_min, pages_max; /* on hugetlb: the range over its load addresses */
    struct hl_found_image image;   /* if it is used, nothing is taken from the pool */
    struct hl_verdict verdict;
};

struct hl_needs {
    struct hl_program program; /* the named one */
    struct hl_target target;   /* the one that it starts */
    const char *executable;    /* of target */
    bool is_running;           /* a process was named */
    bool makes_copy; /* of objects that are not shared: --copy was given, or libhugeld.so is preloaded by
                        hand */
    char *reason;    /* why hugeld takes nothing, or does not count everything; or NULL */
    bool idle;       /* hugeld does nothing in it */
    bool fits;       /* a whole huge page lies inside a selected object */
    struct hl_options options;
    char *options_text;
    struct hl_geometry geometry;
    struct hl_pool pool;
    size_t n_objects;
    struct hl_need *object;
    struct hl_own_pages own;
    uint64_t our_pages_min, our_pages_max, needed_pages, available_pages;
    uint64_t image_pages;        /* mapped from images */
    struct hl_store_state store; /* in which images are made */
    bool falls_back;             /* if the pool lacks pages, only hugeld does without */
    bool enough;  /* the pool has NEEDED_PAGES for a process started from here, now, or hugeld falls back */
    char *remedy; /* the command or option that fixes it; NULL if ENOUGH */
};

/* Fills NEEDS in.  0, or the exit code for wrong use, after a message.  hl_free_needs frees NEEDS in both cases; until then it must
   not be moved. */
int hl_find_needs(struct hl_needs *needs, const struct hl_needs_request *request);
void hl_free_needs(struct hl_needs *needs);

void hl_print_needs(const struct hl_needs *needs);
json_t *hl_json_needs(const struct hl_needs *needs);

#endif
