/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds files of the configuration that were not there before: installed later, on a disk that was mounted later, or back again.

   They cannot be watched, since no event tells that a file system was mounted, so their paths are looked at every ten seconds,
   with at most one hundredth of this process's time. */
#ifndef HL_LOOKOUT_H
#define HL_LOOKOUT_H

#include "command/share/configuration.h"

#include <stdint.h>
#include <sys/types.h>

struct hl_lookout;

/* A regular file of the enabled ENTRY, unchanged for some seconds.  IS_INSIDE: it lies in a folder, where most files are of no
   use.  WAS_THERE: it existed when the configuration was read, so its errors were printed then.  False: it is to be shown again. */
typedef bool hl_handle_file(void *data, const char *path, const char *entry, bool is_inside, bool was_there);

struct hl_lookout *hl_start_looking_out(void);
void hl_stop_looking_out(struct hl_lookout *lookout);

/* The configuration was read, and all images that it enables are about to be made, or have been. */
void hl_look_out_anew(struct hl_lookout *lookout);

/* The file system DEVICE was unmounted: files that are mounted there again count as new. */
void hl_forget_device(struct hl_lookout *lookout, dev_t device);

/* Nothing may be made now: looks again in ten seconds. */
void hl_look_out_later(struct hl_lookout *lookout);

/* hl_now_ms, when hl_look_out has work next. */
double hl_find_look(const struct hl_lookout *lookout, const struct hl_configuration *configuration);

/* Looks for some milliseconds, if it is time, and calls HANDLE with DATA for the next file that is new.  CONFIGURATION may have
   changed only after hl_look_out_anew. */
void hl_look_out(struct hl_lookout *lookout, const struct hl_configuration *configuration,
                 hl_handle_file *handle, void *data);

#endif
