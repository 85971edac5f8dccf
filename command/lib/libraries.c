/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The libraries that a program is linked with, as listed by its dynamic linker.

   Only the system's own linker is run, the one that runs this command: a file's PT_INTERP could name anything.  A file's owner can
   replace it after it was checked, so any code that the linker could be made to execute has the rights of the user nobody. */
#include "command/lib/libraries.h"
#include "command/lib/subprocess.h"
#include "command/lib/common.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds the PT_INTERP of the first object, which is this command. */
static int find_own_interpreter(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_INTERP)
            *(const char **)data = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return 1;
}

/* The dynamic linker of FILE, if it is this command's too; else NULL.  The string is static. */
static const char *find_linker(const struct hl_elf_file *file) {
    char *name = hl_read_interpreter(file);
    const char *own = NULL;
    dl_iterate_phdr(find_own_interpreter, &own);
    bool is_own = name != NULL && own != NULL && strcmp(name, own) == 0;
    free(name);
    return is_own ? own : NULL;
}

/* "\tlibc.so.6 => /lib/libc.so.6 (0x...)": the path in it, terminated in place; NULL if it names no file. */
static char *find_listed(char *line) {
    char *arrow = strstr(line, " => "), *end = strstr(line, " (0x");
    char *path = arrow != NULL ? arrow + strlen(" => ") : line + strspn(line, "\t");
    if (end == NULL || strchr(path, '/') == NULL)
        return NULL;
    *end = '\0';
    return path;
}

static bool is_audited(const struct hl_elf_file *file) {
    for (size_t i = 0; i < file->n_dyn && file->dyn[i].d_tag != DT_NULL; i++)
        if (file->dyn[i].d_tag == DT_AUDIT || file->dyn[i].d_tag == DT_DEPAUDIT)
            return true;
    return false;
}

char *hl_list_libraries(struct hl_texts *libraries, const char *executable, const struct hl_elf_file *file,
                        bool is_ours) {
    const char *linker = find_linker(file);
    const char *const argv[] = {linker, "--list", executable, NULL};
    struct hl_answer answer;
    char *rest, *problem = NULL;
    *libraries = (struct hl_texts){0};
    if (linker == NULL)
        return hl_xasprintf("its dynamic linker is not the system's");
    if (is_audited(file))
        return hl_xasprintf(
            "its libraries cannot be listed: it names an auditing library, which would be executed");
    bool is_nobodys = geteuid() == 0 && (!is_ours || file->stat.st_uid != 0);
    hl_ask_program(&answer, linker, (char *const *)argv, is_nobodys, NULL);
    if (!answer.succeeded)
        problem = hl_xasprintf("its libraries cannot be listed (%.*s)", (int)strcspn(answer.errors, "\n"),
                               answer.errors);
    for (char *line = strtok_r(answer.output, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *path = find_listed(line);
        if (path != NULL && strcmp(path, linker) != 0)
            hl_add_to_texts(libraries, path);
    }
    hl_free_answer(&answer);
    return problem;
}
