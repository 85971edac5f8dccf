/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another process: its memory as /proc/PID shows it, and the ELF objects that it has loaded. */
#ifndef HL_PROCESS_H
#define HL_PROCESS_H

#include "command/lib/elf-file.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/types.h>

/* The most node numbers that the kernel can be built for (NODES_SHIFT is 10 at most). */
#define HL_PROCESS_NODES 1024

/* There are less than thirty flags of two letters. */
#define HL_VM_FLAGS_BYTES 96

/* One mapping: a paragraph of /proc/PID/smaps. */
struct hl_region {
    uint64_t start, end;
    uint32_t flags; /* PF_R, PF_W, PF_X */
    bool shared;
    uint64_t offset;
    dev_t device;
    ino_t inode;             /* 0: anonymous */
    char *name;              /* as the kernel writes it, so a newline is \012; "" if it has none */
    uint64_t page_bytes;     /* KernelPageSize */
    uint64_t resident_bytes; /* without hugetlb */
    uint64_t private_hugetlb_bytes, shared_hugetlb_bytes, anon_huge_bytes, file_pmd_bytes, shmem_pmd_bytes;
    bool of_image; /* mapped from an image, a store's or one made for it; known after hl_find_loaded */
    char vm_flags[HL_VM_FLAGS_BYTES]; /* as in smaps: "rd ex mr mw me" */
    unsigned long protection_key;     /* as in smaps, since VmFlags does not tell it; 0: none */
    uint64_t
        *node_bytes; /* resident bytes on each of HL_PROCESS_NODES nodes; NULL if nothing huge is mapped */
};

struct hl_loaded;

/* The kernel's mark on the name of a removed file. */
#define HL_DELETED " (deleted)"

/* Whether this process is in the machine's own PID namespace, and not in a container's. */
bool hl_is_outermost(void);

struct hl_process {
    pid_t pid;
    int folder;       /* /proc/PID: all reads through it are of this process, never of a later one with its
                         number */
    char *name;       /* comm */
    char *executable; /* the target of /proc/PID/exe; NULL if that can't be read */
    uint64_t entry;   /* AT_ENTRY, or 0 */
    size_t n_regions;
    struct hl_region *region; /* ascending */
    size_t n_loaded;
    struct hl_loaded *loaded; /* from hl_find_loaded */
    size_t n_files;
    struct hl_process_file *file;
};

/* An ELF object of a process. */
struct hl_loaded {
    struct hl_object object; /* at its load bias; path is a region's name or the executable */
    const struct hl_elf_file *file;
    bool is_image; /* FILE is an image, which is mapped as a whole; path is then the original's, if known */
    dev_t device;  /* as in the regions; on some file systems stat's differs */
    ino_t inode;
};

/* Reads the next line of MAPS, an open /proc/PID/maps.  Fields of REGION that maps does not have are 0, and the name is part of
   *LINE of *SIZE bytes, a buffer for getline(3).  False: there is no more line. */
bool hl_next_region(struct hl_region *region, FILE *maps, char **line, size_t *size);

/* Finds the mapping of this process that begins at START: some file systems show another device and inode there than stat's.  The
   name is part of *LINE, which the caller frees.  False: there is none of a file. */
bool hl_find_own_region(struct hl_region *region, const void *start, char **line);

/* Opens /proc/PID.  0, or a negated errno. */
int hl_open_process(struct hl_process *process, pid_t pid);
void hl_close_process(struct hl_process *process);

/* The next process in /proc, which the first call, with *PROC NULL, opens.  0: there are no more, and errno is 0, or the reason why
   no more can be read; *PROC is NULL again.  A caller that stops before that closes it. */
pid_t hl_next_process(DIR **proc);

/* Processes, each once; the caller frees PID. */
struct hl_pids {
    size_t n;
    pid_t *pid;
};
void hl_add_pid(struct hl_pids *pids, pid_t pid);
/* Adds the children of the processes in PIDS, and their children, but not this process. */
void hl_add_children(struct hl_pids *pids);

/* Whether anything huge is mapped, cheaply (smaps_rollup): false also if it may not be read. */
bool hl_has_huge_pages(const struct hl_process *process);

/* Reads regions (with nodes), executable and entry.  0, or a negated errno: -EACCES if this user may not read all of it, -ENOENT or
   -ESRCH for a process that has ended, -ENODATA for one without memory (a kernel thread, or about to end). */
int hl_read_process(struct hl_process *process);

/* The same from maps, which walks no page tables: without nodes, and regions without their bytes.  hl_find_loaded then does not
   recognise an image that was mounted over a file if both have been replaced since. */
int hl_read_process_map(struct hl_process *process);

/* The fields of /proc/PID/stat. */
struct hl_usage {
    char state;
    int parent;
    unsigned flags; /* PF_* of the kernel */
    double user_ms, system_ms;
    uint64_t started; /* ticks since boot: with the process ID it identifies one process */
};

/* The kernel's own threads have this in their flags (include/linux/sched.h). */
#define HL_KERNEL_THREAD 0x00200000

/* 0, -ESRCH or another negated errno. */
int hl_read_usage(pid_t pid, struct hl_usage *usage);

/* /proc/PID/status, or a thread's. */
struct hl_task_status {
    char state; /* 'X': it has ended, or cannot be read */
    pid_t process, tracer;
    pid_t inner_pid;            /* its number in its own PID namespace */
    uid_t user, effective_user; /* who has started it, and with whose rights it runs; (uid_t)-1: unknown */
    uid_t file_user;
    gid_t file_group;
    uint64_t locked_kib;
    uint64_t pending, shared_pending,
        caught;      /* signals: number 1 is the lowest bit; unknown: all are caught */
    int filter_mode; /* of seccomp(2); 1 if unknown */
    int thp_enabled; /* 0: PR_SET_THP_DISABLE */
    bool has_shadow_stack;
};

/* Reads NAME, "status" or "task/TID/status", in the open FOLDER of the process.  0, -ESRCH, or another negated errno; STATUS is
   filled in any case. */
int hl_read_task_status(struct hl_task_status *status, int folder, const char *name);
int hl_read_thread_status(struct hl_task_status *status, pid_t process, pid_t thread);

/* Reads only the regions of the process OPENED, with the fields of /proc/PID/maps, which takes the kernel no time; hl_close_process
   frees PROCESS.  The same results. */
int hl_read_mappings(struct hl_process *process, const struct hl_process *opened);

/* Reads the regions of the process OPENED that overlap the N RANGEs, which it sorts, with the fields of /proc/PID/maps.  The time
   depends on these regions alone (before Linux 6.11: on all regions below the end of the last one).  A region's name is its name in
   OPENED.  0, or a negated errno. */
struct hl_address_range {
    uint64_t start, end;
};
int hl_read_some_mappings(struct hl_process *process, const struct hl_process *opened,
                          struct hl_address_range *range, size_t n);

/* The same with the fields of smaps; the kernel also counts the resident pages of every region that lies below these. */
int hl_read_some_regions(struct hl_process *process, const struct hl_process *opened,
                         struct hl_address_range *range, size_t n);

/* The soft limit with the NAME "Max ..." in /proc/PID/limits: UINT64_MAX if there is none, 0 if unknown. */
uint64_t hl_read_limit(const struct hl_process *process, const char *name);

/* Whether the process with the open FOLDER in /proc shares NAME there, "ns/mnt" or "root", with this process: 1 or 0; -1: that
   cannot be read. */
int hl_has_same(int folder, const char *name);

/* An open file of /proc/PID, or a negated errno. */
int hl_open_process_file(const struct hl_process *process, const char *name);
/* Reads its first BYTES into TO.  How many these were, or a negated errno. */
ssize_t hl_read_process_file(const struct hl_process *process, const char *name, void *to, size_t bytes);

/* After hl_read_process: finds the ELF objects of PROCESS in process->loaded, ascending as they are met, the executable first,
   which is missing if it cannot be opened.  0, or a negated errno: the executable cannot be opened and there is no other object, or
   this process may open no more files and objects are missing. */
int hl_find_loaded(struct hl_process *process, const struct hl_geometry *geometry);

/* Whether the pages of REGION can be read without waiting for another process, which may not answer: the server of a FUSE, which
   any user can run, or the handler of a userfaultfd (VmFlags "um", "ui").  The files of the objects found by hl_find_loaded could
   be opened; others must be in memory.  True also if this user may not look at map_files: then the process is the user's own. */
bool hl_answers(const struct hl_process *process, const struct hl_region *region);

/* Whether this process has the capability NUMBER, which is below 32, even if only in a user namespace. */
bool hl_has_capability(unsigned number);

/* Why this user may not read or trace PID, and the remedy; static. */
const char *hl_explain_denial(pid_t pid);

/* Prints in one line why PID could not be read; RESULT is the negated errno. */
void hl_say_unreadable(pid_t pid, int result);

/* The region that holds the address AT; NULL if there is none. */
const struct hl_region *hl_find_region(const struct hl_process *process, uint64_t at);

/* The device of the open FILE as maps shows it, which DEVICE, stat(2)'s, differs from on overlayfs and btrfs. */
uint64_t hl_find_mapped_device(int file, uint64_t device);

/* In an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst).  hl_page_frame: the number of the page's frame; 0: it is not
   present, or this user may not know. */
#define HL_PAGE_PRESENT (UINT64_C(1) << 63)
static inline uint64_t hl_page_frame(uint64_t entry) {
    return entry & HL_PAGE_PRESENT ? entry & ((UINT64_C(1) << 55) - 1) : 0;
}

/* Makes this process map those of the N pages at AT that are CACHED (mincore(2)), so that nothing is read from a disk. */
void hl_map_cached(char *at, size_t n, uint64_t page_bytes, const unsigned char *cached);

/* The beginning of the name of an image that was made for a process (inject/attach-image.c): it has no path, but maps shows its name as
   one. */
#define HL_OWN_IMAGE "hugeld:"
bool hl_is_own_image(const struct hl_region *region);

/* The bytes of REGION that are on huge pages of hugetlb. */
static inline uint64_t hl_hugetlb_bytes(const struct hl_region *region) {
    return region->private_hugetlb_bytes + region->shared_hugetlb_bytes;
}

/* The bytes of REGION that are on huge pages of all kinds. */
static inline uint64_t hl_huge_bytes(const struct hl_region *region) {
    return hl_hugetlb_bytes(region) + region->anon_huge_bytes + region->file_pmd_bytes +
           region->shmem_pmd_bytes;
}

#endif
