/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One thread of another process, stopped by ptrace(2), that makes system calls for us.

   Results are 0, a reason (enum hl_reason) or a negated errno; -ESRCH: the thread is gone (it ended, or another
   one executed a program).  All functions for one tracee are called by the same thread, with all signals blocked and the default
   action of SIGCHLD, which tells that the tracee has stopped; and when that thread ends, in whichever way, the kernel lets go of
   what it has stopped. */
#ifndef HL_TRACEE_H
#define HL_TRACEE_H

#include "command/lib/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/user.h>
#include <time.h>

/* --- calls.c: which system calls a thread can be thrown out of so that neither it nor another process can tell --- */

/* A call as /proc/TID/syscall shows it, or as registers hold it. */
struct hl_call {
    long number;
    uint64_t argument[6];
};

/* How a call begins again. */
enum hl_again {
    HL_AGAIN_WHOLE,     /* with the same arguments: it had done nothing yet */
    HL_AGAIN_CONTINUED, /* with the rest of its timeout, as restart_syscall(2), a call that a filter may forbid */
    HL_AGAIN_UNKNOWN /* it may not */
};

/* How CALL begins again, in which the first thread of SLEEPER sleeps before an interruption; or without SLEEPER, after one: then EINTR says
   that it had done nothing.  SLEEPER has its regions. */
enum hl_again hl_find_again(const struct hl_call *call, const struct hl_process *sleeper);

/* The address to which CALL, a sleep, writes its remaining time as soon as it is interrupted, though it goes on; 0: none.
   Programs read from there how long they sleep the next time. */
#define HL_REST_BYTES sizeof(struct timespec)
uint64_t hl_find_rest(const struct hl_call *call);

/* --- tracee.c, and attach-tracee.c for attach alone --- */

/* The tracer of the thread TID of PID; 0: no tracer is seen from here.  -ESRCH: the thread has ended.  Any thread may call this
   at any time. */
pid_t hl_find_tracer(pid_t pid, pid_t tid);

/* Reads the fields of PROCESS's stat by their numbers in proc(5), of which those from 4 on are numbers.  0, or HL_REASON_NO_PROC. */
#define HL_STAT_FIELDS 52
int hl_read_stat_fields(const struct hl_process *process, uint64_t field[HL_STAT_FIELDS]);

/* The memory for arguments of a thread that makes calls, at hl_tracee.data. */
#define HL_TRACEE_DATA_BYTES 1024

/* Where a thread's calls begin, and the code that restores it if we die in the middle of one. */
struct hl_gadgets {
    uint64_t call; /* syscall; ret */
    uint64_t back; /* mov $__NR_rt_sigreturn, %eax; syscall */
};

enum hl_tracee_stage {
    HL_TRACEE_GONE,    /* it has ended, or is not ours any more */
    HL_TRACEE_ASKED,   /* it is ours, and to stop */
    HL_TRACEE_STOPPED, /* it has stopped as asked */
    HL_TRACEE_ARMED,   /* it can make calls */
    HL_TRACEE_IN_CALL, /* it was last seen in one of these */
};

/* The number of signals that a thread raises itself, and that are not blocked. */
#define HL_SYNCHRONOUS 6

#define HL_LATER_MAX 8

/* At the low end of a frame's place while it is in use, and still there after we were killed.  The kernel itself writes the numbers of
   the sockets that the thread makes. */
struct hl_journal {
    uint64_t mark; /* depends on the address, as the pattern does */
    uint64_t frame_hash;
    uint32_t frame_bytes;
    int32_t pid; /* of the process that made the sockets; a child has a copy */
    int32_t pair[2];
};

/* The first thread of a process. */
struct hl_tracee {
    pid_t pid;
    struct hl_gadgets gadgets;
    /* after it was prepared for calls: */
    struct user_regs_struct registers; /* as they were at the stop */
    uint64_t stack;                    /* the stack pointer for calls; 0: it makes none */
    uint64_t data;                     /* HL_TRACEE_DATA_BYTES of its memory for arguments */
    int (*call)(struct hl_tracee *tracee, long *result, long number,
                const uint64_t argument[6]); /* for hl_call */

    /* at the exec stop: */
    uint64_t start;     /* the address of the program's first instruction */
    uint64_t arguments; /* its stack: argc, the arguments, the environment, and the auxiliary vector */
    unsigned n_later;   /* calls that it makes when it is let go */
    struct hl_call later[HL_LATER_MAX];

    /* of a running process: */
    enum hl_tracee_stage stage;
    int lock;                    /* against other calls of hugeld, or -1 */
    double asked_ms, stopped_ms; /* when it was asked to stop, and when it did, as of hl_now_ms */
    int memory;       /* an open /proc/PID/mem, after hl_await_tracee: not that of a program executed later */
    uint64_t pair_at; /* the place for the numbers of two sockets that it makes */
    struct hl_journal left;     /* of an earlier tracer that was killed */
    bool keeps_journal;         /* sockets that it has made may still be open */
    struct hl_call interrupted; /* the call in which it slept when it was asked to stop, */
    uint64_t rest; /* where that writes the rest of its time, and the bytes that were there; 0: nowhere */
    char rest_bytes[HL_REST_BYTES];
    int let_go;                     /* why a call has let it go, or 0 */
    uint64_t mask;                  /* the signal mask */
    uint64_t low, high;             /* the part of the stack that was taken for it */
    bool suspends;                  /* no filter sees its calls */
    siginfo_t held[HL_SYNCHRONOUS]; /* signals to be sent again, in the order in which they came */
    unsigned n_held;
    size_t frame_bytes; /* of the signal frame */
    char *vectors;      /* its vector registers, as the frame has them */
};

/* Makes a call in TRACEE, which was prepared for that.  0: it succeeded with *RESULT; HL_REASON_ATTACH_CALL: it failed, and *RESULT
   is the negated errno; else it was not made.  In a running process, HL_REASON_ATTACH_TAMPERED: the thread was about to make
   another call, and did not make it if a filter is suspended; HL_REASON_ATTACH_FROZEN: its control group is frozen, and it made none.
   After both it has been let go. */
int hl_call(struct hl_tracee *tracee, long *result, long number, uint64_t a, uint64_t b, uint64_t c,
            uint64_t d, uint64_t e, uint64_t f);

/* FILE may be negative, and START END.  Whether FILE is closed. */
bool hl_close_in_tracee(struct hl_tracee *tracee, int file);
void hl_unmap_in_tracee(struct hl_tracee *tracee, uint64_t start, uint64_t end);

/* Finds the instructions in PROCESS.  0, or HL_REASON_ATTACH_INSTRUCTIONS, also if they cannot be read. */
int hl_find_gadgets(struct hl_gadgets *gadgets, const struct hl_process *process);

/* The number of the call that goes on as restart_syscall(2) in the thread TID with the instruction pointer PC; most programs
   load it right before the call.  If not: the number of restart_syscall itself. */
long hl_find_restarted(pid_t tid, uint64_t pc);

/* Traces TRACEE, which has a PID and nothing else, and does not notice, and asks it to stop.  CALL: the call in which it sleeps.  0,
   HL_REASON_ATTACH_TRACED, HL_REASON_ATTACH_BUSY (its process executes a program, and that takes long), or a negated errno. */
int hl_interrupt_tracee(struct hl_tracee *tracee, const struct hl_call *call);

/* Waits until it has stopped.  0, HL_REASON_ATTACH_STOPPED, HL_REASON_ATTACH_BUSY (not in time), or a negated errno. */
int hl_await_tracee(struct hl_tracee *tracee);

/* Prepares the stopped thread for calls.  PROCESS has the present mappings of GADGETS and of [stack].  A filter of its
   system calls (seccomp) is suspended until it is let go, if we may do that.  The frame that restores it lies at the low end of [stack],
   which was never used.  0, or why that cannot be. */
int hl_arm_tracee(struct hl_tracee *tracee, const struct hl_gadgets *gadgets,
                  const struct hl_process *process);

/* Whether the first thread of PROCESS, which has its mappings, makes calls for a tracer, or did when that was killed. */
bool hl_has_journal(const struct hl_process *process);

/* The reason for ERROR, a negated errno of mapping a file that a thread may have to execute. */
static inline int hl_explain_mapping(long error) {
    return error == -EPERM    ? HL_REASON_STORE_NOEXEC
           : error == -EACCES ? HL_REASON_EXEC_DENIED
                              : HL_REASON_NO_MEMORY;
}

/* Reads the memory of the thread TID, as far as the thread itself could read it.  0, or a negated errno. */
int hl_read_thread(pid_t tid, uint64_t at, void *to, size_t bytes);

/* Writes a tracee's memory; only after hl_await_tracee. */
int hl_write_tracee(const struct hl_tracee *tracee, uint64_t at, const void *from, size_t bytes);

/* Puts everything back and lets the thread run.  A thread that does not stop stays traced until the calling thread ends. */
void hl_release_tracee(struct hl_tracee *tracee);

#endif
