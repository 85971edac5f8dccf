/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* inject [mdwe] MODULE FROM-TO,FROM-TO... -- PROGRAM ARGUMENT...

   Runs PROGRAM once for each line of standard input and lets system calls of one part of it fail: those whose
   instruction, or whose caller where a function of libc makes them, lies in MODULE (a file's base name) at
   an offset in the file of one of the ranges [FROM, TO) (hexadecimal).  A line holds faults, each

     CALL DETAIL NTH HOW ERRNO

   that is the NTH one, from 1, of the calls with the number CALL and this DETAIL (see below).  Counted
   together, all calls would not do: how many reads a file of /proc takes, for one, differs between runs.

   fail      the call is not made and returns ERRNO; brk, which knows no errors, does nothing; close, where
            a run has it in the place of another call, is made
   done      it is made, and returns ERRNO all the same, as close(2) does
   destroy   the mapping at the destination is unmapped first, as Linux 5.10 does
   steal     the same, and another thread has mapped something there at once: every later change of it,
             by the program itself too, is a trespass
   half      the first half of a read or write is done, and no error
   kill      SIGKILL before the call

   Addresses are not random, and SIGUSR2 is blocked; with "mdwe" written memory never becomes executable.  A
   program calls the number MARK when it wants to be looked at.  For each line are written, as "name bytes",
   newline, that many bytes, newline:

     smaps, fds         at each mark
     bytes, mask        the same; "start-end sum" of each read-only mapping of a huge page or more: a sum of its bytes
     pid                which it was
     calls              "number:detail" of each call of MODULE's; the detail tells kinds of mmap and so on
     trespasses         see below; none if empty
     out, err, status   its output, and the status of wait(2); "timeout" where it took too long

   strace injects errors too, but takes a tenth of a second to start and knows only the first of these ways.

   It keeps account of the memory that MODULE has mapped.  A range that MODULE unmaps, maps over (MAP_FIXED) or
   moves a mapping from or to must be its own at that moment, or lie in the object that it moves: a file whose
   name has "target" in it.  Each call that goes beyond is a trespass.  Unmapped space counts as another thread's too, which
   may have been faster; only after faults that leave ruins it does not, while there is one thread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#define MARK 4711
#define HUGE_BYTES ((word)2 << 20)
#define SECONDS 60
#define FAULTS_MAX 16
#define RANGES_MAX 16
#define CALLS_MAX 8192
#define THREADS_MAX 64
#define PIECES_MAX 1024

typedef unsigned long long word;

struct fault {
    unsigned call, nth;
    word detail;
    char how;
    int error;
};

/* A thread whose call was changed: the state to put back when it returns. */
struct changed {
    pid_t thread;
    struct user_regs_struct before;
    bool has_result;
    int error;
};

static bool mdwe;
static const char *module;
static struct { word from, to; } range[RANGES_MAX]; /* offsets in its file, then addresses */
static unsigned n_ranges;
static bool found;

static struct fault fault[FAULTS_MAX];
static unsigned n_faults;
static struct changed changed[THREADS_MAX];
static unsigned n_changed, n_calls;
static struct {
    unsigned number;
    word detail;
} call[CALLS_MAX];
static pid_t program;

struct piece {
    word start, end;
};

struct pieces {
    struct piece piece[PIECES_MAX];
    unsigned n;
};

static struct pieces own, objects, stolen;

/* A call that changes mappings, while the kernel makes it. */
static struct {
    pid_t thread;
    bool is_ours;
    word number, args[6];
} pending[THREADS_MAX];
static char trespasses[4096];
static unsigned n_threads;
static volatile sig_atomic_t timed_out;

static void give_up(const char *what) {
    perror(what);
    exit(99);
}

static void put(const char *name, const char *bytes, size_t n) {
    printf("%s %zu\n", name, n);
    fwrite(bytes, 1, n, stdout);
    putchar('\n');
}

static void put_file(const char *name, int fd) {
    static char buffer[4 << 20];
    size_t filled = 0;
    for (ssize_t n; filled < sizeof buffer && (n = read(fd, buffer + filled, sizeof buffer - filled)) > 0;)
        filled += (size_t)n;
    put(name, buffer, filled);
}

static int open_of(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void put_descriptors(pid_t pid) {
    char path[64], line[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.' && strlen(line) < sizeof line - 16)
            strcat(strcat(line, entry->d_name), " ");
    if (folder != NULL)
        closedir(folder);
    put("fds", line, strlen(line));
}

static void put_mask(pid_t pid) {
    char status[8192] = "";
    int fd = open_of(pid, "status");
    ssize_t n = read(fd, status, sizeof status - 1);
    char *mask = n > 0 ? strstr(status, "SigBlk:\t") : NULL;
    put("mask", mask != NULL ? mask + 8 : "", mask != NULL ? 16 : 0);
    close(fd);
}

/* A sum of the words in [start, end) that depends on their order; 0: they cannot be read. */
static word sum_bytes(int memory, word start, word end) {
    static word buffer[1 << 16];
    word sum = 1;
    for (ssize_t n; start < end; start += (word)n) {
        size_t part = end - start < sizeof buffer ? end - start : sizeof buffer;
        n = pread(memory, buffer, part, (off_t)start);
        if (n <= 0)
            return 0;
        for (size_t i = 0; i < (size_t)n / sizeof *buffer; i++)
            sum = (sum ^ buffer[i]) * 0x100000001b3;
    }
    return sum;
}

static void put_bytes(pid_t pid) {
    char line[4096], sums[4096] = "", permissions[8];
    int memory = open_of(pid, "mem"), fd = open_of(pid, "maps");
    FILE *maps = fdopen(fd, "r");
    word start, end;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        size_t used = strlen(sums);
        if (sscanf(line, "%llx-%llx %7s", &start, &end, permissions) == 3 && permissions[0] == 'r' &&
            permissions[1] == '-' && end - start >= HUGE_BYTES)
            snprintf(sums + used, sizeof sums - used, "%llx-%llx %llx\n", start, end,
                     sum_bytes(memory, start, end));
    }
    if (maps != NULL)
        fclose(maps);
    close(memory);
    put("bytes", sums, strlen(sums));
}

static void look_at(pid_t pid) {
    int fd = open_of(pid, "smaps");
    put_file("smaps", fd);
    close(fd);
    put_descriptors(pid);
    put_bytes(pid);
    put_mask(pid);
}

/* Finds MODULE's range in memory.  Addresses are the same in all runs. */
static void find_module(pid_t pid) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (!found && file != NULL && fgets(line, sizeof line, file) != NULL) {
        word start, end, offset;
        char permissions[5];
        char *name = strrchr(line, '/');
        if (name == NULL || sscanf(line, "%llx-%llx %4s %llx", &start, &end, permissions, &offset) != 4)
            continue;
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name + 1, module) != 0 || permissions[2] != 'x')
            continue;
        for (unsigned i = 0; i < n_ranges; i++) {
            range[i].from = range[i].from > offset ? start + (range[i].from - offset) : start;
            range[i].to = range[i].to - offset < end - start ? start + (range[i].to - offset) : end;
        }
        found = true;
    }
    if (file != NULL)
        fclose(file);
}

static bool is_inside(word address) {
    for (unsigned i = 0; found && i < n_ranges; i++)
        if (address >= range[i].from && address < range[i].to)
            return true;
    return false;
}

static bool is_ours(pid_t thread, const struct __ptrace_syscall_info *info) {
    if (!found)
        find_module(thread);
    if (is_inside(info->instruction_pointer))
        return true;
    return found && is_inside((word)ptrace(PTRACE_PEEKDATA, thread, info->stack_pointer, 0));
}

/* The argument that tells the kind of call. */
static word detail_of(const struct __ptrace_syscall_info *info) {
    switch (info->entry.nr) {
    case __NR_ioctl:
    case __NR_fcntl:
        return info->entry.args[1];
    case __NR_madvise:
        return info->entry.args[2];
    case __NR_mmap:
    case __NR_mremap:
        return info->entry.args[3];
    case __NR_prctl:
        return info->entry.args[0];
    }
    return 0;
}

/* --- MODULE's own memory --- */

static word round_up(word bytes) { return (bytes + 4095) / 4096 * 4096; }

static void add_piece(struct pieces *p, word start, word end) {
    if (start >= end)
        return;
    if (p->n == PIECES_MAX)
        exit(95);
    p->piece[p->n++] = (struct piece){start, end};
}

static void take_away(struct pieces *p, word start, word end) {
    for (unsigned i = p->n; i-- > 0;) {
        struct piece piece = p->piece[i];
        if (piece.end <= start || piece.start >= end)
            continue;
        p->piece[i] = p->piece[--p->n];
        add_piece(p, piece.start, piece.start < start ? start : piece.start);
        add_piece(p, piece.end > end ? end : piece.end, piece.end);
    }
}

/* The parts of [start, end) that are in none of P's pieces. */
static void find_rest(const struct pieces *p, struct pieces *rest, word start, word end) {
    rest->n = 0;
    add_piece(rest, start, end);
    for (unsigned i = 0; i < p->n; i++)
        take_away(rest, p->piece[i].start, p->piece[i].end);
}

/* The end of the object whose file NAME has a mapping [start, end) at OFFSET: behind the zeros, if the mapping has the
   file's last bytes. */
static word end_of_object(const char *name, word start, word end, word offset) {
    Elf64_Ehdr header;
    Elf64_Phdr phdr[32];
    const Elf64_Phdr *last = NULL;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (pread(fd, &header, sizeof header, 0) != sizeof header || header.e_phnum > 32 ||
        pread(fd, phdr, header.e_phnum * sizeof *phdr, (off_t)header.e_phoff) !=
            (ssize_t)(header.e_phnum * sizeof *phdr))
        give_up(name);
    close(fd);
    for (unsigned i = 0; i < header.e_phnum; i++)
        if (phdr[i].p_type == PT_LOAD)
            last = &phdr[i];
    if (last == NULL || last->p_offset + last->p_filesz <= offset ||
        last->p_offset + last->p_filesz > offset + (end - start))
        return end;
    return round_up(start - offset + last->p_offset + last->p_memsz);
}

/* From the first mapping of each target's file to the object's end.  Memory that MODULE has mapped, or keeps aside,
   is not part of it; while everything is aside the object is where it was. */
static void find_objects(pid_t pid) {
    char path[64], line[4096], names[8][256];
    struct piece found[8];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        static struct pieces rest;
        word start, end, offset;
        char *file_name = strchr(line, '/'), *name = strrchr(line, '/');
        if (name == NULL || strstr(name, "target") == NULL ||
            sscanf(line, "%llx-%llx %*s %llx", &start, &end, &offset) != 3)
            continue;
        line[strcspn(line, "\n")] = '\0';
        find_rest(&own, &rest, start, end);
        unsigned i = 0;
        while (i < n && strcmp(names[i], name) != 0)
            i++;
        if (rest.n == 0 || i == 8)
            continue;
        if (i == n) {
            snprintf(names[n], sizeof names[n], "%s", name);
            found[n++] = (struct piece){start, end};
        }
        found[i].end = end_of_object(file_name, start, end, offset);
    }
    if (file != NULL)
        fclose(file);
    for (unsigned i = 0; i < n; i++) {
        bool is_known = false;
        for (unsigned j = 0; j < objects.n; j++)
            is_known = is_known ||
                       (objects.piece[j].start <= found[i].start && objects.piece[j].end >= found[i].end);
        if (!is_known)
            add_piece(&objects, found[i].start, found[i].end);
    }
}

/* Whether nothing is mapped in [start, end). */
static bool is_nothing(pid_t pid, word start, word end) {
    char path[64], line[4096];
    bool nothing = true;
    word from, to;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%llx-%llx", &from, &to) == 2 && from < end && to > start)
            nothing = false;
    if (file != NULL)
        fclose(file);
    return nothing;
}

static bool leaves_ruins(void) {
    for (unsigned i = 0; i < n_faults; i++)
        if (fault[i].how == 'd' || fault[i].how == 's')
            return true;
    return false;
}

static void demand(pid_t thread, const char *what, word start, word bytes) {
    static struct pieces rest;
    word end = start + round_up(bytes);
    find_rest(&own, &rest, start, end);
    for (unsigned i = 0; i < objects.n; i++)
        take_away(&rest, objects.piece[i].start, objects.piece[i].end);
    for (unsigned i = 0; i < rest.n; i++) {
        size_t used = strlen(trespasses);
        if (!leaves_ruins() || n_threads > 1 || !is_nothing(thread, rest.piece[i].start, rest.piece[i].end))
            snprintf(trespasses + used, sizeof trespasses - used, "%s [%llx, %llx), of which [%llx, %llx)\n",
                     what, start, end, rest.piece[i].start, rest.piece[i].end);
    }
}

/* Whether [start, end) reaches into another thread's mapping. */
static bool is_stolen(word start, word end) {
    for (unsigned i = 0; i < stolen.n; i++)
        if (stolen.piece[i].start < end && stolen.piece[i].end > start)
            return true;
    return false;
}

/* The same for the calls of every thread. */
static void check_thief(const struct __ptrace_syscall_info *info) {
    const __typeof__(info->entry.args[0]) *a = info->entry.args;
    word number = info->entry.nr;
    bool at_first = number == __NR_munmap || number == __NR_mremap || number == __NR_mprotect ||
                    (number == __NR_mmap && (a[3] & MAP_FIXED) != 0);
    if ((at_first && is_stolen(a[0], a[0] + round_up(a[1]))) ||
        (number == __NR_mremap && is_stolen(a[4], a[4] + round_up(a[2]))))
        snprintf(trespasses + strlen(trespasses), sizeof trespasses - strlen(trespasses),
                 "call %llu of what another thread has mapped\n", number);
}

static void check_call(pid_t thread, const struct __ptrace_syscall_info *info) {
    const __typeof__(info->entry.args[0]) *a = info->entry.args;
    word number = info->entry.nr;
    bool fixed = number == __NR_mmap && (a[3] & MAP_FIXED) != 0;
    if (number != __NR_munmap && number != __NR_mremap && !fixed)
        return;
    find_objects(thread);
    demand(thread,
           number == __NR_munmap ? "munmap"
           : number == __NR_mmap ? "mmap"
                                 : "mremap from",
           a[0], a[1]);
    if (number == __NR_mremap && (a[3] & MREMAP_FIXED))
        demand(thread, "mremap to", a[4], a[2]);
}

/* Notes the call that THREAD makes; MADE is the call that the kernel is going to execute. */
static void note_call(pid_t thread, bool is_ours, const struct user_regs_struct *made) {
    word number = made->orig_rax;
    if (number != __NR_mmap && number != __NR_munmap && number != __NR_mremap)
        return;
    for (unsigned i = 0; i < THREADS_MAX; i++)
        if (pending[i].thread == 0 || pending[i].thread == thread) {
            word args[6] = {made->rdi, made->rsi, made->rdx, made->r10, made->r8, made->r9};
            pending[i].thread = thread;
            pending[i].is_ours = is_ours;
            pending[i].number = number;
            memcpy(pending[i].args, args, sizeof args);
            return;
        }
}

/* Records the changes of a call.  A mapping that MODULE brings into an object, or that other code makes, is not MODULE's. */
static void settle(pid_t thread, const struct __ptrace_syscall_info *info) {
    static struct pieces rest;
    unsigned i = 0;
    while (i < THREADS_MAX && pending[i].thread != thread)
        i++;
    if (i == THREADS_MAX)
        return;
    pending[i].thread = 0;
    const word *a = pending[i].args, at = (word)info->exit.rval;
    if (info->exit.is_error)
        return;
    bool keeps = pending[i].number == __NR_mremap && (a[3] & MREMAP_DONTUNMAP) != 0;
    if (pending[i].number != __NR_mmap && !keeps)
        take_away(&own, a[0], a[0] + round_up(a[1]));
    if (pending[i].number == __NR_munmap)
        return;
    word bytes = round_up(pending[i].number == __NR_mmap ? a[1] : a[2]);
    take_away(&own, at, at + bytes);
    if (!pending[i].is_ours)
        return;
    find_rest(&objects, &rest, at, at + bytes);
    for (unsigned j = 0; j < rest.n; j++)
        add_piece(&own, rest.piece[j].start, rest.piece[j].end);
}

/* --- faults --- */

/* The fault for the call that was noted last, if any. */
static const struct fault *find_fault(void) {
    unsigned nth = 0;
    for (unsigned i = 0; i < n_calls; i++)
        nth += call[i].number == call[n_calls - 1].number && call[i].detail == call[n_calls - 1].detail;
    for (unsigned i = 0; i < n_faults; i++)
        if (fault[i].call == call[n_calls - 1].number && fault[i].detail == call[n_calls - 1].detail &&
            fault[i].nth == nth)
            return &fault[i];
    return NULL;
}

static void change(struct user_regs_struct *regs, struct changed *c, const struct fault *f) {
    word number = regs->orig_rax;
    if (f->how == 'f' && number == __NR_brk) {
        regs->rdi = 0;
        c->has_result = false;
    } else if (f->how == 'f' && number != __NR_close) {
        regs->orig_rax = (word)-1;
    } else if (f->how == 's' && number == __NR_mremap) {
        regs->orig_rax = __NR_mmap;
        regs->rdi = regs->r8;
        regs->rsi = regs->rdx;
        regs->rdx = PROT_READ;
        regs->r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        regs->r8 = (word)-1;
        add_piece(&stolen, regs->rdi, regs->rdi + regs->rsi);
    } else if (f->how == 'd' && number == __NR_mremap) {
        regs->orig_rax = __NR_munmap;
        regs->rdi = regs->r8;
        regs->rsi = regs->rdx;
    } else if (f->how == 'd' && number == __NR_mmap) {
        regs->orig_rax = __NR_munmap;
    } else if (f->how == 'h') {
        regs->rdx /= 2;
        c->has_result = false;
    }
}

static void enter_call(pid_t thread, const struct __ptrace_syscall_info *info) {
    if (n_calls == CALLS_MAX)
        exit(98);
    call[n_calls].number = (unsigned)info->entry.nr;
    call[n_calls++].detail = detail_of(info);
    check_call(thread, info);
    const struct fault *f = find_fault();
    if (f == NULL)
        return;
    if (f->how == 'k') {
        kill(program, SIGKILL);
        return;
    }
    struct user_regs_struct regs;
    struct changed *c = &changed[n_changed++ % THREADS_MAX];
    if (ptrace(PTRACE_GETREGS, thread, 0, &regs) != 0)
        return;
    c->thread = thread;
    c->before = regs;
    c->error = f->error;
    c->has_result = true;
    change(&regs, c, f);
    ptrace(PTRACE_SETREGS, thread, 0, &regs);
}

static void restore_call(pid_t thread) {
    struct user_regs_struct regs;
    for (unsigned i = 0; i < n_changed && i < THREADS_MAX; i++) {
        struct changed *c = &changed[i];
        if (c->thread != thread || ptrace(PTRACE_GETREGS, thread, 0, &regs) != 0)
            continue;
        regs.rdi = c->before.rdi;
        regs.rsi = c->before.rsi;
        regs.rdx = c->before.rdx;
        regs.r10 = c->before.r10;
        regs.r8 = c->before.r8;
        if (c->has_result)
            regs.rax = (word)-c->error;
        ptrace(PTRACE_SETREGS, thread, 0, &regs);
        c->thread = 0;
    }
}

static void see_call(pid_t thread) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        settle(thread, &info);
        restore_call(thread);
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return;
    if (info.entry.nr == MARK)
        look_at(thread);
    check_thief(&info);
    bool ours = is_ours(thread, &info);
    if (ours)
        enter_call(thread, &info);
    struct user_regs_struct made;
    if (ptrace(PTRACE_GETREGS, thread, 0, &made) == 0)
        note_call(thread, ours, &made);
}

static int follow(void) {
    for (;;) {
        int status, signal = 0;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            give_up("waitpid");
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == program)
                return status;
            n_threads--;
            continue;
        }
        n_threads += status >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8);
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            see_call(thread);
        else if (status >> 16 == 0 && WSTOPSIG(status) != SIGSTOP) /* a new thread's first stop */
            signal = WSTOPSIG(status);
        ptrace(PTRACE_SYSCALL, thread, 0, signal);
    }
}

static void become(char **argv, int out, int err) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    personality(ADDR_NO_RANDOMIZE);
    if (mdwe && prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        _exit(96);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(out, 1);
    dup2(err, 2);
    close_range(3, ~0u, 0);
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    execv(argv[0], argv);
    _exit(97);
}

static void handle_alarm(int signal) {
    (void)signal;
    timed_out = 1;
    kill(program, SIGKILL);
}

static void put_calls(void) {
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (file == NULL)
        give_up("open_memstream");
    for (unsigned i = 0; i < n_calls; i++)
        fprintf(file, "%u:%llu ", call[i].number, call[i].detail);
    fclose(file);
    put("calls", text, bytes);
    free(text);
}

/* Its children outlive it if it is killed, and hold its pages until they have ended. */
static void wait_for_children(void) {
    while (waitpid(-1, NULL, __WALL) > 0)
        ;
}

static void run(char **argv) {
    int out = memfd_create("out", 0), err = memfd_create("err", 0), status;
    fflush(stdout);
    n_calls = n_changed = 0;
    own.n = objects.n = stolen.n = 0;
    memset(pending, 0, sizeof pending);
    trespasses[0] = '\0';
    n_threads = 1;
    timed_out = 0;
    program = fork();
    if (program < 0)
        give_up("fork");
    if (program == 0)
        become(argv, out, err);
    waitpid(program, &status, __WALL);
    if (ptrace(PTRACE_SETOPTIONS, program, 0,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC) != 0)
        give_up("ptrace");
    alarm(SECONDS);
    ptrace(PTRACE_CONT, program, 0, 0);
    status = follow();
    alarm(0);
    wait_for_children();
    char line[32];
    put("pid", line, (size_t)sprintf(line, "%d", program));
    put_calls();
    put("trespasses", trespasses, strlen(trespasses));
    lseek(out, 0, SEEK_SET);
    lseek(err, 0, SEEK_SET);
    put_file("out", out);
    put_file("err", err);
    put("status", line, (size_t)(timed_out ? sprintf(line, "timeout") : sprintf(line, "%d", status)));
    put("end", "", 0);
    fflush(stdout);
    close(out);
    close(err);
}

static void read_faults(char *line) {
    n_faults = 0;
    for (char *number = strtok(line, " \n"); number != NULL && n_faults < FAULTS_MAX;
         number = strtok(NULL, " \n")) {
        struct fault *f = &fault[n_faults++];
        char *detail = strtok(NULL, " \n"), *nth = strtok(NULL, " \n");
        char *how = strtok(NULL, " \n"), *error = strtok(NULL, " \n");
        if (how == NULL || error == NULL)
            exit(2);
        f->call = (unsigned)strtoul(number, NULL, 10);
        f->detail = strtoull(detail, NULL, 10);
        f->nth = (unsigned)strtoul(nth, NULL, 10);
        f->how = strcmp(how, "done") == 0 ? 'r' : how[0];
        f->error = atoi(error);
    }
}

static void read_ranges(char *text) {
    for (char *one = strtok(text, ","); one != NULL && n_ranges < RANGES_MAX; one = strtok(NULL, ",")) {
        char *end;
        range[n_ranges].from = strtoull(one, &end, 16);
        range[n_ranges++].to = strtoull(end + 1, NULL, 16);
    }
}

int main(int argc, char **argv) {
    char line[512];
    mdwe = argc > 1 && strcmp(argv[1], "mdwe") == 0;
    argc -= mdwe;
    argv += mdwe;
    if (argc < 5 || strcmp(argv[3], "--") != 0)
        return 2;
    module = argv[1];
    read_ranges(argv[2]);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        give_up("PR_SET_CHILD_SUBREAPER");
    struct sigaction action = {.sa_handler = handle_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    while (fgets(line, sizeof line, stdin) != NULL) {
        read_faults(line);
        run(argv + 4);
    }
    return 0;
}
