/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A store of images, as `hugeld share` sees it: made, filled, looked through and emptied.  How a process finds an
   image in it is in elf/store.h.

       STORE/.lock          held (flock) by the one process that changes the store; only its owner can open it; its modification
                            time says when images may be made unasked again (run/later.c)
       STORE/KEY/.image     symbolic link to NAME, or to nodeN/NAME of the first node
       STORE/KEY/.image-N   the replica of node N (--per-node)
       STORE/KEY/.origin    symbolic link to the original; alone, it says that the image has to be made again
       STORE/KEY/.digest    symbolic link to nothing, the digest of the image, and of each replica
       STORE/KEY/.unasked   it was made for a program that was about to run (HL_ADD_EVICTABLE)
       STORE/KEY/.any-disk  its original may lie on any disk, and
       STORE/KEY/.per-node  it has replicas: so it was asked for, and so it is made again
       STORE/KEY/NAME       the image, with the original's modification time
       STORE/KEY/.in-place  instead of an image: the original itself is kept on huge pages of the page cache (image/in-place.h)
       STORE/KEY/.no-image  the same, and it was asked for so: a later version of it gets no image
       STORE/.new, .old     what is being made, and removed

   Everything here says what is wrong in one line by itself, unless a comment says otherwise. */
#ifndef HL_COMMAND_STORE_H
#define HL_COMMAND_STORE_H

#include "command/file/elf-file.h"
#include "elf/store.h"

#include <sys/types.h>

#define HL_LOCK_FILE ".lock"
#define HL_IN_PLACE_MARK ".in-place"
#define HL_DIGEST_LINK ".digest"
#define HL_ORIGIN_LINK ".origin"

struct hl_store {
    char *path;
    int folder;     /* a descriptor for reading the folder */
    int lock;       /* the open lock file, which this process holds, or -1 */
    uint64_t owner; /* who, beside root, may have made what is in it (hl_find_trusted_user) */
    bool for_all;   /* other users' processes can use it, so only what root alone can write goes into it */
    dev_t device;
    struct hl_geometry geometry;
    struct hl_placer *placer; /* puts files in place; NULL, as it is at first: only images are made */
};

/* The store that this user fills where none is named: root's is the system's, and every other user's lies in
   XDG_RUNTIME_DIR.  NULL where that isn't set.  The caller frees it. */
char *hl_default_store(void);

/* The store that OPTIONS name, else hl_default_store's; the same results. */
char *hl_choose_store(const struct hl_options *options);

/* Who, beside root, may have made what this command uses. */
uint64_t hl_find_store_owner(void);

/* Opens the store at PATH, which may be NULL.  0; -ENOENT where there is none, which is not said; or another negated
   errno. */
int hl_find_store(struct hl_store *store, const char *path);

/* The same, for who asks again and again: what is wrong is not said if it is *SAID, which the result then becomes; 0 at first. */
int hl_find_store_again(struct hl_store *store, const char *path, int *said);

/* The same, makes it if it is not there, and locks it.  The system's store gets a mount of its own, and so does any other
   for which SIZE is given, as mount(8) takes it.  WAITS: for others that change it; otherwise the result is -EWOULDBLOCK
   then, which is not said. */
int hl_make_store(struct hl_store *store, const char *path, const char *size, bool waits);

/* Locks the open STORE; WAITS until nothing else changes it, and says what is wrong; otherwise the result is -EWOULDBLOCK then, and
   nothing is said.  0 or a negated errno. */
int hl_lock_store(struct hl_store *store, bool waits);
void hl_close_store(struct hl_store *store);

/* Removes what a process left that was killed.  The store is locked, as for everything that changes it. */
void hl_remove_leftovers(const struct hl_store *store);

/* Bytes that may still be added; UINT64_MAX where nothing limits it.  In a folder of a file system that others use, too, half of
   it is left to them. */
uint64_t hl_store_room(const struct hl_store *store);

/* Whether an image is still good for its original. */
enum hl_item_state {
    HL_ITEM_FRESH,
    HL_ITEM_CHANGED, /* the original is another one now, so no process finds the image */
    HL_ITEM_TOUCHED, /* the same, but only its ctime is another one (a hard link, chmod): the bytes may be the same */
    HL_ITEM_GONE,       /* there is no original any more */
    HL_ITEM_BROKEN,     /* the image itself is missing, or another user could have written to it */
    HL_ITEM_PENDING,    /* the original has changed, and its new image could not be made yet */
    HL_ITEM_UNREADABLE, /* the original or the folder of the image cannot be read now */
    HL_ITEM_REMOTE      /* the original lies where it may not answer (base/local.h), and was not asked for */
};
const char *hl_item_state_name(enum hl_item_state state);

/* One image, with its replicas, or one file in place: that has no image, and is fresh as long as it is there. */
struct hl_store_item {
    char *key;
    bool is_in_place;
    char *origin, *image; /* paths; "" where the links are missing */
    char *digest;         /* of the image when it was made; "" where that is not known */
    uint64_t bytes;       /* of one replica, */
    uint64_t huge_pages;  /* of all of them */
    unsigned replicas;    /* made with --per-node, 0 if it was not */
    unsigned marks;       /* how it was asked for: HL_ADD_PER_NODE, HL_ADD_ANY_DISK, HL_ADD_EVICTABLE,
                             HL_ADD_IN_PLACE, HL_ADD_NO_IMAGE */
    time_t last_use;      /* when a process mapped it last, as far as the file system notes that */
    enum hl_item_state state;
    size_t n_inodes;
    ino_t *inode; /* of the replicas, or of the one image, or of the file in place */
    dev_t device; /* of all of these */
    unsigned processes;
    /* From hl_measure_store_item. */
    uint64_t pages;                       /* that should be huge */
    uint64_t text_bytes, text_huge_bytes; /* of the text, and on huge pages by it; 0 of 0: it is not known */
    enum hl_skip
        not_in_place; /* why a file that is to be in place never can be; HL_MOVED: it can, or that is not known */
};

/* Reads what is in STORE, in the order of the originals' paths; hl_free_store_items frees it.  False: that was not possible,
   or not in full, which was said. */
bool hl_read_store(const struct hl_store *store, struct hl_store_item **items, size_t *n);

/* The same, and asks for no original: what is there is HL_ITEM_REMOTE, and nothing is known of who maps a file in place. */
bool hl_list_store(const struct hl_store *store, struct hl_store_item **items, size_t *n);

void hl_free_store_items(struct hl_store_item *items, size_t n);

/* How many of these are images: the others are in place. */
size_t hl_count_images(const struct hl_store_item *items, size_t n);

/* Sets item->processes: how many map the image or the file in place, as far as this user may look. */
void hl_count_processes(struct hl_store_item *items, size_t n);

/* Finds how much of the text of ITEM is on huge pages, and of a file in place huge_pages. */
void hl_measure_store_item(const struct hl_store *store, struct hl_store_item *item);

/* The ways onto huge pages, the mildest first. */
enum hl_way {
    HL_WAY_NOTHING,
    HL_WAY_PLACE,   /* the file's own pages in the page cache (image/in-place.h) */
    HL_WAY_IMAGE,   /* the image of a store */
    HL_WAY_PRELOAD, /* a private copy */
    HL_WAY_LDSO,    /* the same, where the patched linker has put the library */
    HL_WAYS
};

/* Whether a store has an image of the open FILE. */
bool hl_is_in_store(int file, const struct hl_options *options);

/* What there is of the open FILE already, and `run` therefore takes: HL_WAY_PLACE, where its pages are kept so; HL_WAY_IMAGE,
   where a store knows it, which says who may go on, not what to trust; HL_WAY_NOTHING. */
enum hl_way hl_find_made(int file, const struct hl_options *options);

/* Whether the stores that a process with OPTIONS looks into have the image of a library that PATTERNS select, which the
   program may then map.  Whether it will cannot be known: it may be one that the program loads later. */
bool hl_has_image_of_library(struct hl_string patterns, const struct hl_options *options);

/* Whether the system's store, or the one that OPTIONS name, says that the open FILE is kept in place. */
bool hl_is_kept_in_place(int file, const struct hl_options *options);

/* Removes the image KEY.  0, -ENOENT if another process did, or another negated errno; nothing is said. */
int hl_remove_store_item(const struct hl_store *store, const char *key);

/* Renames .new to KEY, in the place of what is there.  0 or a negated errno; nothing is said. */
int hl_publish_folder(const struct hl_store *store, const char *key);

/* Makes the folder .new with MARKS (as item->marks).  A descriptor, which the caller closes, or a negated errno; nothing is
   said. */
int hl_make_new_folder(const struct hl_store *store, unsigned marks);

/* Removes the image of ITEM and keeps what it was made of and how it was asked for, so that a later refresh makes it again. */
int hl_set_pending(const struct hl_store *store, const struct hl_store_item *item);

enum hl_share_result {
    HL_SHARE_MADE,
    HL_SHARE_PRESENT, /* there was one already */
    HL_SHARE_NOTHING, /* an image would gain nothing, or it is no object at all */
    HL_SHARE_FAILED
};

/* How to add. */
enum {
    HL_ADD_PER_NODE = 1,   /* an image on each node */
    HL_ADD_REPLACE = 2,    /* also where there is one */
    HL_ADD_ANY_DISK = 4,   /* hl_explain_unsteady */
    HL_ADD_IF_WORTH = 8,   /* not what has less than 64 KiB of text */
    HL_ADD_IMAGE = 64,     /* never in place */
    HL_ADD_IN_PLACE = 128, /* never as an image, */
    HL_ADD_NO_IMAGE = 256, /* nor later, whatever becomes of the file (beside HL_ADD_IN_PLACE) */
    HL_ADD_UNASKED =
        16, /* for a program that is about to run: nothing waits, a memory limit is not touched, files that
                              changed in the last minutes get none, and evictable images make room */
    HL_ADD_EVICTABLE = 32, /* it may be removed to make room */
    HL_ADD_UNATTENDED =
        512, /* no person has asked just now: 15 % of the memory stay available, and bytes of what has not
                changed are not compared */
    HL_ADD_WHEN_CALM = 1024 /* and no image is written while programs wait for memory or disks */
};

/* What became of a file that was to be added. */
struct hl_add_outcome {
    enum hl_share_result result;
    char *path; /* the file's own, without symbolic links; NULL where it is unknown */
    struct hl_line key;
    bool is_in_place, is_for_place;       /* the latter: HL_ADD_IN_PLACE was set */
    uint64_t huge_pages;                  /* of all replicas, or of the file in place */
    uint64_t text_bytes, text_huge_bytes, /* of the text, and on huge pages by it */
        text_in_place_bytes;              /* of the text, what could be on huge pages in place */
    bool is_to_be_executed;               /* that is so where the image is executed itself */
    uint64_t text_other_bytes;            /* where it is mapped, or else executed, which is no more */
    const char *reason;                   /* of skip.def, or NULL */
    char *sentence;     /* why not, and the remedy, also for a part of a file in place; or NULL */
    char *not_in_place; /* why it is an image, where it could be in place; or NULL */
    bool is_too_young;  /* that is why not, and HL_ADD_UNASKED does not wait */
    bool is_kept;       /* what there is stays, since it is not known whether anything is wrong with it */
    bool is_hopeless;   /* this kernel makes no huge pages in the store, of no file */
};

/* Puts the open FILE on huge pages in place, if the locked STORE has a placer and that reaches three quarters of the file's
   text, or makes its image in STORE, as FLAGS (HL_ADD_*) say.  Where the store has the image of the
   same file before its ctime changed, and its bytes are the file's, it gets its new key and nothing is copied.  Nothing is
   said: OUTCOME says it, which hl_free_add_outcome frees. */
void hl_add_image(struct hl_add_outcome *outcome, const struct hl_store *store,
                  const struct hl_elf_file *file, unsigned flags);
/* The same for the file at PATH. */
void hl_add_path(struct hl_add_outcome *outcome, const struct hl_store *store, const char *path,
                 unsigned flags);
/* What hl_add_path does where hl_open_elf_soon finds PROBLEM; errno is as that left it. */
void hl_note_no_object(struct hl_add_outcome *outcome, enum hl_elf_problem problem, unsigned flags);
void hl_free_add_outcome(struct hl_add_outcome *outcome);

/* How thoroughly an image is looked at. */
enum hl_check {
    HL_CHECK_STATE = 1,  /* its pages and its original's state and rights, and neither's bytes; */
    HL_CHECK_REPAIRS = 2 /* pages that are not huge are made huge where the kernel can */
};

enum hl_fault {
    HL_FAULT_ANY,
    HL_FAULT_SMALL,  /* nothing but that pages are small */
    HL_FAULT_UNKNOWN /* whether anything is wrong cannot be found out now, so the image stays */
};

/* Compares ITEM with its original, as HOW (HL_CHECK_*) says, and counts its pages that are not huge.  NULL if nothing is wrong,
   else the problem, which the caller frees, and *FAULT is of what kind it is. */
char *hl_check_store_item(const struct hl_store *store, const struct hl_store_item *item, unsigned how,
                          enum hl_fault *fault);

enum hl_refresh {
    HL_REFRESH_FINE,    /* nothing was wrong, or its pages are huge again */
    HL_REFRESH_REMOVED, /* the file is gone */
    HL_REFRESH_TRIED    /* it was made again, or could not be made: OUTCOME says so, which the caller frees */
};

/* Makes what is wrong with ITEM, in the locked STORE, right; FLAGS as for hl_add_path.  Nothing is said.  What could not be made
   is pending then. */
enum hl_refresh hl_refresh_store_item(struct hl_add_outcome *outcome, const struct hl_store *store,
                                      const struct hl_store_item *item, unsigned flags);
/* Bytes of the mapping [start, end) of this process that are mapped by huge entries; or a negated errno. */
int64_t hl_read_huge_bytes(uint64_t start, uint64_t end);

/* How many huge pages of the open FILE hold anything, and how many of them are not mapped by one entry; with
   COLLAPSES they are made so if the kernel can (MADV_COLLAPSE).  0; -EOPNOTSUPP: the kernel cannot; -ENOMEM: it had none;
   or another negated errno. */
int hl_prove_huge(const struct hl_geometry *geometry, int file, bool collapses, uint64_t *pages,
                  uint64_t *small);

#endif
