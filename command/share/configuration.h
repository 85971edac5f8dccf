/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What an administrator wants: /etc/hugeld/hugeld.conf, a line "name = value" for each setting; '#' begins a line that is a
   comment.  There is no other place where anything is declared: `hugeld enable` writes here, too. */
#ifndef HL_CONFIGURATION_H
#define HL_CONFIGURATION_H

#include "command/base/basics.h"

#define HL_CONFIGURATION "/etc/hugeld/hugeld.conf"

/* What a service that is in a container has of the machine's /run: so there is one service, and one switch. */
#define HL_SERVICE_FOLDER "/run/hugeld-service"
/* As long as this is there, nothing is made that no person has asked for just now. */
#define HL_SERVICE_STOP HL_SERVICE_FOLDER "/stop"

bool hl_is_service_stopped(void);

struct hl_configuration {
    struct hl_texts enabled; /* absolute paths, globs of these, and units of systemd ("name.service") */
    bool observes;           /* whether text that runs is sampled */
    double window_seconds, interval_seconds; /* for so long, and so often */
    bool any_disk;                           /* what is enabled may lie on disks that may be exchanged */
    bool acts;                               /* whether observed text is put in place, and then: */
    double canary_percent;                   /* of all machines, which begin */
    double delay_seconds;                    /* at most, after a start and after an upgrade */
    double pages_per_minute;
    double budget_mib; /* 0: 2 % of the memory, at most 1 GiB */
    char *metrics;     /* where to write them (metrics.h); NULL: nowhere */
    struct hl_texts eligible,
        excluded; /* fnmatch(3) of paths, where '*' goes across '/': which files are looked at */
};

/* Reads PATH; without a file at HL_CONFIGURATION everything is as it is by default.  hl_free_configuration frees it, after 0 only.
   0; or -EINVAL, or another negated errno: what is wrong was said in one line, and CONFIGURATION is as it was. */
int hl_read_configuration(struct hl_configuration *configuration, const char *path);
void hl_free_configuration(struct hl_configuration *configuration);

/* Of one entry so many names are looked at. */
#define HL_ENABLED_NAMES_MAX 65536
#define HL_ENABLED_NAMES_TOO_MANY                                                                            \
    "it has more than 65536 names, and only the first 65536 are looked at; name fewer"
_Static_assert(HL_ENABLED_NAMES_MAX == 65536, "as the sentence says");

/* The files that ENTRY of the enabled ones means now.  False, and one line says it: there are none, or one is left out.  The
   caller frees them by hl_free_texts in each case. */
bool hl_expand_enabled(struct hl_texts *files, const char *entry, const char *configuration);

/* Whether NAME is a unit's, as in name.service. */
bool hl_is_unit(const char *name);

/* Who changes HL_CONFIGURATION holds its lock, so that no change is lost: waits for it, and makes its folder.  A descriptor for
   hl_unlock_configuration, which leaves no empty folder; or a negated errno: it was said what is wrong. */
int hl_lock_configuration(void);
void hl_unlock_configuration(int lock);

/* Adds a line that enables ENTRY to HL_CONFIGURATION, and makes the file if there is none; or takes away each such line, and
   the file if nothing else is in it.  The caller holds the lock.  Everything else stays as it is, and a reader meanwhile sees it
   whole.  *CHANGED: whether there was anything to do.  0, or a negated errno: it was said what is wrong. */
int hl_enable_entry(const char *entry, bool *changed);
int hl_disable_entry(const char *entry, bool *changed);

#endif
