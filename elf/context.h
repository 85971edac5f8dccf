/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pipeline's state: everything the core knows about the process that it works in. */
#ifndef HL_CONTEXT_H
#define HL_CONTEXT_H

#include "kernel.h"
#include "line.h"
#include "maps.h"
#include "pool.h"

enum hl_backend {
    HL_NO_BACKEND,
    HL_HUGETLB,
    HL_THP,
    HL_ADVISED, /* bss=thp: nothing moves, the kernel is told, after commit */
    HL_IMAGE,   /* of an image, which other processes map too */
    HL_BACKENDS
};

struct hl_range {
    uint64_t start, end;
};

/* A span on its way.  Prepare gives it new memory, commit brings that into place. */
struct hl_move {
    enum hl_backend backend;   /* HL_NO_BACKEND: the span stays */
    enum hl_reason reason;     /* why it stays */
    enum hl_reason no_hugetlb; /* backend=auto: why it is on thp; else HL_MOVED */
    int prot; /* the protection to be mapped with: the plan's, and PROT_BTI where the old text has it */
    struct hl_area area; /* the new memory, and maybe address space around it */
    uint64_t memory;     /* its scratch address, span-sized and filled; 0: there is none, or it is in place */
    int memfd;           /* if mremap can't bring it: the MFD_HUGETLB to map; else -1 */
    bool
        tried; /* commit: the call that brings the new memory into place was made, and may have changed that */
    bool placed; /* commit: the new memory is in place */
};

/* A selected object and all decisions about it. */
struct hl_work {
    struct hl_object object;
    struct hl_plan plan;
    enum hl_selection selection;
    enum hl_reason reason;   /* why the whole object stays; HL_MOVED otherwise */
    enum hl_reason no_image; /* why its read-only spans are not an image's; HL_MOVED: they are */
    struct hl_maps maps;     /* its place, when it was checked; nothing: not read, or it holds its place */
    struct hl_move move[HL_SPANS_MAX]; /* for each span of the plan */
};

/* Identifies the file of an open descriptor; all 0: none. */
struct hl_descriptor_id {
    uint64_t device, inode;
};

/* How hugeld was loaded into the process. */
enum hl_loader {
    HL_PRELOADER, /* selects main if LD_HUGEPAGES is unset */
    HL_LINKER     /* selects nothing then */
};

/* The settings and the sizes of pages: hl_begin writes them, in memory of its caller's, who alone may change them.  All other
   code sees them through hl_context, where they are const. */
struct hl_config {
    enum hl_loader loader;
    struct hl_geometry geometry;
    struct hl_options options;
    bool is_traced; /* hl_trace_line gets the lines of verbose=3, whatever verbose= is; hl_begin clears it */
};

/* Facts about the process and its kernel, each probed on first use. */
struct hl_probed {
    struct hl_descriptor_id standard_error; /* at the start */
    struct hl_kernel kernel;
    /* hl_forget_process clears the next seven for objects that come later: the process may have restricted itself. */
    bool knows_hugetlb;    /* KERNEL's hugetlb fields were probed */
    bool knows_execution;  /* executable_memory was probed */
    bool knows_keeping;    /* MAY_KEEP_MAPPING was probed */
    bool knows_sharing;    /* IS_SHARED was found out */
    bool knows_placement;  /* PLACEMENT was read */
    bool has_no_store;     /* stores were looked for, and there are none */
    bool status_holds;     /* STATUS was read, and nothing of the program has run since */
    bool may_keep_mapping; /* commit can move text aside */
    bool is_shared; /* others may use this memory: threads, and processes made by vfork or clone(CLONE_VM) */
    struct hl_placement placement;
    struct hl_status status;
    int status_result; /* of hl_read_process_status, while STATUS_HOLDS */
    bool filters_are_known;
    uint64_t filters; /* of system calls, when the status was read first */
    long pagemap;     /* descriptor, or a negated errno; hl_end closes it */
};

/* The status, two stores, the file, its image, pagemap and the loader's; what finds no room is closed at once. */
#define HL_CLOSE_MAX 7

/* The settings, the facts, and the work in progress. */
struct hl_context {
    const struct hl_config *config;
    struct hl_probed probed;
    struct hl_work *work;
    size_t n_work;
    size_t n_room;               /* the room for works */
    struct hl_area room;         /* a stack, and works before it; */
    struct hl_area work_area;    /* more of them */
    long to_close[HL_CLOSE_MAX]; /* descriptors that hl_end closes */
    unsigned n_to_close;
    struct hl_line path; /* kept here for a moment: the stack may be a small one */
    uint64_t matched;    /* bit N: some object matches the Nth pattern; only 64 are looked at */
    unsigned n_small;    /* objects without a whole huge page that a wildcard selected at startup */
    bool
        is_busy; /* the linker's: work is in progress, or was in the parent when another thread forked this process */
    bool is_executed;      /* the kernel has mapped the executable from /proc/self/exe */
    bool is_after_startup; /* everything needed at startup is mapped: later objects are loaded by dlopen */
    bool
        others_ran; /* other code than the dynamic linker's may have run since that loaded the present objects */
    bool dropped_named; /* an object that strict=on means was dropped: no memory to plan it */
};

/* Whether strict=on ends the program for a failure now: only at startup. */
static inline bool hl_is_strict(const struct hl_context *context) {
    return context->config->options.strict && !context->is_after_startup;
}

/* Whether SPAN is writable data. */
static inline bool hl_is_writable(const struct hl_span *span) { return (span->flags & PF_W) != 0; }

/* The pagemap, if PAGEMAP_SCAN may be asked of it: no filter can kill for ioctl(2).  Else -1. */
static inline int hl_pagemap_to_scan(const struct hl_context *context) {
    return context->probed.status.filters == 0 ? (int)context->probed.pagemap : -1;
}

/* Whether MOVE's new memory, anonymous or a memfd's, is kept from children until it is placed: others may
   fork. */
static inline bool hl_is_kept_from_children(const struct hl_context *context, const struct hl_move *move) {
    if (!context->probed.is_shared)
        return false;
    return move->backend != HL_HUGETLB || move->memfd >= 0 || context->probed.kernel.hugetlb_dofork;
}

/* Whether what stays for REASON is better off where it is: no failure. */
static inline bool hl_is_better_off(enum hl_reason reason) {
    return reason == HL_REASON_HUGE_ALREADY || reason == HL_REASON_DATA_AUTO;
}

/* Whether WORK is one of many that a wildcard selected, and too small: only verbose=3 has a line for it. */
static inline bool hl_is_just_small(const struct hl_work *work) {
    return work->reason == HL_REASON_TOO_SMALL && work->selection == HL_SELECTED_BY_WILDCARD;
}

#endif
