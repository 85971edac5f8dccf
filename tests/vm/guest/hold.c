/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hold FOLDER PROCESSES USER: processes of USER that compute, and hold their mmap_lock for writing, in an mmap(2) of a file in
   FOLDER: a FUSE that this one serves, without an answer to a read.  Prints their numbers, one a line, and an empty line when all
   hold it.  They end with this one, since the FUSE is gone then: at SIGTERM, with its parent, or after SECONDS_MAX.  What reads
   of all processes, as ps(1), waits meanwhile, so this is for guests. */
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 16
#define SECONDS_MAX 120
#define FILE_BYTES 4096

static int fuse;
static int is_read[PROCESSES_MAX][2]; /* pipes: the read of its file has come */

static void answer(const struct fuse_in_header *to, int error, const void *what, size_t bytes) {
    char text[1024];
    struct fuse_out_header header = {(uint32_t)(sizeof header + bytes), error, to->unique};
    memcpy(text, &header, sizeof header);
    memcpy(text + sizeof header, what, bytes);
    if (write(fuse, text, sizeof header + bytes) < 0)
        perror("hold: an answer");
}

static struct fuse_attr describe(uint64_t node) {
    return (struct fuse_attr){
        .ino = node, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1, .size = FILE_BYTES};
}

/* The name of each file is one letter, which is its number. */
static void serve(void) {
    static char request[1 << 17];
    while (read(fuse, request, sizeof request) > 0) {
        const struct fuse_in_header *in = (const void *)request;
        const char *body = request + sizeof *in;
        struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 4096};
        struct fuse_entry_out entry = {.nodeid = (uint64_t)*body,
                                       .attr_valid = 1000,
                                       .entry_valid = 1000,
                                       .attr = describe((uint64_t)*body)};
        struct fuse_attr_out attributes = {.attr_valid = 1000, .attr = describe(in->nodeid)};
        struct fuse_open_out opened = {.open_flags = FOPEN_KEEP_CACHE};
        if (in->opcode == FUSE_INIT) {
            answer(in, 0, &init, sizeof init);
        } else if (in->opcode == FUSE_LOOKUP) {
            answer(in, 0, &entry, sizeof entry);
        } else if (in->opcode == FUSE_GETATTR) {
            answer(in, 0, &attributes, sizeof attributes);
        } else if (in->opcode == FUSE_OPEN) {
            if ((((const struct fuse_open_in *)body)->flags & O_ACCMODE) == O_RDWR)
                opened.open_flags = FOPEN_DIRECT_IO; /* to map it, the kernel waits for what is being read */
            answer(in, 0, &opened, sizeof opened);
        } else if (in->opcode == FUSE_READ) {
            if (write(is_read[in->nodeid - 'A'][1], "", 1) != 1)
                perror("hold: a pipe");
        } else if (in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET &&
                   in->opcode != FUSE_INTERRUPT) {
            answer(in, -38 /* ENOSYS */, "", 0);
        }
    }
}

static volatile unsigned long computed;

static void *compute(void *none) {
    for (;; computed++)
        ;
    return none;
}

static void hold(int folder, const char *path, int n, uid_t user) {
    pthread_t thread;
    char byte;
    close(fuse); /* else it would never be gone */
    close(STDOUT_FILENO);
    if (prctl(PR_SET_NAME, "held") != 0 || setgid(user) != 0 || setuid(user) != 0)
        _exit(1);
    void *there = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int direct = openat(folder, path, O_RDWR);
    if (direct < 0)
        _exit(1);
    if (fork() == 0) {
        int cached = openat(folder, path, O_RDONLY);
        _exit(cached < 0 || read(cached, &byte, 1) < 0);
    }
    if (read(is_read[n][0], &byte, 1) != 1 || pthread_create(&thread, NULL, compute, NULL) != 0)
        _exit(1);
    while (computed == 0) /* its first page faults need the lock */
        ;
    mmap(there, FILE_BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, direct, 0);
    wait(NULL);
    _exit(0);
}

/* Whether PID, in its first thread, waits for the kernel in its mmap(2); -1: it has ended. */
static int look_at(pid_t pid) {
    char path[64], text[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    text[bytes] = '\0';
    const char *end = strrchr(text, ')');
    if (end == NULL || strstr(end, ") Z ") == end)
        return -1;
    return strstr(end, ") D ") == end && strstr(end, " 20 0 2 0 ") != NULL; /* two threads */
}

static void end(int signal) { (void)signal; }

int main(int argc, char **argv) {
    const struct sigaction ends = {.sa_handler = end};
    char options[128], name[2] = "A";
    pid_t holder[PROCESSES_MAX];
    int n = argc == 4 ? atoi(argv[2]) : 0;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    if (n < 1 || n > PROCESSES_MAX || fuse < 0 || mount("hold", argv[1], "fuse", 0, options) != 0) {
        perror("hold");
        return 1;
    }
    int folder = open(argv[1], O_PATH | O_CLOEXEC); /* a user may not get there */
    for (int i = 0; i < n; i++, name[0]++) {
        if (pipe(is_read[i]) != 0 || (holder[i] = fork()) < 0)
            return 1;
        if (holder[i] == 0)
            hold(folder, name, i, (uid_t)atoi(argv[3]));
        printf("%d\n", holder[i]);
    }
    fflush(stdout);
    if (fork() == 0) { /* says when all are stuck */
        const struct timespec pause = {0, 10000000};
        int stuck = 0;
        close(fuse);
        for (int i = 0; i < n && stuck >= 0; i++)
            while ((stuck = look_at(holder[i])) == 0)
                nanosleep(&pause, NULL);
        if (stuck > 0)
            puts("");
        fflush(stdout);
        _exit(0);
    }
    fclose(stdout);
    sigaction(SIGTERM, &ends, NULL);
    sigaction(SIGALRM, &ends, NULL);
    alarm(SECONDS_MAX);
    serve();
    close(fuse);
    while (wait(NULL) > 0)
        ;
    return 0;
}
