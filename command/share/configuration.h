/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The administrator's configuration: /etc/hugeld/hugeld.conf, a line "name = value" for each setting; '#' begins a comment line.
   There is no other place for declarations: `hugeld enable` writes here, too. */
#ifndef HL_CONFIGURATION_H
#define HL_CONFIGURATION_H

#include "command/base/basics.h"

#define HL_CONFIGURATION "/etc/hugeld/hugeld.conf"

/* The part of the machine's /run that a service in a container shares: so there is one service, and one switch. */
#define HL_SERVICE_FOLDER "/run/hugeld-service"
/* While this file exists, nothing is made unless a person has just asked for it. */
#define HL_SERVICE_STOP HL_SERVICE_FOLDER "/stop"

bool hl_is_service_stopped(void);

struct hl_configuration {
    struct hl_texts enabled; /* absolute paths, globs of these, and units of systemd ("name.service") */
    bool observes;           /* whether text that runs is sampled */
    double window_seconds, interval_seconds; /* the length of a sample, and the time between two */
    bool any_disk;                           /* enabled files may lie on disks that may be exchanged */
    bool acts;                               /* whether observed text is put in place, and then: */
    double canary_percent;                   /* the percentage of all machines that begin */
    double delay_seconds;                    /* at most, after a start and after an upgrade */
    double pages_per_minute;
    double budget_mib; /* 0: 2 % of the memory, at most 1 GiB */
    char *metrics;     /* the file for them (metrics.h); NULL: none */
    struct hl_texts eligible,
        excluded; /* which files are looked at: patterns of paths for fnmatch(3), in which '*' also matches
                     '/' */
};

/* Reads PATH; without a file at HL_CONFIGURATION, the defaults apply.  hl_free_configuration frees it, after 0 only.  0; or
   -EINVAL, or another negated errno: the error was reported in one line, and CONFIGURATION is unchanged. */
int hl_read_configuration(struct hl_configuration *configuration, const char *path);
void hl_free_configuration(struct hl_configuration *configuration);

/* The most names that are looked at for one entry. */
#define HL_ENABLED_NAMES_MAX 65536
#define HL_ENABLED_NAMES_TOO_MANY                                                                            \
    "it has more than 65536 names, and only the first 65536 are looked at; name fewer"
_Static_assert(HL_ENABLED_NAMES_MAX == 65536, "as the sentence says");

/* Finds the files that the enabled ENTRY means now.  False, after one line: there are none, or one is left out.  The caller frees
   them by hl_free_texts in each case. */
bool hl_expand_enabled(struct hl_texts *files, const char *entry, const char *configuration);

/* Whether NAME is a unit's, as in name.service. */
bool hl_is_unit(const char *name);

/* Takes the lock of HL_CONFIGURATION, which is held during each change, so that no change is lost: waits for it, and makes its
   folder.  A descriptor for hl_unlock_configuration, which leaves no empty folder; or a negated errno, after a message. */
int hl_lock_configuration(void);
void hl_unlock_configuration(int lock);

/* Adds a line that enables ENTRY to HL_CONFIGURATION, and makes the file if there is none; or removes each such line, and the file
   if nothing else is in it.  The caller holds the lock.  Everything else stays as it is, and a reader meanwhile sees a complete
   file.  *CHANGED: whether there was anything to do.  0, or a negated errno, after a message. */
int hl_enable_entry(const char *entry, bool *changed);
int hl_disable_entry(const char *entry, bool *changed);

#endif
