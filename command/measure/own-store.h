/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: images for the measurement alone. */
#ifndef HL_BENCH_OWN_STORE_H
#define HL_BENCH_OWN_STORE_H

#include "command/measure/bench.h"

struct hl_own_store {
    pid_t remover; /* a child of this process, or 0: there is no store */
    int alive;     /* the store is removed as soon as this is closed, also by the end of this process */
};

/* Where `hugeld run` would start SUBJECT as it is for lack of images: makes those of the objects in MAPS, which are a plain run's, in
   a store that it adds to the subject's options.  MADE gets the originals' paths.  NULL, or why an image could not be made; the
   caller frees it. */
char *hl_make_own_images(struct hl_own_store *own, struct hl_subject *subject, const json_t *maps,
                         json_t *made);
void hl_remove_own_store(struct hl_own_store *own);

#endif
