/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Executes a program with its text on its image, and with nothing of hugeld in it.

   hugeld run becomes the program, so the work is left to a helper, a process that shares hugeld's
   memory until then and traces it.

       run        starts the helper, plans, waits until it is traced, execve(2) ....... wait4: the helper   program
       helper                      PTRACE_SEIZE ........................... the image, detach, ends

   The helper is a child of the program's, and the program must not see that. wait(2) without __WALL does not know it, its signal is
   ignored, and the last call that the process makes on our behalf waits for it.  So there is no orphan that process 1 would have to
   wait for, which in a container may be a program that never does.  The helper's resource use is counted in RUSAGE_CHILDREN.  If it
   is killed, a zombie that only __WALL sees stays until the program ends.

   If the program cannot be executed while it is traced (a security module forbids it), it is executed without. */
#include "command/inject/exec-stop.h"
#include "command/lib/basics.h"
#include "command/lib/remedy.h"
#include "command/image/find.h"
#include "elf/reason.h"
#include "elf/sys.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (256 << 10)
#define GUARD_BYTES (64 << 10) /* below it, of whole pages whatever their size */
#define ROOM_BYTES (16 << 20)

/* The state of the helper.  The kernel sets ENDED when the helper ends and still shares our memory. */
enum state { ENDED, STARTED, MAY, TRACES, FAILED };

struct hl_exec_stop {
    struct hl_exec_plan plan;
    pid_t pid, helper;
    int processor; /* where the program's process was, or -1 */
    _Atomic int state;
    int error; /* why it FAILED */
};

static long call_futex(_Atomic int *word, int operation, int value) {
    return HL_CALL(__NR_futex, word, operation, value, NULL, NULL, 0);
}

static void set_state(struct hl_exec_stop *stop, enum state state) {
    atomic_store(&stop->state, (int)state);
    call_futex(&stop->state, FUTEX_WAKE, 1);
}

/* Waits while the state is STATE, and returns the next one. */
static enum state await_other_state(struct hl_exec_stop *stop, enum state state) {
    while (atomic_load(&stop->state) == (int)state)
        call_futex(&stop->state, FUTEX_WAIT, (int)state);
    return (enum state)atomic_load(&stop->state);
}

/* --- the helper --- */

/* Where Yama's ptrace_scope is 1, this needs the permission of the traced process. */
static bool seize(struct hl_exec_stop *stop) {
    int result = hl_seize_exec_thread(stop->pid);
    if (result == -EPERM) {
        await_other_state(stop, STARTED);
        result = hl_seize_exec_thread(stop->pid);
    }
    stop->error = result;
    set_state(stop, result == 0 ? TRACES : FAILED);
    return result == 0;
}

static char *count_pages(const char *kind, uint64_t pages) {
    return pages == 0
               ? hl_xasprintf("%s", "")
               : hl_xasprintf("%s %llu page%s image, ", kind, (unsigned long long)pages, hl_plural(pages));
}

/* Prints the same lines as libhugeld.so.  The patched linker prints its own. */
static void tell(const struct hl_exec_plan *plan, int result) {
    char *text = count_pages("text", plan->text_pages), *rodata = count_pages("rodata", plan->rodata_pages);
    bool refuses = result != 0 && plan->is_strict;
    if (result == 0 && plan->verbose >= 2 && !plan->maps_linker)
        hl_warn("%s: %s%sat the exec stop from %s", hl_base_name(plan->executable), text, rodata,
                plan->image_path);
    else if (result != 0 && (refuses || plan->verbose >= 1))
        hl_warn("%s: %s: %s; %s", plan->executable,
                plan->maps_linker ? "without the patched linker" : "not on its image",
                result > 0 ? hl_reason_sentence((enum hl_reason)result) : strerror(-result),
                refuses ? "strict=on, so it does not run; run it without strict=on"
                        : "it runs on small pages");
    free(text);
    free(rodata);
}

/* From the exec stop on the two run in turns only.  On one processor that takes 2 us for each turn; to wake the other one up
   from its sleep takes ten times as long, and under a hypervisor more.  The program's CPUs are left alone: what its parent or its control
   group sets meanwhile would be lost when they are restored, and no call tells whether they were restricted by hand. */
static void stay_beside(int processor) {
    cpu_set_t one;
    CPU_ZERO(&one);
    if (processor >= 0 && processor < CPU_SETSIZE)
        CPU_SET((size_t)processor, &one);
    HL_CALL(__NR_sched_setaffinity, 0, sizeof one, &one, 0, 0, 0);
}

/* The helper needs none of its copies of the descriptors but standard error: if they were all that RLIMIT_NOFILE allows, it
   could open nothing. */
static void close_copies(void) {
    HL_CALL(__NR_close_range, 0, STDERR_FILENO - 1, 0, 0, 0, 0);
    HL_CALL(__NR_close_range, STDERR_FILENO + 1, UINT_MAX, 0, 0, 0, 0);
}

/* Makes the helper end with its PARENT; false: PARENT has ended already, and the helper would keep its pipes open. */
static bool stays_with(pid_t parent) {
    HL_CALL(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
    return HL_CALL(__NR_getppid, 0, 0, 0, 0, 0, 0) == parent;
}

/* Until the program is executed both run at the same time, with one errno. */
static int help(void *data) {
    struct hl_exec_stop *stop = data;
    struct hl_tracee thread = {.pid = stop->pid};
    HL_CALL(__NR_setpgid, 0, 0, 0, 0, 0, 0); /* a tracer must not be stopped with its tracee */
    if (!stays_with(stop->pid) || !seize(stop))
        return 0;
    close_copies();
    stay_beside(stop->processor);
    int result = hl_await_exec_stop(&thread);
    if (result == 0)
        result = hl_act_at_exec_stop(&stop->plan, &thread);
    if (result == -ESRCH)
        return 0;
    tell(&stop->plan, result);
    if (result != 0 && stop->plan.is_strict)
        hl_end_exec_thread(&thread, HL_EXIT_NOT_FOUND);
    else
        hl_detach_exec_thread(&thread, stop->helper);
    return 0;
}

/* --- run --- */

/* Children of this process are in a PID namespace of their own, so the numbers we know them by are others there. */
static bool has_other_children(void) {
    char own[32] = "", children[32] = "";
    return readlink("/proc/self/ns/pid", own, sizeof own - 1) <= 0 ||
           readlink("/proc/self/ns/pid_for_children", children, sizeof children - 1) <= 0 ||
           strcmp(own, children) != 0; /* it does not exist before the first child */
}

/* Whether /proc shows this process under the number that it has here: it may belong to another PID namespace. */
static bool is_in_proc(void) {
    char number[16] = "";
    return readlink("/proc/self", number, sizeof number - 1) > 0 && strtol(number, NULL, 10) == getpid();
}

/* Whether the process may have as much memory as the helper needs, which would end without it. */
static bool has_room(void) {
    struct rlimit data, all;
    return getrlimit(RLIMIT_DATA, &data) == 0 && getrlimit(RLIMIT_AS, &all) == 0 &&
           data.rlim_cur >= ROOM_BYTES && all.rlim_cur >= ROOM_BYTES;
}

/* The reason why this process gets no helper, whatever program it executes. */
static int check_self(const struct hl_status *status) {
    if (status->filters != 0) /* a filter sees our calls, and may kill for them */
        return HL_REASON_RUN_FILTER;
    if (status->is_traced)
        return HL_REASON_ATTACH_TRACED;
    if (!is_in_proc())
        return HL_REASON_NO_PROC;
    if (!has_room())
        return HL_REASON_NO_MEMORY;
    return has_other_children() ? HL_REASON_ATTACH_DENIED : 0;
}

/* The helper's stack, above a guard.  NULL: there is no memory for it. */
static char *map_stack(void) {
    char *stack =
        mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return NULL;
    mprotect(stack, GUARD_BYTES, PROT_NONE);
    return stack;
}

/* musl's clone(3) refuses CLONE_CHILD_CLEARTID since 1.2.5, with which the kernel tells this process that the helper has ended, however
   that ends.  What it calls returns a negated errno. */
#ifndef __GLIBC__
int __clone(int (*function)(void *), void *stack, int flags, void *argument, ...);
#define clone __clone
#endif

/* All signals are blocked in the helper: a terminal's signals are for the program. sigprocmask(3) will not do, since it unblocks
   the libc's own signals, and one of them may be waiting for the program. */
static int start_helper(struct hl_exec_stop *stop) {
    const uint64_t all = UINT64_MAX;
    uint64_t before = 0;
    stop->pid = getpid();
    stop->processor = sched_getcpu();
    char *stack = map_stack();
    if (stack == NULL)
        return -ENOMEM;
    atomic_store(&stop->state, (int)STARTED);
    HL_CALL(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all, 0, 0);
    errno = EPERM; /* which is -1 */
    stop->helper = clone(help, stack + GUARD_BYTES + STACK_BYTES, CLONE_VM | CLONE_CHILD_CLEARTID, stop, NULL,
                         NULL, &stop->state);
    int error = stop->helper < -1 ? -stop->helper : errno;
    if (stop->helper > 0) {
        /* A stop of our process group must not stop the helper, too, which has to let the program go on. */
        setpgid(stop->helper, stop->helper);
        kill(stop->helper, SIGCONT); /* one that came before */
    }
    HL_CALL(__NR_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before, 0, 0);
    return stop->helper > 0 ? 0 : -error;
}

/* Waits until the helper traces this process. */
static int await_helper(struct hl_exec_stop *stop) {
    int state = atomic_load(&stop->state);
    if (state == STARTED) {
        prctl(PR_SET_PTRACER, stop->helper, 0, 0, 0);
        /* The kernel's ENDED must not be lost. */
        if (atomic_compare_exchange_strong(&stop->state, &state, MAY)) {
            call_futex(&stop->state, FUTEX_WAKE, 1);
            state = (int)await_other_state(stop, MAY);
        }
    }
    /* One that failed may have ended since. */
    return state == TRACES ? 0 : stop->error < 0 ? stop->error : -ESRCH;
}

void hl_cancel_exec_stop(struct hl_exec_stop *stop) {
    int error = errno;
    kill(stop->helper, SIGKILL); /* after that it traces no process any more */
    while (waitpid(stop->helper, NULL, __WALL) < 0 && errno == EINTR)
        ;
    errno = error;
}

static char *explain(int result, const char *executable) {
    if (result == -EPERM || result == -EACCES)
        result = HL_REASON_ATTACH_DENIED;
    return result < 0 ? hl_xasprintf("%s", strerror(-result))
                      : hl_explain_reason((enum hl_reason)result, executable);
}

/* Whether RESULT is to be reported although no image was opened: no process here would use one. */
static bool is_refusal(int result) {
    return result == HL_REASON_STORE_UNSAFE || result == HL_REASON_STORE_FOREIGN ||
           result == HL_REASON_STORE_FILE_SYSTEM || result == HL_REASON_THP_DISABLED ||
           result == HL_REASON_NO_DESCRIPTOR || result == HL_REASON_WRITABLE_TEXT;
}

char *hl_start_exec_stop(struct hl_exec_stop **stop, const struct hl_program *program,
                         const struct hl_options *options, const char *linker) {
    static struct hl_exec_stop only; /* an allocation of that size would be mapped */
    struct hl_exec_stop *new = &only;
    struct hl_status status;
    *stop = NULL;
    hl_read_first_status(&status, &hl_system_roots);
    int self = check_self(&status), started = self == 0 ? start_helper(new) : self;
    int result = hl_plan_exec_stop(&new->plan, &status, program, options, linker);
    if (result == 0)
        result = started == 0 ? await_helper(new) : started;
    if (result == 0) {
        *stop = new;
        return NULL;
    }
    char *reason = new->plan.image >= 0 || linker != NULL || is_refusal(result)
                       ? explain(result, program->executable)
                       : NULL;
    if (started == 0)
        hl_cancel_exec_stop(new);
    return reason;
}
