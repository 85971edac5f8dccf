/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Puts text that was observed on small pages in place, where that cannot hurt: one huge page at a time, and only with `act = yes`.

   Any user who can read a file may do the same to it (image/in-place.c): so no user gains anything by making root do it, and
   only the amount and the time need limits. */
#ifndef HL_ACT_H
#define HL_ACT_H

#include "command/service/observe.h"

/* Since the service was started. */
struct hl_act_counts {
    uint64_t huge, failed; /* huge pages that were put in place; that were tried and stayed small */
    uint64_t lost;         /* pages that were in place, and small again later */
    uint64_t put_off;      /* acts that were due while the machine was too busy */
    uint64_t kept_bytes;   /* in place now, as far as that is known */
};

struct hl_actor;

struct hl_actor *hl_start_acting(void);
void hl_stop_acting(struct hl_actor *actor);

/* Milliseconds until hl_act may have work, under CONFIGURATION; -1: not before a window has ended. */
int hl_actor_timeout(const struct hl_actor *actor, const struct hl_configuration *configuration);

/* A window has ended: looks for an act after the rest that is due, if any. */
void hl_look_for_acts(struct hl_actor *actor);

/* The same without that rest: the configuration was read again. */
void hl_act_anew(struct hl_actor *actor);

/* Does the act that is due, one huge page at most, in less than a second, and prints it in one line; MAY: no kill switch is
   there.  True: it was done or tried. */
bool hl_act(struct hl_actor *actor, struct hl_observer *observer,
            const struct hl_configuration *configuration, bool may);

const struct hl_act_counts *hl_read_acts(const struct hl_actor *actor);

/* The counts, and why nothing is done now. */
json_t *hl_json_acts(const struct hl_actor *actor, const struct hl_configuration *configuration);

#endif
