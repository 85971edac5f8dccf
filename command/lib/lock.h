/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock of root's, or of one user's, by a file that no other user can open. */
#ifndef HL_LOCK_H
#define HL_LOCK_H

#include <stdbool.h>

/* By which a process waits for a lock: hl_now_ms and a sleep, or a test's. */
struct hl_lock_clock {
    double (*now_ms)(void);
    void (*sleep_ms)(long ms);
};
extern const struct hl_lock_clock hl_lock_clock;

/* Whether NAME in FOLDER (or AT_FDCWD) still leads to the open FILE, and is no symbolic link. */
bool hl_is_at(int file, int folder, const char *name);

/* Opens the file NAME in FOLDER (or AT_FDCWD), where no other user can write, or makes it, so that no other user can open it, and
   locks it (flock).  If another process has it, waits ten seconds by CLOCK for it, and says so.  A descriptor; -EWOULDBLOCK: another
   process still has it; or another negated errno, without a message. */
int hl_lock_path(int folder, const char *name, const struct hl_lock_clock *clock);

#endif
