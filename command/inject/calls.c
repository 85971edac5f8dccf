/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The system calls that begin again.

   ptrace(2) stops a thread by throwing it out of the call in which it sleeps.  The kernel lets many calls begin again then, but not
   all, and not all without a trace: io_uring_enter(2) returns the number of entries submitted so far, io_getevents(2) the first of
   two events, read(2) of a socket with SO_RCVLOWAT the bytes that have come so far, and a supervisor (seccomp's user notification)
   serves a call twice.  So this is a list of the calls that are known to begin again, and under which condition; no other call is
   interrupted.

   tests/attach tries calls that may be interrupted, and calls that must not. */
#include "command/inject/tracee.h"
#include "command/lib/basics.h"

#if defined __x86_64__

#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum timeout { NONE, POINTER, MILLISECONDS };

struct row {
    long number;
    /* NULL: none.  SLEEPER: the process whose first thread sleeps in the call; NULL: not known. */
    bool (*condition)(const struct hl_call *call, const struct hl_process *sleeper);
    enum hl_again untimed, timed;
    enum timeout timeout;
    unsigned at; /* the number of the timeout argument */
};

/* --- conditions --- */

static int futex_command(const struct hl_call *call) {
    return (int)call->argument[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
}

static bool is_futex_wait(const struct hl_call *call, const struct hl_process *sleeper) {
    (void)sleeper;
    return futex_command(call) == FUTEX_WAIT;
}

/* Its timeout is absolute. */
static bool is_futex_wait_bitset(const struct hl_call *call, const struct hl_process *sleeper) {
    (void)sleeper;
    return futex_command(call) == FUTEX_WAIT_BITSET;
}

static bool is_absolute(const struct hl_call *call, const struct hl_process *sleeper) {
    (void)sleeper;
    return (call->argument[1] & TIMER_ABSTIME) != 0;
}

/* Whether SLEEPER has BYTES at AT, or AT is 0: where the kernel cannot write the rest of a timeout, it ends the call instead. */
static bool can_be_written(uint64_t at, size_t bytes, const struct hl_process *sleeper) {
    const struct hl_region *region = sleeper != NULL && at != 0 ? hl_find_region(sleeper, at) : NULL;
    return sleeper == NULL || at == 0 ||
           (region != NULL && (region->flags & PF_W) && region->end - at >= bytes);
}

/* Whether a read of the file takes all or nothing: a pipe, whatever its name and file system, or one of the names that only the
   kernel gives; a path would begin with a slash.  The file system is not asked: it may not answer. */
static bool reads_all_or_nothing(const struct hl_call *call, const struct hl_process *sleeper) {
    static const char *const names[] = {
        "anon_inode:[eventfd]",
        "anon_inode:[timerfd]",
        "anon_inode:inotify",
        "anon_inode:[signalfd]",
    };
    char name[64];
    struct statx state;
    if (sleeper == NULL)
        return true;
    int folder = sleeper->folder;
    char *path = hl_xasprintf("fd/%u", (unsigned)call->argument[0]);
    bool is_known =
        statx(folder, path, AT_STATX_DONT_SYNC, STATX_TYPE, &state) == 0 && S_ISFIFO(state.stx_mode);
    ssize_t bytes = readlinkat(folder, path, name, sizeof name - 1);
    free(path);
    name[bytes > 0 ? bytes : 0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        is_known |= strncmp(name, names[i], strlen(names[i])) == 0;
    return is_known;
}

/* --- the table --- */

static const struct row rows[] = {
    {SYS_futex, is_futex_wait, HL_AGAIN_WHOLE, HL_AGAIN_CONTINUED, POINTER, 3},
    {SYS_futex, is_futex_wait_bitset, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, POINTER, 3},
    {SYS_epoll_wait, NULL, HL_AGAIN_WHOLE, HL_AGAIN_ANEW, MILLISECONDS, 3},
    {SYS_epoll_pwait, NULL, HL_AGAIN_WHOLE, HL_AGAIN_ANEW, MILLISECONDS, 3},
    {441 /* epoll_pwait2 */, NULL, HL_AGAIN_WHOLE, HL_AGAIN_ANEW, POINTER, 3},
    {SYS_poll, NULL, HL_AGAIN_WHOLE, HL_AGAIN_CONTINUED, MILLISECONDS, 2},
    {SYS_ppoll, NULL, HL_AGAIN_WHOLE, HL_AGAIN_REST, POINTER, 2},
    {SYS_select, NULL, HL_AGAIN_WHOLE, HL_AGAIN_REST, POINTER, 4},
    {SYS_pselect6, NULL, HL_AGAIN_WHOLE, HL_AGAIN_REST, POINTER, 4},
    {SYS_clock_nanosleep, is_absolute, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_clock_nanosleep, NULL, HL_AGAIN_CONTINUED, HL_AGAIN_CONTINUED, NONE, 0},
    {SYS_nanosleep, NULL, HL_AGAIN_CONTINUED, HL_AGAIN_CONTINUED, NONE, 0},
    {SYS_restart_syscall, NULL, HL_AGAIN_CONTINUED, HL_AGAIN_CONTINUED, NONE, 0},
    {SYS_read, reads_all_or_nothing, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_accept, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_accept4, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_wait4, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_waitid, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_pause, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_rt_sigsuspend, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_rt_sigtimedwait, NULL, HL_AGAIN_WHOLE, HL_AGAIN_ANEW, POINTER, 2},
    {SYS_semop, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_semtimedop, NULL, HL_AGAIN_WHOLE, HL_AGAIN_ANEW, POINTER, 3},
    {SYS_msgrcv, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
    {SYS_mq_timedreceive, NULL, HL_AGAIN_WHOLE, HL_AGAIN_WHOLE, NONE, 0},
};

/* A thread that has just been woken may be caught in one of these.  If it has returned EINTR it had done nothing; before it returns, that
   is not known. */
static const long over[] = {SYS_readv,        SYS_recvfrom,      SYS_recvmsg, SYS_recvmmsg, SYS_write,
                            SYS_writev,       SYS_sendto,        SYS_sendmsg, SYS_sendmmsg, SYS_fallocate,
                            SYS_io_getevents, SYS_io_pgetevents, 426 /* io_uring_enter */};

static bool is_timed(const struct row *row, const struct hl_call *call) {
    uint64_t value = call->argument[row->at];
    return row->timeout == POINTER ? value != 0 : row->timeout == MILLISECONDS && (int)value >= 0;
}

uint64_t hl_find_rest(const struct hl_call *call) {
    if (call->number == SYS_nanosleep)
        return call->argument[1];
    return call->number == SYS_clock_nanosleep && !is_absolute(call, NULL) ? call->argument[3] : 0;
}

enum hl_again hl_find_again(const struct hl_call *call, const struct hl_process *sleeper) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        if (row->number != call->number || (row->condition != NULL && !row->condition(call, sleeper)))
            continue;
        enum hl_again again = is_timed(row, call) ? row->timed : row->untimed;
        uint64_t rest = again == HL_AGAIN_REST ? call->argument[row->at] : hl_find_rest(call);
        return can_be_written(rest, HL_REST_BYTES, sleeper) ? again : HL_AGAIN_UNKNOWN;
    }
    for (size_t i = 0; i < sizeof over / sizeof over[0] && sleeper == NULL; i++)
        if (over[i] == call->number)
            return HL_AGAIN_ANEW;
    return HL_AGAIN_UNKNOWN;
}

#endif
