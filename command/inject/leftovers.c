/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What an attach or detach that was killed has left in a process: up to three descriptors, and reserved addresses with parts of an
   image in them.  The next one recognises and closes them.

   Nothing of the program's may be taken for ours.  No program maps a file without permissions from an offset far behind its end,
   nor holds a descriptor with a position far behind the end of its file.  The two sockets have nothing of the kind: a journal beside
   the frame names these (inject/attach-tracee.c). */
#include "command/inject/leftovers.h"
#include "command/lib/common.h"
#include "command/inject/tracee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A process may have a million descriptors; ours got the lowest free numbers. */
#define LOOKED_AT_MAX 20000

/* --- reserved addresses --- */

/* Whether REGION is a reserved part of the range that begins at FIRST. */
static bool is_reserved(const struct hl_region *region, uint64_t first) {
    return region->flags == 0 && !region->shared && region->inode != 0 &&
           region->offset == HL_LEFT_OFFSET + (region->start - first);
}

/* The end of the range that begins with REGION I of PROCESS.  It ends with a reserved part; between these, parts of the same file are
   mapped, and nothing else can be: all addresses of a range are in use from its beginning. */
static uint64_t find_end(const struct hl_process *process, size_t i) {
    const struct hl_region *first = &process->region[i];
    uint64_t end = first->end;
    for (uint64_t at = end; ++i < process->n_regions; at = process->region[i].end) {
        const struct hl_region *region = &process->region[i];
        if (region->start != at || region->shared || (region->flags & PF_W) ||
            region->inode != first->inode || region->device != first->device)
            break;
        if (is_reserved(region, first->start))
            end = region->end;
    }
    return end;
}

static void find_ranges(struct hl_leftovers *left, const struct hl_process *process) {
    for (size_t i = 0; i < process->n_regions && left->n_ranges < HL_LEFT_MAX; i++) {
        uint64_t start = process->region[i].start;
        if (is_reserved(&process->region[i], start))
            left->range[left->n_ranges++] = (struct hl_address_range){start, find_end(process, i)};
    }
}

/* --- descriptors --- */

/* Reads the position and the flags of the descriptor NUMBER. */
static bool read_position(const struct hl_process *process, int number, uint64_t *position, unsigned *flags) {
    char text[256], *name = hl_xasprintf("fdinfo/%d", number);
    ssize_t bytes = hl_read_process_file(process, name, text, sizeof text - 1);
    free(name);
    text[bytes > 0 ? bytes : 0] = '\0';
    return sscanf(text, "pos: %" SCNu64 " flags: %o", position, flags) == 2;
}

/* The file system is not asked for the size: it may not answer. */
static bool is_left_file(const struct hl_process *process, int number) {
    uint64_t position;
    unsigned flags;
    struct statx state;
    char first, *name = hl_xasprintf("fd/%d", number);
    bool is_left = readlinkat(process->folder, name, &first, 1) == 1 && first == '/' &&
                   read_position(process, number, &position, &flags) && position == HL_LEFT_POSITION &&
                   (flags & O_ACCMODE) == O_RDONLY && (flags & O_CLOEXEC) &&
                   statx(process->folder, name, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE, &state) == 0 &&
                   S_ISREG(state.stx_mode) && state.stx_size < HL_LEFT_POSITION;
    free(name);
    return is_left;
}

static void find_files(struct hl_leftovers *left, const struct hl_process *process) {
    DIR *folder = hl_open_list(process->folder, "fd");
    unsigned n = 0;
    for (struct dirent *entry; folder != NULL && left->n_files < HL_LEFT_MAX && n < LOOKED_AT_MAX &&
                               (entry = readdir(folder)) != NULL;
         n++) {
        int number = entry->d_name[0] == '.' ? -1 : atoi(entry->d_name);
        if (number >= 0 && is_left_file(process, number))
            left->file[left->n_files++] = number;
    }
    if (folder != NULL)
        closedir(folder);
}

void hl_find_leftovers(struct hl_leftovers *left, const struct hl_process *process) {
    left->n_ranges = left->n_files = 0;
    left->has_journal = hl_has_journal(process);
    find_ranges(left, process);
    find_files(left, process);
}

char *hl_describe_leftovers(const struct hl_leftovers *left) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < left->n_ranges; i++)
        bytes += left->range[i].end - left->range[i].start;
    return hl_xasprintf("%u descriptor%s and %" PRIu64 " KiB of addresses", left->n_files,
                        hl_plural(left->n_files), bytes / 1024);
}
