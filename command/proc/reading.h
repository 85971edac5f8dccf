/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Looks at what processes have mapped, without being stopped by one of them for ever.

   A process can have its memory map locked (mmap_lock) for as long as it likes, by a FUSE that does not answer.  Who reads its maps
   then waits, and only death ends that.  So a service notes in a file whose maps it reads, and a clock ends it; after two such ends it
   leaves that user's processes out.  Without hl_limit_readings or hl_watch_readings, nothing of this is done. */
#ifndef HL_READING_H
#define HL_READING_H

#include <stdbool.h>
#include <sys/types.h>

/* From now on, this process ends by SIGALRM where a reading takes thirty seconds, also if that was blocked or ignored. */
void hl_limit_readings(void);

/* The same, and what is being read is noted at PATH, in a folder of root's.  A user whose processes were being read at the end of two
   services is left out from the third one on, which says so; root's processes one by one. */
void hl_watch_readings(const char *path);

/* Before what PROCESS has mapped is read, and after that.  False: it is left out, and must not be read. */
bool hl_begin_reading(pid_t process);
void hl_end_reading(void);

/* How many users, and processes of root's, are left out. */
unsigned hl_count_left_out(void);

#endif
