/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Makes the image of a file in a store.

   The file is opened once, and everything is asked of that descriptor: what it is, who can write to it, where it
   lies, in which state it is before and after its bytes were copied.  So whoever replaces or overwrites it
   meanwhile gets at most an image that nobody finds.  The image has no name while it is written, so that the
   memory of one whose maker is killed is free at once; it becomes visible by one rename of its folder, when it is
   whole and proved to be huge. */
#include "common.h"
#include "image.h"
#include "memory-limit.h"
#include "pool.h"
#include "process.h"
#include "remedy.h"
#include "skip.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define FUSE_MAGIC 0x65735546
/* ctime is as old as the kernel's last tick, so two changes within a tick look the same: it has to be older. */
#define AGE_NEEDED_NS INT64_C(1000000000)
#define COLLAPSE_TRIES 20
#define IMAGE_MODE 0555

struct making {
    struct hl_addition *addition;
    const struct hl_store *store;
    const struct hl_elf_file *file;
    struct hl_file_state state;
    struct hl_image image;
    const char *name;  /* the image's: the original's base name */
    char new_name[16]; /* of the folder in the store, */
    int folder;        /* and a locked descriptor of it */
    int pages;         /* the folder for images: the same, or one on hugetlbfs, */
    char prefix[32];   /* and what leads there from it */
    unsigned n_nodes;  /* 0: one image, wherever its pages are */
    struct hl_nodes nodes;
};

/* Notes why there is no image, once; takes SENTENCE over.  The result is always false. */
static bool fail(struct making *making, enum hl_share_result result, char *sentence) {
    making->addition->result = result;
    free(making->addition->sentence);
    making->addition->sentence = sentence;
    return false;
}

static bool refuse(struct making *making, enum hl_skip skip) {
    bool gains_nothing = skip == HL_SKIP_TOO_SMALL || skip == HL_SKIP_SPARSE_TEXT;
    making->addition->reason = hl_skip_name(skip);
    const char *remedy = gains_nothing ? NULL : hl_remedy_of(skip);
    return fail(making, gains_nothing ? HL_SHARE_NOTHING : HL_SHARE_FAILED,
                hl_format("%s%s%s", hl_skip_sentence(skip), remedy != NULL ? "; " : "",
                          remedy != NULL ? remedy : ""));
}

/* --- what the file is --- */

/* Only root may have written to it, and only root may do so. */
static bool is_roots_alone(int file, struct stat *stat) {
    return fstat(file, stat) == 0 && stat->st_uid == 0 && (stat->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The first part of the PATH of FILE that somebody other than root can write to or exchange; the caller frees
   it.  NULL: there is none.  A sticky folder does not help: who owns the file in it may be anybody tomorrow. */
static char *find_unsafe_part(const char *path, int file) {
    struct stat at = {0}, wanted = {0};
    char *walked = hl_format("%s", path);
    int folder = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool safe = folder >= 0 && fstat(file, &wanted) == 0 && is_roots_alone(folder, &at);
    for (char *part = walked + 1; safe && part != NULL;) {
        char *end = strchr(part, '/');
        if (end != NULL)
            *end = '\0';
        int next = openat(folder, part, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        close(folder);
        folder = next;
        safe = next >= 0 && is_roots_alone(next, &at) && !S_ISLNK(at.st_mode) &&
               (end != NULL || (at.st_dev == wanted.st_dev && at.st_ino == wanted.st_ino));
        if (end != NULL && safe)
            *end = '/';
        part = end != NULL ? end + 1 : NULL;
    }
    if (folder >= 0)
        close(folder);
    if (!safe)
        return walked; /* as far as it came */
    free(walked);
    return NULL;
}

/* Whether somebody has the file open for writing: a lease for reading is refused then.  A mapping that was made
   for writing before counts too, whose stores need not show in ctime.  Where there are no leases, or not for
   this user, nobody knows; then it is ctime alone that tells. */
static bool has_writer(int file) {
    signal(SIGIO, SIG_IGN); /* what a writer would send who comes just now */
    if (fcntl(file, F_SETLEASE, F_RDLCK) != 0)
        return errno == EAGAIN;
    fcntl(file, F_SETLEASE, F_UNLCK);
    return false;
}

static bool check_file(struct making *making) {
    const struct hl_elf_file *file = making->file;
    struct statfs fs;
    struct stat now;
    if (!S_ISREG(file->stat.st_mode))
        return fail(making, HL_SHARE_FAILED, hl_format("it is no regular file"));
    if (!hl_is_native(file))
        return fail(making, HL_SHARE_NOTHING, hl_format("it is for another machine"));
    if (hl_has_privileges(file))
        return refuse(making, HL_SKIP_PRIVILEGED);
    making->addition->path = hl_find_file_path(file->fd);
    if (making->addition->path == NULL || fstat(file->fd, &now) != 0 || now.st_nlink == 0)
        return fail(making, HL_SHARE_FAILED, hl_format("it has been removed or replaced; name it again"));
    making->name = strrchr(making->addition->path, '/') + 1;
    if (!making->store->for_all)
        return true;
    if (fstatfs(file->fd, &fs) == 0 && fs.f_type == FUSE_MAGIC)
        return fail(
            making, HL_SHARE_FAILED,
            hl_format("it lies on FUSE, where a user's program decides what is in it; copy it to a disk"));
    char *unsafe = find_unsafe_part(making->addition->path, file->fd);
    if (unsafe == NULL)
        return true;
    char *sentence = hl_format("somebody other than root can write to %s, and this store is for all users; "
                               "chown and chmod it, or use a store of your own: --store",
                               unsafe);
    free(unsafe);
    return fail(making, HL_SHARE_FAILED, sentence);
}

/* Waits until a change of the file would show in its state. */
static bool await_age(struct making *making) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t age = ((int64_t)now.tv_sec - (int64_t)making->state.ctime_seconds) * 1000000000 +
                  ((int64_t)now.tv_nsec - (int64_t)making->state.ctime_nanoseconds);
    if (age < -AGE_NEEDED_NS)
        return fail(making, HL_SHARE_FAILED,
                    hl_format("it was changed at a time that is yet to come; set the clock, then touch it"));
    if (age < AGE_NEEDED_NS) {
        int64_t left = AGE_NEEDED_NS - age;
        struct timespec pause = {left / 1000000000, left % 1000000000};
        while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
            continue;
    }
    return true;
}

static bool is_unchanged(struct making *making) {
    struct hl_file_state state;
    if (!has_writer(making->file->fd) && hl_read_file_state(&state, making->file->fd) == 0 &&
        state.device == making->state.device && state.inode == making->state.inode &&
        state.bytes == making->state.bytes && state.ctime_seconds == making->state.ctime_seconds &&
        state.ctime_nanoseconds == making->state.ctime_nanoseconds)
        return true;
    return fail(
        making, HL_SHARE_FAILED,
        hl_format("it is being written to, or was changed or replaced meanwhile; add it again when that "
                  "is done"));
}

/* --- room --- */

static bool fail_for_room(struct making *making, const char *of_what, uint64_t needed, uint64_t there,
                          const char *remedy) {
    return fail(making, HL_SHARE_FAILED,
                hl_format("its image takes %" PRIu64 " MiB, and %s has room for %" PRIu64 " MiB; %s",
                          needed >> 20, of_what, there >> 20, remedy));
}

/* Before anything is written, since memory that is not there is killed for. */
static bool check_room(struct making *making) {
    const struct hl_store *store = making->store;
    const char *remedy = "remove what nobody uses: hugeld share remove --unused, or give it more: --size";
    unsigned copies = making->n_nodes > 0 ? making->n_nodes : 1;
    uint64_t needed = copies * making->image.huge_pages * store->geometry.huge_page_bytes;
    struct hl_status status;
    struct hl_placement placement;
    struct hl_pool pool;
    if (needed > hl_store_room(store))
        return fail_for_room(making, "the store", needed, hl_store_room(store), remedy);
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    if (store->hugetlb) {
        int skip = hl_read_pool(&pool, &hl_system_roots, &store->geometry, &placement);
        uint64_t there = skip == 0 ? hl_pool_available(&pool, 0) * store->geometry.huge_page_bytes : 0;
        return needed <= there || fail_for_room(making, "the huge page pool", needed, there,
                                                "enlarge it: sysctl vm.nr_hugepages");
    }
    uint64_t there = hl_read_memory_headroom(&hl_system_roots, &placement);
    return needed <= there || fail_for_room(making, "the machine or a memory limit", needed, there,
                                            "free memory, or raise the limit");
}

/* --- writing --- */

/* Pages come from NODE alone until hl_free_policy. */
static int bind_to_node(unsigned node) {
    unsigned long mask[HL_NODE_NUMBERS / (8 * sizeof(unsigned long))] = {0};
    mask[node / (8 * sizeof mask[0])] |= 1UL << node % (8 * sizeof mask[0]);
    return syscall(SYS_set_mempolicy, MPOL_BIND, mask, (unsigned long)HL_NODE_NUMBERS + 1) == 0 ? 0 : -errno;
}

static void unbind(void) { syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL); }

/* Makes FOLDER in the store, with a name that nobody else has, and locks it.  A sweeper may have taken it for a
   leftover in between: then another. */
static bool make_folder(struct making *making) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    struct stat stat;
    for (unsigned try = 0; try < 100; try++) {
        unsigned char noise[6];
        if (getentropy(noise, sizeof noise) != 0)
            break;
        strcpy(making->new_name, ".new-");
        for (unsigned i = 0; i < sizeof noise; i++)
            making->new_name[5 + i] = letters[noise[i] % 32];
        making->new_name[5 + sizeof noise] = '\0';
        if (mkdirat(making->store->folder, making->new_name, 0700) != 0) {
            if (errno == EEXIST)
                continue;
            break;
        }
        making->folder =
            openat(making->store->folder, making->new_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (making->folder >= 0 && flock(making->folder, LOCK_EX) == 0 && fstat(making->folder, &stat) == 0 &&
            stat.st_nlink > 0)
            return true;
        if (making->folder >= 0)
            close(making->folder);
        making->folder = -1;
        errno = EIO;
    }
    return fail(making, HL_SHARE_FAILED,
                hl_format("nothing can be made in the store: %s; make it writable, or name another: --store",
                          strerror(errno)));
}

/* An empty file in FOLDER: without a name where the file system has that, else *NAMED. */
static int create_file(int folder, const char *name, bool *named) {
    int out = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *named = out < 0;
    return out >= 0 ? out : openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

static bool fail_to_write(struct making *making, int result) {
    if (result > 0)
        return refuse(making, (enum hl_skip)result);
    if (result == -ENOSPC || result == -EDQUOT)
        return fail(
            making, HL_SHARE_FAILED,
            hl_format("the store is full; remove what nobody uses: hugeld share remove --unused, or give "
                      "it more: --size"));
    if (result == -ENOMEM && making->store->hugetlb)
        return fail(making, HL_SHARE_FAILED,
                    hl_format("the huge page pool is too small; enlarge it: sysctl vm.nr_hugepages"));
    return fail(making, HL_SHARE_FAILED,
                hl_format("its image cannot be written: %s; free memory and try again", strerror(-result)));
}

/* All of OUT is on huge pages now, or there is no image. */
static bool prove(struct making *making, int out) {
    uint64_t pages = 0, small = 0;
    int result = hl_prove_huge(making->store, out, &pages, &small);
    making->addition->huge_pages += pages;
    if (result == -ENOTSUP)
        return fail(
            making, HL_SHARE_FAILED,
            hl_format("this kernel makes no huge pages in such a folder (Linux 6.12 and newer do); let root "
                      "make the system's store: hugeld share add"));
    if (result == 0 && small > 0)
        result = -ENOMEM;
    if (result == -ENOMEM)
        return fail(making, HL_SHARE_FAILED,
                    hl_format("%" PRIu64 " of its %" PRIu64
                              " pages did not become huge; free or compact memory: echo "
                              "1 > /proc/sys/vm/compact_memory",
                              small, pages));
    return result == 0 ||
           fail(making, HL_SHARE_FAILED,
                hl_format("whether its image is on huge pages cannot be found out: %s; mount /proc",
                          strerror(-result)));
}

static bool give_name(struct making *making, int out, int folder) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", out);
    return linkat(AT_FDCWD, path, folder, making->name, AT_SYMLINK_FOLLOW) == 0 ||
           fail_to_write(making, -errno);
}

/* Writes one image into FOLDER. */
static bool write_image(struct making *making, int folder) {
    bool named, done = false;
    int out = create_file(folder, making->name, &named);
    if (out < 0)
        return fail_to_write(making, -errno);
    int result = hl_write_image(&making->image, making->file, out);
    if (result == 0 && fchmod(out, IMAGE_MODE) != 0)
        result = -errno;
    if (result != 0)
        fail_to_write(making, result);
    else
        done = prove(making, out) && (named || give_name(making, out, folder));
    close(out);
    return done;
}

static bool link_to(struct making *making, const char *target, const char *name) {
    return symlinkat(target, making->folder, name) == 0 || fail_to_write(making, -errno);
}

/* The same for an image. */
static bool link_to_image(struct making *making, const char *image, const char *name) {
    char *target = hl_format("%s%s", making->prefix, image);
    bool done = link_to(making, target, name);
    free(target);
    return done;
}

/* Node NODE's replica, in a folder of its own. */
static bool write_replica(struct making *making, unsigned node, bool first) {
    char *folder_name = hl_format("node%u", node), *target = hl_format("node%u/%s", node, making->name),
         *link = hl_format(HL_IMAGE_LINK "-%u", node);
    bool done = false;
    int folder = -1, result = bind_to_node(node);
    if (result == 0 && mkdirat(making->pages, folder_name, 0755) == 0)
        folder = openat(making->pages, folder_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (result != 0)
        fail(making, HL_SHARE_FAILED,
             hl_format("memory cannot be held to node %u: %s; allow set_mempolicy, or leave out --per-node",
                       node, strerror(-result)));
    else if (folder < 0 || fchmod(folder, 0755) != 0)
        fail_to_write(making, -errno);
    else
        done = write_image(making, folder) && link_to_image(making, target, link) &&
               (!first || link_to_image(making, target, HL_IMAGE_LINK));
    unbind();
    if (folder >= 0)
        close(folder);
    free(folder_name);
    free(target);
    free(link);
    return done;
}

static bool write_all(struct making *making) {
    bool first = true;
    if (making->n_nodes == 0)
        return write_image(making, making->pages) && link_to_image(making, making->name, HL_IMAGE_LINK);
    for (unsigned node = 0; node < HL_NODE_NUMBERS; node++) {
        if ((making->nodes.bits[node / 64] >> node % 64 & 1) == 0)
            continue;
        if (!write_replica(making, node, first))
            return false;
        first = false;
    }
    return true;
}

/* One rename makes it visible.  If another one was faster, its image serves. */
static bool publish(struct making *making, bool replace) {
    const struct hl_store *store = making->store;
    const char *key = making->addition->key.at;
    if (fchmod(making->folder, 0755) != 0)
        return fail_to_write(making, -errno);
    for (unsigned try = 0; try < 4; try++) {
        if (renameat(store->folder, making->new_name, store->folder, key) == 0) {
            making->addition->result = HL_SHARE_MADE;
            return true;
        }
        if (errno != EEXIST && errno != ENOTEMPTY)
            return fail_to_write(making, -errno);
        long there = replace ? -ENOENT : hl_open_stored_image(store->folder, store->owner, 0, &making->state);
        if (there >= 0) {
            close((int)there);
            return fail(making, HL_SHARE_PRESENT, NULL);
        }
        hl_remove_stored(store, key); /* it is of no use to anybody */
    }
    return fail_to_write(making, -EBUSY);
}

/* On hugetlbfs images have a folder beside, which goes by the random part of the name. */
static bool make_pages_folder(struct making *making) {
    const struct hl_store *store = making->store;
    const char *name = making->new_name + strlen(".new-");
    making->pages = making->folder;
    if (!store->hugetlb)
        return true;
    snprintf(making->prefix, sizeof making->prefix, "../" HL_STORE_PAGES "/%s/", name);
    making->pages = mkdirat(store->pages, name, 0755) == 0
                        ? openat(store->pages, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                        : -1;
    return (making->pages >= 0 && fchmod(making->pages, 0755) == 0) || fail_to_write(making, -errno);
}

static void make_image(struct making *making, bool replace) {
    bool done = false;
    if (!make_folder(making))
        return;
    if (make_pages_folder(making) && write_all(making) && is_unchanged(making) &&
        link_to(making, making->addition->path, ".origin"))
        done = publish(making, replace);
    if (!done)
        hl_remove_unfinished(making->store, making->new_name, making->folder);
    if (making->pages >= 0 && making->pages != making->folder)
        close(making->pages);
    close(making->folder);
}

/* The nodes with memory that this process may use. */
static void find_nodes(struct making *making) {
    struct hl_status status;
    char text[4096];
    uint64_t first, last;
    long bytes = hl_read_file("/sys/devices/system/node/has_memory", text, sizeof text);
    const char *at = text, *end = text + (bytes > 0 ? bytes : 0);
    hl_read_status(&status, &hl_system_roots);
    while (hl_scan_range(&at, end, &first, &last)) {
        for (uint64_t node = first; node <= last && node < HL_NODE_NUMBERS; node++) {
            if ((status.nodes.bits[node / 64] >> node % 64 & 1) == 0)
                continue;
            making->nodes.bits[node / 64] |= UINT64_C(1) << node % 64;
            making->n_nodes++;
        }
    }
}

/* Whether the store has what is asked for already. */
static bool is_present(const struct making *making) {
    long image = hl_open_stored_image(making->store->folder, making->store->owner, 0, &making->state);
    if (image < 0)
        return false;
    close((int)image);
    if (making->n_nodes == 0)
        return true;
    struct hl_stored *stored;
    size_t n = hl_read_store(making->store, &stored);
    bool whole = false;
    for (size_t i = 0; i < n; i++)
        whole |=
            strcmp(stored[i].key, making->addition->key.at) == 0 && stored[i].replicas == making->n_nodes;
    hl_free_stored(stored, n);
    return whole;
}

void hl_add_image(struct hl_addition *addition, const struct hl_store *store, const struct hl_elf_file *file,
                  bool per_node, bool replace) {
    struct making making = {.addition = addition, .store = store, .file = file, .folder = -1, .pages = -1};
    memset(addition, 0, sizeof *addition);
    int result = hl_read_file_state(&making.state, file->fd);
    if (result != 0) {
        fail(&making, HL_SHARE_FAILED, hl_format("it cannot be examined: %s; try again", strerror(-result)));
        return;
    }
    hl_set_image_key(&addition->key, &making.state);
    if (per_node)
        find_nodes(&making);
    if (!check_file(&making))
        return;
    if (!replace && is_present(&making)) {
        addition->result = HL_SHARE_PRESENT;
        return;
    }
    replace |= making.n_nodes > 0;
    result = hl_plan_image(&making.image, file, &store->geometry);
    if (result > 0)
        refuse(&making, (enum hl_skip)result);
    else if (result < 0)
        fail_to_write(&making, result);
    else if (await_age(&making) && is_unchanged(&making) && check_room(&making))
        make_image(&making, replace);
    if (result == 0)
        hl_free_image(&making.image);
}

void hl_add_path(struct hl_addition *addition, const struct hl_store *store, const char *path, bool per_node,
                 bool replace) {
    struct hl_elf_file file;
    enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, path);
    if (problem == HL_ELF_FINE) {
        hl_add_image(addition, store, &file, per_node, replace);
        hl_close_elf(&file);
        return;
    }
    bool no_object = problem != HL_ELF_UNREADABLE && problem != HL_ELF_TRUNCATED && problem != HL_ELF_BROKEN;
    memset(addition, 0, sizeof *addition);
    addition->result = no_object ? HL_SHARE_NOTHING : HL_SHARE_FAILED;
    addition->sentence = hl_format("%s", hl_elf_problem_sentence(problem));
}

void hl_free_addition(struct hl_addition *addition) {
    free(addition->path);
    free(addition->sentence);
}

/* --- proofs --- */

/* Bytes of the mapping [start, end) of this process that are mapped by huge entries; or a negated errno. */
static int64_t read_huge_bytes(uint64_t start, uint64_t end) {
    struct hl_process process;
    int64_t bytes = 0;
    int result = hl_open_process(&process, getpid());
    if (result != 0)
        return result;
    result = hl_read_process(&process);
    for (size_t i = 0; result == 0 && i < process.n_regions; i++) {
        const struct hl_region *region = &process.region[i];
        if (region->start >= start && region->end <= end)
            bytes += (int64_t)(region->shmem_pmd_bytes + region->file_pmd_bytes);
    }
    hl_close_process(&process);
    return result != 0 ? result : bytes;
}

/* Makes the huge page at AT of one that are small.  0, or a negated errno. */
static int collapse(char *at, uint64_t bytes) {
    for (unsigned try = 0; try < COLLAPSE_TRIES; try++) {
        if (madvise(at, bytes, MADV_COLLAPSE) == 0)
            return 0;
        if (errno != EAGAIN && errno != EBUSY)
            return errno == EINVAL ? -ENOTSUP : -errno;
        nanosleep(
            &(struct timespec) { 0, 1000000L << (try < 6 ? try : 6) }, NULL);
    }
    return -ENOMEM;
}

/* Calls collapse, or only looks at one byte, for each huge page of the BYTES long FILE at AT that holds
   anything; their number is added to *PAGES.  0, or the first negated errno. */
static int visit_pages(int file, char *at, uint64_t bytes, uint64_t unit, bool collapses, uint64_t *pages) {
    int first = 0;
    off_t data = 0;
    while ((data = lseek(file, data, SEEK_DATA)) >= 0) {
        off_t page = (off_t)hl_round_down((uint64_t)data, unit);
        int result = collapses ? collapse(at + page, unit) : 0;
        first = first != 0 ? first : result;
        (void)*(volatile char *)(at + page);
        ++*pages;
        data = page + (off_t)unit;
        if ((uint64_t)data >= bytes)
            break;
    }
    return first;
}

int hl_prove_huge(const struct hl_store *store, int file, uint64_t *pages, uint64_t *small) {
    uint64_t unit = store->geometry.huge_page_bytes;
    struct stat stat;
    if (fstat(file, &stat) != 0)
        return -errno;
    if (unit == 0)
        return -EINVAL;
    *small = 0;
    if (store->hugetlb) { /* it has no other pages */
        *pages = (uint64_t)stat.st_blocks * 512 / unit;
        return 0;
    }
    uint64_t whole = hl_round_up((uint64_t)stat.st_size, unit);
    char *room = mmap(NULL, whole + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return -errno;
    char *at = (char *)hl_round_up((uint64_t)room, unit);
    int64_t huge = -ENOMEM;
    int result = 0;
    if (mmap(at, whole, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == at) {
        *pages = 0;
        visit_pages(file, at, whole, unit, false, pages);
        huge = read_huge_bytes((uint64_t)at, (uint64_t)at + whole);
        if (huge >= 0 && (uint64_t)huge < *pages * unit) {
            *pages = 0;
            result = visit_pages(file, at, whole, unit, true, pages);
            huge = read_huge_bytes((uint64_t)at, (uint64_t)at + whole);
        }
    }
    munmap(room, whole + unit);
    if (huge < 0)
        return (int)huge;
    *small = hl_subtract(*pages * unit, (uint64_t)huge) / unit;
    return *small > 0 ? result : 0;
}

/* Compares the bytes of two files, of which one may be longer by zeros or traps to the end of its last page.
   0: they are equal; 1: they are not; or a negated errno. */
static int compare_files(int a, int b, uint64_t bytes) {
    static const size_t chunk = 1 << 20;
    char *x = hl_allocate(chunk), *y = hl_allocate(chunk);
    int result = 0;
    for (uint64_t at = 0; at < bytes && result == 0; at += chunk) {
        size_t size = bytes - at < chunk ? bytes - at : chunk;
        ssize_t n = pread(a, x, size, (off_t)at), m = pread(b, y, size, (off_t)at);
        if (n < 0 || m < 0)
            result = -errno;
        else
            result = n != m || (size_t)n != size || memcmp(x, y, size) != 0;
    }
    free(x);
    free(y);
    return result;
}

/* The one replica in the folder that LINK of STORED leads to, against EXPECTED of BYTES.  NULL, or what is
   wrong. */
static char *check_replica(const struct hl_store *store, const struct hl_stored *stored, const char *link,
                           int expected, uint64_t bytes) {
    char *path = hl_format("%s/%s", stored->key, link), *problem = NULL;
    uint64_t pages = 0, small = 0;
    struct stat stat;
    int image = openat(store->folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (image < 0 || fstat(image, &stat) != 0)
        return hl_format("it cannot be opened: %s", strerror(errno));
    int result = (uint64_t)stat.st_size < bytes ? 1 : compare_files(image, expected, bytes);
    if (result == 0)
        result = hl_prove_huge(store, image, &pages, &small);
    else if (result > 0)
        problem = hl_format("its bytes are not those that the file has now");
    if (problem == NULL && small > 0)
        problem = hl_format("%" PRIu64 " of its %" PRIu64 " pages are not huge any more", small, pages);
    else if (problem == NULL && result != 0)
        problem = hl_format("it cannot be read: %s", strerror(-result));
    close(image);
    return problem;
}

static char *check_replicas(const struct hl_store *store, const struct hl_stored *stored, int expected,
                            uint64_t bytes) {
    char *problem = check_replica(store, stored, HL_IMAGE_LINK, expected, bytes);
    for (unsigned node = 0, found = 0; problem == NULL && found < stored->replicas && node < HL_NODE_NUMBERS;
         node++) {
        char *link = hl_format(HL_IMAGE_LINK "-%u", node), *path = hl_format("%s/%s", stored->key, link);
        if (faccessat(store->folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
            found++;
            problem = check_replica(store, stored, link, expected, bytes);
        }
        free(path);
        free(link);
    }
    return problem;
}

char *hl_check_stored(const struct hl_store *store, const struct hl_stored *stored) {
    static const char *const sentences[] = {[HL_CHANGED] = "the file has changed since",
                                            [HL_GONE] = "the file is gone",
                                            [HL_BROKEN] =
                                                "it is incomplete, or somebody else could write to it"};
    struct hl_elf_file file;
    struct hl_image image;
    if (stored->freshness != HL_FRESH)
        return hl_format("%s", sentences[stored->freshness]);
    enum hl_elf_problem elf_problem = hl_open_elf(&file, AT_FDCWD, stored->origin);
    if (elf_problem != HL_ELF_FINE)
        return hl_format("the file %s", hl_elf_problem_sentence(elf_problem));
    char *problem;
    int result = hl_plan_image(&image, &file, &store->geometry);
    int expected = result == 0 ? memfd_create("hugeld", MFD_CLOEXEC) : -1;
    if (result == 0)
        result = expected < 0 ? -errno : hl_write_image(&image, &file, expected);
    if (result != 0)
        problem = hl_format("it cannot be made again: %s",
                            result > 0 ? hl_skip_sentence((enum hl_skip)result) : strerror(-result));
    else
        problem = check_replicas(store, stored, expected, image.bytes);
    if (result == 0 || expected >= 0)
        hl_free_image(&image);
    if (expected >= 0)
        close(expected);
    hl_close_elf(&file);
    return problem;
}
