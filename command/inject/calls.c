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

/* Whether SLEEPER has memory for the rest of a timeout at AT, or AT is 0: where the kernel cannot write it, it ends the call instead. */
static bool can_be_written(uint64_t at, const struct hl_process *sleeper) {
    const struct hl_region *region = at != 0 ? hl_find_region(sleeper, at) : NULL;
    return at == 0 || (region != NULL && (region->flags & PF_W) && region->end - at >= HL_REST_BYTES);
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

/* How CALL begins again, if its conditions are met.  *REST: where the kernel then writes the rest of its timeout; 0: nowhere. */
static enum hl_again find_call(const struct hl_call *call, uint64_t *rest) {
    const uint64_t *a = call->argument;
    int command = (int)a[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    *rest = 0;
    switch (call->number) {
    case SYS_futex:
        if (command == FUTEX_WAIT && a[3] != 0)
            return HL_AGAIN_CONTINUED;
        /* A timeout of FUTEX_WAIT_BITSET is absolute. */
        return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET ? HL_AGAIN_WHOLE : HL_AGAIN_UNKNOWN;
    case SYS_poll:
        return (int)a[2] >= 0 ? HL_AGAIN_CONTINUED : HL_AGAIN_WHOLE;
    case SYS_ppoll:
        *rest = a[2];
        return HL_AGAIN_WHOLE;
    case SYS_select:
    case SYS_pselect6:
        *rest = a[4];
        return HL_AGAIN_WHOLE;
    case SYS_clock_nanosleep:
        *rest = a[1] & TIMER_ABSTIME ? 0 : a[3];
        return a[1] & TIMER_ABSTIME ? HL_AGAIN_WHOLE : HL_AGAIN_CONTINUED;
    case SYS_nanosleep:
        *rest = a[1];
        return HL_AGAIN_CONTINUED;
    case SYS_restart_syscall:
        return HL_AGAIN_CONTINUED;
    case SYS_read: /* of a file that takes all or nothing */
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case 441: /* epoll_pwait2 */
    case SYS_accept:
    case SYS_accept4:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_pause:
    case SYS_rt_sigsuspend:
    case SYS_rt_sigtimedwait:
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_msgrcv:
    case SYS_mq_timedreceive:
        return HL_AGAIN_WHOLE;
    default:
        return HL_AGAIN_UNKNOWN;
    }
}

/* A thread that has just been woken may be caught in one of these.  If it has returned EINTR it had done nothing; before it returns, that
   is not known. */
static const long over[] = {SYS_readv,        SYS_recvfrom,      SYS_recvmsg, SYS_recvmmsg, SYS_write,
                            SYS_writev,       SYS_sendto,        SYS_sendmsg, SYS_sendmmsg, SYS_fallocate,
                            SYS_io_getevents, SYS_io_pgetevents, 426 /* io_uring_enter */};

uint64_t hl_find_rest(const struct hl_call *call) {
    uint64_t rest;
    return find_call(call, &rest) == HL_AGAIN_CONTINUED ? rest : 0;
}

enum hl_again hl_find_again(const struct hl_call *call, const struct hl_process *sleeper) {
    uint64_t rest;
    enum hl_again again = find_call(call, &rest);
    if (sleeper != NULL && (!can_be_written(rest, sleeper) ||
                            (call->number == SYS_read && !reads_all_or_nothing(call, sleeper))))
        return HL_AGAIN_UNKNOWN;
    for (size_t i = 0; i < sizeof over / sizeof over[0] && sleeper == NULL; i++)
        if (over[i] == call->number)
            return HL_AGAIN_WHOLE;
    return again;
}

#endif
