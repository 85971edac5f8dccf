/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at paths without asking any server.

   What lies on NFS or a FUSE may not answer, and who asks waits for ever.  So each part of a path is opened by O_PATH, which asks
   only the file system of the folder before it, and nothing is looked up in it before mountinfo says that it is of a local one.  A
   mount that is not listed, neither for this process nor for process 1, counts as one that may not answer. */
#ifndef HL_LOCAL_H
#define HL_LOCAL_H

#include <dirent.h>
#include <glob.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define HL_LOCAL_MOUNTS 16

/* What is wrong with all others. */
#define HL_LOCAL_LIES "lies on a file system that may not answer, such as FUSE or NFS"
#define HL_LOCAL_PROBLEM "it " HL_LOCAL_LIES
/* And with a folder or link that others can change, for only_roots. */
#define HL_LOCAL_EXPOSED                                                                                     \
    "is left out, since users other than root can change it; name files, or folders in which only root can " \
    "write"

/* Whether ERRNO says only that there is too little of something now, or that what was asked may not answer. */
bool hl_is_passing_error(int error);

/* What was found out about mounts; zero at first, apart from what the caller sets.  It keeps them busy until hl_close_local, so
   that is called soon. */
struct hl_local {
    bool
        only_roots; /* set by the caller: what others can change is no folder to list, and no link to follow */
    bool asks;      /* set by the caller: what may not answer is asked all the same */
    size_t entries_max; /* set by the caller: names that are listed at most; 0: any number */
    size_t entries;     /* that were listed */
    bool is_remote;     /* something was left out for its file system, */
    bool is_full;       /* or for entries_max, */
    char *exposed;      /* or for only_roots: the first path that was to be followed; the caller frees it */
    char *folder;       /* the one that was looked into last, */
    int folder_file;    /* which is open */
    size_t n;
    struct {
        uint64_t number;
        int file; /* as long as it is open, no other mount has its number */
        bool is_local;
    } mount[HL_LOCAL_MOUNTS];
};
void hl_close_local(struct hl_local *local);

/* The STATUS of PATH; FOLLOWS: if that is a symbolic link, of what it leads to.  0; -EREMOTE: part of it may not answer, as is_remote
   then says; -EPERM: for only_roots; or another negated errno. */
int hl_stat_local(struct hl_local *local, const char *path, bool follows, struct stat *status);

/* The same, and opens it by O_PATH.  A descriptor, which the caller closes, or the same negated errno. */
int hl_open_local(struct hl_local *local, const char *path, bool follows, struct stat *status);

/* The same for NAME in the open FOLDER (or AT_FDCWD), one part of a path; a symbolic link is opened itself. */
int hl_open_local_part(struct hl_local *local, int folder, const char *name, struct stat *status);

/* hl_open_local for one path, of which no more is to be known. */
int hl_open_local_path(const char *path, bool follows, struct stat *status);

/* What that leads to, without symbolic links, or NULL: nowhere, or to where it may not answer.  The caller frees it. */
char *hl_find_local_path(const char *path);

/* The folder that PATH leads to, or NULL and errno: EREMOTE, or for only_roots EPERM, if it was left out.  closedir(3) closes it.
   And its next entry, never "." and "..", or NULL, and errno is 0 at the end. */
DIR *hl_open_folder(struct hl_local *local, const char *path, bool follows);
struct dirent *hl_read_folder(struct hl_local *local, DIR *folder);

/* glob(3) of an absolute pattern without flags; what is left out does not count. */
int hl_glob_local(struct hl_local *local, const char *pattern, glob_t *found);

#endif
