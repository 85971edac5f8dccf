/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The least that an audit module can be which learns of new objects (rtld-audit(7)): what bench/later weighs
   against the way that hugeld takes. */
#include <link.h>

unsigned la_version(unsigned version) { return version; }

void la_activity(uintptr_t *cookie, unsigned flag) {
    (void)cookie;
    (void)flag;
}
