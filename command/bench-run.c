/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: one run of the program.

   The child makes its environment, takes the time and its own usage so far, and becomes the program; so
   nothing that hugeld does before counts, and both sides have done the same.  What the program writes goes to
   memory files: nobody has to read while it runs.  The run on huge pages says on standard error what it moved
   (verbose=2), which is taken out again before the outputs are compared. */
#include "bench.h"
#include "elf-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char prefix[] = "hugeld: ";

/* What the child had used when it became the program. */
struct stamp {
    struct timespec time;
    struct rusage usage;
};

static double milliseconds(const struct timespec *time) {
    return (double)time->tv_sec * 1e3 + (double)time->tv_nsec / 1e6;
}

static double milliseconds_used(const struct timeval *time) {
    return (double)time->tv_sec * 1e3 + (double)time->tv_usec / 1e3;
}

/* Takes libhugeld.so out of LD_PRELOAD, and leaves one that comes from /etc/ld.so.preload nothing to do. */
static void make_plain(void) {
    const char *inherited = getenv("LD_PRELOAD");
    char *list = hl_format("%s", inherited != NULL ? inherited : ""), *kept = hl_format("%s", "");
    for (char *rest = list, *name = strsep(&rest, ": "); name != NULL; name = strsep(&rest, ": ")) {
        if (name[0] == '\0' || strcmp(hl_base_name(name), "libhugeld.so") == 0)
            continue;
        char *longer = hl_format("%s%s%s", kept, kept[0] != '\0' ? ":" : "", name);
        free(kept);
        kept = longer;
    }
    if (kept[0] != '\0')
        setenv("LD_PRELOAD", kept, 1);
    else
        unsetenv("LD_PRELOAD");
    setenv("LD_HUGEPAGES", "", 1);
    free(list);
    free(kept);
}

static void redirect(int input, off_t input_from, const int *stream) {
    if (input < 0)
        input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    else
        lseek(input, input_from, SEEK_SET);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(stream[0], STDOUT_FILENO) < 0 ||
        dup2(stream[1], STDERR_FILENO) < 0)
        _exit(HL_EXIT_CANNOT_RUN);
}

__attribute__((noreturn)) static void run_child(const struct hl_subject *subject, enum hl_side side,
                                                const int *stream, int log, int go, struct stamp *stamp) {
    struct hl_way way = {0};
    char byte;
    int code = 0;
    redirect(subject->input, subject->input_from, stream);
    if (log >= 0)
        fcntl(log, F_SETFD, 0);
    const struct hl_run run = hl_run_of_side(subject, side);
    if (hl_is_plain(subject, side))
        make_plain();
    else if (side != HL_AS_IS)
        code = hl_prepare_run(&run, subject->argv[0], subject->path, &way);
    while (go >= 0 && read(go, &byte, 1) < 0 && errno == EINTR)
        ;
    getrusage(RUSAGE_SELF, &stamp->usage);
    clock_gettime(CLOCK_MONOTONIC, &stamp->time);
    if (code == 0)
        code = hl_become_program(&way, subject->path, subject->argv);
    _exit(code);
}

static struct hl_bytes read_stream(int fd) {
    struct stat stat_buffer;
    struct hl_bytes read = {NULL, fstat(fd, &stat_buffer) == 0 ? (size_t)stat_buffer.st_size : 0};
    read.at = hl_allocate(read.bytes + 1);
    size_t got = 0;
    for (ssize_t n = 1; got < read.bytes && n > 0; got += n > 0 ? (size_t)n : 0)
        n = pread(fd, read.at + got, read.bytes - got, (off_t)got);
    read.bytes = got;
    return read;
}

/* Moves hugeld's lines from STREAM to the end of *SAID. */
static void take_lines(struct hl_bytes *stream, char **said) {
    char *to = stream->at, *end = stream->at + stream->bytes;
    for (char *from = stream->at, *line; from < end;) {
        line = memmem(from, (size_t)(end - from), prefix, strlen(prefix));
        size_t kept = (size_t)((line != NULL ? line : end) - from);
        memmove(to, from, kept);
        to += kept;
        if (line == NULL)
            break;
        char *newline = memchr(line, '\n', (size_t)(end - line));
        from = newline != NULL ? newline + 1 : end;
        char *longer = hl_format("%s%.*s", *said, (int)(from - line), line);
        free(*said);
        *said = longer;
    }
    stream->bytes = (size_t)(to - stream->at);
}

/* The pages in "... 12 pages hugetlb, rodata 1 page thp"; advised ones are none. */
static uint64_t count_pages(const char *said) {
    static const char *const backends[] = {"hugetlb", "thp", "shared", "file"};
    uint64_t sum = 0;
    unsigned long pages;
    char backend[8];
    for (const char *at = strchr(said, ' '); at != NULL; at = strchr(at + 1, ' ')) {
        int end = 0;
        if (sscanf(at, " %lu page%*1[s] %7[a-z]%n", &pages, backend, &end) != 2 &&
            sscanf(at, " %lu page %7[a-z]%n", &pages, backend, &end) != 2)
            continue;
        for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
            if (strcmp(backend, backends[i]) == 0 && at[end] != ' ')
                sum += pages;
    }
    return sum;
}

static void fill_values(struct hl_trial *trial, const struct stamp *start, const struct timespec *end,
                        const struct rusage *usage) {
    trial->value[HL_WALL] = milliseconds(end) - milliseconds(&start->time);
    trial->value[HL_USER] = milliseconds_used(&usage->ru_utime) - milliseconds_used(&start->usage.ru_utime);
    trial->value[HL_SYSTEM] = milliseconds_used(&usage->ru_stime) - milliseconds_used(&start->usage.ru_stime);
    trial->value[HL_MINOR_FAULTS] = (double)(usage->ru_minflt - start->usage.ru_minflt);
    trial->value[HL_MAJOR_FAULTS] = (double)(usage->ru_majflt - start->usage.ru_majflt);
    trial->value[HL_PEAK_RSS] = (double)usage->ru_maxrss;
    trial->value[HL_PAGES] = (double)count_pages(trial->said);
}

/* Starts the child and waits for it. */
static int run_once(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                    const int *stream, struct stamp *stamp, struct hl_trial *trial) {
    int gate[2] = {-1, -1}, result = 0;
    struct timespec end;
    struct rusage usage = {0};
    if (maps != NULL && pipe2(gate, O_CLOEXEC) != 0)
        return -errno;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(gate[1]);
        run_child(subject, side, stream, log, gate[0], stamp);
    }
    if (child < 0)
        result = -errno;
    if (gate[0] >= 0)
        close(gate[0]);
    if (child > 0 && maps != NULL)
        trial->status = hl_trace_program(child, gate[1], maps, &usage);
    else if (gate[1] >= 0)
        close(gate[1]);
    while (child > 0 && maps == NULL && wait4(child, &trial->status, 0, &usage) < 0 && errno == EINTR)
        ;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (result != 0)
        return result;
    for (int i = 0; i < 2; i++) {
        trial->stream[i] = read_stream(stream[i]);
        take_lines(&trial->stream[i], &trial->said);
    }
    fill_values(trial, stamp, &end, &usage);
    return 0;
}

int hl_try_program(const struct hl_subject *subject, enum hl_side side, json_t *maps, int log,
                   struct hl_trial *trial) {
    int stream[2] = {memfd_create("output", MFD_CLOEXEC), memfd_create("errors", MFD_CLOEXEC)}, result;
    struct stamp *stamp =
        mmap(NULL, sizeof *stamp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(trial, 0, sizeof *trial);
    trial->said = hl_format("%s", "");
    if (stream[0] < 0 || stream[1] < 0 || stamp == MAP_FAILED)
        result = -errno;
    else
        result = run_once(subject, side, maps, log, stream, stamp, trial);
    if (stamp != MAP_FAILED)
        munmap(stamp, sizeof *stamp);
    for (int i = 0; i < 2; i++)
        if (stream[i] >= 0)
            close(stream[i]);
    return result;
}

void hl_free_trial(struct hl_trial *trial) {
    free(trial->stream[0].at);
    free(trial->stream[1].at);
    free(trial->said);
    memset(trial, 0, sizeof *trial);
}
