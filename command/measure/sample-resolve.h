/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where a sample was: in which file, at which offset, and in which program.

   Each sample is resolved at once, while its process lives: /proc/PID/maps is read, which is kept for a while.  Files of the
   process are opened only as O_PATH, and no file system is waited for. */
#ifndef HL_SAMPLE_RESOLVE_H
#define HL_SAMPLE_RESOLVE_H

#include "command/measure/sample.h"

/* A file.  Its number may be another file's once it was removed and no process maps it: a window is too short for that to matter. */
struct hl_file_id {
    dev_t device; /* as in maps; for a program as in stat(2), which differs on overlayfs and btrfs */
    ino_t inode;
};

static inline bool hl_is_same_file_id(const struct hl_file_id *a, const struct hl_file_id *b) {
    return a->inode == b->inode && a->device == b->device;
}

/* Sets ID to the file NAME in FOLDER, following links, such as "exe" in /proc/PID.  0, or a negated errno. */
int hl_read_file_id(struct hl_file_id *id, int folder, const char *name);

enum hl_place_kind {
    HL_RESOLVED_FILE,
    HL_RESOLVED_MEMORY, /* text without a file: a JIT compiler's, or a copy on huge pages; FILE and OFFSET mean nothing */
    HL_RESOLVED_ENDED, /* the process has ended, or the address is not mapped any more; nothing below is set */
    HL_RESOLVED_REFUSED, /* it may not be read; nothing below is set but process, started and owner */
};

struct hl_resolved_sample {
    enum hl_place_kind kind;
    pid_t process;
    uint64_t started; /* with PROCESS it names one process (hl_usage of process.h) */
    uid_t owner;
    struct hl_file_id program;
    const char *program_path; /* as in /proc/PID/exe; valid until the next call, as is PATH */
    struct hl_file_id file;
    const char *path;    /* as in maps: a newline is \012 */
    uint64_t offset;     /* of the sample, in the file */
    uint64_t start, end; /* the mapping */
    uint64_t mapping_offset;
};

struct hl_resolver;
struct hl_resolver *hl_open_resolver(void);
void hl_close_resolver(struct hl_resolver *resolver);

/* Resolves SAMPLE, which was taken just now. */
void hl_resolve_sample(struct hl_resolver *resolver, const struct hl_sample *sample,
                       struct hl_resolved_sample *resolved);

#endif
