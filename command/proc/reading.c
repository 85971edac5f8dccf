/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/proc/reading.h"
#include "command/base/basics.h"
#include "command/proc/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_MAX 30
/* Then everything is left out: users of a user namespace cost nothing. */
#define LEFT_OUT_MAX 64

struct left_out {
    uid_t user;
    pid_t process;    /* of root's this one alone, */
    uint64_t started; /* in ticks since boot */
    unsigned times;   /* that a service has ended while it read this; once may be chance */
};

/* The file. */
static struct note {
    volatile pid_t process; /* whose maps are being read, or 0, */
    uint64_t since;         /* in ticks since boot */
    unsigned n;
    struct left_out left_out[LEFT_OUT_MAX];
} * note;

static bool has_limit;

static uint64_t read_ticks(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return ((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000) * (uint64_t)sysconf(_SC_CLK_TCK) /
           1000;
}

/* Who has started PROCESS, also if that has more rights by now.  False: it has ended. */
static bool identify(pid_t process, struct left_out *found) {
    struct hl_usage usage;
    uid_t effective;
    bool is_known = hl_read_users(process, &found->user, &effective) && hl_read_usage(process, &usage) == 0;
    found->process = process;
    found->started = is_known ? usage.started : 0;
    return is_known;
}

static bool is_same(const struct left_out *a, const struct left_out *b) {
    return a->user == b->user && (a->user != 0 || (a->process == b->process && a->started == b->started));
}

/* The entry that PROCESS, which OWN is of, belongs to; or NULL. */
static struct left_out *find_entry(const struct left_out *own) {
    for (unsigned i = 0; i < note->n; i++)
        if (is_same(own, &note->left_out[i]))
            return &note->left_out[i];
    return NULL;
}

static bool is_left_out(pid_t process) {
    struct left_out own;
    if (note->n == LEFT_OUT_MAX)
        return true;
    const struct left_out *entry = identify(process, &own) ? find_entry(&own) : NULL;
    return entry != NULL && entry->times > 1;
}

/* PROCESS was read when the process before this one ended. */
static void count_end(pid_t process) {
    struct left_out own;
    if (note->n == LEFT_OUT_MAX || !identify(process, &own) || own.started > note->since)
        return;
    struct left_out *entry = find_entry(&own);
    if (entry == NULL) {
        entry = &note->left_out[note->n++];
        *entry = own;
        entry->times = 0;
    }
    if (++entry->times < 2 && note->n < LEFT_OUT_MAX)
        return;
    hl_warn(
        "service: it has ended twice while it looked at what process %d of user %u has mapped, as after %d s "
        "of a FUSE that does not answer; %s left out until the service is stopped",
        process, own.user, SECONDS_MAX,
        note->n == LEFT_OUT_MAX ? "after very many of these, all processes are"
        : own.user == 0         ? "it is"
                                : "all processes of this user are");
}

void hl_limit_readings(void) {
    sigset_t clock;
    signal(SIGALRM, SIG_DFL);
    sigemptyset(&clock);
    sigaddset(&clock, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &clock, NULL);
    has_limit = true;
}

void hl_watch_readings(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    void *at = file >= 0 && posix_fallocate(file, 0, sizeof *note) == 0
                   ? mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                   : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (at == MAP_FAILED)
        return;
    note = at;
    hl_limit_readings();
    if (note->n > LEFT_OUT_MAX)
        note->n = 0;
    if (note->process > 0)
        count_end(note->process);
    note->process = 0;
}

bool hl_begin_reading(pid_t process) {
    if (note != NULL && note->n > 0 && is_left_out(process))
        return false;
    if (note != NULL) {
        note->since = read_ticks();
        note->process = process;
    }
    if (has_limit)
        alarm(SECONDS_MAX);
    return true;
}

void hl_end_reading(void) {
    if (has_limit)
        alarm(0);
    if (note != NULL)
        note->process = 0;
}

unsigned hl_count_left_out(void) {
    unsigned n = 0;
    for (unsigned i = 0; note != NULL && i < note->n; i++)
        n += note->left_out[i].times > 1;
    return n;
}
