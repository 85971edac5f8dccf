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
#include <unistd.h>

#define SECONDS_MAX 30
/* With so many entries everything is left out: users of a user namespace cost nothing. */
#define LEFT_OUT_MAX 64

struct left_out {
    uid_t user;
    pid_t process;    /* if the user is root: this one alone */
    uint64_t started; /* in ticks since boot */
    unsigned times;   /* how often a service has ended while it read this; once may be chance */
};

/* The contents of the file. */
static struct note {
    volatile bool is_reading; /* whether the maps of READ are being read */
    struct left_out read;     /* as it was then: it may have ended before the next start */
    unsigned n;
    struct left_out left_out[LEFT_OUT_MAX];
} * note;

static bool has_limit;

/* Finds the user who has started PROCESS, even if it has more rights by now.  False: it has ended. */
static bool identify(pid_t process, struct left_out *found) {
    struct hl_task_status status;
    struct hl_usage usage;
    bool is_known =
        hl_read_thread_status(&status, process, process) == 0 && hl_read_usage(process, &usage) == 0;
    found->user = status.user;
    found->process = process;
    found->started = is_known ? usage.started : 0;
    return is_known;
}

static bool is_same(const struct left_out *a, const struct left_out *b) {
    return a->user == b->user && (a->user != 0 || (a->process == b->process && a->started == b->started));
}

/* The entry for the process of OWN; or NULL. */
static struct left_out *find_entry(const struct left_out *own) {
    for (unsigned i = 0; i < note->n; i++)
        if (is_same(own, &note->left_out[i]))
            return &note->left_out[i];
    return NULL;
}

static bool is_left_out(const struct left_out *own) {
    const struct left_out *entry = find_entry(own);
    return note->n == LEFT_OUT_MAX || (entry != NULL && entry->times > 1);
}

/* Counts an end: note->read was being read when the service before this one ended. */
static void count_end(void) {
    if (note->n == LEFT_OUT_MAX)
        return;
    struct left_out *entry = find_entry(&note->read);
    if (entry == NULL) {
        entry = &note->left_out[note->n++];
        *entry = note->read;
        entry->times = 0;
    }
    if (++entry->times < 2 && note->n < LEFT_OUT_MAX)
        return;
    hl_warn("service: it has ended %s while it read the mappings of process %d of user %u, as after %d s of "
            "a FUSE that does not answer; %s left out until the service is stopped",
            entry->times > 1 ? "twice" : "once more", note->read.process, entry->user, SECONDS_MAX,
            note->n == LEFT_OUT_MAX ? "after very many of these, all processes are"
            : entry->user == 0      ? "it is"
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
    hl_limit_readings(); /* also where there is no room for the note */
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    void *at = file >= 0 && posix_fallocate(file, 0, sizeof *note) == 0
                   ? mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                   : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (at == MAP_FAILED)
        return;
    note = at;
    if (note->n > LEFT_OUT_MAX)
        note->n = 0;
    if (note->is_reading)
        count_end();
    note->is_reading = false;
}

bool hl_begin_reading(pid_t process) {
    struct left_out own;
    bool is_noted = note != NULL && identify(process, &own);
    if (is_noted && is_left_out(&own))
        return false;
    if (is_noted) {
        note->read = own;
        note->is_reading = true;
    }
    if (has_limit)
        alarm(SECONDS_MAX);
    return true;
}

void hl_end_reading(void) {
    if (has_limit)
        alarm(0);
    if (note != NULL)
        note->is_reading = false;
}

unsigned hl_count_left_out(void) {
    unsigned n = 0;
    for (unsigned i = 0; note != NULL && i < note->n; i++)
        n += note->left_out[i].times > 1 || note->n == LEFT_OUT_MAX;
    return n;
}
