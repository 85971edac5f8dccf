/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* perf_map=on: the process writes its own map. */
#ifndef HL_IN_PROCESS_H
#define HL_IN_PROCESS_H

#include "context.h"

/* After hl_move_objects and before hl_end, with signals blocked as there, so that no unfinished file is
   left: writes /tmp/perf-PID.map with the functions of all text that moved, if the options ask for it;
   those of objects that come later are added, but not in a child that was forked.  An error costs only the
   map; verbose=1 reports it. */
void hl_write_own_map(struct hl_context *context);

#endif
