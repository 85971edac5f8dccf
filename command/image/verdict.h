/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What hugeld can do for an object, and what it has done: the one judgement that all commands print from. */
#ifndef HL_VERDICT_H
#define HL_VERDICT_H

#include "command/lib/common.h"
#include "command/lib/elf-file.h"
#include "command/lib/program.h"
#include "command/lib/process.h"
#include "command/image/store.h"
#include "elf/reason.h"

/* Where the text of an object of a process is. */
enum hl_now {
    HL_NOW_UNKNOWN, /* no process was asked */
    HL_NOW_SMALL,   /* on small pages of its file */
    HL_NOW_CACHED,  /* on huge pages of its file, in the page cache */
    HL_NOW_MOVED,   /* copied at startup, by the preloader or the patched linker */
    HL_NOW_COPIED,  /* on a copy that attach made for the process */
    HL_NOW_MAPPED, /* on a store's image that was mapped over it: at the exec stop, at startup or by attach */
    HL_NOW_EXECUTED, /* the image was executed, or mapped by the dynamic linker, in the place of the file */
    HL_NOWS
};

struct hl_verdict {
    char *path;
    char *store;   /* the one that the options name, or NULL */
    char *program; /* for a library: the executable that loads it, or NULL */
    bool is_main, is_library;
    uint64_t text_bytes;
    uint64_t covered
        [HL_WAYS]; /* bytes of the text that each way brings onto huge pages; where the address is left to
                                  chance, on average */
    uint64_t pages[HL_WAYS]; /* huge pages needed; for a private copy in each process, at most */
    enum hl_way best;
    bool is_made;                /* BEST is in place, and the file is so, or an image, and a store has it */
    bool is_layer;               /* in place would be best, but not from inside this container */
    bool has_image;              /* a store has an image of the file, whether or not it is best */
    bool is_gone;                /* the file that a process has loaded is not found by its path from here */
    enum hl_reason plain_reason; /* why nothing can be preloaded; or HL_MOVED */
    enum hl_reason lack;         /* why this machine has no huge pages for private copies; or HL_MOVED */
    enum hl_reason reason;       /* why its text is on small pages where it is started as it is */
    enum hl_reason
        image_reason; /* why there is no image and none can be made, or it would not be used; or HL_MOVED */
    enum hl_now now;
    unsigned now_parts;      /* the bit 1 << of each enum hl_now in which a part of the process's text is */
    enum hl_reason obstacle; /* reason why its text cannot get other huge pages than it has; or HL_MOVED */
};

/* Judges FILE at PATH, an executable (IS_MAIN) or a library, as it would be started by this user with OPTIONS.  VERDICT is
   to be freed with hl_free_verdict. */
void hl_judge_file(struct hl_verdict *verdict, const char *path, const struct hl_elf_file *file, bool is_main,
                   const struct hl_options *options);

/* Judges the program that PROGRAM with the argv ARGV runs in the end, or its largest library if that has the text.  Returns why
   nothing of it is on huge pages where it is started as it is.  VERDICT, whose path is NULL if no file could be judged, is to be
   freed. */
enum hl_reason hl_judge_program(struct hl_verdict *verdict, struct hl_program *program, char *const *argv,
                                const struct hl_options *options);

/* Judges the library with most text among those that FILE at EXECUTABLE is linked with, if hugeld can do something for it, and
   its text is more than FILE's.  False: there is none, and there is nothing to free. */
bool hl_judge_larger_library(struct hl_verdict *verdict, const char *executable,
                             const struct hl_elf_file *file, const struct hl_options *options);

/* The same as hl_judge_file for LOADED in PROCESS, after hl_find_loaded, with the present state of its text.  OBSTACLE is hl_find_obstacle's. */
void hl_judge_loaded(struct hl_verdict *verdict, const struct hl_process *process,
                     const struct hl_loaded *loaded, enum hl_reason obstacle,
                     const struct hl_options *options);

void hl_free_verdict(struct hl_verdict *verdict);

/* Where the text of LOADED is in PROCESS, after hl_find_loaded: of its parts' values, the last in enum hl_now.  *PARTS has the
   bit 1 << of each; it may be NULL. */
enum hl_now hl_find_now(const struct hl_process *process, const struct hl_loaded *loaded, unsigned *parts);

/* The reason why PROCESS cannot get its text onto huge pages: HL_REASON_ATTACH_THP_DISABLED, or HL_MOVED. */
enum hl_reason hl_find_obstacle(const struct hl_process *process);

/* "moved at startup", or "on a copy that attach made for it, and on huge pages in the page cache"; the caller frees it. */
char *hl_describe_now(const struct hl_verdict *verdict);

/* The way in which hugeld apply has made the file huge, or else would: HL_WAY_IN_PLACE, HL_WAY_IMAGE, or HL_WAY_NOTHING. */
enum hl_way hl_shared_way(const struct hl_verdict *verdict);

/* "in-place", "image", "preload", "ldso", "nothing"; static. */
const char *hl_way_name(enum hl_way way);

/* "an image, 98.1 % of its text on 6 huge pages for all processes", the commands, and how to measure it.  The caller frees it. */
char *hl_format_verdict(const struct hl_verdict *verdict);

/* The same as JSON. */
json_t *hl_json_verdict(const struct hl_verdict *verdict);

#endif
