/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run --share: images of what is about to run. */
#ifndef HL_RUN_SHARE_H
#define HL_RUN_SHARE_H

#include "options.h"

/* Adds what is missing of EXECUTABLE and of the libraries that it is linked with, as far as PATTERNS select
   them, to the store that OPTIONS name, else to the one that this user fills.  What cannot be added is told in
   one line; what would gain nothing is not. */
void hl_share_program(const char *executable, struct hl_string patterns, const struct hl_options *options);

/* Says it if a store has an image of EXECUTABLE that is not used because only attributes of the file have changed. */
void hl_tell_of_attributes(const char *executable, const struct hl_options *options);

#endif
