/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is to be on huge pages: the lists in enabled.d and the settings in hugeld.conf.

   A line of a list is a path, a glob or a folder, and after it perhaps way=image or way=in-place; or a unit of systemd with the
   files that it executes; or '!' and an entry that another list has, which then does not count.  '#' begins a comment line, and
   '\' takes the meaning from a blank or a character of globs.  Root's lists are the machine's; each other user has their own. */
#ifndef HL_LIST_H
#define HL_LIST_H

#include "command/lib/basics.h"

#include <sys/stat.h>
#include "elf/store.h"

/* The most names that are looked at for one entry. */
#define HL_NAMES_MAX 65536

struct hl_settings {
    char *store_size; /* as mount(8) takes it: "2G", "25%"; NULL: the default */
    bool any_disk;    /* files may lie on disks that may be exchanged */
    char *metrics;    /* the file for them; NULL: none */
};

struct hl_entry {
    char *text;    /* a path, glob or folder as it stands in the list, or the name of a unit */
    char *source;  /* the file that lists it */
    unsigned line; /* in that file */
    bool is_unit;
    struct hl_texts files; /* patterns: of a unit its files, else TEXT alone */
    unsigned way;          /* HL_ADD_IMAGE, HL_ADD_IN_PLACE, or 0 */
    char *problem;         /* why some of it was not found; NULL: all was */
};

struct hl_lists {
    char *folder; /* enabled.d */
    size_t n;
    struct hl_entry *entry;
    struct hl_texts masks; /* the texts behind '!' */
    bool
        is_whole; /* all lists could be read, and all folders that they name: what is not named is not wanted */
    struct hl_texts problems;
    struct hl_settings settings;
};

/* A file that an entry means. */
struct hl_wanted {
    char *path; /* without symbolic links */
    struct hl_entry *entry;
    bool is_named;              /* by its own path, and not found by a glob or in a folder */
    struct hl_file_state state; /* of which its image has the key */
};

struct hl_wanted_files {
    size_t n;
    struct hl_wanted *file; /* ascending by their paths, each once */
    const char *mask;       /* of the lists: the first one that left a file out; NULL: none did */
};

/* The folder with the lists and hugeld.conf: root's is /etc/hugeld.  NULL: this user has no home.  The caller frees it. */
char *hl_find_configuration(bool is_root);

/* Reads the settings and lists in the folder CONFIGURATION, or if LIST is not NULL only the list at that path.  Every problem is in
   LISTS->problems, in words for the user.  hl_free_lists frees it. */
void hl_read_lists(struct hl_lists *lists, const char *configuration, const char *list);
void hl_free_lists(struct hl_lists *lists);

/* Finds the files that the entries of LISTS mean now, or only those of the entry ONLY.  ONLY_ROOTS: folders and links that other
   users can change are left out.  The caller frees them by hl_free_wanted. */
void hl_find_wanted(struct hl_wanted_files *wanted, struct hl_lists *lists, const struct hl_entry *only,
                    bool only_roots);
void hl_free_wanted(struct hl_wanted_files *wanted);
struct hl_wanted *hl_find_wanted_file(const struct hl_wanted_files *wanted, const char *path);

/* The first one of PATTERNS that is PATH, a pattern of it, or a folder above it; NULL: none is. */
const char *hl_find_match(const struct hl_texts *patterns, const char *path);

/* Whether the list at the path SOURCE is local.list, which hugeld enable writes. */
bool hl_is_local(const char *source);

/* How much ENTRY counts among those for the same file: one with a way more than one without, and then one in local.list more than
   others. */
unsigned hl_rank_entry(const struct hl_entry *entry);

/* Whether NAME is a unit's, as in name.service. */
bool hl_is_unit(const char *name);

/* PATH, or a pattern of paths, as one word of a list; IS_PATH: no character of it has a meaning.  NULL: a list cannot hold it.  The
   caller frees it. */
char *hl_quote_path(const char *path, bool is_path);

/* Gives local.list of the open folder FOLDER, at PATH, the line ADDED, and takes the line REMOVED from it; either may be NULL.
   *CHANGED: whether there was anything to do.  The caller holds the lock.  A reader meanwhile sees a complete file.  0, or a negated
   errno. */
int hl_change_list(int folder, const char *added, const char *removed, bool *changed);

#define HL_LOCAL_LIST "local.list"

#endif
