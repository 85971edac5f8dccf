/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: one run of the program.

   The child makes its environment, takes the time and its own usage so far, and becomes the program, or `hugeld run`, whose work
   counts as it does for a user.  The program's output goes to memory files: they need not be read while it runs.
   What hugeld says on standard error is taken out again before the outputs are compared.

   With --at-once both sides run at the same time, each on a processor of its own.  For each a process of ours waits on the same
   processor, which is free when the program ends: a single one that waited for both would have to push the other program aside
   first, and would see both end at once. */
#include "command/measure/trial.h"
#include "command/measure/trace.h"
#include "command/lib/elf-file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char prefix[] = "hugeld: ";

/* Shared by the processes that take part in one run. */
struct stamp {
    double start_ms, end_ms;
    struct rusage before, after; /* of the child when it became the program, and at the end */
    int status;                  /* as waitpid(2) has it */
    int error;                   /* the errno for which it did not run, or 0 */
};

/* One run, until it has been read. */
struct open_run {
    int stream[2];
    struct stamp *stamp;
};

static double milliseconds_used(const struct timeval *time) {
    return (double)time->tv_sec * 1e3 + (double)time->tv_usec / 1e3;
}

/* Takes libhugeld.so out of LD_PRELOAD, and leaves nothing to do for one from /etc/ld.so.preload, to which an empty LD_HUGEPAGES is
   the executable. */
static void make_plain(void) {
    const char *inherited = getenv("LD_PRELOAD");
    char *list = hl_xasprintf("%s", inherited != NULL ? inherited : ""), *others = hl_xasprintf("%s", "");
    for (char *rest = list, *name = strsep(&rest, ": "); name != NULL; name = strsep(&rest, ": ")) {
        if (name[0] != '\0' && strcmp(hl_base_name(name), "libhugeld.so") != 0)
            hl_append(&others, "%s%s", others[0] != '\0' ? ":" : "", name);
    }
    if (others[0] != '\0')
        setenv("LD_PRELOAD", others, 1);
    else
        unsetenv("LD_PRELOAD");
    setenv("LD_HUGEPAGES", "!*", 1);
    free(list);
    free(others);
}

/* Opens the file anew, since two runs at once must not share a position. */
static void redirect(int input, off_t input_from, const int *stream) {
    char path[32] = "/dev/null";
    if (input >= 0)
        snprintf(path, sizeof path, "/proc/self/fd/%d", input);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    input = own >= 0 ? own : input;
    lseek(input, input_from, SEEK_SET);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(stream[0], STDOUT_FILENO) < 0 ||
        dup2(stream[1], STDERR_FILENO) < 0)
        _exit(HL_EXIT_CANNOT_RUN);
}

char **hl_list_run_words(const struct hl_run *run, char **argv, int gate) {
    struct hl_list words = {0};
    hl_add_to_list(&words, "hugeld");
    hl_add_to_list(&words, "run");
    if (run->patterns != NULL)
        hl_add_to_list(&words, hl_xasprintf("--objects=%s", run->patterns));
    if (run->options != NULL)
        hl_add_to_list(&words, hl_xasprintf("--options=%s", run->options));
    if (run->via != HL_VIA_AUTO)
        hl_add_to_list(&words, hl_xasprintf("--via=%s", hl_via_name(run)));
    if (run->copies)
        hl_add_to_list(&words, "--copy");
    if (run->children)
        hl_add_to_list(&words, "--children");
    if (run->linker != NULL)
        hl_add_to_list(&words, hl_xasprintf("--ld-so=%s", run->linker));
    if (gate >= 0)
        hl_add_to_list(&words, hl_xasprintf("--gate=%d", gate));
    hl_add_to_list(&words, "--");
    for (char **word = argv; *word != NULL; word++)
        hl_add_to_list(&words, *word);
    hl_add_to_list(&words, NULL);
    return (char **)words.word;
}

char *hl_find_starter(void) {
    char *beside = hl_find_part("hugeld", NULL, X_OK);
    return beside != NULL                           ? beside
           : access(HL_BINDIR "/hugeld", X_OK) == 0 ? hl_xasprintf(HL_BINDIR "/hugeld")
                                                    : NULL;
}

/* GO: the child waits until its other end is closed everywhere.  GATE: it says there that it is ready to be traced, and waits. */
__attribute__((noreturn)) static void run_child(const struct hl_subject *subject, enum hl_side side,
                                                const int *stream, int log, int go, int gate,
                                                struct stamp *stamp) {
    char byte, **words = subject->argv, *path = subject->program.path;
    redirect(subject->input, subject->input_from, stream);
    if (log >= 0)
        fcntl(log, F_SETFD, 0);
    if (side == HL_PLAIN) {
        make_plain();
    } else if (side == HL_ON_HUGE) {
        words = hl_list_run_words(&subject->run, subject->argv, gate);
        path = hl_find_starter();
        if (gate >= 0)
            fcntl(gate, F_SETFD, 0);
    }
    if (path == NULL) {
        hl_warn("hugeld is neither beside this command nor in " HL_BINDIR "; install it again");
        _exit(HL_EXIT_NO);
    }
    while (go >= 0 && read(go, &byte, 1) < 0 && errno == EINTR)
        ;
    if (words == subject->argv)
        hl_wait_at_gate(gate);
    getrusage(RUSAGE_SELF, &stamp->before);
    stamp->start_ms = hl_now_ms();
    execv(path, words);
    if (words == subject->argv && errno == ENOEXEC)
        execvp(path, words); /* a script without "#!" */
    _exit(hl_refuse_program(words[0]));
}

static struct hl_bytes read_stream(int fd) {
    struct stat stat_buffer;
    struct hl_bytes read = {NULL, fstat(fd, &stat_buffer) == 0 ? (size_t)stat_buffer.st_size : 0};
    read.at = hl_xmalloc(read.bytes + 1);
    size_t got = 0;
    for (ssize_t n = 1; got < read.bytes && n > 0; got += n > 0 ? (size_t)n : 0)
        n = pread(fd, read.at + got, read.bytes - got, (off_t)got);
    read.bytes = got;
    return read;
}

/* Moves hugeld's lines from STREAM to the end of *SAID. */
static void move_lines(struct hl_bytes *stream, char **said) {
    char *to = stream->at, *end = stream->at + stream->bytes;
    for (char *from = stream->at, *line; from < end;) {
        line = memmem(from, (size_t)(end - from), prefix, strlen(prefix));
        size_t bytes = (size_t)((line != NULL ? line : end) - from);
        memmove(to, from, bytes);
        to += bytes;
        if (line == NULL)
            break;
        char *newline = memchr(line, '\n', (size_t)(end - line));
        from = newline != NULL ? newline + 1 : end;
        hl_append(said, "%.*s", (int)(from - line), line);
    }
    stream->bytes = (size_t)(to - stream->at);
}

static void fill_values(struct hl_trial *trial, const struct stamp *stamp) {
    const struct rusage *before = &stamp->before, *after = &stamp->after;
    trial->value[HL_WALL] = stamp->end_ms - stamp->start_ms;
    trial->value[HL_USER] = milliseconds_used(&after->ru_utime) - milliseconds_used(&before->ru_utime);
    trial->value[HL_SYSTEM] = milliseconds_used(&after->ru_stime) - milliseconds_used(&before->ru_stime);
    trial->value[HL_PROCESSOR] = trial->value[HL_USER] + trial->value[HL_SYSTEM];
    trial->value[HL_MINOR_FAULTS] = (double)(after->ru_minflt - before->ru_minflt);
    trial->value[HL_MAJOR_FAULTS] = (double)(after->ru_majflt - before->ru_majflt);
    trial->value[HL_PEAK_RSS] = (double)after->ru_maxrss;
}

/* 0, or a negated errno; close_run in either case. */
static int open_run(struct open_run *run) {
    run->stream[0] = memfd_create("output", MFD_CLOEXEC);
    run->stream[1] = memfd_create("errors", MFD_CLOEXEC);
    run->stamp = mmap(NULL, sizeof *run->stamp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool is_open = run->stream[0] >= 0 && run->stream[1] >= 0 && run->stamp != MAP_FAILED;
    return is_open ? 0 : -errno;
}

static void close_run(struct open_run *run) {
    if (run->stamp != MAP_FAILED)
        munmap(run->stamp, sizeof *run->stamp);
    for (int i = 0; i < 2; i++)
        if (run->stream[i] >= 0)
            close(run->stream[i]);
}

/* GO and GATE as for run_child, which gets the first end of GATE. */
static pid_t start_child(const struct hl_subject *subject, enum hl_side side, const struct open_run *run,
                         int log, int go, const int gate[2]) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (gate[1] >= 0)
            close(gate[1]);
        run_child(subject, side, run->stream, log, go, gate[0], run->stamp);
    }
    if (child < 0)
        run->stamp->error = errno;
    return child;
}

static void wait_for_child(pid_t child, struct stamp *stamp) {
    while (wait4(child, &stamp->status, 0, &stamp->after) < 0 && errno == EINTR)
        ;
    stamp->end_ms = hl_now_ms();
}

/* Reads the results of the run. */
static void read_run(const struct open_run *run, struct hl_trial *trial) {
    trial->status = run->stamp->status;
    for (int i = 0; i < 2; i++) {
        trial->stream[i] = read_stream(run->stream[i]);
        move_lines(&trial->stream[i], &trial->said);
    }
    fill_values(trial, run->stamp);
}

static void clear_trial(struct hl_trial *trial) {
    memset(trial, 0, sizeof *trial);
    trial->said = hl_xasprintf("%s", "");
}

int hl_try_program(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                   struct hl_trial *trial) {
    struct open_run run;
    char byte;
    int gate[2] = {-1, -1}, result = open_run(&run);
    clear_trial(trial);
    if (result == 0 && maps != NULL && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, gate) != 0)
        result = -errno;
    if (result == 0) {
        pid_t child = start_child(subject, side, &run, log, -1, gate);
        result = -run.stamp->error;
        if (gate[0] >= 0)
            close(gate[0]);
        if (child > 0 && maps != NULL) {
            while (read(gate[1], &byte, 1) < 0 && errno == EINTR)
                ;
            run.stamp->status =
                hl_trace_program(child, gate[1], subject->run.patterns, maps, &run.stamp->after);
            run.stamp->end_ms = hl_now_ms();
        } else if (gate[1] >= 0) {
            close(gate[1]);
        }
        if (child > 0 && maps == NULL)
            wait_for_child(child, run.stamp);
        if (child > 0)
            read_run(&run, trial);
    }
    close_run(&run);
    return result;
}

/* Starts RUNNER on its processor, and a process that waits for it there.  Its process ID, or -1. */
static pid_t start_waiter(const struct hl_runner *runner, const struct open_run *run, const int go[2]) {
    cpu_set_t set;
    fflush(stdout);
    pid_t waiter = fork();
    if (waiter < 0)
        run->stamp->error = errno;
    if (waiter != 0)
        return waiter;
    CPU_ZERO(&set);
    CPU_SET((size_t)runner->processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        run->stamp->error = errno;
        _exit(HL_EXIT_NO);
    }
    close(go[1]);
    static const int no_gate[2] = {-1, -1};
    pid_t child = start_child(runner->subject, runner->side, run, -1, go[0], no_gate);
    if (child > 0)
        wait_for_child(child, run->stamp);
    _exit(HL_EXIT_DONE);
}

int hl_try_pair(const struct hl_runner runner[HL_SIDES], size_t first, struct hl_trial trial[HL_SIDES]) {
    struct open_run run[HL_SIDES];
    int go[2], result = 0;
    pid_t waiter[HL_SIDES] = {-1, -1};
    bool has_go = pipe2(go, O_CLOEXEC) == 0;
    if (!has_go)
        result = -errno;
    for (int side = 0; side < HL_SIDES; side++) {
        int error = open_run(&run[side]);
        result = result == 0 ? error : result;
        clear_trial(&trial[side]);
    }
    for (size_t turn = 0; turn < HL_SIDES && result == 0; turn++) {
        size_t i = turn ^ first;
        waiter[i] = start_waiter(&runner[i], &run[i], go);
    }
    for (int i = 0; i < 2 && has_go; i++)
        close(go[i]);
    for (int side = 0; side < HL_SIDES; side++) {
        while (waiter[side] > 0 && waitpid(waiter[side], NULL, 0) < 0 && errno == EINTR)
            ;
        if (result == 0)
            result = -run[side].stamp->error;
    }
    for (int side = 0; side < HL_SIDES; side++) {
        if (result == 0)
            read_run(&run[side], &trial[side]);
        close_run(&run[side]);
    }
    return result;
}

void hl_free_trial(struct hl_trial *trial) {
    free(trial->stream[0].at);
    free(trial->stream[1].at);
    free(trial->said);
    memset(trial, 0, sizeof *trial);
}

char *hl_describe_status(int status) {
    if (WIFSIGNALED(status))
        return hl_xasprintf("signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return hl_xasprintf("exit status %d", WEXITSTATUS(status));
}

bool hl_find_processors(int processors[HL_SIDES]) {
    cpu_set_t set;
    int n = 0;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (int i = 0; i < CPU_SETSIZE && n < HL_SIDES; i++)
        if (CPU_ISSET((size_t)i, &set))
            processors[n++] = i;
    if (n == HL_SIDES)
        return true;
    hl_warn("bench: --at-once needs two processors; leave it out, and both sides take turns");
    return false;
}
