/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starting a program on huge pages with nothing of hugeld in it. */
#ifndef HL_RUN_BARE_H
#define HL_RUN_BARE_H

#include "exec-stop.h"

/* The objects that are asked for: GIVEN (-p), else LD_HUGEPAGES, else the executable alone.  It lives as long as they. */
struct hl_string hl_find_patterns(const char *given);

/* Whether PATTERNS select the executable at PATH. */
bool hl_selects_main(struct hl_string patterns, const char *path);

/* Whether the program at PATH, called NAME, has its executable on huge pages as soon as it is executed next, with nothing of
   hugeld in it: its file is kept so in place, or it has an image and begins on that; then *STOP is what hl_start_exec_stop
   gives, else NULL.  At verbose=1 one line says why not, where it has an image, or that it is in place. */
bool hl_choose_bare(struct hl_exec_stop **stop, const struct hl_options *options, struct hl_string patterns,
                    const char *path, const char *name);

#endif
