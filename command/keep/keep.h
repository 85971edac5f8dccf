/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One run of hugeld apply: makes a store what the lists say. */
#ifndef HL_KEEP_H
#define HL_KEEP_H

#include "command/lib/common.h"
#include "command/image/in-place.h"
#include "command/keep/list.h"
#include "command/keep/record.h"

struct hl_apply {
    /* Set by the caller. */
    bool is_dry, any_disk;
    bool is_quiet;             /* problems are noted and not said */
    bool is_store_named;       /* STORE_PATH is no default */
    bool retries;              /* also what was tried already and waits */
    const char *list;          /* only this list; NULL: those of CONFIGURATION */
    const char *configuration; /* the folder of lists and settings */
    const char *store_path;
    const struct hl_entry *only; /* only this one of LISTS; nothing is pruned then */
    /* From hl_begin_apply. */
    struct hl_lists lists;
    struct hl_store store;
    bool has_store;
    struct hl_records records;
    /* From hl_apply_lists. */
    struct hl_wanted_files wanted;
    struct hl_collapser collapser;
    json_t *files;    /* what happened to which file */
    json_t *problems; /* texts */
    unsigned made, in_place, removed, present, nothing, refused, pending;
    uint64_t huge_pages;
    bool failed;
};

/* Reads lists and settings, opens the store, which is made if something is wanted, locks it, unless this is a dry run, and reads its
   records.  False: the store cannot be used, which is in PROBLEMS. */
bool hl_begin_apply(struct hl_apply *apply);

/* Makes, renews and prunes. */
void hl_apply_lists(struct hl_apply *apply);

/* Removes at once the items of the files in GONE, and of files that are no longer there and match PATTERNS, unless another entry means
   them.  WHY ends the message: "since it was disabled". */
void hl_remove_unlisted(struct hl_apply *apply, const struct hl_wanted_files *gone,
                        const struct hl_texts *patterns, const char *why);

/* Drops the page cache of the local file at PATH, except for what processes map: else the next start would be on its huge pages, and
   bench would compare them with themselves. */
void hl_drop_pages(const char *path);

/* Writes the records, closes the store and frees everything but FILES and PROBLEMS.  The exit code. */
int hl_end_apply(struct hl_apply *apply);

/* Says that APPLY fails, and why, also in PROBLEMS.  Takes TEXT over. */
void hl_note_problem(struct hl_apply *apply, char *text);

/* Finds the files that the entries mean, and notes the problems of entries.  hl_apply_lists begins with it. */
void hl_find_listed(struct hl_apply *apply);

/* As root on a machine that systemd runs, executes this command with ARGV in hugeld.slice, whose memory limit then counts the images,
   and in the machine's mount namespace.  Returns if there is no need, or if that is impossible. */
void hl_enter_slice(int argc, char **argv, const char *command);

/* Runs systemctl VERB A B, if systemd runs: the machine's for root, else the user's own. */
void hl_ask_manager(const char *verb, const char *a, const char *b);

/* Has that systemd start hugeld.service regularly; no longer, if LISTS name nothing and could all be read. */
void hl_switch_timer(const struct hl_lists *lists);

/* --- who runs the files (users.c) --- */

/* Calls VISIT for each other process with DATA, of which it may change the BYTES.  A process can keep its memory map locked for as long
   as it likes, with a FUSE behind a mapping; so this is done in a child, which ends when one takes two seconds; that is said, and another goes on without the processes of that user.  How many users, or processes of root, were left out. */
unsigned hl_visit_processes(void (*visit)(void *data, pid_t pid), void *data, size_t bytes);

struct hl_use {
    uint64_t device, inode;             /* of the file or of its image, as maps shows them */
    uint64_t image_device, image_inode; /* 0: it has none */
    uint64_t start, end;                /* from its first region to the end of its last one, in one process */
    unsigned processes, huge;           /* that map its text, and those of them that do so by huge pages */
    unsigned in_units; /* those of them without huge pages that belong to a unit of systemd */
    char unit[128];    /* the name of one of these units */
};

/* Finds the processes that map the N files of USE.  False: this kernel does not tell which pages of another process are huge (before
   Linux 6.7).  *LEFT_OUT: how many users' processes were not read, since one of them did not answer in time. */
bool hl_find_users(struct hl_use *use, size_t n, unsigned *left_out);

/* --- units (unit.c) --- */

#define HL_UNIT_LINKS "/run/hugeld-units" /* to the images of units that are being started */

/* Finds the files that UNIT executes: those that the user has NAMED, else that of its ExecStart=, behind launchers, or of its main
   process.  False, after a message. */
bool hl_find_unit_files(const char *unit, const struct hl_texts *named, struct hl_texts *files);

/* Whether UNIT is an instance of the template OF, or of the one that the unit OF groups: postgresql@15-main.service of
   postgresql.service. */
bool hl_is_instance(const char *unit, const char *of);

/* The instances that stand for UNIT: of a template, and those that a oneshot such as postgresql.service only groups. */
void hl_list_instances(const char *unit, struct hl_texts *units);

/* Whether systemd knows UNIT; true also where no systemd runs. */
bool hl_knows_unit(const char *unit);

/* --- metrics (metrics.c) --- */

/* Writes the gauges to the file at PATH.  0, or a negated errno; -ELOOP: another user could have made the folder or a link in it. */
int hl_write_metrics(const char *path, const json_t *list);

/* The JSON of hugeld list, for one store, made as far as this user may see. */
json_t *hl_list_one(struct hl_apply *apply, bool checks);

#endif
