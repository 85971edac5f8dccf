/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces the text of a running process, by system calls in one stopped thread of it.

       socketpair, recvmsg    a descriptor of the new file comes through one end; the other is taken by pidfd_getfd(2)
       mmap                   addresses for all pieces that agree with theirs modulo a huge page,
       mmap, madvise          and there each piece of the file, with its page tables filled
       mremap                 from there onto the old text: one call takes away the one and brings the other.  They
                              stay mapped (MREMAP_DONTUNMAP), so that nothing else can be mapped there
       munmap, close

   All other threads run on, in the text that is replaced.  A thread that faults during mremap(2) waits for its lock, so each call
   moves only a few huge pages: the waits are many and short.

   If a call fails before the first mremap, everything is given back.  If an mremap fails, the ranges moved before it get their
   old mappings again.  An old kernel may have unmapped the text before it failed; then the new text is mapped there, with
   several tries, since nothing else is left to try. */
#include "command/lib/common.h"
#include "elf/kernel.h"
#include "command/inject/attachment.h"
#include "elf/line.h"
#include "elf/maps.h"
#include "elf/sys.h"

#if defined __x86_64__

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define MREMAP_TO_PLACE 7 /* MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP */
/* How many huge pages one mremap(2) moves. */
#define PAGES_AT_ONCE 4
/* How long an answer of the helper may take. */
#define HELPER_MS 1000
/* Mappings that the process may get meanwhile in addition to ours: two for each piece, and the reserved range. */
#define SPARE_MAPPINGS 64

struct mover {
    struct hl_attachment *attachment;
    struct hl_tracee *tracee;
    uint64_t reserved, reserved_bytes; /* the addresses in which the pieces are mapped first */
    uint64_t scratch[HL_PIECES_MAX];   /* of each piece */
    bool has_moved;                    /* some text is in place */
    int file;                          /* the process's descriptor of attachment->file, or -1 */
    pid_t helper;
    int control[2]; /* our end of its socket, and its own */
    char helper_stack[32768] __attribute__((aligned(16)));
};

/* --- the descriptor --- */

/* The arguments of recvmsg(2), in the process's memory. */
struct carrier {
    int pair[2];
    char byte;
    struct iovec vector;
    struct msghdr message;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
};
_Static_assert(sizeof(struct carrier) <= HL_TRACEE_DATA_BYTES, "it fits into the memory for arguments");

/* Fills CARRIER with addresses for its place AT. */
static void set_carrier(struct carrier *carrier, uint64_t at) {
    memset(carrier, 0, sizeof *carrier);
    carrier->vector = (struct iovec){(void *)(at + offsetof(struct carrier, byte)), 1};
    carrier->message.msg_iov = (void *)(at + offsetof(struct carrier, vector));
    carrier->message.msg_iovlen = 1;
    carrier->message.msg_control = (void *)(at + offsetof(struct carrier, control));
    carrier->message.msg_controllen = sizeof carrier->control;
}

/* Whether SOCKET is one end of a pair that the process made, and not a file that another of its threads has put in its place. */
static bool is_end_of_pair(int socket, pid_t pid) {
    int domain = 0, type = 0;
    struct ucred peer = {0, 0, 0};
    socklen_t bytes = sizeof domain, type_bytes = sizeof type, peer_bytes = sizeof peer;
    struct sockaddr_storage name;
    socklen_t name_bytes = sizeof name;
    return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX &&
           getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &type_bytes) == 0 && type == SOCK_DGRAM &&
           getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.pid == pid &&
           getpeername(socket, (struct sockaddr *)&name, &name_bytes) == 0 &&
           name_bytes <= sizeof(sa_family_t);
}

/* Sends FILE through SOCKET. */
static int send_file(int socket, int file) {
    struct carrier carrier;
    set_carrier(&carrier, (uint64_t)&carrier);
    struct cmsghdr *header = CMSG_FIRSTHDR(&carrier.message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof file), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    return sendmsg(socket, &carrier.message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

/* What the helper is asked for: to look at the socket NUMBER, and to send FILE through it unless that is below 0. */
struct errand {
    int number, file;
    pid_t maker; /* which process made the socket: the target, or a parent */
};

/* The helper: a process of hugeld's own, for another thread of the target may have put another file in the place of a socket; if that
   belongs to a FUSE that never answers, closing it never ends, even by SIGKILL.  It begins before the thread is stopped, shares the
   memory and errno of this process, and ends with it. */
static int help(void *data) {
    const struct mover *m = data;
    int process = (int)syscall(SYS_pidfd_open, m->attachment->process.pid, 0), socket = m->control[0];
    struct errand errand;
    for (bool is_done = true; write(m->control[1], &is_done, 1) == 1;) {
        close(socket);
        if (read(m->control[1], &errand, sizeof errand) != sizeof errand)
            break;
        socket = (int)syscall(SYS_pidfd_getfd, process, errand.number, 0);
        is_done = socket >= 0 && is_end_of_pair(socket, errand.maker) &&
                  (errand.file < 0 || send_file(socket, errand.file) == 0);
    }
    return 0;
}

/* Waits for an answer of the helper.  After one that is late there are no more errands: it would be taken for theirs. */
static bool await_helper(const struct mover *m) {
    struct pollfd control = {m->control[0], POLLIN, 0};
    bool is_done = false;
    if (poll(&control, 1, HELPER_MS) != 1 || read(m->control[0], &is_done, 1) != 1)
        shutdown(m->control[0], SHUT_WR);
    return is_done;
}

static int begin_helper(struct mover *m) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, m->control) != 0)
        return -errno;
    m->helper = clone(help, m->helper_stack + sizeof m->helper_stack, CLONE_VM, m);
    close(m->control[1]);
    return m->helper > 0 && await_helper(m) ? 0 : HL_REASON_ATTACH_BUSY;
}

/* One that does not end goes on until it can.  Whether it has ended. */
static bool end_helper(const struct mover *m) {
    struct pollfd control = {m->control[0], 0, 0}; /* POLLHUP alone: a late answer may still be there */
    shutdown(m->control[0], SHUT_WR);
    bool has_ended = m->helper <= 0 || poll(&control, 1, HELPER_MS) == 1;
    if (has_ended && m->helper > 0)
        waitpid(m->helper, NULL, __WALL);
    close(m->control[0]);
    return has_ended;
}

/* Lets the thread TID, or this one (0), run on PROCESSOR alone. */
static bool hold_to(pid_t tid, int processor) {
    cpu_set_t here;
    CPU_ZERO(&here);
    if (processor >= 0 && processor < CPU_SETSIZE)
        CPU_SET((size_t)processor, &here);
    return sched_setaffinity(tid, sizeof here, &here) == 0;
}

/* Whether NUMBER is an end of a pair of sockets that the process MAKER made, and FILE, unless it is below 0, was sent through it.  The
   helper runs on this thread's processor as soon as this thread sleeps.  On another one, on which many threads compute, it may wait for a
   second: the weight of a group of threads (autogroup, cgroup) is where most of the group ran. */
static bool use_socket(const struct mover *m, int number, pid_t maker, int file) {
    const struct errand errand = {number, file, maker};
    hold_to(m->helper, sched_getcpu());
    return write(m->control[0], &errand, sizeof errand) == sizeof errand && await_helper(m);
}

static int receive_file(struct mover *m, int socket) {
    struct carrier carrier;
    uint64_t at = m->tracee->data;
    long received;
    set_carrier(&carrier, at);
    int result = hl_write_tracee(m->tracee, at, &carrier, sizeof carrier);
    if (result == 0)
        result = hl_call(m->tracee, &received, SYS_recvmsg, (uint64_t)socket,
                         at + offsetof(struct carrier, message), MSG_DONTWAIT | MSG_CMSG_CLOEXEC, 0, 0, 0);
    if (result == 0)
        result = hl_read_thread(m->tracee->pid, at, &carrier, sizeof carrier);
    if (result != 0)
        return result;
    if (carrier.message.msg_controllen < CMSG_LEN(sizeof m->file) ||
        carrier.control.header.cmsg_type != SCM_RIGHTS)
        return HL_REASON_ATTACH_DESCRIPTOR; /* a policy, or a limit, has left out the descriptor */
    memcpy(&m->file, CMSG_DATA(&carrier.control.header), sizeof m->file);
    return 0;
}

/* Sends FILE to the process, where its number is m->file. */
static int pass_file(struct mover *m, int file) {
    int pair[2];
    long made;
    lseek(file, (off_t)HL_LEFT_POSITION, SEEK_SET); /* by which it is known if we are killed */
    int result = hl_call(m->tracee, &made, SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0,
                         m->tracee->pair_at, 0, 0);
    if (result == HL_REASON_ATTACH_CALL)
        return HL_REASON_ATTACH_DESCRIPTOR;
    m->tracee->keeps_journal = true; /* until both are closed */
    if (result != 0)
        return result;
    result = hl_read_thread(m->tracee->pid, m->tracee->pair_at, pair, sizeof pair);
    if (result != 0)
        return result;
    result = use_socket(m, pair[0], m->attachment->process.pid, file) ? receive_file(m, pair[1])
                                                                      : HL_REASON_ATTACH_DESCRIPTOR;
    bool is_closed = hl_close_in_tracee(m->tracee, pair[0]);
    m->tracee->keeps_journal = !hl_close_in_tracee(m->tracee, pair[1]) || !is_closed;
    return result == HL_REASON_ATTACH_CALL ? HL_REASON_ATTACH_DESCRIPTOR : result;
}

/* --- the new text, aside --- */

static uint64_t piece_bytes(const struct hl_piece_of_text *piece) { return piece->end - piece->start; }

/* mlockall(MCL_FUTURE) shows in a mapping made now: the new text would be locked into memory, and count as such.  Where
   RLIMIT_MEMLOCK forbids that, mmap fails with EAGAIN. */
static int reserve_range(struct mover *m) {
    uint64_t unit = m->attachment->request->geometry.huge_page_bytes, page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t locked_kib = hl_read_locked(&m->attachment->process), bytes = unit + 2 * page;
    long at_reserved;
    for (unsigned i = 0; i < m->attachment->n_pieces; i++)
        bytes += hl_round_up(piece_bytes(&m->attachment->piece[i]), unit) + unit;
    int result = hl_call(m->tracee, &at_reserved, SYS_mmap, 0, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE,
                         (uint64_t)m->file, HL_LEFT_OFFSET);
    if (result == HL_REASON_ATTACH_CALL)
        return at_reserved == -EAGAIN ? HL_REASON_ATTACH_LOCKED : HL_REASON_NO_MEMORY;
    if (result != 0)
        return result;
    m->reserved = (uint64_t)at_reserved;
    m->reserved_bytes = bytes;
    uint64_t at = hl_round_up(m->reserved + page, unit); /* the first page and the last one stay reserved */
    for (unsigned i = 0; i < m->attachment->n_pieces; i++) {
        const struct hl_piece_of_text *piece = &m->attachment->piece[i];
        m->scratch[i] = at + piece->start % unit;
        at = hl_round_up(m->scratch[i] + piece_bytes(piece), unit);
    }
    return hl_read_locked(&m->attachment->process) < locked_kib + bytes / 1024 ? 0 : HL_REASON_ATTACH_LOCKED;
}

/* Maps a piece at its scratch address, with all its page tables. */
static int prepare_piece(const struct mover *m, unsigned i) {
    long done;
    int result = hl_map_piece(m->tracee, &m->attachment->piece[i], m->scratch[i], MAP_FIXED, m->file);
    if (result == 0)
        result = hl_call(m->tracee, &done, SYS_madvise, m->scratch[i], piece_bytes(&m->attachment->piece[i]),
                         MADV_POPULATE_READ, 0, 0, 0);
    return result == HL_REASON_ATTACH_CALL ? HL_REASON_SOURCE_UNREADABLE : result;
}

/* By smaps on kernels whose pagemap does not tell. */
static int check_huge(const struct mover *m, uint64_t start, uint64_t end) {
    struct hl_process again = {.folder = -1};
    struct hl_address_range range = {start, end};
    int pagemap = hl_open_process_file(&m->attachment->process, "pagemap");
    if (pagemap < 0)
        return pagemap;
    int result = hl_check_huge(pagemap, start, end);
    close(pagemap);
    if (result >= 0)
        return result;
    result = hl_read_some_regions(&again, &m->attachment->process, &range, 1);
    const struct hl_region *region = result == 0 ? hl_find_region(&again, start) : NULL;
    if (result == 0 && again.n_regions == 0)
        result = -ENODATA; /* the process has ended */
    if (result == 0 && (region == NULL || region->shmem_pmd_bytes + region->file_pmd_bytes < end - start))
        result = HL_REASON_THP_UNAVAILABLE;
    hl_close_process(&again);
    return result;
}

/* Whether the scratch addresses map the file that was sent, on huge pages where that is required. */
static int check_scratch(const struct mover *m, const struct hl_process *now) {
    int result = 0;
    for (unsigned i = 0; i < m->attachment->n_pieces && result == 0; i++) {
        const struct hl_region *region = hl_find_region(now, m->scratch[i]);
        uint64_t end = m->scratch[i] + piece_bytes(&m->attachment->piece[i]);
        if (region == NULL || region->inode != m->attachment->inode ||
            region->device != m->attachment->device || region->end < end ||
            region->offset + (m->scratch[i] - region->start) != m->attachment->piece[i].offset)
            return HL_REASON_MAPPING_CHANGED;
        if (!m->attachment->request->is_detach)
            result = check_huge(m, m->scratch[i], end);
    }
    return result;
}

/* The last look, at everything that could have changed since the process was planned. */
static int check_again(const struct mover *m) {
    struct hl_process now = {.folder = -1};
    struct hl_address_range range[2 * HL_PIECES_MAX + 1];
    size_t n = 0;
    for (; n < m->attachment->n_pieces; n++)
        range[n] = (struct hl_address_range){m->attachment->piece[n].start, m->attachment->piece[n].end};
    for (unsigned i = 0; i < m->attachment->n_gaps; i++)
        range[n++] = m->attachment->gap[i];
    range[n++] = (struct hl_address_range){m->reserved, m->reserved + m->reserved_bytes};
    int result = hl_read_some_mappings(&now, &m->attachment->process, range, n);
    if (result == 0)
        result = check_scratch(m, &now);
    if (result == 0)
        result = hl_check_attached_text(m->attachment, &now);
    hl_close_process(&now);
    return result;
}

/* --- into place --- */

static int move_piece(struct mover *m, unsigned i) {
    const struct hl_piece_of_text *piece = &m->attachment->piece[i];
    uint64_t unit = PAGES_AT_ONCE * m->attachment->request->geometry.huge_page_bytes;
    for (uint64_t at = piece->start, next; at < piece->end; at = next) {
        char byte;
        long moved;
        next = hl_round_down(at, unit) + unit;
        next = next < piece->end ? next : piece->end;
        int result = hl_call(m->tracee, &moved, SYS_mremap, m->scratch[i] + (at - piece->start), next - at,
                             next - at, MREMAP_TO_PLACE, at, 0);
        bool is_gone =
            result == HL_REASON_ATTACH_CALL && hl_read_thread(m->tracee->pid, at, &byte, 1) == -EFAULT;
        m->has_moved |= result == 0 || is_gone;
        if (is_gone)
            return hl_map_piece_surely(m->tracee, piece, m->file); /* the whole piece */
        if (result != 0)
            return result == HL_REASON_ATTACH_CALL && moved == -EPERM ? HL_REASON_SEALED : result;
    }
    return 0;
}

/* Gives back the reserved range and the descriptor. */
static void finish(const struct mover *m) {
    if (m->tracee->stage == HL_TRACEE_GONE)
        return;
    hl_unmap_in_tracee(m->tracee, m->reserved, m->reserved + m->reserved_bytes);
    hl_close_in_tracee(m->tracee, m->file);
}

/* --- leftovers --- */

/* Closes what earlier calls of hugeld have left when they were killed.  It is looked at once more before: other threads run. */
static void close_leftovers(struct mover *m) {
    const struct hl_tracee *tracee = m->tracee;
    struct hl_process now = {.folder = -1};
    struct hl_leftovers left = {0};
    if (hl_has_leftovers(&m->attachment->left) && hl_read_mappings(&now, &m->attachment->process) == 0)
        hl_find_leftovers(&left, &now);
    hl_close_process(&now);
    for (unsigned i = 0; i < left.n_ranges; i++)
        hl_unmap_in_tracee(m->tracee, left.range[i].start, left.range[i].end);
    for (unsigned i = 0; i < left.n_files; i++)
        hl_close_in_tracee(m->tracee, left.file[i]);
    for (unsigned i = 0; i < 2; i++)
        if (tracee->left.pair[i] >= 0 && use_socket(m, tracee->left.pair[i], tracee->left.pid, -1))
            hl_close_in_tracee(m->tracee, tracee->left.pair[i]);
}

/* --- back --- */

/* Takes back the moves that attach made before something failed.  Text that detach has moved stays on the program's own file. */
static void undo(struct mover *m) {
    const struct hl_piece_of_text *piece = m->attachment->piece;
    const struct hl_loaded *loaded = m->attachment->loaded;
    m->file = -1;
    m->reserved = m->reserved_bytes = 0;
    if (m->attachment->request->is_detach || !m->has_moved || m->tracee->stage == HL_TRACEE_GONE ||
        pass_file(m, loaded->file->fd) != 0)
        return;
    for (unsigned i = 0; i < m->attachment->n_pieces; i++)
        hl_map_own_pieces(m->tracee, &loaded->object, piece[i].start, piece[i].end, 0, m->file);
    finish(m);
}

static void give_up(struct mover *m, int result) {
    finish(m);
    undo(m);
    m->attachment->reason = hl_or_ended(m->attachment, result);
}

static void move_text(struct mover *m) {
    struct hl_attachment *attachment = m->attachment;
    close_leftovers(m);
    if (attachment->reason != 0) /* nothing else is to be done */
        return;
    int result = pass_file(m, attachment->file);
    if (result == 0)
        result = reserve_range(m);
    for (unsigned i = 0; i < attachment->n_pieces && result == 0; i++)
        result = prepare_piece(m, i);
    if (result == 0 && m->tracee->stage == HL_TRACEE_GONE)
        result = m->tracee->let_go != 0 ? m->tracee->let_go : -ESRCH;
    if (result == 0)
        result = check_again(m);
    for (unsigned i = 0; i < attachment->n_pieces && result == 0; i++)
        result = move_piece(m, i);
    for (unsigned i = 0; i < attachment->n_gaps && result == 0; i++)
        hl_unmap_in_tracee(m->tracee, attachment->gap[i].start, attachment->gap[i].end);
    if (result == 0)
        finish(m);
    else
        give_up(m, result);
}

/* --- the process --- */

/* The highest real-time priority of PROCESS's threads; 0: none has one.  A deadline comes before all priorities. */
static int find_highest_priority(const struct hl_process *process) {
    int highest = 0;
    DIR *folder = hl_open_list(process->folder, "task");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t tid = hl_parse_pid(entry->d_name);
        struct sched_param priority = {0};
        if (tid == 0 || sched_getparam(tid, &priority) != 0)
            continue;
        bool has_deadline = (sched_getscheduler(tid) & ~SCHED_RESET_ON_FORK) == SCHED_DEADLINE;
        int found = has_deadline ? sched_get_priority_max(SCHED_FIFO) : priority.sched_priority;
        highest = found > highest ? found : highest;
    }
    if (folder != NULL)
        closedir(folder);
    return highest;
}

/* hugeld and the stopped thread take turns some sixty times, and on a busy machine each turn would wait for a processor.  So hugeld
   goes to where the thread was, and never waits awake: as soon as it sleeps, that processor is free for the thread, which otherwise may
   be put behind others.  (At a load of 30 on two processors nine of ten stops took less than 16 ms so, and 110 otherwise.)  And hugeld
   raises its own priority, if it may.  A real-time priority gains little more, and Linux 6.18 then makes others wait for longer; but
   where a thread of the process has one and computes, hugeld would not run at all for 0.95 of each second (sched_rt_runtime_us), and the
   stopped thread would wait for it. */
static int hurry(struct mover *m) {
    const struct hl_process *process = &m->attachment->process;
    uint64_t field[HL_STAT_FIELDS];
    int highest = find_highest_priority(process);
    int processor = hl_read_stat_fields(process, field) == 0 ? (int)field[39] : -1; /* where it was last */
    const struct sched_param priority = {highest + 1};
    cpu_set_t before;
    setpriority(PRIO_PROCESS, (id_t)gettid(), -20);
    if (highest > 0 && sched_setscheduler(0, SCHED_FIFO, &priority) != 0)
        return HL_REASON_ATTACH_REALTIME;
    int result =
        begin_helper(m); /* with that priority; who wakes up from waiting for it may be on any processor */
    if (sched_getaffinity(0, sizeof before, &before) == 0 && hold_to(0, processor))
        sched_setaffinity(0, sizeof before, &before); /* a real-time thread may keep that processor */
    return result;
}

/* The stack of the process has a limit of its own, but when hugeld makes it grow, the kernel applies hugeld's. */
static void allow_large_stacks(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_STACK, &limit);
}

static void *work_in_thread(void *data) {
    struct hl_attachment *attachment = data;
    const struct hl_process *process = &attachment->process;
    struct hl_tracee tracee;
    struct mover *m = hl_xmalloc(sizeof *m);
    uint64_t limit;
    *m = (struct mover){.attachment = attachment, .tracee = &tracee, .file = -1};
    int result = hurry(m);
    allow_large_stacks();
    if (!hl_read_number("/proc/sys/vm/max_map_count", &limit))
        limit = 65530; /* the kernel's default */
    if (result == 0 && process->n_regions + SPARE_MAPPINGS > limit)
        result = HL_REASON_MAP_COUNT;
    if (result == 0)
        result = hl_hold_thread(&tracee, process, &attachment->gadgets);
    if (result == 0) {
        move_text(m);
        hl_release_tracee(&tracee);
        attachment->stopped_us = (uint64_t)((hl_now_ms() - tracee.stopped_ms) * 1e3);
    }
    if (m->helper == 0 || end_helper(m))
        free(m);
    if (result != 0 && attachment->reason == 0)
        attachment->reason = hl_or_ended(attachment, result);
    return NULL;
}

/* All of it is done in a thread of its own: when that ends, the kernel lets go of every thread that it still traces.  Ctrl-C has
   to wait for that. */
void hl_move_attachment(struct hl_attachment *attachment) {
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    struct sigaction before;
    sigset_t all, unblocked;
    pthread_t thread;
    if (attachment->reason != 0 && !attachment->closes_leftovers)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &unblocked);
    sigaction(SIGCHLD, &usual, &before);
    int error = pthread_create(&thread, NULL, work_in_thread, attachment);
    if (error == 0)
        pthread_join(thread, NULL);
    else
        attachment->reason = -error;
    sigaction(SIGCHLD, &before, NULL);
    pthread_sigmask(SIG_SETMASK, &unblocked, NULL);
}

#else

void hl_move_attachment(struct hl_attachment *attachment) { (void)attachment; }

#endif
