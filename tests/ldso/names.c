/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* LD_AUDIT: tells the names by which objects are searched, opened and closed, on standard output. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <string.h>

unsigned la_version(unsigned version) { return version; }

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
    (void)cookie;
    if (strstr(name, "libbig") != NULL)
        printf("search %s %u\n", name, flag);
    return (char *)name;
}

unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) {
    (void)cookie;
    if (strstr(map->l_name, "libbig") != NULL)
        printf("open %s %ld\n", map->l_name, (long)id);
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
