/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reasons and remedies of reason.def, for a file. */
#ifndef HL_REMEDY_H
#define HL_REMEDY_H

#include "elf/reason.h"

/* REMEDY of reason.def with PATH, quoted for a shell, in the place of FILE; the caller frees it. */
char *hl_name_file(const char *remedy, const char *path);

/* The sentence of REASON in reason.def, with its remedy if it has one and PATH in the place of FILE; the caller frees it. */
char *hl_explain_reason(enum hl_reason reason, const char *path);

#endif
