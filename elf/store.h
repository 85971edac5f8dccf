/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stores: folders of images, and how a process finds the image of a file that it has mapped. */
#ifndef HL_STORE_H
#define HL_STORE_H

#include "line.h"
#include "status.h"

/* Tells a file's versions apart, as long as its superblock stays mounted and its file system sets ctime by itself: no user can
   set ctime, and every change of content or owner, a new file under the same name included, changes one of these numbers.
   Numbers repeat, though: device and inode belong to another file as soon as another file system is mounted in the place of this
   one.  So images are made only of files for which that can't happen (the command's eligible.c), and here these numbers are just
   a name. */
struct hl_file_state {
    uint64_t device, inode, bytes; /* st_dev, st_ino, st_size */
    uint64_t ctime_seconds, ctime_nanoseconds;
};

/* The store that every process looks into: root's, on a tmpfs of its own. */
#define HL_SYSTEM_STORE "/run/hugeld"
#define HL_IMAGE_LINK ".image" /* in the folder of an image: a symbolic link to it */
#define HL_NEW_FOLDER ".new"   /* in a store: images under construction */
#define HL_OLD_FOLDER ".old"   /* and images that are being removed */

/* Whether the file system of the open FILE is mounted noexec. */
bool hl_forbids_execution(int file);

/* Reads the state of the open FILE.  0, or a negated errno. */
int hl_read_file_state(struct hl_file_state *state, int file);

/* Whether both are of the same file, which was not written to between them. */
static inline bool hl_is_same_state(const struct hl_file_state *a, const struct hl_file_state *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->ctime_seconds == b->ctime_seconds && a->ctime_nanoseconds == b->ctime_nanoseconds;
}

/* Sets KEY to the name of the folder in which a store keeps the image of a file with STATE. */
void hl_set_image_key(struct hl_line *key, const struct hl_file_state *state);

/* The user, beside root, whose images a process with STATUS may execute: its own, or 0 if there is none.  A process that has
   capabilities, or that is another user for the moment (seteuid(2)), has more rights than that user's other processes; so has
   one with a thread of another user, or one that was root and keeps others of its user out; and in a user namespace that doesn't
   map its user it has the number of all other users that aren't mapped. */
uint64_t hl_find_trusted_user(const struct hl_status *status);

/* Opens the store at PATH, in which only OWNER (a result of hl_find_trusted_user) and root can have written anything.
   A descriptor (O_PATH) that the caller closes; or a negated errno:
   -ENOENT     there is none;
   -ENOTDIR    it is no folder, and a link to one is none;
   -EACCES     it belongs to another user, or group or others may write to it;
   -EOVERFLOW  it belongs to a user that this user namespace doesn't map, as the host's root in a rootless container;
   -EOPNOTSUPP    it doesn't lie on tmpfs: other file systems may return any state of files (FUSE).
   After a call of open(2) that failed also another one.  STATE is the folder's. */
long hl_open_store(const char *path, uint64_t owner);
long hl_open_store_at(const char *path, uint64_t owner, struct hl_file_state *state);

/* Opens the image of a file with STATE in the open STORE; only OWNER and root can have written to it.  FOUND is the image's state;
   before, its device is that of a store, which is on tmpfs, or 0.  A descriptor for reading that the caller closes; or a negated
   errno as above: -ENOENT if there is none.  PATH is room that the caller lends. */
long hl_open_image_in_store(int store, uint64_t owner, const struct hl_file_state *state,
                            struct hl_line *path, struct hl_file_state *found);

#endif
