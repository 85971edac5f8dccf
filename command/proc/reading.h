/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the mappings of processes, without being stopped for ever by one of them.

   A process can keep its memory map locked (mmap_lock) for as long as it likes, with a FUSE that does not answer.  A reader of its
   maps then waits, and only its death ends that.  So a service notes in a file which process it reads, and an alarm ends the
   service; after two such ends it leaves that user's processes out.  Without hl_limit_readings or hl_watch_readings, none of this
   is done. */
#ifndef HL_READING_H
#define HL_READING_H

#include <stdbool.h>
#include <sys/types.h>

/* From now on, SIGALRM ends this process if a reading takes thirty seconds, even if the signal was blocked or ignored. */
void hl_limit_readings(void);

/* The same, and the process being read is noted at PATH, in a folder of root's.  A user whose processes were being read at the end
   of two services is left out from the third one on, which says so; root's processes are left out one by one. */
void hl_watch_readings(const char *path);

/* Called before and after the mappings of PROCESS are read.  False: it is left out, and must not be read. */
bool hl_begin_reading(pid_t process);
void hl_end_reading(void);

/* How many users, and processes of root's, are left out. */
unsigned hl_count_left_out(void);

#endif
