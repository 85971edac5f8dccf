/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the service did and has seen, as the textfile collector of Prometheus' node_exporter reads it. */
#ifndef HL_METRICS_H
#define HL_METRICS_H

#include "command/service/act.h"
#include "command/service/keep.h"
#include "command/service/observe.h"

/* The whole text.  The caller frees it. */
char *hl_format_metrics(const struct hl_keeper_counts *kept, struct hl_observer *observer,
                        const struct hl_act_counts *acts, bool is_stopped);

/* Puts it at PATH, where a reader sees the old one or the new one.  The folder may be another user's, but a symbolic link of his on
   the way there is not followed, and no file system is waited for.  0; -ELOOP: there is such a link; -EREMOTE: it may not answer
   (base/local.h); or another negated errno. */
int hl_write_metrics(const char *path, const char *text);

/* Removes what is at PATH, if that may be asked for in the same way. */
void hl_remove_metrics(const char *path);

#endif
