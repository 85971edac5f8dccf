/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The counts of the service, for the textfile collector of Prometheus' node_exporter. */
#ifndef HL_METRICS_H
#define HL_METRICS_H

#include "command/service/act.h"
#include "command/service/keep.h"
#include "command/service/observe.h"

/* The whole text.  The caller frees it. */
char *hl_format_metrics(const struct hl_keeper_counts *kept, struct hl_observer *observer,
                        const struct hl_act_counts *acts, bool is_stopped);

/* Puts TEXT at PATH, where a reader sees the old file or the new one.  The folder may be another user's, but a symbolic link of
   that user on the way there is not followed, and no file system is waited for.  0; -ELOOP: there is such a link; -EREMOTE: a
   file system may not answer (base/local.h); or another negated errno. */
int hl_write_metrics(const char *path, const char *text);

/* Removes the file at PATH, under the same conditions. */
void hl_remove_metrics(const char *path);

#endif
