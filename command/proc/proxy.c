/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The other process is forked, and has one socket: calls come by it, and answers go back, each with a descriptor where one is
   needed.  It makes nothing but system calls, since this process may have had threads, and it holds no file of this process's
   (locks, rings, images). */
#include "command/proc/proxy.h"
#include "command/base/common.h"
#include "elf/line.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* For so long a user's processes, or one of root's, may keep us waiting, all in all.  Each that is left out halves it for the next,
   down to SHORT_MS: who has many users costs no more than twice the first wait and a little for each. */
#define WAIT_MS 1000
/* Shorter waits are not counted: others wait for a processor so long. */
#define SHORT_MS 20
/* What keeps us waiting after so many is left out at once. */
#define WAITERS_MAX 64
/* What drops the last reference to a process's memory frees it, and may wait for its file systems whatever it is sent. */
#define GIVEN_UP_MAX 8
#define DATA_BYTES 16384

enum kind { OPEN, READ, WRITE, QUERY };

/* A call, and its answer: RESULT, or a negated errno.  DATA is a name for OPEN, and what is written or was read. */
struct call {
    enum kind kind;
    int flags;
    size_t wanted; /* READ: bytes */
    ssize_t result;
    size_t bytes; /* of DATA */
    union {
        char data[DATA_BYTES];
        struct {
            struct hl_mapping_query query;
            char name[PATH_MAX];
        } asked;
    };
};

struct hl_proxy {
    pid_t child; /* 0: there is none */
    int socket;
    double past_ms; /* the time of those that were given up */
    size_t n, left_out;
    struct waiter {
        pid_t pid;
        uid_t user;
        double ms;                /* INFINITY: it is left out */
    } waiter[WAITERS_MAX], first; /* the first that was left out */
};

/* Killed, and perhaps not ended. */
static pid_t given_up[GIVEN_UP_MAX];

/* Adds FRESH, if that is not 0.  False: there are as many as there may be. */
static bool reap(pid_t fresh) {
    size_t n = 0;
    for (size_t i = 0; i < GIVEN_UP_MAX; i++) {
        if (given_up[i] == 0 && fresh != 0) {
            given_up[i] = fresh;
            fresh = 0;
        }
        if (given_up[i] != 0 && waitpid(given_up[i], NULL, WNOHANG) != 0)
            given_up[i] = 0;
        n += given_up[i] != 0;
    }
    return n < GIVEN_UP_MAX;
}

/* --- calls and answers --- */

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

/* FILE: -1, or what goes with it. */
static bool transmit(int socket, struct call *call, int file) {
    struct iovec data = {call, offsetof(struct call, data) + call->bytes};
    union control control = {.header = {CMSG_LEN(sizeof file), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    }
    ssize_t sent;
    while ((sent = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return sent >= 0;
}

/* *FILE: -1, or what came with it. */
static bool receive(int socket, struct call *call, int *file) {
    struct iovec data = {call, sizeof *call};
    union control control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *file = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(header), sizeof *file);
    return got > 0;
}

/* --- the other process --- */

/* As much as is there: the kernel gives a page of such a text at most. */
static ssize_t read_all(int file, char *to, size_t bytes) {
    size_t done = 0;
    ssize_t got = 1;
    while (got > 0 && done < bytes) {
        got = read(file, to + done, bytes - done);
        done += got > 0 ? (size_t)got : 0;
    }
    return got < 0 && done == 0 ? -errno : (ssize_t)done;
}

static int query(struct call *call, int maps) {
    struct hl_mapping_query *query = &call->asked.query;
    uint64_t there = query->name;
    query->name = query->name_bytes > 0 ? (uint64_t)(uintptr_t)call->asked.name : 0;
    int result = ioctl(maps, HL_MAPPING_QUERY, query) == 0 ? 0 : -errno;
    query->name = there;
    return result;
}

/* The descriptor to answer with, or -1. */
static int make(struct call *call, int file) {
    size_t given = call->bytes;
    call->bytes = 0;
    switch (call->kind) {
    case OPEN:
        call->result = openat(file, call->data, call->flags);
        call->result = call->result < 0 ? -errno : call->result;
        return (int)call->result;
    case READ:
        call->result = read_all(file, call->data, call->wanted);
        call->bytes = call->result > 0 ? (size_t)call->result : 0;
        return -1;
    case WRITE:
        call->result = write(file, call->data, given);
        call->result = call->result < 0 ? -errno : call->result;
        return -1;
    case QUERY:
        call->result = query(call, file);
        call->bytes = sizeof call->asked.query + (call->result == 0 ? call->asked.query.name_bytes : 0);
        return -1;
    }
    return -1;
}

static _Noreturn void serve(int socket, pid_t parent) {
    struct call call;
    int file;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || dup2(socket, 0) < 0 ||
        syscall(SYS_close_range, 1U, ~0U, 0U) != 0)
        _exit(1);
    while (receive(0, &call, &file)) {
        int answer = make(&call, file);
        transmit(0, &call, answer);
        if (file >= 0)
            close(file);
        if (answer >= 0)
            close(answer);
    }
    _exit(0);
}

/* --- this one --- */

static int start(struct hl_proxy *proxy) {
    int pair[2];
    pid_t parent = getpid();
    if (!reap(0))
        return -EBUSY;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    proxy->child = fork();
    if (proxy->child == 0)
        serve(pair[1], parent);
    int result = proxy->child < 0 ? -errno : 0;
    close(pair[1]);
    proxy->socket = pair[0];
    if (result != 0) {
        close(pair[0]);
        proxy->child = 0;
    }
    return result;
}

static double used_ms(const struct hl_proxy *proxy) {
    struct timespec used;
    clockid_t clock;
    if (proxy->child == 0 || clock_getcpuclockid(proxy->child, &clock) != 0 ||
        clock_gettime(clock, &used) != 0)
        return 0;
    return 1e3 * (double)used.tv_sec + 1e-6 * (double)used.tv_nsec;
}

static void give_up(struct hl_proxy *proxy) {
    proxy->past_ms += used_ms(proxy);
    kill(proxy->child, SIGKILL);
    close(proxy->socket);
    reap(proxy->child);
    proxy->child = 0;
}

/* The user who started PID.  The owner of its folder is root where it cannot be traced, which every process can make so. */
static uid_t find_user(pid_t pid) {
    char text[4096];
    unsigned user;
    char *path = hl_xasprintf("/proc/%d/status", pid);
    const char *line = hl_read_file(path, text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
    free(path);
    return line != NULL && sscanf(line, "\nUid: %u", &user) == 1 ? user : (uid_t)-1;
}

static struct waiter *find_waiter(struct hl_proxy *proxy, pid_t pid, uid_t user) {
    for (size_t i = 0; i < proxy->n; i++)
        if (proxy->waiter[i].pid == pid || (user != 0 && proxy->waiter[i].user == user))
            return &proxy->waiter[i];
    return NULL;
}

static double limit_ms(const struct hl_proxy *proxy) {
    return proxy->n == WAITERS_MAX ? SHORT_MS : fmax(ldexp(WAIT_MS, -(int)proxy->left_out), SHORT_MS);
}

/* Waits until an answer is there, or PID's user has had its time, and notes that.  Time in which the other process computes is not
   a wait: to count the pages of a large process takes it long. */
static bool is_answered(struct hl_proxy *proxy, pid_t pid) {
    struct pollfd fd = {proxy->socket, POLLIN, 0};
    int ready = poll(&fd, 1, SHORT_MS);
    if (ready > 0)
        return true;
    double began = hl_now_ms(), used = used_ms(proxy), waited = 0, limit = SHORT_MS;
    struct waiter *waiter = NULL;
    uid_t user = 0;
    while ((ready = poll(&fd, 1, (int)fmax(1, ceil(limit - waited)))) <= 0) {
        waited = hl_now_ms() - began - (used_ms(proxy) - used);
        if (waited < SHORT_MS)
            continue;
        if (waiter == NULL) {
            user = find_user(pid);
            waiter = find_waiter(proxy, pid, user);
            if (waiter == NULL && proxy->n < WAITERS_MAX) {
                waiter = &proxy->waiter[proxy->n++];
                *waiter = (struct waiter){pid, user, 0};
            }
            limit = waiter != NULL ? limit_ms(proxy) - waiter->ms : 0;
        }
        if (waited >= limit)
            break;
    }
    if (waiter != NULL)
        waiter->ms = ready > 0 ? waiter->ms + waited : INFINITY;
    if (ready <= 0 && proxy->left_out++ == 0)
        proxy->first = (struct waiter){pid, user, INFINITY};
    return ready > 0;
}

/* Has CALL made on FILE; *ANSWER, if that is not NULL, is the descriptor that came back.  CALL's result, or a negated errno. */
static ssize_t ask(const struct hl_process *process, struct call *call, int file, int *answer) {
    struct hl_proxy *proxy = process->proxy;
    int result = proxy->child == 0 ? start(proxy) : 0, got = -1;
    if (result != 0)
        return result;
    bool is_sent = transmit(proxy->socket, call, file),
         is_late = is_sent && !is_answered(proxy, process->pid);
    if (!is_sent || is_late || !receive(proxy->socket, call, &got)) {
        give_up(proxy);
        return is_late ? -ETIMEDOUT : -EIO;
    }
    if (answer != NULL)
        *answer = got;
    return call->result;
}

static bool is_left_out(struct hl_proxy *proxy, pid_t pid) {
    const struct waiter *waiter = proxy->left_out > 0 ? find_waiter(proxy, pid, find_user(pid)) : NULL;
    return waiter != NULL && isinf(waiter->ms);
}

/* --- the interface --- */

struct hl_proxy *hl_open_proxy(void) {
    struct hl_proxy *proxy = hl_xmalloc(sizeof *proxy);
    memset(proxy, 0, sizeof *proxy);
    return proxy;
}

void hl_close_proxy(struct hl_proxy *proxy) {
    if (proxy->child != 0) { /* it has answered, so it ends at once */
        kill(proxy->child, SIGKILL);
        close(proxy->socket);
        waitpid(proxy->child, NULL, 0);
    }
    reap(0);
    free(proxy);
}

int hl_proxy_open(const struct hl_process *process, const char *name, int flags) {
    struct call call = {.kind = OPEN, .flags = flags, .bytes = strlen(name) + 1};
    int file = -1;
    if (is_left_out(process->proxy, process->pid))
        return -ETIMEDOUT;
    if (call.bytes > sizeof call.data)
        return -ENAMETOOLONG;
    memcpy(call.data, name, call.bytes);
    ssize_t result = ask(process, &call, process->folder, &file);
    return result < 0 ? (int)result : file;
}

ssize_t hl_proxy_read(const struct hl_process *process, int file, void *to, size_t bytes) {
    struct call call = {.kind = READ, .wanted = bytes < DATA_BYTES ? bytes : DATA_BYTES};
    ssize_t result = ask(process, &call, file, NULL);
    if (result > 0)
        memcpy(to, call.data, (size_t)result);
    return result;
}

ssize_t hl_proxy_write(const struct hl_process *process, int file, const void *from, size_t bytes) {
    struct call call = {.kind = WRITE, .bytes = bytes < DATA_BYTES ? bytes : DATA_BYTES};
    memcpy(call.data, from, call.bytes);
    return ask(process, &call, file, NULL);
}

int hl_proxy_query(const struct hl_process *process, int maps, struct hl_mapping_query *query) {
    struct call call = {.kind = QUERY, .bytes = sizeof *query};
    call.asked.query = *query;
    int result = (int)ask(process, &call, maps, NULL);
    if (result != 0)
        return result;
    *query = call.asked.query;
    if (query->name_bytes > 0)
        memcpy((void *)(uintptr_t)query->name, call.asked.name, query->name_bytes);
    return 0;
}

bool hl_is_proxy(const struct hl_proxy *proxy, pid_t pid) { return proxy->child != 0 && proxy->child == pid; }

double hl_proxy_ms(const struct hl_proxy *proxy) { return proxy->past_ms + used_ms(proxy); }

bool hl_has_left_out(const struct hl_proxy *proxy) { return proxy->left_out > 0; }

void hl_warn_of_left_out(const struct hl_proxy *proxy, const char *done) {
    const struct waiter *first = &proxy->first;
    if (proxy->left_out == 0)
        return;
    char *more =
        proxy->left_out > 1 ? hl_xasprintf(" (and %zu more)", proxy->left_out - 1) : hl_xasprintf("%s", "");
    char *others = first->user != 0 ? hl_xasprintf(", nor are other processes of user %u", first->user)
                                    : hl_xasprintf("%s", "");
    hl_warn("process %d%s was not %s%s: whatever reads its memory map has to wait; /proc/%d/stack shows what "
            "it waits for",
            first->pid, more, done, others, first->pid);
    free(more);
    free(others);
}
