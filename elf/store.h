/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stores: folders of images, and how a process finds the image of a file that it has mapped. */
#ifndef HL_STORE_H
#define HL_STORE_H

#include "line.h"

/* What identifies a file's content.  No user can set its ctime, and every change of content or owner, a new
   file under the same name included, changes one of these numbers. */
struct hl_file_state {
    uint64_t device, inode, bytes; /* st_dev, st_ino, st_size */
    uint64_t ctime_seconds, ctime_nanoseconds;
};

#define HL_SYSTEM_STORE "/run/hugeld"
#define HL_USER_STORE "/dev/shm/hugeld-" /* and the user's number */
#define HL_IMAGE_LINK ".image"           /* in the folder of an image: a symbolic link to it */

/* Reads the state of the open FILE.  0, or a negated errno. */
int hl_read_file_state(struct hl_file_state *state, int file);

/* Sets KEY to the name of the folder in which a store keeps the image of a file with STATE. */
void hl_set_image_key(struct hl_line *key, const struct hl_file_state *state);

/* Opens the store at PATH, of which only OWNER (and root) may have written anything.  A descriptor (O_PATH)
   that the caller closes; -ENOENT where there is none; -ENOTDIR: it is no folder, and a link to one is none; -EACCES:
   it belongs to another user, or group or others may write to it; or another negated errno. */
long hl_open_store(const char *path, uint64_t owner);

/* Opens the image of a file with STATE in the open STORE, NODE's replica if there is one, of which only OWNER
   (and root) may have written anything.  A descriptor for reading that the caller closes; -ENOENT: it has none; -EACCES as above; or
   another negated errno. */
long hl_open_stored_image(int store, uint64_t owner, unsigned node, const struct hl_file_state *state);

#endif
