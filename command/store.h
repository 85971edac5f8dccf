/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A store of images, as `hugeld share` sees it: made, filled, looked through and emptied.  How a process finds an
   image in it is in elf/store.h.

       STORE/KEY/.image     symbolic link to NAME, or to nodeN/NAME of the first node
       STORE/KEY/.image-N   the replica of node N (--per-node)
       STORE/KEY/.origin    symbolic link to the original
       STORE/KEY/NAME       the image
       STORE/.hugetlb       with --pages=hugetlb: a hugetlbfs, which has no symbolic links itself, so the images
                            are in .hugetlb/XXXXXX/ and the links in KEY point there
       STORE/.new-XXXXXX    what is being made; locked (flock) as long as its maker lives
       STORE/.old-KEY       what is being removed; the same

   Everything here says what is wrong in one line by itself, unless a comment says otherwise. */
#ifndef HL_COMMAND_STORE_H
#define HL_COMMAND_STORE_H

#include "elf-file.h"
#include "elf/store.h"

#include <sys/types.h>

#define HL_STORE_PAGES ".hugetlb"

struct hl_store {
    char *path;
    int folder;   /* a descriptor for reading the folder */
    int pages;    /* the same for its hugetlbfs, or -1 */
    uid_t owner;  /* whose it is: root's or this user's */
    bool for_all; /* other users' processes can use it, so only what root alone can write goes into it */
    bool hugetlb; /* its images lie on hugetlbfs, else on tmpfs, */
    dev_t device; /* and this is its number */
    struct hl_geometry geometry; /* with the huge pages that the store has */
};

/* What a store that has to be made is to be like. */
struct hl_store_wishes {
    const char *pages; /* "tmpfs" or "hugetlb"; NULL: as it is */
    char *size;        /* of the mount, as mount(8) takes it; NULL: the default */
};

/* The store that this user fills where none is named; the caller frees it. */
char *hl_default_store(void);

/* Opens the store at PATH.  0; -ENOENT where there is none, which is not said; or another negated errno. */
int hl_find_store(struct hl_store *store, const char *path);

/* The same, and makes it if it is not there.  The system's store gets a mount of its own, and so does any other
   for which WISHES ask. */
int hl_make_store(struct hl_store *store, const char *path, const struct hl_store_wishes *wishes);
void hl_close_store(struct hl_store *store);

/* Removes what dead processes have left half made or half removed.  How many there were. */
unsigned hl_sweep_store(const struct hl_store *store);

/* Bytes that may still be added; UINT64_MAX where nothing limits it. */
uint64_t hl_store_room(const struct hl_store *store);

/* Unmounts the empty STORE if `hugeld share` mounted it, and removes its folder; nothing is said if it cannot. */
void hl_dissolve_store(struct hl_store *store);

/* Whether an image is still good for its original. */
enum hl_freshness {
    HL_FRESH,
    HL_CHANGED, /* the original is another one now, so no process finds the image */
    HL_GONE,    /* there is no original any more */
    HL_BROKEN   /* the image itself is missing, or somebody else could have written to it */
};
const char *hl_freshness_name(enum hl_freshness freshness);

/* One image, with its replicas. */
struct hl_stored {
    char *key;
    char *origin, *image; /* paths; "" where the links are missing */
    uint64_t bytes;       /* of one replica, */
    uint64_t huge_pages;  /* of all of them */
    unsigned replicas;    /* made with --per-node, 0 if it was not */
    enum hl_freshness freshness;
    size_t n_inodes;
    ino_t *inode; /* of the replicas, or of the one image */
    unsigned processes;
};

/* Reads what is in STORE, in the order of the originals' paths; hl_free_stored frees it. */
size_t hl_read_store(const struct hl_store *store, struct hl_stored **stored);
void hl_free_stored(struct hl_stored *stored, size_t n);

/* Sets stored->processes: how many map the image, as far as this user may look. */
void hl_count_processes(const struct hl_store *store, struct hl_stored *stored, size_t n);

/* Removes the image KEY.  0, -ENOENT if somebody else did, or another negated errno; nothing is said. */
int hl_remove_stored(const struct hl_store *store, const char *key);

/* Removes NAME, .new-XXXXXX, which this process has made and has open as FOLDER. */
void hl_remove_unfinished(const struct hl_store *store, const char *name, int folder);

enum hl_share_result {
    HL_SHARE_MADE,
    HL_SHARE_PRESENT, /* there was one already */
    HL_SHARE_NOTHING, /* an image would gain nothing, or it is no object at all */
    HL_SHARE_FAILED
};

struct hl_addition {
    enum hl_share_result result;
    char *path; /* the file's own, without symbolic links; NULL where it is unknown */
    struct hl_line key;
    uint64_t huge_pages; /* of all replicas */
    const char *reason;  /* of skip.def, or NULL */
    char *sentence;      /* why not, and the remedy; or NULL */
};

/* Makes the image of the open FILE, or with PER_NODE one for each node; REPLACE: even if there is one.  Nothing
   is said: ADDITION says it, which hl_free_addition frees. */
void hl_add_image(struct hl_addition *addition, const struct hl_store *store, const struct hl_elf_file *file,
                  bool per_node, bool replace);
/* The same for the file at PATH. */
void hl_add_path(struct hl_addition *addition, const struct hl_store *store, const char *path, bool per_node,
                 bool replace);
void hl_free_addition(struct hl_addition *addition);

/* Compares STORED with what hl_add_image would make now.  NULL if nothing is wrong, else the problem, which the
   caller frees. */
char *hl_check_stored(const struct hl_store *store, const struct hl_stored *stored);

/* How many huge pages of FILE, an image in STORE, hold anything, and whether all of them are mapped by one entry
   each; where they are not, they are made so if the kernel can (MADV_COLLAPSE).  0; -ENOTSUP: the kernel cannot;
   -ENOMEM: it had none; or another negated errno. */
int hl_prove_huge(const struct hl_store *store, int file, uint64_t *pages, uint64_t *small);

#endif
