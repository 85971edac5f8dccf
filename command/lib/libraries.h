/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The libraries that a program is linked with. */
#ifndef HL_LIBRARIES_H
#define HL_LIBRARIES_H

#include "command/lib/basics.h"
#include "command/lib/elf-file.h"

/* Lists the libraries that the dynamic linker loads for the program at EXECUTABLE, which is FILE, in its order and without itself.
   The linker would execute the auditing libraries that a program names (DT_AUDIT), so such a program's libraries are not listed,
   and for root the linker runs as nobody, unless the program is root's and IS_OURS: the user named it, to be started like this.
   NULL, or why they are not known, which the caller frees; also LIBRARIES, by hl_free_texts. */
char *hl_list_libraries(struct hl_texts *libraries, const char *executable, const struct hl_elf_file *file,
                        bool is_ours);

#endif
