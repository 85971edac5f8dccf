/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at paths without asking any server.

   A file on NFS or a FUSE may not answer, and a process that accesses it waits for ever.  So each part of a path is opened by
   O_PATH, which asks only the file system of the folder before it, and nothing is looked up in it before mountinfo shows that its
   file system is local.  A mount that is listed neither for this process nor for process 1 counts as one that may not answer. */
#ifndef HL_LOCAL_H
#define HL_LOCAL_H

#include <dirent.h>
#include <glob.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define HL_LOCAL_MOUNTS 16

/* The problem with all other file systems. */
#define HL_LOCAL_LIES "lies on a file system that may not answer, such as FUSE or NFS"
#define HL_LOCAL_PROBLEM "it " HL_LOCAL_LIES
/* The problem with a folder or link that others can change, for only_roots. */
#define HL_LOCAL_EXPOSED                                                                                     \
    "is left out, since users other than root can change it; name files, or folders in which only root can " \
    "write"

/* Whether ERROR means only a shortage now, or a file system that may not answer. */
bool hl_is_passing_error(int error);

/* Findings about mounts; zero at first, apart from the fields that the caller sets.  It keeps the mounts busy until hl_close_local,
   so that is called soon. */
struct hl_local {
    bool only_roots;    /* set by the caller: folders and links that others can change are left out */
    size_t entries_max; /* set by the caller: the most names that are listed; 0: any number */
    size_t entries;     /* listed so far */
    bool is_remote;     /* something was left out because of its file system */
    bool is_unread;     /* or because of an error, after which it may be read */
    bool is_full;       /* or because of entries_max */
    char *exposed;      /* or because of only_roots: the first such path */
    char *folder;       /* the folder that was looked into last */
    int folder_file;    /* its descriptor */
    size_t n;
    struct {
        uint64_t number;
        int file; /* while it is open, no other mount has this number */
        bool is_local;
    } mount[HL_LOCAL_MOUNTS];
};
void hl_close_local(struct hl_local *local);

/* The line of the mount NUMBER in MOUNTINFO (proc_pid_mountinfo(5)), or NULL; the caller frees it. */
char *hl_find_mount(const char *mountinfo, uint64_t number);

/* Reads the STATUS of PATH (device, inode, mode, owner, size and times of change; the rest is 0); FOLLOWS: if PATH is a symbolic
   link, its target's.  0; -EREMOTE: part of it may not answer, and is_remote becomes true; -EPERM: because of only_roots; or another
   negated errno. */
int hl_stat_local(struct hl_local *local, const char *path, bool follows, struct stat *status);

/* The same, and opens it by O_PATH.  A descriptor, which the caller closes, or the same negated errno. */
int hl_open_local(struct hl_local *local, const char *path, bool follows, struct stat *status);

/* The same for NAME in the open FOLDER (or AT_FDCWD), one part of a path; a symbolic link itself is opened. */
int hl_open_local_part(struct hl_local *local, int folder, const char *name, struct stat *status);

/* hl_open_local for a single path, which is followed, without a struct hl_local. */
int hl_open_local_path(const char *path, struct stat *status);

/* hl_open_folder opens the folder that PATH leads to, or returns NULL and errno: EREMOTE, or EPERM for only_roots, if it was left
   out.  closedir(3) closes it.  hl_read_folder returns its next entry, never "." and "..", or NULL, and errno is 0 at the end. */
DIR *hl_open_folder(struct hl_local *local, const char *path, bool follows);
struct dirent *hl_read_folder(struct hl_local *local, DIR *folder);

/* glob(3) of an absolute pattern without flags; files that are left out do not count.  GLOB_ABORTED: it is_unread, and FOUND has the
   others. */
int hl_glob_local(struct hl_local *local, const char *pattern, glob_t *found);

#endif
