/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A store of images, as `hugeld apply` sees it: made, filled, looked through and emptied.  How a process finds an
   image in it is in elf/store.h.

       STORE/.lock          locked (flock) by the one process that changes the store; only its owner can open it
       STORE/KEY/.image     symbolic link to NAME
       STORE/KEY/.origin    symbolic link to the original
       STORE/KEY/.digest    symbolic link to nothing, the digest of the image
       STORE/KEY/.any-disk  its original may lie on any disk, also when it is made again
       STORE/KEY/NAME       the image, with the original's modification time
       STORE/KEY/.in-place  instead of an image: the original itself is on huge pages of the page cache (image/in-place.h)
       STORE/.records       what was tried for each listed file (keep/record.h)
       STORE/.new, .old     a folder that is being made, and one that is being removed

   Every function here reports its errors in one line, unless its comment says otherwise. */
#ifndef HL_COMMAND_STORE_H
#define HL_COMMAND_STORE_H

#include "command/lib/elf-file.h"
#include "elf/store.h"

#include <sys/types.h>

#define HL_LOCK_FILE ".lock"
#define HL_RECORDS_FILE ".records"
#define HL_IN_PLACE_MARK ".in-place"
#define HL_MOUNTED_MARK ".mounted" /* in the folder at which the system's store is mounted */
#define HL_DIGEST_LINK ".digest"
#define HL_ORIGIN_LINK ".origin"
#define HL_NAME_ANOTHER_STORE "name another: hugeld apply --store=FOLDER"

struct hl_store {
    char *path;
    int folder;     /* a descriptor for reading the folder */
    int lock;       /* the open lock file, which this process holds, or -1 */
    uint64_t owner; /* the user who, beside root, may have made its contents (hl_find_trusted_user) */
    bool for_all;   /* other users' processes can use it, so only files that root alone can write go into
                       it */
    dev_t device;
    struct hl_geometry geometry;
    struct hl_collapser *collapser; /* set by the caller who adds files without HL_ADD_IMAGE */
    bool is_larger;                 /* hl_make_store: it has got more room */
    char *problem;   /* hl_make_store: it had been unmounted, or keeps its old size; NULL: neither */
    int64_t planned; /* bytes by which a dry run would have filled it */
    uint64_t
        bytes_if_made; /* how long it would be: for a dry run, where there is none (FOLDER is negative) */
};

/* Whether something is mounted at the open FOLDER, or was when it was opened: 1, 0, or a negated errno. */
int hl_is_mount(int folder);

/* The bytes of a store of SIZE, as mount(8) takes it; NULL: of the default size.  0: it is no size. */
uint64_t hl_store_bytes(const char *size);

/* Whether the system's store was mounted, and something other than `hugeld reset` has unmounted it. */
bool hl_is_store_lost(const char *path);

/* How much the store's tmpfs may hold, which is half of one that others use, too, and how much it does; 0: unknown,
   or nothing limits it. */
void hl_measure_store(const struct hl_store *store, uint64_t *bytes, uint64_t *used);

/* The store that this user fills if none is named: root's is the system's, and every other user's lies in XDG_RUNTIME_DIR.  NULL if
   that variable isn't set.  The caller frees it. */
char *hl_default_store(void);

/* The store that OPTIONS name, else hl_default_store's; the same results. */
char *hl_choose_store(const struct hl_options *options);

/* The user who, beside root, may have made the store that this command uses. */
uint64_t hl_find_store_owner(void);

/* Opens the store at PATH, which may be NULL.  0; -ENOENT if there is none, without a message; or another negated errno. */
int hl_find_store(struct hl_store *store, const char *path);

/* Opens the store in the same way, after making it if there is none, and locks it.  The system's store gets a mount of its own, of
   the SIZE as mount(8) takes it, NULL: of the default size, or as it is. */
int hl_make_store(struct hl_store *store, const char *path, const char *size);

/* Locks the open STORE, and waits ten seconds for that while another process changes it.  0; -ENOENT: hugeld
   reset has removed the system's store meanwhile; or another negated errno, which was reported. */
int hl_lock_store(struct hl_store *store);
void hl_close_store(struct hl_store *store);

/* Removes the leftovers of a killed process.  The store is locked, as for every change of it. */
void hl_remove_leftovers(const struct hl_store *store);

/* Percent of the memory that stay available after an image was made, or its small pages were joined. */
#define HL_AVAILABLE_MIN 15

/* Whether HL_AVAILABLE_MIN percent of the machine's memory, without the pool of huge pages, would stay available after taking
   BYTES.  False also if /proc/meminfo cannot be read. */
bool hl_leaves_margin(uint64_t bytes);

/* Bytes of memory that this process may take, by the machine's margin and its own limits. */
uint64_t hl_free_memory_bytes(void);

/* Bytes that may still be added; UINT64_MAX if nothing limits it.  In a folder of a file system that others use, too, half of it is
   left to them. */
uint64_t hl_store_free_bytes(const struct hl_store *store);

/* Whether an image is still good for its original. */
enum hl_item_state {
    HL_ITEM_FRESH,
    HL_ITEM_CHANGED,    /* the original is another version now, so no process finds the image */
    HL_ITEM_TOUCHED,    /* the same file with another ctime (a hard link, chmod): the bytes may be the same */
    HL_ITEM_GONE,       /* the original is gone */
    HL_ITEM_BROKEN,     /* the image itself is missing, or another user could have written to it */
    HL_ITEM_UNREADABLE, /* the original or the folder of the image cannot be read now */
    HL_ITEM_REMOTE      /* its file system may not answer (lib/local.h), so the original was not looked at */
};
const char *hl_item_state_name(enum hl_item_state state);

/* One image, or one file in place: that has no image, and is fresh as long as it is there. */
struct hl_store_item {
    char *key;
    bool is_in_place;
    char *origin, *image; /* paths; "" if the links are missing */
    char *digest;         /* of the image when it was made; "" if that is not known */
    uint64_t bytes, huge_pages;
    unsigned marks; /* HL_ADD_ANY_DISK, HL_ADD_IN_PLACE */
    enum hl_item_state state;
    ino_t inode; /* of the image, or of the file in place */
    dev_t device;
    /* From hl_measure_store_item. */
    uint64_t pages;                       /* that should be huge */
    uint64_t text_bytes, text_huge_bytes; /* of the text, and of the text on huge pages; 0 of 0: not known */
    enum hl_reason
        not_in_place; /* why a file that is to be in place never can be; HL_MOVED: it can, or this is not
                         known */
};

/* Reads the items of STORE, of the file at PATH alone if that is not NULL, in the order of the originals' paths; hl_free_store_items
   frees them.  False: they could not be read, or not all of them, which was reported. */
bool hl_read_items_of(const struct hl_store *store, const char *path, struct hl_store_item **items,
                      size_t *n);

/* hl_read_items_of without looking at any original: existing images are HL_ITEM_REMOTE, and the processes that map a file in place are
   unknown.  TAKES, called with DATA, chooses the items by their originals; NULL: all. */
bool hl_list_store(const struct hl_store *store, bool (*takes)(const void *data, const char *origin),
                   const void *data, struct hl_store_item **items, size_t *n);

void hl_free_store_items(struct hl_store_item *items, size_t n);

/* Finds how much of the text of ITEM is on huge pages, and sets pages; of a file in place also huge_pages. */
void hl_measure_store_item(const struct hl_store *store, struct hl_store_item *item);

/* The ways onto huge pages, the mildest first. */
enum hl_way {
    HL_WAY_NOTHING,
    HL_WAY_IN_PLACE, /* the file's own pages in the page cache (image/in-place.h) */
    HL_WAY_IMAGE,    /* the image of a store */
    HL_WAY_PRELOAD,  /* a private copy */
    HL_WAY_LDSO,     /* the same, at the address chosen by the patched linker */
    HL_WAYS
};

/* Whether a store has an image of the open FILE. */
bool hl_is_in_store(int file, const struct hl_options *options);

/* The way that exists already for the open FILE, and that `run` therefore takes: HL_WAY_IN_PLACE if it is in place;
   HL_WAY_IMAGE if a store knows it, which decides whether to go on, not whether to trust the image; else HL_WAY_NOTHING. */
enum hl_way hl_find_made(int file, const struct hl_options *options);

/* Whether the file at PATH is named like a library. */
bool hl_is_library_name(const char *path);

/* What an image is to a process that has libhugeld.so preloaded. */
enum hl_fit {
    HL_FIT_NONE,
    HL_FIT_LIBRARY = 1,
    HL_FIT_EXECUTABLE = 2, /* always at the same address modulo a huge page, and so on its image */
    HL_FIT_PIE = 4,        /* at any address, and so never on it */
    HL_FIT_IN_PLACE = 8    /* no image: a file that is in place serves every process */
};

/* The bits, of those in WANTED, of the images in the stores that a process with OPTIONS looks into, and that PATTERNS select.  It
   cannot be known whether a program maps a library: it may load it later, or never.  *PIE, unless PIE is NULL, is the path of a file
   with HL_FIT_PIE, or NULL; the caller frees it. */
unsigned hl_find_fits(struct hl_string patterns, const struct hl_options *options, unsigned wanted,
                      char **pie);

/* Whether the system's store, or the one that OPTIONS name, says that the open FILE is in place. */
bool hl_is_in_place(int file, const struct hl_options *options);

/* Removes the folder NAME of FOLDER and everything in it, also folders down to DEPTH below it.  0, or a negated errno. */
int hl_remove_tree(int folder, const char *name, unsigned depth);

/* Removes the image KEY.  0, -ENOENT if another process did, or another negated errno; prints nothing. */
int hl_remove_store_item(const struct hl_store *store, const char *key);

/* Renames .new to KEY, and replaces an older folder of that name.  0 or a negated errno; prints nothing. */
int hl_publish_folder(const struct hl_store *store, const char *key);

/* Makes the folder .new with MARKS (as item->marks).  A descriptor, which the caller closes, or a negated errno; prints nothing. */
int hl_make_new_folder(const struct hl_store *store, unsigned marks);

enum hl_share_result {
    HL_SHARE_MADE,
    HL_SHARE_PRESENT, /* there was one already */
    HL_SHARE_NOTHING, /* an image would gain nothing, or the file is no ELF object */
    HL_SHARE_FAILED
};

#define HL_OTHER_DISK "other-disk" /* the outcome's reason where only HL_ADD_ANY_DISK was missing */
#define HL_STORE_FULL "store-full" /* where only room was missing */

/* How to add. */
enum {
    HL_ADD_DRY = 2,        /* up to the first write; then OUTCOME is what is expected */
    HL_ADD_ANY_DISK = 4,   /* hl_explain_unsteady */
    HL_ADD_IF_WORTH = 8,   /* no file with less than 64 KiB of text */
    HL_ADD_IMAGE = 64,     /* never in place */
    HL_ADD_IN_PLACE = 128, /* never as an image */
};

/* The result of adding a file. */
struct hl_add_outcome {
    enum hl_share_result result;
    char *path; /* the file's own, without symbolic links; NULL if unknown */
    struct hl_line key;
    bool is_in_place;
    uint64_t huge_pages;                  /* of the image, or of the file in place */
    uint64_t text_bytes, text_huge_bytes; /* of the text, and of the text on huge pages */
    const char *reason;                   /* of reason.def, or why it is pending, in one word; or NULL */
    bool is_pending;                      /* it failed, and may succeed later although the file is the same */
    char *sentence;     /* why not, and the remedy, also if only a part of the file is in place; or NULL */
    char *not_in_place; /* why it is an image although it could be in place; or NULL */
};

/* Puts the file at PATH on huge pages in place, if that reaches three quarters of the file's text, or makes its image in the locked
   STORE, as FLAGS (HL_ADD_*) say.  If the store has the image of the same file from before its ctime changed, and the bytes are the
   same, the image gets the new key and nothing is copied.  Prints nothing: the result is OUTCOME, which hl_free_add_outcome frees. */
void hl_add_path(struct hl_add_outcome *outcome, const struct hl_store *store, const char *path,
                 unsigned flags);
void hl_free_add_outcome(struct hl_add_outcome *outcome);

/* Compares ITEM, after hl_measure_store_item, with its original.  NULL if nothing is wrong, else the problem, which the caller frees. */
char *hl_check_store_item(const struct hl_store *store, const struct hl_store_item *item);

/* Bytes of the mapping [start, end) of this process that are mapped by huge entries; or a negated errno. */
int64_t hl_read_huge_bytes(uint64_t start, uint64_t end);

/* Counts the huge pages of the open FILE that hold anything, and those of them that are not mapped by one entry (SMALL); with
   COLLAPSES the kernel is asked to make these huge (MADV_COLLAPSE).  0; -EOPNOTSUPP: the kernel cannot; -ENOMEM: it had no huge
   page; or another negated errno. */
int hl_prove_huge(const struct hl_geometry *geometry, int file, bool collapses, uint64_t *pages,
                  uint64_t *small);

#endif
