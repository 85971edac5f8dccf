/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program is linked with. */
#ifndef HL_LIBRARIES_H
#define HL_LIBRARIES_H

#include "command/file/elf-file.h"

struct hl_libraries {
    char *problem; /* why they are not known; or NULL */
    size_t n;
    char **path;
};

/* Lists the libraries that the dynamic linker loads for the program at EXECUTABLE, which is FILE, in its order and without
   itself.  The linker would execute the auditing libraries that a program names (DT_AUDIT), so such a program's are not listed,
   and root asks as nobody, unless the program is root's and IS_OURS: named to be started as we would start it.  hl_free_libraries frees
   LIBRARIES. */
void hl_list_libraries(struct hl_libraries *libraries, const char *executable, const struct hl_elf_file *file,
                       bool is_ours);
void hl_free_libraries(struct hl_libraries *libraries);

#endif
